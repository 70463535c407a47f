"""A checkpoint whose sharded tensors each rank writes by itself."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lm.checkpoints.files import prepare_save, write_checkpoint
from course_lm.checkpoints.form import TakenApart
from course_lm.checkpoints.parts import parts_folder, sums_of, write_parts, write_sums
from course_lm.distributed.ranks import Group


def save_sharded(path: str | os.PathLike[str], state: Mapping[str, Any], group: Group) -> None:
    """Write `state` as one file by rank 0, and a file beside it for the parts of each rank; all or nothing.

    A collective call. No rank needs memory for more than its parts. What lies under `path` is replaced by a rename of
    the one file, after everything else is on the disk. A state without sharded tensors has that file alone.

    Raises:
        OSError: a file cannot be written; what was saved before is untouched.
        ValueError: the state holds what a checkpoint cannot.
    """
    path, apart = Path(path), TakenApart(state)
    serial = group.leader_does(lambda: prepare_save(path.parent))
    if not apart.sharded:
        group.leader_does(lambda: write_checkpoint(path, apart, serial))
        return
    folder = parts_folder(path, serial)
    group.leader_does(folder.mkdir)
    write_parts(folder, apart.sharded)
    names = group.tell(sorted(file.name for file in folder.iterdir()))
    # each rank reads some of the files once more: what counts is what has reached the disk
    sums = group.gather(sums_of(folder, names[group.rank :: group.world]))
    every = {name: digest for part in sums for name, digest in part.items()}
    group.leader_does(lambda: write_checkpoint(path, apart, serial, parts=write_sums(folder, every)))
