"""Muon's momentum and the average of the weights are part of a run: a stop changes no bit of the rest."""

import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from course_lm.optim import OptimizerConfig
from course_lm.trainer import Trainer
from tests.sets import draws, of_set
from tests.training_run import (
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

FEATURES: dict[str, tuple[OptimizerConfig, dict[str, Any]]] = {
    "muon": (OptimizerConfig(type="muon", learning_rate=3e-3), {}),
    "average": (OptimizerConfig(learning_rate=3e-3), {"average_weights": 0.8}),
    "both": (OptimizerConfig(type="muon", learning_rate=3e-3), {"average_weights": 0.8}),
}


def run(folder: Path, feature: str, act: Act = quiet) -> Trainer:
    optimizer, training = FEATURES[feature]
    config = replace(configure(folder, num_epochs=1, eval_steps=3, restore_best=True, **training), optimizer=optimizer)
    return start(config, *loaders("bucketed"), counting(act))


@cache
def straight(feature: str) -> dict[str, Any]:
    folder = Path(mkdtemp())
    run(folder, feature)
    left = outcome(folder)
    shutil.rmtree(folder)
    return left


@pytest.mark.parametrize("feature", FEATURES)
def test_stopping_after_every_single_step_changes_no_bit(tmp_path, feature):
    stops = 0
    while run(tmp_path, feature, interrupt_at(1)).interrupted:
        stops += 1
    left = straight(feature)
    assert stops == left["checkpoints"]["checkpoint_last.safetensors"]["step"] > 4
    assert_same(outcome(tmp_path), left)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_single_stop_changes_no_bit(tmp_path, feature):
    for micro_batch in draws(feature).sample(range(1, 14), of_set(2, 13)):  # 13 are all of the run
        folder = tmp_path / str(micro_batch)
        stop_and_go_on(partial(run, folder, feature), micro_batch)
        assert_same(outcome(folder), straight(feature), f"stopped at micro-batch {micro_batch}")
