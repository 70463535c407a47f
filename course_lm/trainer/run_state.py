"""What a checkpoint of a run holds: all that the rest of the run depends on."""

from typing import Any, NotRequired, get_type_hints, is_typeddict

from course_lm.batching.data import DataState
from course_lm.checkpoints import FORMAT_VERSION, describe_difference
from course_lm.trainer.log import Books
from course_lm.validation import ensure, require, require_kind, shown


class RunState(Books):
    """The state of a run between two steps, as tensors and plain data."""

    format_version: int
    step: int  # completed optimizer steps
    epoch: int  # complete passes over the data
    batch: int  # batches taken from the current one
    data: DataState
    held_out: NotRequired[str]  # fingerprint of the validation text, where `data.validation` names one
    model: dict[str, Any]  # `model.state_dict()`
    average: NotRequired[dict[str, Any]]  # where `training.average_weights` asks for one
    best_weights: dict[str, Any] | None  # of a run without a folder, once it has validated
    optimizer: dict[str, Any]  # see `checkpoints.optimizer_state`
    own: NotRequired[dict[str, Any] | list[Any]]  # what model, loss, clip and optimizer keep, see `own_of_ranks`
    scaler: dict[str, float]  # of the loss; empty outside fp16
    total_steps: int | None
    last_rate: float  # of the last completed step
    own_schedule: bool  # whether the schedule is a function of the user's own
    budget: NotRequired[dict[str, float]]  # seconds, where `training.time_budget` decides the length
    config: dict[str, Any]
    # What else decides how the rest is computed: a run that goes on with others is warned.
    parts: dict[str, str]
    parts_now: NotRequired[dict[str, str]]  # where the run itself has changed them
    machine: dict[str, str]


def checked_run_state(state: Any) -> RunState:
    """The state; ValueError, in one line, where it is no `RunState`: a part is missing, or is of another kind.

    Whether it fits this run's model, optimizer and data is seen where each of them takes its part.
    """
    _check(state, RunState, "the state")
    version = state["format_version"]
    require(version == FORMAT_VERSION, "the state's format_version", str(FORMAT_VERSION), version)
    difference = None if state["best_weights"] is None else describe_difference(state["best_weights"], state["model"])
    ensure(difference is None, f"the state's best_weights are those of another model: {difference}")
    return state


def _check(value: Any, form: Any, where: str) -> None:
    """Raise ValueError unless a value has the names of a `TypedDict`, and under each what its type says."""
    require(type(value) is dict, where, "a dict", value)
    hints = get_type_hints(form)
    absent = [name for name in hints if name in form.__required_keys__ and name not in value]
    if absent:
        raise ValueError(
            f"{where} lacks {', '.join(map(repr, absent[:3]))}{' and others' * (len(absent) > 3)}: it was written by "
            "an older version of course_lm, or is not the state of a run"
        )
    for name, part in value.items():
        ensure(name in hints, f"{where} has {shown(name)}, which this version of course_lm does not know")
        if is_typeddict(hints[name]):
            _check(part, hints[name], f"{where}'s {name}")
        else:
            require_kind(part, hints[name], f"{where}'s {name}")
            # whole numbers are counts here
            require(type(part) is not int or part >= 0, f"{where}'s {name}", "0 or more", part)
