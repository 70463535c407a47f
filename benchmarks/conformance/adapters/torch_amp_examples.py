"""The loop of PyTorch's "Automatic Mixed Precision examples", retold.

Source: pytorch/pytorch, docs/source/notes/amp_examples.rst at commit af616bb: the section on accumulation, with the
unscaling and the clipping where its comment allows them. The scaler is torch's own, on the CPU and without autocast, so
that the numbers stay those of the model; it skips a step that is not finite, and never raises. The examples have no
validation and no schedule: the runs' rates are moved by a hook after each step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from course_lm.audit.adapters.parts import build_optimizer, build_rates, mean_loss
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
PACKAGE = "torch"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C8": USERS, "C9": USERS, "C11": USERS, "C12": USERS}
NOT_OFFERED |= {"C13": "the examples stop no run"}
CALLED = {"C5": "not guarded"}  # the user calls `scaler.step(optimizer)`
IGNORES = {"validation"}


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place with a scaled loss and a step at each `accumulation_steps`-th batch of an epoch."""
    optimizer = build_optimizer(model, settings)
    rates = build_rates(optimizer, settings)
    optimizer.register_step_post_hook(lambda *_: rates.step())
    scaler = torch.amp.GradScaler("cpu", init_scale=settings.loss_scale)
    for batches in epochs:
        for index, batch in enumerate(batches):
            loss = mean_loss(model, batch) / settings.accumulation_steps
            scaler.scale(loss).backward()
            if (index + 1) % settings.accumulation_steps == 0:
                if settings.max_grad_norm is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return {"ignores": IGNORES}


LOOPS = {"PyTorch's page “AMP examples” at af616bb, retold": loop}
