"""Checkpoints (lesson 11): a file holds a whole state or does not exist, and loading it runs no code.

files.py saves, verifies and finds them; form.py is what stands in a file, parts.py what several ranks have written
beside one; atomic_write.py replaces a file at once. state.py takes weights and moments back.
"""

from course_lm.checkpoints.atomic_write import atomic_file, check_folder
from course_lm.checkpoints.files import (
    FORMAT_VERSION,
    RESUMABLE,
    CheckpointError,
    export_weights,
    latest_checkpoint,
    library_versions,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    saved_step,
)
from course_lm.checkpoints.form import as_plain
from course_lm.checkpoints.own_state import OwnState
from course_lm.checkpoints.state import (
    describe_difference,
    load_optimizer,
    load_weights,
    optimizer_state,
    undone_on_error,
    weights_for_use,
)

__all__ = [
    "FORMAT_VERSION",
    "RESUMABLE",
    "CheckpointError",
    "OwnState",
    "as_plain",
    "atomic_file",
    "check_folder",
    "describe_difference",
    "export_weights",
    "latest_checkpoint",
    "library_versions",
    "load_checkpoint",
    "load_optimizer",
    "load_weights",
    "optimizer_state",
    "prune_checkpoints",
    "save_checkpoint",
    "saved_step",
    "undone_on_error",
    "weights_for_use",
]
