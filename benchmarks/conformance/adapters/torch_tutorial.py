"""The loop of PyTorch's tutorial "Training with PyTorch", retold with the loss of a language model.

Source: pytorch/tutorials, beginner_source/introyt/trainingyt.py at commit 0ac2837. Each batch is a step. The validation
loss is the sum of the batches' mean losses by their number, and the best weights are saved. The tutorial has no
accumulation, no clipping, no schedule and no loss scale; the runs' rates are moved by a hook after each step. A
validation batch without a target, which the tutorial never meets, is left out.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from statistics import fmean
from typing import Any

import torch
from torch import nn

from course_lm.audit.adapters.parts import build_optimizer, build_rates, mean_loss
from course_lm.audit.runs import count_targets
from course_lm.audit.spec import Batches, Settings

PACKAGE = "torch"
IMAGES = "the tutorial is about images"
ONE_SIZE = "the tutorial is about images, and its batches have one size"
NOT_OFFERED = {
    "C1": IMAGES,
    "C2": IMAGES,
    "C3": "the tutorial has no accumulation",
    "C5": ONE_SIZE,
    "C8": "the tutorial has one rate",
    "C9": "the tutorial sets no decay",
    "C11": ONE_SIZE,
    "C13": "the tutorial stops no run",
}
CALLED = {"C7": "not guarded"}  # the user calls `optimizer.step()`
IGNORES = {"accumulation_steps", "max_grad_norm", "loss_scale", "overflow_steps"}


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place; return the validation losses, the best weights, and what the tutorial lacks."""
    optimizer = build_optimizer(model, settings)
    rates = build_rates(optimizer, settings)
    optimizer.register_step_post_hook(lambda *_: rates.step())
    losses: list[float] = []
    best_loss, best_weights = 1e6, None
    for batches in epochs:
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            mean_loss(model, batch).backward()
            optimizer.step()
        if settings.validation:
            losses.append(validate(model, settings.validation))
            if losses[-1] < best_loss:
                best_loss, best_weights = losses[-1], deepcopy(model.state_dict())
    return {"validation_losses": losses or None, "best_weights": best_weights, "ignores": IGNORES}


@torch.no_grad()
def validate(model: nn.Module, validation: Batches) -> float:
    """The sum of the batches' mean losses by the number of batches."""
    model.eval()
    return fmean(mean_loss(model, batch).item() for batch in validation if count_targets(batch))


LOOPS = {"PyTorch's tutorial “Training with PyTorch” at 0ac2837, retold": loop}
