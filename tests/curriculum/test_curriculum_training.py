"""Claims about training with a curriculum: each strategy with each schedule trains, and goes on where it stopped."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from course_lm.cli.preparation import settle_curriculum, with_curriculum
from course_lm.corpus import Corpus
from course_lm.curriculum import CurriculumConfig, CurriculumLoader
from course_lm.curriculum.difficulty import STRATEGIES
from course_lm.schedules import build_schedule
from course_lm.trainer import Trainer
from tests.training_run import (
    DOCUMENTS,
    Act,
    assert_same,
    configure,
    counting,
    interrupt_at,
    loaders,
    outcome,
    quiet,
    start,
    stop_and_go_on,
)

SCHEDULES = ("linear", "root", "exponential", "step", "performance", "none")


def run(folder: Path, strategy: str, schedule: str, mode: str, act: Act = quiet, **training) -> Trainer:
    """Train, or go on training."""
    chosen: dict[str, Any] = {"strategy": strategy, "schedule": schedule, "threshold_on": "quantile"}
    chosen |= {} if schedule == "performance" else {"num_epochs": 3, "warmup_epochs": 1}
    curriculum = CurriculumConfig(enabled=True, **chosen)
    training = {"num_epochs": 3, "eval_steps": 2, "save_steps": 1000, **training}  # each epoch is saved, and each stop
    config = replace(configure(folder, **training), curriculum=curriculum)
    train, validation = loaders(mode)
    loader = with_curriculum(config, train, Corpus("animals", DOCUMENTS))
    return start(config, loader, validation, counting(act))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", ["fixed", "packed"])
def test_every_curriculum_trains_and_goes_on_bit_for_bit(strategy, schedule, mode, tmp_path):
    straight = run(tmp_path / "straight", strategy, schedule, mode)
    expected = outcome(tmp_path / "straight")
    reports = [record for record in straight.history.records if record["event"] == "epoch"]
    assert [record["epoch"] for record in reports] == [0, 1, 2]
    assert all(record["examples"] >= 4 and record["tokens"] > 0 for record in reports)
    micro_batches = sum(record["batches"] for record in reports)
    for stop_at in {1, micro_batches // 2, micro_batches - 1}:
        folder = tmp_path / str(stop_at)
        stop_and_go_on(partial(run, folder, strategy, schedule, mode), stop_at)
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
    state = trainer.state_dict()["data"]["own"]["manager"]
    assert len(losses) >= 4
    assert all(listener["losses"] == losses[-3:] for listener in state.values())
    assert set(state) == ({"schedule", "strategy"} if strategy == "dynamic" else {"schedule"})


def test_a_resume_with_another_curriculum_is_refused(tmp_path):
    run(tmp_path, "length", "linear", "fixed", interrupt_at(4))
    with pytest.raises(ValueError, match=r"curriculum.schedule 'linear', this run has 'root'"):
        run(tmp_path, "length", "root", "fixed")


def over_animals(folder: Path, curriculum: CurriculumConfig, **training: Any) -> CurriculumLoader:
    """The curriculum of a run over two dozen sentences."""
    config = replace(configure(folder, **training), curriculum=curriculum)
    loader = with_curriculum(config, loaders("fixed")[0], Corpus("animals", DOCUMENTS))
    assert isinstance(loader, CurriculumLoader)
    return loader


@pytest.mark.parametrize("training", [*({"num_epochs": epochs} for epochs in (2, 3, 5, 37)), {"max_steps": 60}])
@pytest.mark.parametrize("schedule", ["linear", "root", "geom", "step", "none"])
def test_by_default_the_last_epoch_admits_everything_without_a_warning(schedule, training, tmp_path, recwarn):
    curriculum = CurriculumConfig(enabled=True, schedule=schedule)
    loader = over_animals(tmp_path, curriculum, **training)
    admitted, final = loader.end_of_run(training.get("num_epochs", 1), training.get("max_steps"))
    assert admitted == final == len(DOCUMENTS)
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.parametrize(
    ("given", "training", "advice"),
    [
        (
            {"num_epochs": 10},
            {"num_epochs": 4},
            r"raise training.num_epochs \(4\) or lower curriculum.num_epochs \(10\)",
        ),
        ({"num_epochs": 10}, {"max_steps": 9}, r"raise training.max_steps \(9\) or lower curriculum.num_epochs \(10\)"),
        (
            {"num_steps": 500},
            {"num_epochs": 4},
            r"raise training.num_epochs \(4\) or lower curriculum.num_steps \(500\)",
        ),
        ({"schedule": "step", "step_epochs": [9.0]}, {"num_epochs": 4}, r"lower curriculum.step_epochs \(\[9.0\]\)"),
        ({}, {"num_epochs": 1}, r"raise training.num_epochs \(1\)$"),
    ],
)
def test_a_run_that_ends_before_its_curriculum_is_warned_of_with_numbers(given, training, advice, tmp_path):
    curriculum = CurriculumConfig(enabled=True, threshold_on="quantile", **given)
    with pytest.warns(UserWarning, match=rf"admits \d+ of {len(DOCUMENTS)} documents \(\d+%\).*{advice}") as caught:
        over_animals(tmp_path, curriculum, **training)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "given",
    [{"schedule": "performance"}, {"strategy": "dynamic"}, {"end_threshold": 0.5, "threshold_on": "quantile"}],
    ids=["its end is not known", "nor that of a strategy that listens", "it leaves out the hardest on purpose"],
)
def test_a_curriculum_that_need_not_admit_everything_is_not_warned_of(given, tmp_path, recwarn):
    over_animals(tmp_path, CurriculumConfig(enabled=True, **given), num_epochs=4)
    assert [str(one.message) for one in recwarn] == []


def test_a_run_saves_the_times_that_its_curriculum_has(tmp_path):
    config = replace(configure(tmp_path, num_epochs=6), curriculum=CurriculumConfig(enabled=True))
    assert settle_curriculum(config).curriculum.num_epochs == 3
    longer = replace(settle_curriculum(config), training=replace(config.training, num_epochs=60))
    assert settle_curriculum(longer).curriculum.num_epochs == 3


def test_a_position_under_a_slower_curriculum_is_refused(tmp_path):
    state = over_animals(tmp_path, CurriculumConfig(enabled=True), num_epochs=4).state_dict()
    with pytest.raises(ValueError, match=r"num_epochs 2 and warmup_epochs 0, this run has num_epochs 4 and warmup"):
        over_animals(tmp_path, CurriculumConfig(enabled=True), num_epochs=8).load_state_dict(state)
