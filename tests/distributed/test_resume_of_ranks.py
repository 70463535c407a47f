"""A run of several ranks that is stopped after each of its steps ends with the bits of one that never was (C13, C16).

All that could be lost is on: dropout, an average of the weights, accumulation with a tail, a loss scale.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from course_lm.config import TrainingConfig
from course_lm.distributed import DistributedConfig
from course_lm.loss import next_token_loss
from course_lm.trainer import Trainer
from tests.training_run import assert_same, configure, loaders, model_of, without_measures

STEPS = 4
LEFT_OUT = ("parts", "parts_now", "config")  # the function that stops is another one each time


def config_of(folder: Path, precision: str) -> TrainingConfig:
    config = configure(folder, precision=precision, max_steps=STEPS, average_weights=0.9, logging_steps=3)
    return replace(config, distributed=DistributedConfig(strategy="ddp"))


def session(folder: Path, mode: str, precision: str, *, stops: bool) -> Trainer:
    """Train, or go on training, with everything built anew; `stops` ends it after its next step."""

    def loss_fn(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        if stops:
            trainer.stop()
        return next_token_loss(logits, labels, reduction=reduction)

    trainer = Trainer(model_of(), config_of(folder, precision), loss_fn=loss_fn)
    trainer.train(*loaders(mode))
    return trainer


def left_by(trainer: Trainer) -> dict[str, Any]:
    return {key: part for key, part in without_measures(trainer.state_dict()).items() if key not in LEFT_OUT}


def stopped_and_not(folder: Path, mode: str, precision: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """On a rank: what is left by a run that never stops, and by one that stops after each step; how often it did."""
    whole = session(folder / "whole", mode, precision, stops=False)
    stops, part = 1, session(folder / "parts", mode, precision, stops=True)
    while part.interrupted:
        stops, part = stops + 1, session(folder / "parts", mode, precision, stops=True)
    return left_by(whole), left_by(part), stops


@pytest.mark.daily(3)
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("mode", ["dynamic", "packed"])
def test_ranks_that_stop_after_each_step_end_with_the_bits_of_a_run_that_never_stopped(
    ranks, tmp_path, mode, precision, world
):
    for whole, parts, stops in ranks(world).run(stopped_and_not, tmp_path, mode, precision):
        assert stops >= STEPS and whole["step"] == STEPS
        assert_same(parts, whole)


@pytest.mark.parametrize("mode", ["dynamic", "packed"])
def test_one_rank_under_torchrun_ends_with_the_bits_of_a_plain_process(ranks, tmp_path, mode):
    ((under, _, _),) = ranks(1).run(stopped_and_not, tmp_path / "under", mode, "fp32")
    alone = left_by(session(tmp_path / "alone", mode, "fp32", stops=False))
    assert torch.get_num_threads() == int(under["machine"]["threads"])
    assert_same(alone, under)
