"""Weights alone, written for programs that know nothing of this package."""

import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course_lm.checkpoints.atomic_write import atomic_file
from course_lm.shards import part_of


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


def is_dense(value: Any) -> bool:
    """Whether this is a tensor that has all its numbers in memory, neither sparse nor quantised, nested or meta."""
    if not isinstance(value, Tensor) or value.is_nested or value.layout != torch.strided:
        return False
    return not (value.is_meta or value.is_quantized or value.is_conj() or value.is_neg())


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
