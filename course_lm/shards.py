"""Tensors of which each rank holds a part (torch's DTensor), for code that also runs where there are none.

The class lies in a module that takes a second to import, and where it was not imported there is no DTensor: so nothing
here imports it before there is one.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def is_sharded(value: object) -> TypeGuard[Any]:
    """Whether this tensor is one part of a larger one; its shape is that of the whole."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the parts of all ranks, by a collective call; one that is not sharded is itself the whole."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def part_of(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def is_expanded(tensor: Tensor) -> bool:
    """Whether several of its numbers share one place in memory, so that nothing can be written into it."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that every rank has, cut as `like` is; no communication."""
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def empty_like_shard(like: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for a tensor of this shape: this rank's part where `like` is sharded, else the whole, on the CPU."""
    if like is None or not is_sharded(like):
        return torch.empty(tuple(shape), dtype=dtype)
    from torch.distributed.tensor import empty

    return empty(tuple(shape), dtype=dtype, device_mesh=like.device_mesh, placements=like.placements)


def gathered(tree: Any, *, keep: bool = True) -> Any:
    """A copy of nested dicts, lists and tuples with the whole of each sharded tensor, on the CPU.

    A collective call: every rank makes it over the same tree. A rank that does not `keep` them has None in place of
    each, so that one rank alone needs memory for all.
    """
    known: dict[int, Tensor | None] = {}  # tied weights stay one tensor

    def gather(tensor: Tensor) -> Tensor | None:
        if not is_sharded(tensor):
            return tensor
        if id(tensor) not in known:
            full = whole(tensor)
            known[id(tensor)] = full.cpu() if keep else None
        return known[id(tensor)]

    return map_tensors(tree, gather)


def hold_parts(model: nn.Module) -> None:
    """Let a model after `fully_shard` hold its parts alone, as its optimizer does; of any other nothing changes.

    After a forward pass without a backward pass it keeps weights whole, by default those of the outermost module.
    """
    if hasattr(model, "reshard"):
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()  # type: ignore[operator]


def map_tensors(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    """A copy of nested dicts, lists and tuples with `function` applied to each tensor."""
    return tree_map_only(Tensor, function, tree)
