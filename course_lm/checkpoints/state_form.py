"""Whether a state is that of a run: every part is there, of its type, and with a value that a run can have.

`Trainer.load_state_dict` asks before it changes anything, so that a state that is refused leaves no trace. Weights,
optimizer and random states are checked where they are loaded: in `weights`, `optimizer_state` and `rng`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from course_lm.checkpoints.weights import describe, describe_difference

_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_POSITION = ("epoch", "batch", "loader", "data", "last", "untaken", "ended")
_OF_SOME_RUNS = ("average",)  # the settings say of which; compared with them, and looked at, by the trainer


def check_run_state(state: Any, own: Mapping[str, Any], parameters: int) -> None:
    """Raise ValueError, in one line, where `state` is not what a trainer saves.

    Args:
        state: plain data, as `checkpoints.as_plain` returns it.
        own: what the trainer that is to load it would save now.
        parameters: number of parameters that its optimizer trains.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"the state of a run must be a dict, got {describe(state)}")
    _check_keys(state, own)
    for name, check in _CHECKS.items():
        check(state[name], name)
    _check_config(state["config"], own["config"])
    _check_best_weights(state["best_weights"], own["model"])
    _require(state["format_version"] == own["format_version"], "format_version", state, f"{own['format_version']}")
    _require(state["skipped_in_a_row"] <= state["skipped"], "skipped_in_a_row", state, "at most its skipped")


def _check_keys(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    absent = [name for name in own if name not in (*state, *_OF_SOME_RUNS)]
    if absent:
        raise ValueError(
            f"the state lacks {', '.join(map(repr, absent[:3]))}{' and others' * (len(absent) > 3)}: it was written by "
            "an older version of course_lm, or is not the state of a run"
        )
    unknown = next((name for name in state if name not in (*own, *_OF_SOME_RUNS)), None)
    if unknown is not None:
        raise ValueError(f"the state has {unknown!r}, which this version of course_lm does not know")


def _integer(least: int) -> Callable[[Any, str], None]:
    def check(value: Any, name: str) -> None:
        if type(value) is not int or not least <= value < 2**63:  # to isinstance, True is an int
            raise ValueError(f"the state's {name} must be an integer of at least {least}, got {describe(value)}")

    return check


def _check_number(value: Any, name: str) -> None:
    if type(value) not in (int, float):
        raise ValueError(f"the state's {name} must be a number, got {describe(value)}")


def _check_flag(value: Any, name: str) -> None:
    if type(value) is not bool:
        raise ValueError(f"the state's {name} must be True or False, got {describe(value)}")


def _check_dict(value: Any, name: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"the state's {name} must be a dict with names as keys, got {describe(value)}")


def _check_versions(value: Any, name: str) -> None:
    _check_dict(value, name)
    for key, version in value.items():
        if not isinstance(version, str):
            raise ValueError(f"the state's {name} must hold strings, got {describe(version)} for {key!r}")


def _check_parts(value: Any, name: str) -> None:
    _check_versions(value, name)
    if set(value) != {"model", "loss_fn", "clip"}:
        raise ValueError(f"the state's {name} must have model, loss_fn and clip, got {describe(list(value))}")


def _check_total(value: Any, name: str) -> None:
    if value is not None:
        _integer(1)(value, name)


def _check_scalars(value: Any, where: str) -> None:
    """No tensors: this is data to be printed and compared."""
    if isinstance(value, Tensor):
        raise ValueError(f"the state's {where} must hold no tensor, got {describe(value)}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_scalars(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_scalars(item, f"{where}[{index}]")


def _check_config(value: Any, own: Mapping[str, Any]) -> None:
    _check_dict(value, "config")
    _check_scalars(value, "config")
    for section, mine in own.items():
        if not isinstance(mine, Mapping):
            continue
        theirs = value.get(section)
        if not isinstance(theirs, Mapping):
            raise ValueError(f"the state's config has no section {section}")
        for key, one in theirs.items():
            if isinstance(one, Mapping | list | tuple) and isinstance(mine.get(key), bool | int | float | str):
                raise ValueError(f"the state's config has a {type(one).__name__} for {section}.{key}")


def _check_scaler(value: Any, name: str) -> None:
    """Empty outside fp16."""
    _check_dict(value, name)
    if not value:
        return
    if set(value) != set(_SCALER):
        raise ValueError(f"the state's {name} must have {', '.join(_SCALER)} or nothing, got {describe(list(value))}")
    for key in _SCALER[:3]:
        if type(value[key]) not in (int, float) or not 0 < value[key] < math.inf:
            raise ValueError(f"the state's {name} has {key} {describe(value[key])}, not a positive number")
    if not value["backoff_factor"] < 1 < value["growth_factor"]:
        raise ValueError(f"the state's {name} must have backoff_factor < 1 < growth_factor")
    if value["scale"] > 2.0**126:  # in fp32 the next larger one would be infinite
        raise ValueError(f"the state's {name} has scale {value['scale']:g}, more than fp32 can double")
    _integer(1)(value["growth_interval"], f"{name} growth_interval")
    _integer(0)(value["_growth_tracker"], f"{name} _growth_tracker")
    if value["growth_interval"] >= 2**31 or value["_growth_tracker"] >= 2**31:  # it counts in 32 bits
        raise ValueError(f"the state's {name} has a count of more than 2**31 steps")


def _check_position(value: Any, name: str) -> None:
    _check_dict(value, name)
    if set(value) != set(_POSITION):
        raise ValueError(f"the state's {name} must have {', '.join(_POSITION)}, got {describe(list(value))}")
    _integer(0)(value["epoch"], f"{name} epoch")
    _integer(0)(value["batch"], f"{name} batch")
    if value["loader"] is not None:
        _check_dict(value["loader"], f"{name} loader")
    for key in ("data", "last"):
        if value[key] is not None and not isinstance(value[key], str):
            raise ValueError(f"the state's {name} {key} must be a fingerprint or None, got {describe(value[key])}")
    if type(value["ended"]) is not bool:
        raise ValueError(f"the state's {name} ended must be true or false, got {describe(value['ended'])}")
    if not isinstance(value["untaken"], list) or not all(isinstance(batch, Mapping) for batch in value["untaken"]):
        raise ValueError(f"the state's {name} untaken must be a list of batches, got {describe(value['untaken'])}")
    for key in ("loader", "untaken"):
        _check_no_views(value[key], f"{name} {key}")


def _check_no_views(value: Any, where: str) -> None:
    """Refuse a tensor that is larger than its memory: one that repeats few numbers could grow to any size in a copy."""
    if isinstance(value, Tensor) and value.nbytes > value.untyped_storage().nbytes():
        raise ValueError(f"the state's {where} claims {value.nbytes} bytes, which it does not have")
    for key, item in (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    ):
        _check_no_views(item, f"{where}[{key!r}]")


def _check_best_weights(value: Any, model: Mapping[str, Any]) -> None:
    if value is None:
        return
    _check_dict(value, "best_weights")
    difference = describe_difference(value, model)
    if difference is not None:
        raise ValueError(f"the state's best_weights are those of another model: {difference}")


def _require(condition: bool, name: str, state: Mapping[str, Any], expected: str) -> None:
    if not condition:
        raise ValueError(f"the state's {name} must be {expected}, got {describe(state[name])}")


_CHECKS: dict[str, Callable[[Any, str], None]] = {
    **{name: _integer(0) for name in ("format_version", "step", "tokens", "skipped", "empty_in_a_row")},
    "skipped_in_a_row": _integer(0),
    "position": _check_position,
    "total_steps": _check_total,
    "last_rate": _check_number,
    "own_schedule": _check_flag,
    "scaler": _check_scaler,
    "parts": _check_parts,
    "machine": _check_versions,
}
