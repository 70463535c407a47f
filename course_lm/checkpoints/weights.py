"""Weights alone: written for programs that know nothing of this package, and compared with those of another model."""

import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from course_lm.checkpoints.atomic_write import atomic_file
from course_lm.shards import part_of, shard_like
from course_lm.validation import one_line


def export_weights(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a model's `state_dict()` as a safetensors file; as with checkpoints, whole or not at all.

    Equal weights and metadata give equal bytes.
    `safetensors.torch.load_file(path)` gives the weights back. The format holds no sharing: of names that stand for one
    tensor (tied weights) the first is kept, and the metadata says for each of the others which one that is, so that
    `safetensors.torch.load_model(model, path)` ties them again.

    Args:
        metadata: strings by name, to be read without the tensors.

    Raises:
        ValueError: a weight is not a tensor, or metadata holds something other than strings.
        OSError: the file cannot be written; what was there stays.
    """
    from safetensors.torch import save  # a run that exports nothing does not need it

    texts = {"format": "pt", **(metadata or {})}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ValueError(f"metadata must hold strings, got {text!r} for {name!r}")
    tensors, tied = _untie(weights)
    content = save(tensors, metadata=tied | texts)
    tensors_at = 8 + int.from_bytes(content[:8], "little")  # a length, a header of JSON, the tensors
    header = _with_sorted_metadata(content[8:tensors_at])
    with atomic_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(memoryview(content)[tensors_at:])


def _with_sorted_metadata(header: bytes) -> bytes:
    """A header of safetensors, which writes the metadata in another order each time, with one that stays."""
    parts = json.loads(header)
    parts["__metadata__"] = dict(sorted(parts["__metadata__"].items()))
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()
    return text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of 8 bytes


def describe_difference(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """One line that says how a checkpoint's weights differ from a model's in names, shapes and types; None if nowhere.

    saved, mine: two `state_dict()`s, of the checkpoint and of the model.
    """
    parts = []
    for name, tensor in mine.items():
        if name in saved and _form(saved[name]) != _form(tensor):
            parts.append(f"{name} is {_form(saved[name])} in the checkpoint and {_form(tensor)} in this model")
            break
    for have, lack, where in ((mine, saved, "the checkpoint"), (saved, mine, "this model")):
        absent = [name for name in have if name not in lack]
        if absent:
            others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            parts.append(f"{where} has no {one_line(absent[0])}{others}")
    return "; ".join(parts) or None


def check_weights(model: nn.Module, weights: Any) -> None:
    """Raise ValueError, in one line, where `weights` are not those of such a model."""
    if not isinstance(weights, Mapping):
        raise ValueError(f"the weights must be a dict of tensors by name, got {describe(weights)}")
    mine = model.state_dict()
    difference = describe_difference(weights, mine) or _describe_untied(weights, mine)
    if difference is not None:
        raise ValueError(f"the checkpoint holds the weights of another model: {difference}")


def load_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load `weights` into the model; ValueError, in one line, where they are another model's or it does not take them.

    The model is then as it was: a copy of its own weights is kept until all are loaded.
    """
    check_weights(model, weights)
    state = model.state_dict()
    before = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    # what a module's get_extra_state returned; load_state_dict hands it to set_extra_state at once
    extra = {name: deepcopy(value) for name, value in state.items() if not isinstance(value, Tensor)}
    # under several ranks this one's parts: `check_weights` has seen that the names are the same
    loaded = OrderedDict((name, _cut(value, state[name])) for name, value in weights.items())
    loaded._metadata = getattr(state, "_metadata", {})  # type: ignore[attr-defined]  # else layers take it for an old form
    try:
        model.load_state_dict(loaded)
    except Exception as error:  # extra state and hooks are the model's own code
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        _put_back_extra_state(model, extra)
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the model does not take the checkpoint's weights: {type(error).__name__}: {reason}"
        ) from None


def weights_for_use(state: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in a run's checkpoint that its validation measured: averaged ones, where the run averages.

    `load_weights(model, weights_for_use(load_checkpoint(path)))` gives a model to use; a run goes on from all of them.
    """
    return {**state["model"], **state.get("average", {})}


def _cut(value: Any, mine: Any) -> Any:
    return shard_like(value, mine) if isinstance(value, Tensor) and isinstance(mine, Tensor) else value


def describe(value: Any) -> str:
    """A value in a few words: shape and type of a tensor, a short number or text as it is, else its class."""
    if isinstance(value, Tensor):
        return describe_form(value) if is_dense(value) else f"{describe_form(value)} that is not dense"
    parts = value if isinstance(value, list | tuple) and len(value) < 10 else [value]
    if all(isinstance(part, str | int | float | None) for part in parts) and len(text := repr(value)) <= 40:
        return text
    return f"a {type(value).__name__}"


def describe_form(tensor: Tensor) -> str:
    """Shape and type of a tensor, in words."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def is_dense(value: Any) -> bool:
    """Whether this is a tensor that has all its numbers in memory, neither sparse nor quantised, nested or meta."""
    if not isinstance(value, Tensor) or value.is_nested or value.layout != torch.strided:
        return False
    return not (value.is_meta or value.is_quantized or value.is_conj() or value.is_neg())


def _put_back_extra_state(model: nn.Module, extra: Mapping[str, Any]) -> None:
    for name, module in model.named_modules():
        key = f"{name}." * bool(name) + "_extra_state"
        if key in extra:
            module.set_extra_state(extra[key])


def _describe_untied(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """A line on two names for one tensor in `mine` that stand for different ones in `saved`: the second would win."""
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in mine.items():
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and _has_memory(tensor):
            # the same place and form: one tensor under two names
            place = _place_of(tensor)
            other = saved[first.setdefault(place, name)]
            if other is not saved[name] and not torch.equal(other, saved[name]):
                return f"{first[place]} and {name} are one tensor in this model, and differ in the checkpoint"
    return None


def _untie(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, in memory of its own; and for each further name of it the name under which it is kept."""
    kept: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    storages: set[int] = set()
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"weights must hold tensors, got {type(tensor).__name__} for {name!r}")
        tensor = tensor.detach()
        place = _place_of(tensor)
        if tensor.numel() and first.setdefault(place, name) != name:  # all empty tensors have the address 0
            tied[name] = first[place]
            continue
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, and those that are not contiguous
        kept[name] = (tensor.clone() if storage in storages else tensor).contiguous()
        storages.add(storage)
    return kept, tied


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    """What tied weights have in common: the same numbers in the same memory."""
    return tensor.device, part_of(tensor).data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _has_memory(tensor: Tensor) -> bool:
    """All empty tensors have the address 0, and so have empty parts."""
    return bool(part_of(tensor).numel()) and not tensor.is_meta


def _form(value: Any) -> str:
    """Shape and type of a tensor, in words; of anything else its class."""
    return describe(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"
