"""The state of an optimizer under the names of the parameters, checked before it is loaded.

torch saves the state by position and loads it unchecked. Two parameters that have changed places then take each other's
moments, and moments of another shape let a fused kernel write past the end of their memory. Here every tensor
stands under its parameter's name, and is taken only in the shape and type that this optimizer itself would make.
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.checkpoints.weights import describe, describe_form, is_dense
from course_lm.shards import is_sharded, part_of, shard_like
from course_lm.validation import ensure

# A run may go on with another implementation of the same arithmetic; the loop sets the learning rate at every step.
_SWITCHES = ("fused", "foreach", "capturable")
_RATES = ("lr", "initial_lr")
# Averages of squares and of magnitudes, by the names that torch gives them: the square root of a negative one is NaN.
_NEVER_NEGATIVE = (
    *("step", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf", "sum"),
    *("variance", "row_var", "col_var"),
)


class _Form(NamedTuple):
    """How a tensor of the state must look: an empty tensor on "meta", and the device where the values belong."""

    like: Tensor
    device: torch.device


def state_by_name(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """The optimizer's state under the names of `model`'s parameters; its tensors are the live ones.

    Returns:
        "type": name of the class. "groups": a dict for each, its hyper-parameters and, as "params", its names.
        "state": a dict for each name, empty before the parameter's first step.
    """
    names = _names(optimizer, model)
    groups = [{**group, "params": [names[id(one)] for one in group["params"]]} for group in optimizer.param_groups]
    state = {names[id(one)]: dict(optimizer.state.get(one, {})) for one in _parameters(optimizer)}
    return {"type": type(optimizer).__name__, "groups": groups, "state": state}


def check_state(saved: Any, optimizer: Optimizer, model: nn.Module) -> None:
    """Raise ValueError, in one line, where `saved` is not the state of such an optimizer over such parameters."""
    ensure(
        isinstance(saved, Mapping) and set(saved) == {"type", "groups", "state"},
        "the optimizer's state must be a dict with 'type', 'groups' and 'state', by the names of the parameters",
    )
    mine = type(optimizer).__name__
    ensure(
        saved["type"] == mine,
        f"the checkpoint was saved with the optimizer {describe(saved['type'])}, this run has {mine}",
    )
    names = _names(optimizer, model)
    _check_groups(saved["groups"], optimizer, names)
    state = saved["state"]
    ensure(isinstance(state, Mapping), f"the optimizer's state must be a dict by parameter, got {describe(state)}")
    for name in names.values():
        ensure(name in state, f"the optimizer's state lacks the parameter {name}")
    for name in state:
        ensure(name in names.values(), f"the optimizer's state has {name!r}, which this optimizer does not train")
    forms = _Forms(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _check_parameter(state[names[id(parameter)]], names[id(parameter)], parameter, group, forms)


def load_state(saved: Mapping[str, Any], optimizer: Optimizer, model: nn.Module) -> None:
    """Load what `check_state` has let pass, into memory of the optimizer's own, in the layout that it would choose."""
    names = _names(optimizer, model)
    groups = {frozenset(group["params"]): group for group in saved["groups"]}
    for group in optimizer.param_groups:
        theirs = groups[frozenset(names[id(one)] for one in group["params"])]
        # all other hyper-parameters are equal, as `check_state` has seen
        for key in _RATES:
            if key in theirs:
                _set_rate(group, key, theirs[key])
    optimizer.state.clear()
    forms = _Forms(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = saved["state"][names[id(parameter)]]
            if values:
                form_of = forms.of(group, parameter)
                optimizer.state[parameter] = {
                    key: _copy(value, form_of.get(key), parameter) for key, value in values.items()
                }


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _names(optimizer: Optimizer, model: nn.Module) -> dict[int, str]:
    """The name of each parameter by its id. Weights of the loss are not the model's: they are named by their place."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        id(parameter): known.get(id(parameter), f"group {number}, parameter {place}")
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def _check_groups(saved: Any, optimizer: Optimizer, names: Mapping[int, str]) -> None:
    mine = optimizer.param_groups
    ensure(
        isinstance(saved, list) and all(isinstance(group, Mapping) for group in saved),
        f"the optimizer's groups must be a list of dicts, got {describe(saved)}",
    )
    ensure(len(saved) == len(mine), f"the checkpoint has {len(saved)} optimizer groups, this run has {len(mine)}")
    for number, (theirs, group) in enumerate(zip(saved, mine)):
        own_names = [names[id(parameter)] for parameter in group["params"]]
        listed = theirs.get("params")
        ensure(
            isinstance(listed, list) and all(isinstance(name, str) for name in listed),
            f"optimizer group {number} must list its parameters by name, got {describe(listed)}",
        )
        ensure(
            # in any order: the state goes by names
            sorted(listed) == sorted(own_names),
            f"optimizer group {number} holds {_shortly(listed, own_names)} in the checkpoint and "
            f"{_shortly(own_names, listed)} in this run",
        )
        _check_numbers(theirs, group, number)


def _shortly(names: list[str], others: list[str]) -> str:
    """How many names, and the first that the others lack."""
    different = next((name for name in names if name not in others), None)
    return f"{len(names)} of the parameters" + (f" ({different!r} among them)" if different is not None else "")


def _check_numbers(saved: Mapping[str, Any], group: Mapping[str, Any], number: int) -> None:
    where = f"optimizer group {number}"
    for key in [*saved, *(key for key in group if key not in saved)]:
        if key in ("params", *_SWITCHES):
            continue
        if key in _RATES:
            rate = saved.get(key, 0.0)
            ensure(_is_rate(rate), f"{where} has {key} {describe(rate)} in the checkpoint; it must be a finite number")
            continue
        theirs, mine = (describe(part[key]) if key in part else "absent" for part in (saved, group))
        same = key in saved and key in group and _equal(saved[key], group[key])
        ensure(same, f"{where} was saved with {describe(key)} {theirs}, this run has {mine}")
    ensure("lr" in saved, f"{where} lacks its lr")


def _is_rate(value: Any) -> bool:
    if isinstance(value, Tensor):
        return is_dense(value) and value.ndim == 0 and not value.is_complex() and bool(value.isfinite())
    return type(value) in (int, float) and math.isfinite(value)


def _set_rate(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), Tensor):  # one that a captured graph reads stays where it is
        group[key].fill_(float(value))
    else:
        group[key] = value.clone() if isinstance(value, Tensor) else value


def _equal(saved: Any, mine: Any) -> bool:
    if isinstance(saved, Tensor) or isinstance(mine, Tensor):
        both = isinstance(saved, Tensor) and isinstance(mine, Tensor) and is_dense(saved)
        return both and saved.dtype == mine.dtype and torch.equal(saved.to(mine.device), mine)
    if isinstance(saved, list | tuple) and isinstance(mine, list | tuple):
        return len(saved) == len(mine) and all(_equal(one, other) for one, other in zip(saved, mine))
    return saved == mine or (saved != saved and mine != mine)  # NaN equals NaN here


def _check_parameter(saved: Any, name: str, parameter: Tensor, group: Mapping[str, Any], known: "_Forms") -> None:
    where = f"the optimizer's state of {name}"
    ensure(isinstance(saved, Mapping), f"{where} must be a dict, got {describe(saved)}")
    if not saved:  # it has had no gradient yet
        return
    if _is_of_torch(known.optimizer):
        forms = known.of(group, parameter)
        for key in [*saved, *(key for key in forms if key not in saved)]:
            mine = describe_form(forms[key].like) if key in forms else "nothing"
            theirs = describe(saved[key]) if key in saved else "nothing"
            same = key in saved and key in forms and is_dense(saved[key]) and theirs == mine
            ensure(same, f"{where} has {theirs} for {key!r} in the checkpoint, {mine} in this run")
    else:
        for key, value in saved.items():
            fits = _fits(value, parameter)
            ensure(fits, f"{where} has {describe(value)} for {key!r}, which does not go with {describe(parameter)}")
    for key, value in saved.items():
        if isinstance(value, Tensor) and value.numel() and value.is_floating_point():
            _check_values(value, key, where)


def _check_values(value: Tensor, key: str, where: str) -> None:
    lowest = value.min().item()  # NaN where one of the values is
    ensure(not math.isnan(lowest), f"{where} has a NaN in {key!r}")
    ensure(lowest >= 0 or key not in _NEVER_NEGATIVE, f"{where} has {key!r} with {lowest:g}; it is never negative")
    ensure(key != "step" or lowest < math.inf, f"{where} has {key!r} {lowest:g}; it is a count")


def _fits(value: Any, parameter: Tensor) -> bool:
    """Whether an optimizer that is not torch's may keep it: a number, or a tensor over dimensions of its parameter."""
    if not isinstance(value, Tensor):
        return type(value) in (int, float, bool, type(None))
    if not is_dense(value):
        return False
    left = iter(parameter.shape)
    return all(size in left for size in value.shape if size != 1)  # in this order: `in` reads on in `left`


def _is_of_torch(optimizer: Optimizer) -> bool:
    """Whether `step` is torch's own, or this package's over torch's.

    Others may do in it what a trial must not, such as calling a live optimizer.
    """
    parts = [inspect.unwrap(type(optimizer).step)]
    parts += [method for method in [getattr(type(optimizer), "_init_group", None)] if method is not None]
    return all(part.__module__.startswith(("torch.optim.", "course_lm.muon")) for part in parts)


class _Forms:
    """How the optimizer's state of a parameter looks; parameters of one group that look alike are tried once."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._known: dict[tuple[Any, ...], dict[str, _Form]] = {}

    def of(self, group: Mapping[str, Any], parameter: Tensor) -> dict[str, _Form]:
        part = part_of(parameter)
        looks = id(group), parameter.shape, part.shape, part.stride(), part.dtype, part.device
        if looks not in self._known:
            self._known[looks] = _forms(self.optimizer, group, parameter)
        return self._known[looks]


def _forms(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, _Form]:
    """How the optimizer's state of one parameter looks, by trying a step on a copy of the parameter without memory."""
    if not _is_of_torch(optimizer):
        return {}
    twin = object.__new__(type(optimizer))  # its constructor may take any arguments
    vars(twin).update(vars(optimizer))
    # of a sharded parameter the whole: `_check_parameter` compares shapes
    stand_in = torch.empty_like(part_of(parameter), device="meta").new_empty(parameter.shape).requires_grad_()
    stand_in.grad = torch.empty_like(stand_in)
    plain = {key: False for key in ("fused", "foreach") if key in group}  # kernels that may refuse a meta tensor
    rates = {"lr": float(group["lr"])} if "lr" in group else {}  # a rate in a tensor lies on another device
    twin.param_groups = [{**group, **plain, **rates, "params": [stand_in]}]
    twin.state = defaultdict(dict)
    # The state is made before the arithmetic, which may ask for a value that is not there. Hooks on steps, and
    # a `step` that a scheduler has wrapped, are told of live optimizers only.
    with suppress(Exception), torch.no_grad():
        inspect.unwrap(type(optimizer).step)(twin)
    fused = bool(group.get("fused"))
    forms = {}
    for key, value in twin.state.get(stand_in, {}).items():
        if isinstance(value, Tensor):
            # a tensor that is not on meta never follows its parameter: torch counts steps on the CPU
            like, device = value.to("meta"), parameter.device if value.is_meta else value.device
            if fused and not like.ndim:  # a fused kernel counts its steps in fp32, beside the parameter
                like, device = like.to(torch.float32), parameter.device
            forms[key] = _Form(like, device)
    return forms


@torch.no_grad()
def _copy(value: Any, form: _Form | None, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    if form is None:  # of another optimizer than torch's
        like = parameter if value.shape == parameter.shape else value.contiguous()
        return torch.empty_like(like, dtype=value.dtype, device=parameter.device, requires_grad=False).copy_(value)
    if is_sharded(parameter) and value.shape == parameter.shape:
        return shard_like(value, parameter).clone()
    return torch.empty_like(form.like, device=form.device).copy_(value)
