"""A model whose gradients the ranks average: by torch's DistributedDataParallel, or by its `fully_shard`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from course_lm.distributed.ranks import Group
from course_lm.distributed.settings import DistributedConfig
from course_lm.forward import keep_plain_twin, logits_of
from course_lm.shards import hold_parts, is_sharded


def wrap(model: nn.Module, config: DistributedConfig, group: Group) -> nn.Module:
    """The model as the ranks of `group` train it together; for one rank, the model itself.

    "ddp" puts it into `DistributedDataParallel`, and every rank gets rank 0's weights. "fsdp" and "hybrid" call
    `fully_shard` on each block and on what is left (Zhao et al. 2023, "PyTorch FSDP"): the model itself then holds
    parts, and its parameters are new objects, so an optimizer is built afterwards. Weights and gradients travel in
    fp32, and autocast computes in half precision, so that the same numbers come out as with "ddp". A model that is
    wrapped already stays as it is.

    Raises:
        ValueError: the number of ranks does not suit the configuration, or not the model that is wrapped already.
    """
    strategy, kind = config.strategy_for(group.world), type(model).__name__
    if kind == "FullyShardedDataParallel":
        raise ValueError(f"a model in {kind} cannot be trained here: give the model itself, or use fully_shard")
    if strategy is None:
        return model
    if isinstance(model, nn.DataParallel):
        raise ValueError(f"a model in {kind} trains in one process, got {group.world} ranks: give the model itself")
    if isinstance(model, DistributedDataParallel):
        ranks = torch.distributed.get_world_size(model.process_group)
        if ranks != group.world:
            raise ValueError(f"the model's DistributedDataParallel has {ranks} ranks, the run {group.world}")
        return model
    hold_parts(model)
    if any(is_sharded(parameter) for parameter in model.parameters()):
        if not hasattr(model, "set_requires_gradient_sync"):
            raise ValueError(f"{kind} is sharded, but not by fully_shard: give the model itself, or use fully_shard")
        return model
    model.register_forward_hook(_with_tensors_in_sight)  # first: what follows reads its output
    if strategy == "ddp":
        return _replicated(model, group)
    return _sharded(model, group, config.shard_size if strategy == "hybrid" else None)


def _with_tensors_in_sight(model: nn.Module, inputs: Any, output: Any) -> Any:
    """The model's output, or its logits where torch finds no tensor in it: it would take all weights for unused."""
    found = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output))
    return output if found else logits_of(output)


def _replicated(model: nn.Module, group: Group) -> nn.Module:
    device = next(model.parameters()).device
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group.process_group,
        # Two reasons. A parameter without a gradient on any rank would else keep all gradients from being exchanged.
        # And without it the gradients are put into other buckets after the first step: of more than two ranks a sum
        # then rounds otherwise in a run that goes on than in one that was never stopped.
        find_unused_parameters=True,
    )
    # A forward pass would change them on the others: `Trainer` refuses such models. Set here, since the argument for it
    # has one name before torch 2.13 and another from then on.
    wrapped.broadcast_buffers = False
    return wrapped


def _sharded(model: nn.Module, group: Group, shard_size: int | None) -> nn.Module:
    # here, since each of the two takes a second to import
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    keep_plain_twin(model)
    # as DistributedDataParallel does; ranks may have drawn other weights
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.detach(), 0, group=group.process_group)
    kind = next(model.parameters()).device.type
    if shard_size is None:
        mesh = init_device_mesh(kind, (group.world,), mesh_dim_names=("shard",))
    else:
        mesh = init_device_mesh(kind, (group.world // shard_size, shard_size), mesh_dim_names=("replicate", "shard"))
        mesh._flatten()  # else sums over both dimensions are made one after the other, with a warning
    # no MixedPrecisionPolicy: it casts all weights of a unit, those of norms too, which autocast leaves in fp32
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The members of the model's outermost lists of modules that hold parameters: its layers."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from (member for member in child if next(member.parameters(), None) is not None)
        else:
            yield from _blocks(child)
