"""Claims about training with a curriculum: each strategy with each schedule trains, and goes on where it stopped."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course_lm.corpus import Corpus
from course_lm.curriculum import CurriculumConfig
from course_lm.schedules import build_schedule
from course_lm.text_run import with_curriculum
from course_lm.trainer import Trainer
from tests.training_run import DOCUMENTS, assert_same, configure, counting, loaders, outcome, start

STRATEGIES = ("length", "frequency", "morphological", "combined", "dynamic", "random")
SCHEDULES = ("linear", "root", "exponential", "step", "performance", "none")


def run(folder: Path, strategy: str, schedule: str, mode: str, stop_at: int = 0, **training) -> Trainer:
    """Train, or go on training; at micro-batch `stop_at` of this process comes a signal."""

    def act(count: int) -> None:
        if count == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    chosen: dict[str, Any] = {"strategy": strategy, "schedule": schedule, "threshold_on": "quantile"}
    curriculum = CurriculumConfig(enabled=True, num_epochs=3, warmup_epochs=1, **chosen)
    config = replace(configure(folder, num_epochs=3, eval_steps=2, **training), curriculum=curriculum)
    train, validation = loaders(mode)
    loader = with_curriculum(config, train, Corpus("animals", DOCUMENTS))
    return start(config, loader, validation, counting(act))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fixed", "packed"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_curriculum_trains_and_goes_on_bit_for_bit(strategy, schedule, mode, tmp_path):
    straight = run(tmp_path / "straight", strategy, schedule, mode)
    expected = outcome(tmp_path / "straight")
    reports = [record for record in straight.history.records if record["event"] == "epoch"]
    assert [record["epoch"] for record in reports] == [0, 1, 2]
    assert all(record["examples"] >= 4 and record["tokens"] > 0 for record in reports)
    micro_batches = sum(record["batches"] for record in reports)
    for stop_at in {1, micro_batches // 2, micro_batches - 1}:
        folder = tmp_path / str(stop_at)
        assert run(folder, strategy, schedule, mode, stop_at).interrupted == signal.SIGINT
        assert run(folder, strategy, schedule, mode).interrupted is None
        assert_same(outcome(folder), expected, f"stopped at micro-batch {stop_at}")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_ends_where_training_ends(schedule, tmp_path):
    trainer = run(tmp_path, "length", schedule, "packed", logging_steps=1)
    settings = trainer.config
    whole = build_schedule(settings.lr_scheduler, peak_lr=settings.optimizer.learning_rate, total_steps=trainer.step)
    logged = [record["lr"] for record in trainer.history.train]
    assert logged == [whole(step) for step in range(trainer.step)]
    assert whole(trainer.step) < 1e-9


@pytest.mark.parametrize("strategy", ["length", "dynamic"])
def test_a_report_reaches_the_curriculum_after_every_validation(strategy, tmp_path):
    trainer = run(tmp_path, strategy, "performance", "fixed")
    losses = [record["val_loss"] for record in trainer.history.validation]
    state = trainer.state_dict()["position"]["loader"]["manager"]
    assert len(losses) >= 4
    assert all(listener["losses"] == losses[-3:] for listener in state.values())
    assert set(state) == ({"schedule", "strategy"} if strategy == "dynamic" else {"schedule"})


def test_a_resume_with_another_curriculum_is_refused(tmp_path):
    run(tmp_path, "length", "linear", "fixed", stop_at=4)
    with pytest.raises(ValueError, match=r"curriculum.schedule 'linear', this run has 'root'"):
        run(tmp_path, "length", "root", "fixed")
