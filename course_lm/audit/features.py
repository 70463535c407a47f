"""Settings that a loop may not have: what a run is like without each of them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from course_lm.audit import spec
from course_lm.audit.runs import Case, Constant, Epochs

PACKED = ("document_ids", "position_ids")


def _with(case: Case, **changes: Any) -> Case:
    return replace(case, settings=replace(case.settings, **changes))


def _without_schedule(case: Case) -> Case:
    return _with(case, schedule=Constant(case.settings.schedule(0)))


def _without_packing(case: Case) -> Case:
    epochs: Epochs = [
        [{name: batch[name] for name in batch if name not in PACKED} for batch in epoch] for epoch in case.epochs
    ]
    return replace(case, epochs=epochs)


_DEFAULTS = spec.Settings()

# Each feature that a loop may say it ignores, and the run as such a loop sees it.
WITHOUT: Mapping[str, Callable[[Case], Case]] = {
    "document_ids": _without_packing,
    "accumulation_steps": lambda case: _with(case, accumulation_steps=1),
    "max_grad_norm": lambda case: _with(case, max_grad_norm=None),
    "momentum": lambda case: _with(case, momentum=0.0),
    "weight_decay": lambda case: _with(case, weight_decay=0.0),
    "beta1": lambda case: _with(case, beta1=_DEFAULTS.beta1),
    "beta2": lambda case: _with(case, beta2=_DEFAULTS.beta2),
    "epsilon": lambda case: _with(case, epsilon=_DEFAULTS.epsilon),
    "schedule": _without_schedule,
    "loss_scale": lambda case: _with(case, loss_scale=1.0, overflow_steps=frozenset()),
    "overflow_steps": lambda case: _with(case, overflow_steps=frozenset()),
    "on_nonfinite": lambda case: _with(case, on_nonfinite="raise"),
    "validation": lambda case: _with(case, validation=()),
    "optimizer": lambda case: _with(case, optimizer="adamw"),
}

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
    for feature in features:
        case = WITHOUT[feature](case)
    return case
