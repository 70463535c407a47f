"""What a step holds and what a rank sends, from the configuration alone: nothing is allocated.

The plan of many ranks follows the loop. DDP holds the whole model on each rank. FSDP2 shards units: each block is one,
and the root is one with all the rest (both embeddings, the last norm; the head is the token embedding, counted once).
Weights, gradients, moments and what is sent are fp32 in every precision; autocast makes half-precision copies as it
computes.

Source: Rajbhandari et al. 2020, "ZeRO", section 5 for what is held and 7 for what is sent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from course_lm.config import TrainingConfig
from course_lm.distributed.settings import STRATEGIES
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.profiling.activations import WORD, stages
from course_lm.validation import require, require_whole

# The step of the one changes a matrix's norm in place, which torch 2.13 cannot do on shards; the other multiplies
# whole matrices.
NOT_SHARDED = ("adafactor", "muon")
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # where DDP closes a bucket: its first, and each of the others

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Bytes of rank 0. All but `moments` and `average` are the same on each rank; of these no rank has more.

    Attributes:
        weights: fp32 weights; of a sharded one the rank's rows and its padding, for torch allocates both.
        gradients: what the optimizer reads, of the same size.
        unsharded_gradients: the most that waits to be sharded: the root's (its head's share comes first and its
            embedding's last) and a block's, or all of them where a rank has several passes, since gradients are
            sharded only after the last one.
        exchange: copies in which gradients travel: DDP's buckets, or the padded gradients of the largest unit.
        moments: the optimizer's state after its first step, step counters included. Torch pads no state.
        average: a copy of the rank's weights, where the run averages them.
        gathered: whole weights under FSDP, padded, in the backward pass: the root's, which stay from the forward pass
            on, a block's, and those of the block that is gathered ahead.
        activations: of one micro-batch of full rows, at their largest, logits and temporary tensors included; see
            `activations.stages`.
        all_gather: bytes that the rank sends in one step, as a ring does it: of a group of W with n bytes on each
            rank, (W - 1) n; and so below. Bytes received are as many.
        reduce_scatter: (W - 1) n where n bytes stay on each rank. Gloo, on CPUs, does an all-reduce in its place and
            sends twice as much.
        all_reduce: 2 (W - 1) / W of the n bytes that each rank has, rounded down once for the sum of a step.
        collectives: calls in one step. Those of a few bytes (targets, loss, norm, the agreement to stop, DDP's list of
            parameters that were used) are left out here and above.
        passes: micro-batches that each rank computes in one step, empty ones included.
    """

    strategy: str
    ranks: int
    parameters: int
    weights: int
    gradients: int
    unsharded_gradients: int
    exchange: int
    moments: int
    average: int
    gathered: int
    activations: int
    all_gather: int
    reduce_scatter: int
    all_reduce: int
    collectives: int
    passes: int

    @property
    def held(self) -> int:
        """The sum of all parts, which are not all at their largest at the same time."""
        kept = self.weights + self.gradients + self.moments + self.average
        return kept + self.unsharded_gradients + self.exchange + self.gathered + self.activations

    @property
    def sent(self) -> int:
        """Bytes that the rank sends in one step."""
        return self.all_gather + self.reduce_scatter + self.all_reduce


def plan(
    model: ModelConfig,
    ranks: int,
    strategy: str = "ddp",
    *,
    vocab_size: int,
    max_length: int,
    batch_size: int,
    micro_batches: int,
    shard_size: int | None = None,
    optimizer: OptimizerConfig | None = None,
    averages: bool = False,
    precision: str = "fp32",
    device: str = "cuda",
) -> Plan:
    """Plan rank 0 of a run.

    Args:
        strategy: "ddp"; "fsdp", sharded over all ranks; "hybrid", sharded over `shard_size` neighbours each.
        batch_size: rows of a micro-batch.
        micro_batches: gradient accumulation steps, those of all ranks together.
        optimizer: AdamW by default.
        averages: whether the run keeps an average of the weights.
        precision: "fp32", "bf16" or "fp16".
        device: "cpu" or another; only activations depend on it.

    Raises:
        ValueError: names the argument, its value and what is accepted.
    """
    optimizer = optimizer or OptimizerConfig()
    sizes = {"ranks": ranks, "vocab_size": vocab_size, "max_length": max_length}
    for name, value in {**sizes, "batch_size": batch_size, "micro_batches": micro_batches}.items():
        require_whole(name, value, least=1)
    require(precision in ("fp32", "bf16", "fp16"), "precision", "one of fp32, bf16, fp16", precision)
    shards = _shards(ranks, strategy, shard_size, optimizer)

    root, block = _units(model, vocab_size, max_length)
    layers, passes = model.n_layer, math.ceil(micro_batches / ranks)
    whole_block = _bytes(block)
    whole = _bytes(root) + layers * whole_block
    own_root, own_block = _cut(root, shards), _cut(block, shards)
    of_root, of_block = _bytes(own_root), _bytes(own_block)
    shard = of_root + layers * of_block  # under ddp, which shards over 1, the whole model

    sharded = strategy != "ddp" and ranks > 1
    gathering, replicas = sharded and shards > 1, ranks // shards
    ahead = 2 if gathering and layers > 1 else 1  # backward, the next block's weights come during this one's
    waiting = whole if passes > 1 else whole - (layers - 1) * whole_block
    # the last norm, whose gain and bias end the root, follows the blocks
    buckets = layers + 1 if sharded else _buckets([*root[:-2], *layers * block, *root[-2:]])
    return Plan(
        strategy=strategy,
        ranks=ranks,
        parameters=whole // WORD,
        weights=shard,
        gradients=shard,
        unsharded_gradients=waiting if sharded else 0,
        exchange=0 if ranks == 1 else shards * max(of_root, of_block) if sharded else whole,
        moments=_moments(own_root, optimizer, hidden=False) + layers * _moments(own_block, optimizer, hidden=True),
        average=averages * shard,
        gathered=shards * (of_root + ahead * of_block) if sharded else 0,
        activations=max(
            stage.activations + stage.logits + stage.temporaries
            for stage in stages(model, vocab_size, max_length, batch_size, precision, device)
        ),
        # A block is gathered for the forward pass and again for the backward pass, the root once.
        all_gather=passes * (shards - 1) * (of_root + 2 * layers * of_block),
        reduce_scatter=(shards - 1) * shard,
        all_reduce=2 * (replicas - 1) * shard // replicas,
        collectives=gathering * (passes * (1 + 2 * layers) + buckets) + (ranks > 1 and strategy != "fsdp") * buckets,
        passes=passes,
    )


def plan_of(config: TrainingConfig, ranks: int, strategy: str, precision: str, device: str) -> Plan:
    """The plan of a run as configured; errors are those of `plan`."""
    return plan(
        config.model,
        ranks,
        strategy,
        vocab_size=config.data.vocab_size,
        max_length=config.data.max_length,
        batch_size=config.training.batch_size,
        micro_batches=config.training.gradient_accumulation_steps,
        shard_size=config.distributed.shard_size if strategy == "hybrid" else None,
        optimizer=config.optimizer,
        averages=config.training.average_weights is not None,
        precision=precision,
        device=device,
    )


def step_memory(
    model: ModelConfig,
    vocab_size: int,
    max_length: int,
    batch_size: int,
    micro_batches: int = 1,
    *,
    precision: str = "fp32",
    device: str = "cuda",
) -> dict[str, int]:
    """Bytes by owner at the peak of a step with AdamW in one process, as `profile_memory` measures them.

    The batches are left out, and what one operation needs and frees. Arguments and errors are those of `plan`.
    """
    whole = plan(
        model,
        1,
        vocab_size=vocab_size,
        max_length=max_length,
        batch_size=batch_size,
        micro_batches=micro_batches,
        precision=precision,
        device=device,
    )
    found = []
    for stage in stages(model, vocab_size, max_length, batch_size, precision, device):
        owners = stage._asdict()
        waiting = owners.pop("waiting")
        if micro_batches > 1:
            owners["gradients"] = whole.gradients  # of earlier micro-batches
            owners["temporaries"] += waiting
        else:
            owners["gradients"] += waiting
        found.append({"weights": whole.weights, "moments": whole.moments, **owners})
    return max(found, key=lambda owners: sum(owners.values()))


def _shards(ranks: int, strategy: str, shard_size: int | None, optimizer: OptimizerConfig) -> int:
    """Over how many ranks a weight is sharded."""
    require(strategy in STRATEGIES, "strategy", f"one of {', '.join(STRATEGIES)}", strategy)
    if strategy != "ddp":
        able = optimizer.type not in NOT_SHARDED
        require(able, "optimizer", f"one that torch can shard, for {strategy}", optimizer.type)
    if strategy != "hybrid":
        require(shard_size is None, "shard_size", f"None for {strategy}", shard_size)
        return ranks if strategy == "fsdp" else 1
    fits = type(shard_size) is int and shard_size >= 1 and ranks % shard_size == 0
    require(fits, "shard_size", f"a divisor of the {ranks} ranks for hybrid", shard_size)
    return int(shard_size or 1)


@lru_cache
def _units(model: ModelConfig, vocab_size: int, max_length: int) -> tuple[list[Shape], list[Shape]]:
    """Shapes of the parameters in the root, and of those in each block, which are all alike."""
    with torch.device("meta"):  # shapes without memory
        built = GPT(replace(model, n_layer=1), vocab_size, max_length)
    shapes = {name: tuple(weight.shape) for name, weight in built.named_parameters()}
    root = [shape for name, shape in shapes.items() if not name.startswith("blocks.")]
    return root, [shape for name, shape in shapes.items() if name.startswith("blocks.")]


def _cut(unit: Sequence[Shape], shards: int) -> list[Shape]:
    """A unit's part on rank 0: FSDP2 cuts rows, dimension 0, and pads each rank to the rows of the first."""
    return [(math.ceil(rows / shards), *rest) for rows, *rest in unit]


def _bytes(unit: Sequence[Shape]) -> int:
    return sum(WORD * math.prod(shape) for shape in unit)


def _buckets(shapes: Sequence[Shape]) -> int:
    """DDP's buckets: filled in the model's order, and closed at the parameter that fills them."""
    count, filled, limit = 0, 0, FIRST_BUCKET
    for shape in shapes:
        filled += WORD * math.prod(shape)
        if filled >= limit:
            count, filled, limit = count + 1, 0, BUCKET
    return count + (filled > 0)


def _moments(unit: Sequence[Shape], optimizer: OptimizerConfig, *, hidden: bool) -> int:
    """Bytes of the optimizer's state of a unit; `hidden`: whether its matrices are those that Muon is for."""
    total = 0
    for shape in unit:
        count = math.prod(shape)
        left_to_adamw = optimizer.type == "muon" and not (hidden and len(shape) == 2)
        numbers = {
            "adamw": 2 * count + 1,  # two moments, and a counter of steps
            "adam": 2 * count + 1,
            "sgd": count if optimizer.momentum else 0,
            "adafactor": sum(shape) + 1,  # a row and a column of a matrix; a vector whole
            "muon": count,  # the momentum
        }
        total += WORD * numbers["adamw" if left_to_adamw else optimizer.type]
    return total
