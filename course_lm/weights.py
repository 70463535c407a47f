"""Weights alone: written for programs that know nothing of this package, and compared with those of another model."""

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from course_lm.atomic import atomic_file


def export_weights(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a model's `state_dict()` as a safetensors file; as with checkpoints, whole or not at all.

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
    with atomic_file(path) as file:
        file.write(content)


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
            parts.append(f"{where} has no {absent[0]}{others}")
    return "; ".join(parts) or None


def _untie(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, each once and in memory of its own; and for every other name the one that it shares."""
    kept: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    storages: set[int] = set()
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"weights must hold tensors, got {type(tensor).__name__} for {name!r}")
        tensor = tensor.detach()
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and first.setdefault(place, name) != name:
            tied[name] = first[place]
            continue
        storage = tensor.untyped_storage().data_ptr()
        kept[name] = (tensor.clone() if storage in storages else tensor).contiguous()
        storages.add(storage)
    return kept, tied


def _form(value: Any) -> str:
    """Shape and type of a tensor, in words."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
