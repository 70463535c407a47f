"""What a rank holds in memory and sends in one step, from the configuration alone: nothing is allocated.

The plan follows the loop. DDP holds the whole model on each rank. FSDP2 shards units: each block is one, and the root
is one with all the rest (both embeddings, the last norm; the head is the token embedding, counted once). Weights,
gradients, moments and what is sent are fp32 in every precision; autocast makes half-precision copies as it computes.

Sources: Rajbhandari et al. 2020, "ZeRO", section 5 for what is held and 7 for what is sent; Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 4.1, for activations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.validation import require, require_whole

STRATEGIES = ("ddp", "fsdp", "hybrid")
# The step of the one changes a matrix's norm in place, which torch 2.13 cannot do on shards; the other multiplies
# whole matrices.
NOT_SHARDED = ("adafactor", "muon")
WORD, HALF, LONG = 4, 2, 8  # bytes of fp32, of bf16 or fp16, of int64
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # where DDP closes a bucket: its first, and each of the others

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Bytes of one rank. All but `moments` and `average` are the same on each rank; rank 0 has the largest.

    Attributes:
        weights: fp32 weights; of a sharded one the rank's rows and its padding, for torch allocates both.
        gradients: what the optimizer reads, of the same size.
        unsharded_gradients: the most that waits to be sharded: the root's (its head's share comes first and its
            embedding's last) and a block's, or all of them where a rank has several passes, since gradients are
            sharded only after the last one.
        exchange: copies in which gradients travel: DDP's buckets, or the padded gradients of the largest unit.
        moments: the optimizer's state after its first step, step counters included. Torch pads no state, so a rank
            without a row of a weight has only its counter.
        average: a copy of the rank's weights, where the run averages them, without padding.
        gathered: whole weights under FSDP, padded, in the backward pass: the root's, which stay from the forward pass
            on, a block's, and those of the block that is gathered ahead.
        activations: of one micro-batch of full rows, at their largest: with the model's own `gradient_checkpointing`.
            See `activation_bytes`.
        activations_checkpointed: the same with gradient checkpointing.
        activations_stored: the same without.
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
    activations_checkpointed: int
    activations_stored: int
    all_gather: int
    reduce_scatter: int
    all_reduce: int
    collectives: int
    passes: int

    @property
    def held(self) -> int:
        """The sum of all parts. Not all are at their largest at the same time; temporary tensors come on top."""
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
    rank: int = 0,
) -> Plan:
    """Plan one rank of a run.

    Args:
        strategy: "ddp"; "fsdp", sharded over all ranks; "hybrid", sharded over `shard_size` neighbours each.
        batch_size: rows of a micro-batch.
        micro_batches: gradient accumulation steps, those of all ranks together.
        optimizer: AdamW by default.
        averages: whether the run keeps an average of the weights.
        precision: "fp32", "bf16" or "fp16".
        device: "cpu" or another; only activations depend on it.
        rank: whose moments and average; rank 0 has most.

    Raises:
        ValueError: names the argument, its value and what is accepted.
    """
    optimizer = optimizer or OptimizerConfig()
    sizes = {"ranks": ranks, "vocab_size": vocab_size, "max_length": max_length}
    for name, value in {**sizes, "batch_size": batch_size, "micro_batches": micro_batches}.items():
        require_whole(name, value, least=1)
    require(type(rank) is int and 0 <= rank < ranks, "rank", f"from 0 to {ranks - 1}", rank)
    require(precision in ("fp32", "bf16", "fp16"), "precision", "one of fp32, bf16, fp16", precision)
    require(optimizer.type in _STATE, "optimizer", f"one of {', '.join(_STATE)}", optimizer.type)
    shards = _shards(ranks, strategy, shard_size, optimizer)

    shapes, root, blocks = _units(model, vocab_size, max_length)
    whole = sum(WORD * math.prod(shape) for shape in shapes)
    of_root, of_block = _padded(root, shards), _padded(blocks[0], shards)  # bytes on one rank; all blocks are alike
    shard = of_root + len(blocks) * of_block  # under ddp, which shards over 1, the whole model
    passes = math.ceil(micro_batches / ranks)

    sharded = strategy != "ddp" and ranks > 1
    gathering, replicas = sharded and shards > 1, ranks // shards
    ahead = 2 if gathering and len(blocks) > 1 else 1  # backward, the next block's weights come during this one's
    waiting = whole if passes > 1 else whole - (len(blocks) - 1) * _padded(blocks[0], 1)
    buckets = 0 if ranks == 1 else len(blocks) + 1 if sharded else _buckets(shapes)
    stored, checkpointed = (
        activation_bytes(model, vocab_size, max_length, batch_size, precision, device, recompute=recompute)
        for recompute in (False, True)
    )
    return Plan(
        strategy=strategy,
        ranks=ranks,
        parameters=whole // WORD,
        weights=shard,
        gradients=shard,
        unsharded_gradients=waiting if sharded else 0,
        exchange=0 if ranks == 1 else shards * max(of_root, of_block) if sharded else whole,
        moments=_moments(root, shards, rank % shards, optimizer, hidden=False)
        + len(blocks) * _moments(blocks[0], shards, rank % shards, optimizer, hidden=True),
        average=averages * sum(WORD * math.prod(_own(shape, shards, rank % shards)) for shape in shapes),
        gathered=shards * (of_root + ahead * of_block) if sharded else 0,
        activations=checkpointed if model.gradient_checkpointing else stored,
        activations_checkpointed=checkpointed,
        activations_stored=stored,
        # A block is gathered for the forward pass and again for the backward pass, the root once.
        all_gather=passes * (shards - 1) * (of_root + 2 * len(blocks) * of_block),
        reduce_scatter=(shards - 1) * shard,
        all_reduce=2 * (replicas - 1) * shard // replicas,
        collectives=gathering * (passes * (1 + 2 * len(blocks)) + buckets) + (strategy != "fsdp") * buckets,
        passes=passes,
    )


def activation_bytes(
    model: ModelConfig,
    vocab_size: int,
    max_length: int,
    batch_size: int,
    precision: str = "fp32",
    device: str = "cuda",
    *,
    recompute: bool = False,
) -> int:
    """Bytes of one micro-batch (B, T) at the moment when they are most.

    Counted is what autograd saves for the backward pass, each storage once and no parameter, and the logits, of which
    the loss has a second copy. Not counted is what one operation needs and frees. With `recompute`, each block keeps
    its input alone, and one block at a time has the rest; the most is that block or the loss. Among what is saved are
    autocast's half-precision copies of the weights, which stay from forward to backward when FSDP frees the weights.

    On the CPU, tests measure the sizes; those of other devices (dropout, fused attention) are from torch's source.
    """
    tokens = batch_size * max_length  # B T
    wide = tokens * model.d_model  # B T D
    matrices = 12 * model.d_model**2  # weights of a block's linear layers
    half, cpu = precision != "fp32", device == "cpu"
    item = HALF if half else WORD
    dropped = round(model.dropout * 2**16) > 0
    # The package's own dropout keeps factors on a CPU, in its input's type; torch's keeps a byte for each element.
    factor, first_factor = (item, WORD) if cpu else (1, 1)
    statistics = 2 * WORD * tokens  # mean and scale of a norm
    rotary = model.positions == "rotary"

    block = 2 * (WORD * wide + statistics)  # inputs of both norms: the residual stream is fp32
    block += 14 * item * wide  # inputs of 4 linear layers (1 + 1 + 1 + 4), query, key, value (3), input of GELU (4)
    block += 2 * factor * wide * dropped
    block += half * HALF * matrices  # autocast's copies of weights
    if half and cpu:  # plain attention, see `model.prefers_plain_attention`: probabilities (B, H, T, T)
        block += item * model.n_head * tokens * max_length
    else:  # fused attention: the mask as a number (B, T, T), and the scores' normaliser (B, H, T)
        block += item * tokens * max_length + WORD * model.n_head * tokens
        block += rotary * 2 * item * wide  # turned queries and keys; the value keeps what they were, all one storage

    turns = rotary * tokens * WORD * (model.d_model // model.n_head)  # a complex number for two elements of a head
    embedding = (2 - rotary) * LONG * tokens + turns + first_factor * wide * dropped
    loss = WORD * wide + statistics + item * wide + half * HALF * vocab_size * model.d_model  # last norm and head
    loss += WORD * tokens * vocab_size + LONG * tokens  # log-probabilities and targets
    loss += (item + half * WORD) * tokens * vocab_size  # logits, and where they are halves their copy in fp32
    if not recompute:
        return embedding + model.n_layer * block + loss
    masks = tokens * max_length * (1 + half * cpu * HALF * model.n_head)  # for the second forward pass, once for all
    kept = embedding + model.n_layer * WORD * wide + masks
    return kept + max(block - WORD * wide, loss)  # the block's input is kept already


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
def _units(model: ModelConfig, vocab_size: int, max_length: int) -> tuple[list[Shape], list[Shape], list[list[Shape]]]:
    """Shapes of all parameters in the model's order, of those in the root, and of those in each block."""
    with torch.device("meta"):  # shapes without memory; all blocks are alike, and one is built fast
        built = GPT(replace(model, n_layer=1), vocab_size, max_length)
    named = {name: tuple(weight.shape) for name, weight in built.named_parameters()}
    root = [shape for name, shape in named.items() if not name.startswith("blocks.")]
    block = [shape for name, shape in named.items() if name.startswith("blocks.")]
    before = next(place for place, name in enumerate(named) if name.startswith("blocks."))
    return [*root[:before], *model.n_layer * block, *root[before:]], root, model.n_layer * [block]


def _padded(shapes: Sequence[Shape], shards: int) -> int:
    """Bytes of a unit on one rank: FSDP2 cuts rows, dimension 0, and pads each rank to the rows of the first."""
    return sum(WORD * math.ceil(rows / shards) * math.prod(rest) for rows, *rest in shapes)


def _own(shape: Shape, shards: int, index: int) -> Shape:
    """Rows of a parameter that the shard really has, as `torch.chunk` cuts them: the last ones may have none."""
    rows = math.ceil(shape[0] / shards)
    return (min(rows, max(0, shape[0] - index * rows)), *shape[1:])


def _buckets(shapes: Sequence[Shape]) -> int:
    """DDP's buckets: filled in the model's order, and closed at the parameter that fills them."""
    count, filled, limit = 0, 0, FIRST_BUCKET
    for shape in shapes:
        filled += WORD * math.prod(shape)
        if filled >= limit:
            count, filled, limit = count + 1, 0, BUCKET
    return count + (filled > 0)


def _moments(unit: Sequence[Shape], shards: int, index: int, optimizer: OptimizerConfig, *, hidden: bool) -> int:
    """Bytes of the optimizer's state of a unit; `hidden`: whether its matrices are those that Muon is for."""
    total = 0
    for shape in unit:
        left_to_adamw = optimizer.type == "muon" and not (hidden and len(shape) == 2)
        state = _STATE["adamw" if left_to_adamw else optimizer.type]
        total += state(_own(shape, shards, index), optimizer)
    return total


def _adam_state(shape: Shape, optimizer: OptimizerConfig) -> int:
    return 2 * WORD * math.prod(shape) + WORD  # both moments, and the step counter


def _sgd_state(shape: Shape, optimizer: OptimizerConfig) -> int:
    return WORD * math.prod(shape) if optimizer.momentum else 0


def _adafactor_state(shape: Shape, optimizer: OptimizerConfig) -> int:
    return WORD * sum(shape) + WORD  # a row and a column of a matrix; a vector whole


def _muon_state(shape: Shape, optimizer: OptimizerConfig) -> int:
    return WORD * math.prod(shape)  # the momentum


_STATE: dict[str, Callable[[Shape, OptimizerConfig], int]] = {
    "adamw": _adam_state,
    "adam": _adam_state,
    "sgd": _sgd_state,
    "adafactor": _adafactor_state,
    "muon": _muon_state,
}
