"""Whether a state is that of a run: every part is there, of its type, and with a value that a run can have.

`Trainer.load_state_dict` asks before it changes anything, so that a state that is refused leaves no trace. Weights,
optimizer and random states are checked where they are loaded: in `weights`, `optimizer_state` and `rng`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from course_lm.checkpoints.rng import check_generator_state, check_rng_state
from course_lm.checkpoints.weights import describe, describe_difference, is_dense

_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_METRICS = (
    *("loss", "grad_norm", "grad_norm_max", "lr", "tokens", "skipped", "tokens_per_second", "peak_memory_bytes"),
    *("val_loss", "perplexity", "bits_per_byte", "accuracy"),
)
_POSITION = ("epoch", "batch", "loader", "data", "generators", "last", "untaken", "ended", "stream")
_OF_SOME_RUNS = ("average",)  # the settings say of which; compared with them, and looked at, by the trainer
_PENDING = ("loss", "tokens", "grad_norm", "skipped", "bad_parameter")


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
    _check_pending(state["pending"], parameters)
    _check_best_weights(state["best_weights"], own["model"])
    _require(state["format_version"] == own["format_version"], "format_version", state, f"{own['format_version']}")
    for name in ("epoch", "batch"):
        there = state["position"][name]
        _require(state[name] == there, name, state, f"{there}, as in its position")
    _require(state["skipped_in_a_row"] <= state["skipped"], "skipped_in_a_row", state, "at most its skipped")
    _require(state["validated_at"] <= state["step"], "validated_at", state, f"at most its step, {state['step']}")


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


def _check_best(value: Any, name: str) -> None:
    """The lowest loss so far: infinite before the first one, and never NaN."""
    _check_number(value, name)
    if math.isnan(value):
        raise ValueError(f"the state's {name} must not be nan")


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


def _check_schedule(value: Any, name: str) -> None:
    if value is not None:
        _check_dict(value, name)
        _check_scalars(value, name)


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


def _check_stopping(value: Any, name: str) -> None:
    if value is None:
        return
    _check_dict(value, name)
    if set(value) != {"best", "bad_values"}:
        raise ValueError(f"the state's {name} must have best and bad_values, got {describe(list(value))}")
    _check_best(value["best"], f"{name} best")
    _integer(0)(value["bad_values"], f"{name} bad_values")


def _check_history(value: Any, name: str) -> None:
    if not isinstance(value, list):
        raise ValueError(f"the state's {name} must be a list of records, got {describe(value)}")
    for index, record in enumerate(value):
        where = f"{name}[{index}]"
        _check_dict(record, where)
        _check_scalars(record, where)
        if not isinstance(record.get("event"), str):
            raise ValueError(f"the state's {where} has no event")
        _integer(0)(record.get("step"), f"{where} step")
        _integer(0)(record.get("epoch"), f"{where} epoch")
        measured = {"train": "loss", "validation": "val_loss"}.get(record["event"])
        if measured is not None:
            _check_number(record.get(measured), f"{where} {measured}")
            for key in _METRICS:
                _check_number(record.get(key, 0), f"{where} {key}")


def _check_pending(value: Any, parameters: int) -> None:
    """The steps that no record covers yet: of each, five numbers in tensors."""
    if not isinstance(value, list):
        raise ValueError(f"the state's pending must be a list, got {describe(value)}")
    for index, parts in enumerate(value):
        where = f"the state's pending[{index}]"
        if not isinstance(parts, list | tuple) or len(parts) != len(_PENDING):
            raise ValueError(f"{where} must have {', '.join(_PENDING)}, got {describe(parts)}")
        for name, part in zip(_PENDING, parts):
            fits = is_dense(part) and part.ndim == 0 and _kind(part) == _PENDING_KINDS[name]
            if not fits:
                raise ValueError(f"{where} has {describe(part)} for its {name}, not one {_PENDING_KINDS[name]}")
        # tokens and bad_parameter, which `raise_if_nonfinite` uses as an index
        if int(parts[1]) < 0 or not -1 <= int(parts[4]) < parameters:
            raise ValueError(f"{where} counts {int(parts[1])} tokens and blames parameter {int(parts[4])}")


_PENDING_KINDS = dict(zip(_PENDING, ("float", "integer", "float", "boolean", "integer")))


def _kind(part: Tensor) -> str:
    if part.is_floating_point():
        return "float"
    return "boolean" if str(part.dtype) == "torch.bool" else "complex" if part.is_complex() else "integer"


def _check_position(value: Any, name: str) -> None:
    _check_dict(value, name)
    if set(value) != set(_POSITION):
        raise ValueError(f"the state's {name} must have {', '.join(_POSITION)}, got {describe(list(value))}")
    _integer(0)(value["epoch"], f"{name} epoch")
    _integer(0)(value["batch"], f"{name} batch")
    for key in ("loader", "stream"):
        if value[key] is not None:
            _check_dict(value[key], f"{name} {key}")
    for key in ("data", "last"):
        if value[key] is not None and not isinstance(value[key], str):
            raise ValueError(f"the state's {name} {key} must be a fingerprint or None, got {describe(value[key])}")
    if type(value["ended"]) is not bool:
        raise ValueError(f"the state's {name} ended must be true or false, got {describe(value['ended'])}")
    if not isinstance(value["untaken"], list) or not all(isinstance(batch, Mapping) for batch in value["untaken"]):
        raise ValueError(f"the state's {name} untaken must be a list of batches, got {describe(value['untaken'])}")
    _check_generators(value["generators"], f"{name} generators")
    if value["stream"] is not None:
        check_rng_state(value["stream"])
    for key in ("loader", "untaken"):
        _check_no_views(value[key], f"{name} {key}")


def _check_generators(value: Any, name: str) -> None:
    """A list of states of `torch.Generator` objects, or None."""
    if value is None:
        return
    if not isinstance(value, list):
        raise ValueError(f"the state's {name} must be a list or None, got {describe(value)}")
    for state in value:
        check_generator_state(state, f"the state's {name}")


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
    **{
        name: _integer(0)
        for name in ("format_version", "step", "epoch", "batch", "tokens", "skipped", "empty_in_a_row")
    },
    "skipped_in_a_row": _integer(0),
    "validated_at": _integer(-1),
    "best_loss": _check_best,
    **dict.fromkeys(("train_loss", "val_loss", "perplexity"), _check_number),
    "history": _check_history,
    "position": _check_position,
    "schedule": _check_schedule,
    "total_steps": _check_total,
    "last_rate": _check_number,
    "draws_by_place": _check_flag,
    "scaler": _check_scaler,
    "early_stopping": _check_stopping,
    "parts": _check_parts,
    "versions": _check_versions,
}
