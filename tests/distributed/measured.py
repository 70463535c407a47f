"""What a rank holds and sends, measured: two steps of a wrapped model, the second one counted.

A module of its own, since ranks import the function that they run.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from course_lm.distributed import DistributedConfig, Group, wrap
from course_lm.model import GPT, ModelConfig
from course_lm.optim import GROUPINGS, OPTIMIZERS, OptimizerConfig, parameter_groups
from course_lm.profiling.plan import Plan, plan


@dataclass(frozen=True)
class Case:
    """One run to plan and to measure."""

    model: ModelConfig
    ranks: int
    strategy: str = "ddp"
    shard_size: int | None = None
    micro_batches: int = 1
    vocab_size: int = 301  # 301 and 17 rows divide by nothing that is tried here
    max_length: int = 17
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch_size: int = 2

    @property
    def shards(self) -> int:
        return {"ddp": 1, "fsdp": self.ranks, "hybrid": self.shard_size or 0}[self.strategy]

    def plan(self) -> Plan:
        return plan(
            self.model,
            self.ranks,
            self.strategy,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            batch_size=self.batch_size,
            micro_batches=self.micro_batches,
            shard_size=self.shard_size,
            optimizer=self.optimizer,
        )

    def but(self, **changes: Any) -> "Case":
        return replace(self, **changes)


def on_a_real_rank(case: Case) -> dict[str, int]:
    """What a rank of as many processes as the case has measures."""
    return _measure(case, _mesh(case))


def on_a_simulated_rank(case: Case, rank: int) -> dict[str, int]:
    """What one rank measures when the others are not there."""
    with simulated(case, rank) as mesh:
        return _measure(case, mesh)


@contextmanager
def simulated(case: Case, rank: int) -> Iterator[DeviceMesh | None]:
    """One rank of a process group whose other ranks are not there, and its mesh."""
    dist.init_process_group("fake", rank=rank, world_size=case.ranks, store=FakeStore())
    try:
        yield _mesh(case)
    finally:
        dist.destroy_process_group()


def shard(model: GPT, mesh: DeviceMesh | None) -> None:
    """Shard the model as the loop does: each block, then the root."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def replicate(model: GPT) -> nn.Module:
    """The model in `DistributedDataParallel`, as the loop puts it there."""
    group = Group(dist.get_rank(), dist.get_world_size(), process_group=dist.group.WORLD)
    return wrap(model, DistributedConfig("ddp"), group)


def _mesh(case: Case) -> DeviceMesh | None:
    if case.strategy == "ddp":
        return None
    if case.shard_size is None:
        return init_device_mesh("cpu", (case.ranks,))
    return init_device_mesh("cpu", (case.ranks // case.shard_size, case.shard_size), mesh_dim_names=("copy", "shard"))


def _measure(case: Case, mesh: DeviceMesh | None) -> dict[str, int]:
    model: Any = GPT(case.model, case.vocab_size, case.max_length)
    if mesh is not None:
        shard(model, mesh)
        model.blocks[0].up.register_full_backward_pre_hook(lambda *_: gathered.append(_gathered(model)))
        model.blocks[-1].up.register_full_backward_pre_hook(lambda *_: gathered.append(_gathered(model)))
    gathered, traffic = [0], Traffic(case.ranks, case.shards)
    if mesh is None:
        model = replicate(model)
        model.register_comm_hook(traffic, Traffic.bucket)  # pyrefly: ignore[not-callable]  # given to it by `replicate`
    groups = GROUPINGS.get(case.optimizer.type, parameter_groups)(model, 0.01)
    optimizer = OPTIMIZERS[case.optimizer.type](groups, case.optimizer, False)
    _step(case, model, optimizer)  # DDP settles its buckets, and the optimizer makes its state
    traffic.clear()
    with traffic.counted():
        waiting = _step(case, model, optimizer)
    parameters = [*model.parameters()]
    gradients = [parameter.grad for parameter in parameters]
    state = [value for one in optimizer.state.values() for value in one.values()]
    return {
        "weights": _storage_bytes(parameters),
        "gradients": _storage_bytes(gradients),
        "moments": _storage_bytes(state),
        "unsharded_gradients": max(waiting, traffic.waiting),
        "exchange": max(traffic.copied, _storage_bytes([*traffic.buckets, *gradients]) - _storage_bytes(gradients)),
        "gathered": max(gathered),
        "all_gather": traffic.all_gather,
        "reduce_scatter": traffic.reduce_scatter,
        "all_reduce": traffic.all_reduce,
        "collectives": traffic.collectives,
    }


def _step(case: Case, model: Any, optimizer: Optimizer) -> int:
    """One step as the loop makes it; bytes of gradients that wait, unsharded, when the last pass begins."""
    model.zero_grad(set_to_none=True)
    ids = torch.zeros(case.batch_size, case.max_length, dtype=torch.int64)
    passes = -(-case.micro_batches // case.ranks)
    waiting = 0
    for index in range(passes):
        last = index == passes - 1
        is_ddp = isinstance(model, DistributedDataParallel)
        if not is_ddp:
            model.set_requires_gradient_sync(last)
            waiting = sum(_waiting(unit) for unit in _units(model))
        with model.no_sync() if is_ddp and not last else nullcontext():
            model(ids, attention_mask=torch.ones_like(ids)).square().mean().backward()
    optimizer.step()
    return waiting


def _units(model: nn.Module) -> list[Any]:
    """FSDP2's parameter groups, one for each module that it was applied to."""
    states = [module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state")]  # type: ignore
    return [state._fsdp_param_group for state in states]


def _waiting(unit: Any) -> int:
    whole = [weight._unsharded_param for weight in unit.fsdp_params if hasattr(weight, "_unsharded_param")]
    return sum(weight.grad.nbytes for weight in whole if weight.grad is not None)


def _gathered(model: nn.Module) -> int:
    """Bytes into which FSDP2 has gathered; the tensors of a unit that is sharded now have no storage."""
    units = _units(model)
    whole = [tensor for unit in units for weight in unit.fsdp_params for tensor in weight.all_gather_outputs]
    results = [unit._all_gather_result for unit in units]
    return _storage_bytes(whole + [one.all_gather_output for one in results if one is not None])


def _storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes that lie behind the tensors on this rank, each storage once."""
    storages = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


class Traffic:
    """What a rank sends, collective by collective, in bytes of a ring."""

    def __init__(self, ranks: int, shards: int) -> None:
        self.shards, self.copies = shards, ranks // shards
        self.clear()

    def clear(self) -> None:
        self.all_gather = self.reduce_scatter = self.reduced = self.collectives = 0
        self.copied = 0
        self.units: list[int] = []
        self.buckets: list[Tensor] = []

    @property
    def all_reduce(self) -> int:
        return 2 * (self.copies - 1) * self.reduced // self.copies

    @property
    def waiting(self) -> int:
        """Gradients of the root and of one block, before they are sharded."""
        return self.units[-1] + self.units[0] if self.units else 0

    @staticmethod
    def bucket(state: "Traffic", bucket) -> torch.futures.Future[Tensor]:
        """In place of DDP's own all-reduce: count the bucket, and reduce it."""
        state.collectives += 1
        state.reduced += bucket.buffer().nbytes
        state.buckets.append(bucket.buffer())
        dist.all_reduce(bucket.buffer())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the collectives that FSDP2 calls."""
        gather, scatter, reduce = dist.all_gather_single, dist.reduce_scatter_single, dist.all_reduce
        sharding = _fsdp_param_group.foreach_reduce

        def all_gather(output_tensor: Tensor, input_tensor: Tensor, **rest: Any) -> Any:
            self.collectives += 1
            self.all_gather += (dist.get_world_size(rest["group"]) - 1) * input_tensor.nbytes
            return gather(output_tensor, input_tensor, **rest)

        def reduce_scatter(output: Tensor, input: Tensor, **rest: Any) -> Any:
            self.collectives += 1
            self.reduce_scatter += (dist.get_world_size(rest["group"]) - 1) * output.nbytes
            return scatter(output, input, **rest)

        def all_reduce(tensor: Tensor, **rest: Any) -> Any:
            if rest:  # else it is the bucket's, which is counted
                self.collectives += 1
                self.reduced += tensor.nbytes
            return reduce(tensor, **rest)

        def foreach_reduce(weights: Any, gradients: list[Tensor], *rest: Any) -> Any:
            self.units.append(sum(gradient.nbytes for gradient in gradients))
            result = sharding(weights, gradients, *rest)
            self.copied = max(self.copied, result[0].nbytes)
            return result

        with (
            mock.patch.object(dist, "all_gather_single", all_gather),
            mock.patch.object(dist, "reduce_scatter_single", reduce_scatter),
            mock.patch.object(dist, "all_reduce", all_reduce),
            mock.patch.object(_fsdp_param_group, "foreach_reduce", foreach_reduce),
        ):
            yield
