"""Claims about loss and clip: the configuration names them, or a person gives their own, and never are both at odds."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from course_lm.clipping import build_clip, clip_gradients
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.loss import LossConfig, next_token_loss
from course_lm.monitoring import evaluate
from course_lm.trainer import Trainer
from tests.training_run import configure, loaders, model_of

PLAIN = LossConfig()
SMOOTHED = LossConfig(label_smoothing=0.2, z_loss=1e-3)


def trained(loss: LossConfig = PLAIN, *, max_steps: int = 3, **given: Any) -> Trainer:
    settings = {key: given.pop(key) for key in ("max_grad_norm", "max_grad_value") if key in given}
    config = configure("", max_steps=max_steps, output_dir=None, **settings)
    trainer = Trainer(model_of(), TrainingConfig(loss=loss, training=config.training), **given)
    train_loader, val_loader = loaders("fixed")
    trainer.train(train_loader, val_loader)
    return trainer


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    torch.testing.assert_close(one.model.state_dict(), other.model.state_dict(), rtol=0, atol=0)


def test_the_section_loss_trains_on_that_loss():
    own = partial(next_token_loss, label_smoothing=0.2, z_loss=1e-3)
    assert_same_weights(trained(SMOOTHED), trained(loss_fn=own))


def test_validation_stays_the_plain_loss_under_the_section():
    trainer = trained(SMOOTHED)
    _, validation = loaders("fixed")
    assert trainer.history.validation[-1]["val_loss"] == evaluate(trainer.model, validation)["val_loss"]


def test_a_loss_that_the_section_describes_may_be_given_as_well():
    own = nn.CrossEntropyLoss(label_smoothing=0.2)
    assert_same_weights(trained(LossConfig(label_smoothing=0.2), loss_fn=own), trained(LossConfig(label_smoothing=0.2)))


def test_a_clip_that_the_key_describes_may_be_given_as_well():
    assert_same_weights(trained(max_grad_value=1e-3, clip=build_clip(1e-3)), trained(max_grad_value=1e-3))


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        (
            TrainingConfig(loss=SMOOTHED),
            {"loss_fn": next_token_loss},
            "loss.label_smoothing 0.2, loss.z_loss 0.001 would not be heeded beside a loss_fn of your own",
        ),
        (
            TrainingConfig(training=LoopConfig(max_grad_value=0.5)),
            {"clip": clip_gradients},
            "training.max_grad_value 0.5 would not be heeded beside a clip of your own",
        ),
    ],
)
def test_a_function_at_odds_with_the_configuration_is_refused(config, given, message):
    with pytest.raises(ValueError, match=message) as caught:
        Trainer(model_of(), config, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_the_norm_is_recorded_as_it_was_before_values_were_clipped(max_grad_norm):
    clipped = trained(max_steps=1, max_grad_norm=max_grad_norm, max_grad_value=1e-4)
    plain = trained(max_steps=1, max_grad_norm=None)
    assert clipped.history.train[0]["grad_norm"] == plain.history.train[0]["grad_norm"]
