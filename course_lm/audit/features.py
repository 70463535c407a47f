"""Settings that a loop may not have: what a run is like without each of them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from course_lm.audit import spec
from course_lm.audit.runs import Case, Constant, Epochs

PACKED = ("document_ids", "position_ids")
_DEFAULTS = spec.Settings()  # those of a loop that has no such setting, but for its schedule

# What a loop may say it ignores: packed rows, and each setting but `eos_id`, which is for the specification alone.
FEATURES = ("document_ids", *(name for name in vars(_DEFAULTS) if name != "eos_id"))

SKIPS = "on_nonfinite=raise"  # what a loop lacks that skips each window that is not finite, and never raises

# What a loop must say it ignores: if it does so in silence, it has the fault `schedule_never_moves`.
TO_BE_DECLARED = frozenset({"schedule"})

# A loop that says it ignores one of these is not asked for it: what it does instead is not known.
NOT_ASKED: Mapping[str, Callable[[Case], bool]] = {
    "optimizer": lambda case: case.settings.optimizer != "adamw",
    "on_nonfinite": lambda case: case.part == "finite" or bool(case.settings.overflow_steps),
    "overflow_steps": lambda case: bool(case.settings.overflow_steps),
    "loss_scale": lambda case: bool(case.settings.overflow_steps),
}


def without(case: Case, features: Collection[str]) -> Case:
    """The run as a loop without `features` sees it."""
    if "document_ids" in features:
        epochs: Epochs = [
            [{name: batch[name] for name in batch if name not in PACKED} for batch in one] for one in case.epochs
        ]
        case = replace(case, epochs=epochs)
    plain = {name: getattr(_DEFAULTS, name) for name in features if name not in ("document_ids", SKIPS)}
    if SKIPS in features:
        plain["on_nonfinite"] = "skip"
    if "schedule" in features:
        plain["schedule"] = Constant(case.settings.schedule(0))
    if "loss_scale" in features:  # without one nothing overflows
        plain["overflow_steps"] = _DEFAULTS.overflow_steps
    return replace(case, settings=replace(case.settings, **plain))
