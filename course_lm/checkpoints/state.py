"""Weights and moments under the names of the parameters: as a checkpoint holds them, and how a run takes them back.

torch saves an optimizer's state by position and loads it unchecked: two parameters that have changed places take each
other's moments, and moments of another shape let a fused kernel write past the end of their memory. Here each tensor
stands under its parameter's name and is copied into one that the model or the optimizer has made itself. So nobody
lists what a state must look like: shape, type, strides and shard are those of the optimizer's own first step.
"""

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.shards import hold_parts, is_expanded, map_tensors, part_of, shard_like
from course_lm.validation import ensure, one_line, shown

_RATES = ("lr", "initial_lr")  # the loop sets them at every step
# what a wrong value, or the model's own code, raises while it is loaded
_OF_LOADING = (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError)
_FREE = (*_RATES, "params", "fused", "foreach", "capturable")  # a run may go on with other kernels for the same numbers


def load_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Copy `weights` into the model; ValueError, in one line, where they are another model's or it does not take them.

    The model is then as it was. `weights` are whole tensors, or this rank's parts.
    """
    ensure(isinstance(weights, Mapping), f"the weights must be a dict of tensors by name, got {shown(weights)}")
    mine = model.state_dict(keep_vars=True)
    difference = describe_difference(weights, mine) or _describe_untied(weights, mine)
    ensure(difference is None, f"the checkpoint holds the weights of another model: {difference}")
    loaded = OrderedDict((name, shard_like(value, mine[name])) for name, value in weights.items())
    loaded._metadata = getattr(mine, "_metadata", {})  # type: ignore[attr-defined]  # else layers take it for an old form
    with undone_on_error("the model does not take the checkpoint's weights", model):
        _separate_buffers(model)
        model.load_state_dict(loaded)


def weights_for_use(state: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in a run's checkpoint that its validation measured: averaged ones, where the run averages.

    `load_weights(model, weights_for_use(load_checkpoint(path)))` gives a model to use; a run goes on from all of them.
    """
    return {**state["model"], **state.get("average", {})}


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """The optimizer's state under the names of `model`'s parameters; its tensors are the live ones.

    Returns:
        "type": name of the class. "groups": a dict for each, its hyper-parameters and, as "params", its names.
        "state": a dict for each name, empty before the parameter's first step.
    """
    names = _names(optimizer, model)
    groups = [{**group, "params": [names[one] for one in group["params"]]} for group in optimizer.param_groups]
    state = {name: dict(optimizer.state.get(one, {})) for one, name in names.items()}
    return {"type": type(optimizer).__name__, "groups": groups, "state": state}


@torch.no_grad()
def load_optimizer(saved: Mapping[str, Any], optimizer: Optimizer, model: nn.Module) -> None:
    """Copy what `optimizer_state` returned into tensors that the optimizer makes, and take its rates.

    Raises ValueError, in one line, where it is the state of another optimizer or of other parameters, and then changes
    nothing. For what is no state at all see `undone_on_error`.
    """
    own = optimizer_state(optimizer, model)
    _refuse(_difference(_settings(saved), _settings(own), "this run"))
    state: dict[Tensor, dict[str, Any]] = {}
    shared: dict[int, Any] = {}
    for group, theirs in zip(optimizer.param_groups, own["groups"]):
        for parameter, name in zip(group["params"], theirs["params"]):
            values = saved["state"][name]
            if values:  # else it has had no gradient yet
                state[parameter] = _filled(values, optimizer, group, parameter, name)
                if not _is_known(optimizer):  # others may keep one tensor for several weights; torch's do not
                    made = state[parameter].items()
                    state[parameter] = {key: shared.setdefault(id(values[key]), value) for key, value in made}
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, theirs in zip(optimizer.param_groups, saved["groups"]):
        for key in set(_RATES) & theirs.keys():
            if isinstance(group.get(key), Tensor):  # one that a captured graph reads stays where it is
                group[key].fill_(float(theirs[key]))
            else:
                group[key] = float(theirs[key])


def describe_difference(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """One line that says how a checkpoint's weights differ from a model's in names, shapes and types; None if nowhere.

    saved, mine: two `state_dict()`s, of the checkpoint and of the model.
    """
    return _difference(_forms(saved), _forms(mine), "this model")


@contextmanager
def undone_on_error(what: str, model: nn.Module, optimizer: Optimizer | None = None, *others: Any) -> Iterator[None]:
    """Put model, optimizer and `others` back where the body fails: what is refused leaves no trace.

    What a wrong value or the model's own code raises becomes a ValueError of one line that begins with `what`. A copy
    of all tensors is kept meanwhile. others: whatever has `state_dict` and `load_state_dict`.
    """
    undo, states = keep(model, optimizer), [map_tensors(one.state_dict(), torch.clone) for one in others]
    try:
        yield
    except BaseException as error:
        undo()
        for one, state in zip(others, states):
            one.load_state_dict(state)
        # not its subclasses: memory that has run out, or ranks that have failed, say so themselves
        if type(error) is RuntimeError or isinstance(error, _OF_LOADING):
            raise ValueError(f"{what}: {type(error).__name__}: {one_line(error)}") from error
        raise


def keep(model: nn.Module, optimizer: Optimizer | None = None) -> Callable[[], None]:
    """Copy what training or loading changes; return a function that puts it back, into the very objects of now.

    That is weights, buffers, extra state, gradients, `requires_grad` and each module's mode; the optimizer's state
    (one that was empty is empty again), hyper-parameters and attributes.
    """
    hold_parts(model)
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]

    def hold(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]
    extra = [(module, deepcopy(module.get_extra_state())) for module in model.modules() if _has_extra_state(module)]
    attributes = {} if optimizer is None else dict(vars(optimizer))
    state = {} if optimizer is None else map_tensors(dict(optimizer.state), hold)
    groups = [] if optimizer is None else [(group, map_tensors(dict(group), hold)) for group in optimizer.param_groups]
    held = list(dict.fromkeys(tensors))
    gradients = [(one, one.requires_grad, one.grad) for one in held if one.is_leaf]
    values = [(one, one.detach().clone()) for one in held if not is_expanded(one)]  # nothing can be written into it

    @torch.no_grad()
    def put_back() -> None:
        for module, training, buffers in modules:
            module.training = training
            module._buffers.clear()  # another tensor may have come in a buffer's place
            module._buffers.update(buffers)
        if optimizer is not None:
            vars(optimizer).clear()  # a scheduler leaves a wrapped `step` behind
            vars(optimizer).update(attributes)
            optimizer.state.clear()
            optimizer.state.update(state)
            optimizer.param_groups[:] = [group for group, _ in groups]
            for group, content in groups:
                group.clear()
                group.update(content)
        for tensor, value in values:
            # in place: whoever else holds these tensors must find the old values in them
            tensor.copy_(value)
        for tensor, requires_grad, gradient in gradients:
            tensor.requires_grad_(requires_grad)
            tensor.grad = gradient  # the very tensor of before
        for module, content in extra:
            module.set_extra_state(content)

    return put_back


def _names(optimizer: Optimizer, model: nn.Module) -> dict[Tensor, str]:
    """The name of each parameter. Weights of the loss are not the model's: they are named by their place."""
    known: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        parameter: known.get(parameter, f"group {number}, parameter {place}")
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def _settings(state: Mapping[str, Any]) -> dict[str, str]:
    """What must be the same in both, in words: the class, the hyper-parameters, and which group has which names."""
    told = {"the optimizer": str(state["type"])}
    for number, group in enumerate(state["groups"]):
        told |= {f"{key} of group {number}": _told(value) for key, value in group.items() if key not in _FREE}
        told |= {str(name): f"in group {number}" for name in group.get("params", ())}
    return told | {f"state of {name}": "there" for name in state["state"]}


def _told(value: Any) -> str:
    """A hyper-parameter in words; a file keeps neither tuples nor the numbers of other libraries."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def _filled(
    saved: Mapping[str, Any], optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor, name: str
) -> dict[str, Any]:
    """The state of one parameter in memory of the optimizer's own."""
    own = _made(optimizer, group, parameter) if _is_known(optimizer) else _like_parameter(saved, parameter, name)
    wanted, given = (_forms({f"{key} of {name}": value for key, value in part.items()}) for part in (own, saved))
    _refuse(_difference(given, wanted, "this run"))
    return {
        key: like.copy_(shard_like(saved[key], like)) if isinstance(like, Tensor) else saved[key]
        for key, like in own.items()
    }


def _made(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """The state that the optimizer makes in a first step on such a parameter: on a stand-in, so that nothing moves."""
    stand_in = torch.zeros_like(parameter)
    stand_in.grad = torch.zeros_like(parameter)
    twin = object.__new__(type(optimizer))  # its constructor may take any arguments
    vars(twin).update(vars(optimizer))
    twin.param_groups = [{**group, "params": [stand_in]}]
    twin.state = defaultdict(dict)
    if parameter in optimizer.state:  # Adagrad makes it when it is built
        twin.state[stand_in] = map_tensors(optimizer.state[parameter], torch.clone)
    # hooks on steps, and a `step` that a scheduler has wrapped, are told of real steps only
    inspect.unwrap(type(optimizer).step)(twin)
    return twin.state[stand_in]


def _is_known(optimizer: Optimizer) -> bool:
    """Whether `step` is torch's or this package's own; others may do in it what a trial must not."""
    parts = (inspect.unwrap(type(optimizer).step), getattr(type(optimizer), "_init_group", None))
    return all(part is None or part.__module__.startswith(("torch.optim.", "course_lm.")) for part in parts)


def _like_parameter(saved: Mapping[str, Any], parameter: Tensor, name: str) -> dict[str, Any]:
    """Memory for what an optimizer of others has kept: numbers, and tensors over dimensions of their parameter."""
    made = dict(saved)
    for key, value in saved.items():
        if isinstance(value, Tensor):
            left = iter(parameter.shape)
            fits = all(size in left for size in value.shape if size != 1)  # in this order: `in` reads on in `left`
            ensure(fits, f"{key} of {name} is {_form(value)}, which does not go with {_form(parameter)}")
            like = parameter if value.shape == parameter.shape else value.contiguous()
            made[key] = torch.empty_like(like, dtype=value.dtype, device=parameter.device, requires_grad=False)
    return made


def _refuse(difference: str | None) -> None:
    ensure(difference is None, f"the checkpoint was saved with another optimizer: {difference}")


def _forms(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _form(value) for name, value in values.items()}


def _form(value: Any) -> str:
    """Shape and type of a tensor, in words; of anything else its class."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype}".replace("torch.", "")
    return f"a {type(value).__name__}"


def _difference(saved: Mapping[str, str], mine: Mapping[str, str], here: str) -> str | None:
    parts = []
    for name, form in mine.items():
        if name in saved and saved[name] != form:
            parts.append(f"{name} is {one_line(saved[name])} in the checkpoint and {one_line(form)} in {here}")
            break
    for have, lack, where in ((mine, saved, "the checkpoint"), (saved, mine, here)):
        absent = [name for name in have if name not in lack]
        if absent:
            others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            parts.append(f"{where} has no {one_line(absent[0])}{others}")
    return "; ".join(parts) or None


def _describe_untied(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """A line on two names for one tensor in `mine` that stand for different ones in `saved`: the second would win."""
    first: dict[Any, str] = {}
    for name, tensor in mine.items():
        if not isinstance(tensor, Tensor):
            continue
        other = first.setdefault((part_of(tensor).data_ptr() or id(tensor), tensor.shape, tensor.stride()), name)
        if other != name and not torch.equal(saved[other], saved[name]):
            return f"{other} and {name} are one tensor in this model, and differ in the checkpoint"
    return None


def _separate_buffers(model: nn.Module) -> None:
    """Give each expanded buffer that is saved memory to copy into."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and is_expanded(buffer) and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.clone()


def _has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state
