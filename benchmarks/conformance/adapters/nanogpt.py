"""The loop of nanoGPT's train.py, retold.

Source: karpathy/nanoGPT, train.py at commit 3adf61e. A step takes `gradient_accumulation_steps` batches of a stream
that has no epochs, and divides the mean loss of each by their number; the rate is a function of the step. Its batches
are full rows, of one number. Each epoch of a run is a stream here, of which a last, smaller window is not read. The
scaler is torch's own, on the CPU and without autocast, and as in train.py it is off where no loss scale is asked for.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import count
from statistics import fmean
from typing import Any

import torch
from torch import nn

from course_lm.audit.adapters.parts import build_optimizer, mean_loss
from course_lm.audit.runs import count_targets
from course_lm.audit.spec import Batches, Settings

PACKAGE = "torch"
EQUAL = "its batches have the same number of targets, where the mean of their means is right"
NOT_OFFERED = {
    "C1": "the adapter shifts, as its `get_batch` does",
    "C2": "its rows are full",
    "C3": EQUAL,
    "C4": "it has no epochs",
    "C5": "its rows are full",
    "C11": EQUAL,
}

CALLED = {"C7": "not guarded"}  # the user calls `scaler.step(optimizer)`


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place; return the validation losses and the best weights."""
    optimizer = build_optimizer(model, settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=settings.loss_scale, enabled=settings.loss_scale != 1.0)
    size, steps = settings.accumulation_steps, count()
    losses: list[float] = []
    best_loss, best_weights = 1e9, None
    for batches in epochs:
        stream = iter(batches)
        for _ in range(len(batches) // size):
            lr = settings.schedule(next(steps))
            for group in optimizer.param_groups:
                group["lr"] = lr
            for _ in range(size):
                scaler.scale(mean_loss(model, next(stream)) / size).backward()
            if settings.max_grad_norm is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        if settings.validation:
            losses.append(estimate_loss(model, settings.validation))
            if losses[-1] < best_loss:
                best_loss, best_weights = losses[-1], deepcopy(model.state_dict())
    return {"validation_losses": losses or None, "best_weights": best_weights}


@torch.no_grad()
def estimate_loss(model: nn.Module, validation: Batches) -> float:
    """The mean of the batches' mean losses, in eval mode."""
    model.eval()
    loss = fmean(mean_loss(model, batch).item() for batch in validation if count_targets(batch))
    model.train()
    return loss


LOOPS = {"nanoGPT’s train.py at 3adf61e, retold": loop}
