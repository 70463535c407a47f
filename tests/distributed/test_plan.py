"""Claims about the plan of a run on many ranks: what it says is what is there and what is sent."""

from dataclasses import replace
from typing import Any

import pytest

from course_lm.averaging import WeightAverage
from course_lm.distributed.settings import STRATEGIES
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.profiling.plan import Plan, plan
from course_lm.shards import part_of
from tests.distributed.measured import Case, on_a_real_rank, on_a_simulated_rank, shard, simulated

TINY = ModelConfig(n_layer=3, n_head=2, d_model=20, dropout=0.0)


def assert_as_planned(case: Case, rank: int, measured: dict[str, int]) -> None:
    planned = {name: getattr(case.plan(), name) for name in measured}
    if rank:  # which may have fewer rows than rank 0, whose moments are planned
        assert measured.pop("moments") <= planned.pop("moments")
    assert planned == measured, f"rank {rank} of {case}"


# Real processes


REAL = {
    "ddp-2": Case(TINY, 2, micro_batches=3),
    "ddp-4": Case(ModelConfig(2, 2, 256, 0.0), 4, vocab_size=4000),  # in two buckets
    "fsdp-2": Case(TINY, 2, "fsdp"),
    "fsdp-4": Case(TINY, 4, "fsdp", micro_batches=9),
    "hybrid-4": Case(TINY, 4, "hybrid", 2, micro_batches=6),
}


@pytest.mark.parametrize("name", REAL)
def test_each_of_2_and_4_real_ranks_holds_and_sends_what_was_planned(ranks, name):
    for rank, measured in enumerate(ranks(REAL[name].ranks).run(on_a_real_rank, REAL[name])):
        assert_as_planned(REAL[name], rank, measured)


# One rank of many: torch's fake process group


SGD, PLAIN_SGD = OptimizerConfig(type="sgd"), OptimizerConfig(type="sgd", momentum=0.0)
SHARDED = Case(TINY, 6, "fsdp")
CASES = {
    "several passes": SHARDED.but(micro_batches=20),
    "a block alone": SHARDED.but(model=replace(TINY, n_layer=1)),
    "a root smaller than a block": SHARDED.but(model=replace(TINY, d_model=40), vocab_size=7),
    "gradient checkpointing": SHARDED.but(model=replace(TINY, gradient_checkpointing=True), micro_batches=12),
    "more ranks than rows": SHARDED.but(ranks=80),
    "many groups of many ranks": SHARDED.but(ranks=1024, strategy="hybrid", shard_size=64, micro_batches=1024),
    "groups of one rank": SHARDED.but(strategy="hybrid", shard_size=1, micro_batches=12),
    "one group of all ranks": SHARDED.but(strategy="hybrid", shard_size=6, micro_batches=12),
    "three groups": SHARDED.but(strategy="hybrid", shard_size=2),
    "Adam, sharded": SHARDED.but(optimizer=OptimizerConfig(type="adam")),
    "SGD, sharded": SHARDED.but(optimizer=SGD),
    "SGD": Case(TINY, 6, optimizer=SGD),
    "SGD without momentum": Case(TINY, 6, optimizer=PLAIN_SGD),
    "Adafactor": Case(TINY, 6, optimizer=OptimizerConfig(type="adafactor")),
    "Muon": Case(TINY, 6, optimizer=OptimizerConfig(type="muon")),
    "Muon, where a hidden matrix has as many rows as the vocabulary": Case(
        TINY, 6, vocab_size=4 * TINY.d_model, optimizer=OptimizerConfig(type="muon")
    ),
    "buckets of DDP": Case(ModelConfig(3, 2, 512, 0.0), 3, vocab_size=4000, micro_batches=6),
    "a bucket that the first parameter fills": Case(ModelConfig(1, 1, 32, 0.0), 3, vocab_size=2**14),
    # both embeddings and the block: 4 * 128 * (7 + 492 + 12 * 128 + 13) bytes are 1 MiB, the first bucket
    "a bucket filled to the byte": Case(ModelConfig(1, 1, 128, 0.0), 3, vocab_size=7, max_length=492),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_rank_holds_and_sends_was_planned(name):
    case = CASES[name]
    for rank in (0, case.ranks - 1):
        assert_as_planned(case, rank, on_a_simulated_rank(case, rank))


@pytest.mark.parametrize("ranks", [6, 80])
def test_an_average_takes_the_rows_of_a_rank(ranks):
    case = SHARDED.but(ranks=ranks)
    with simulated(case, 0) as mesh:
        model = GPT(case.model, case.vocab_size, case.max_length)
        shard(model, mesh)
        averages = WeightAverage(model, 0.9).state_dict().values()
    told = tiny_plan(ranks, vocab_size=301, max_length=17, averages=True).average
    assert told == sum(part_of(one).untyped_storage().nbytes() for one in averages)


def tiny_plan(ranks: int = 4, strategy: str = "fsdp", model: ModelConfig = TINY, **changes: Any) -> Plan:
    sizes: dict[str, Any] = {"vocab_size": 301, "max_length": 17, "batch_size": 2, "micro_batches": 8}
    return plan(model, ranks, strategy, **{**sizes, **changes})


# What follows from the definitions


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_alone_sends_nothing_and_copies_nothing(strategy):
    one = tiny_plan(1, strategy, shard_size=1 if strategy == "hybrid" else None)
    assert (one.sent, one.collectives, one.gathered, one.exchange, one.unsharded_gradients) == (0, 0, 0, 0, 0)


def test_each_rank_computes_as_many_micro_batches_and_some_are_empty():
    assert [tiny_plan(4, micro_batches=count).passes for count in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number of at least 1, got 0"),
        ({"strategy": "zero"}, "strategy must be one of ddp, fsdp, hybrid, got 'zero'"),
        ({"strategy": "hybrid"}, "shard_size must be a divisor of the 4 ranks for hybrid, got None"),
        ({"strategy": "hybrid", "shard_size": 3}, "shard_size must be a divisor of the 4 ranks for hybrid, got 3"),
        ({"shard_size": 2}, "shard_size must be None for fsdp, got 2"),
        ({"precision": "auto"}, "precision must be one of fp32, bf16, fp16, got 'auto'"),
        ({"micro_batches": 0}, "micro_batches must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1, got 0"),
        ({"max_length": 0}, "max_length must be a whole number of at least 1, got 0"),
        (
            {"optimizer": OptimizerConfig(type="adafactor")},
            "optimizer must be one that torch can shard, for fsdp, got 'adafactor'",
        ),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError) as caught:
        tiny_plan(**changes)
    assert str(caught.value) == message


def test_torch_cannot_shard_what_the_plan_refuses_to():
    with pytest.raises(RuntimeError, match="placement"):
        on_a_simulated_rank(SHARDED.but(optimizer=OptimizerConfig(type="adafactor")), 0)
