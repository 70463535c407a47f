"""Claims about the plan of a run on many ranks: what it says is what is there and what is sent."""

import pytest

from course_lm.model import ModelConfig
from course_lm.optim import OptimizerConfig
from tests.distributed.measured import Case, on_a_simulated_rank, on_real_ranks

TINY = ModelConfig(n_layer=3, n_head=2, d_model=20, dropout=0.0)


def planned(case: Case, rank: int, measured: dict[str, int]) -> dict[str, int]:
    return {name: getattr(case.plan(rank), name) for name in measured}


REAL = {
    "ddp-2": Case(TINY, 2, micro_batches=3),
    "fsdp-2": Case(TINY, 2, "fsdp"),
    "fsdp-4": Case(TINY, 4, "fsdp", micro_batches=9),
    "hybrid-4": Case(TINY, 4, "hybrid", 2, micro_batches=6),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REAL)
def test_each_real_rank_holds_and_sends_what_was_planned(name, tmp_path):
    case = REAL[name]
    for rank, measured in enumerate(on_real_ranks(case, tmp_path)):
        assert planned(case, rank, measured) == measured, rank


@pytest.mark.parametrize("ranks", [64, 1024])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hybrid"])
def test_simulated_ranks(ranks, strategy):
    case = Case(TINY, ranks, strategy, 8 if strategy == "hybrid" else None, micro_batches=2 * ranks)
    for rank in (0, ranks // 2, ranks - 1):
        measured = on_a_simulated_rank(case, rank)
        assert planned(case, rank, measured) == measured, rank
