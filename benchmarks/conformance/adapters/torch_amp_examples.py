"""The loop of PyTorch's "Automatic Mixed Precision examples", retold.

Source: pytorch/pytorch, docs/source/notes/amp_examples.rst: the section on accumulation, with the unscaling and the
clipping where its comment allows them. The scaler is torch's own, on the CPU and without autocast, so that the numbers
stay those of the model. Where a run is to be refused, `clip_grad_norm_` has `error_if_nonfinite`. The examples have no
validation and no schedule: the runs' rates are moved by a hook after each step.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from course_lm.audit.adapters.parts import build_optimizer, build_rates, mean_loss
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
PACKAGE = "torch"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C8": USERS, "C9": USERS, "C11": USERS, "C12": USERS}
IGNORES = {"validation"}


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place with a scaled loss and a step at each `accumulation_steps`-th batch of an epoch."""
    optimizer = build_optimizer(model, settings)
    rates = build_rates(optimizer, settings)
    optimizer.register_step_post_hook(lambda *_: rates.step())
    scaler = torch.amp.GradScaler("cpu", init_scale=settings.loss_scale)
    bound = math.inf if settings.max_grad_norm is None else settings.max_grad_norm
    refuses = settings.on_nonfinite == "raise"
    for batches in epochs:
        for index, batch in enumerate(batches):
            loss = mean_loss(model, batch) / settings.accumulation_steps
            scaler.scale(loss).backward()
            if (index + 1) % settings.accumulation_steps == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), bound, error_if_nonfinite=refuses)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return {"ignores": IGNORES}


LOOPS = {"the AMP examples with accumulation, retold": loop}
