"""A time budget of several ranks: rank 0 measures and decides, and all take as many steps."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from course_lm.distributed import DistributedConfig, connect
from course_lm.shards import gathered
from course_lm.trainer import Trainer, budget
from tests.training_run import assert_same, configure, loaders, model_of


def train(strategy: str, length: dict[str, Any]) -> dict[str, Any]:
    """On a rank: what a run leaves where each reading of the clock takes longer on rank 1."""
    tick, readings = 0.2 + connect().rank, count()
    clock, budget.clock = budget.clock, lambda: tick * next(readings)
    try:
        settings: dict[str, Any] = {"output_dir": None, "eval_steps": 4, **length}
        config = replace(configure("", **settings), distributed=DistributedConfig(strategy=strategy))  # type: ignore[arg-type]
        trainer = Trainer(model_of(), config)
        trainer.train(*loaders("bucketed"))
    finally:
        budget.clock = clock
    return {
        "lengths": trainer.settings.lengths,
        "steps": trainer.settings.max_steps,
        "taken": trainer.step,
        "weights": gathered(dict(trainer.model.named_parameters())),
        "losses": [record["loss"] for record in trainer.history.train],
    }


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_take_the_steps_that_rank_0_decides_and_timing_changes_no_bit(ranks, strategy):
    first, second = ranks(2).run(train, strategy, {"time_budget": 0.1})
    assert first["lengths"] == second["lengths"] and len(first["lengths"]) > 1
    assert first["steps"] == second["steps"] == first["taken"] == second["taken"] > 1
    for of_rank in ranks(2).run(train, strategy, {"max_steps": first["steps"], "lengths": first["lengths"]}):
        assert_same(of_rank, first)
