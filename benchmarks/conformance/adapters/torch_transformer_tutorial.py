"""The loop of PyTorch's tutorial "Language Modeling with nn.Transformer", retold.

Source: pytorch/tutorials, beginner_source/transformer_tutorial.py at commit 00109f5. Each batch is a clipped step, and
each epoch has one rate; the runs' rates are moved by a hook after each step. Its validation is left out: it weighs a
batch's mean loss by the length of its rows, which is right for full rows of one number, as the tutorial's are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from course_lm.audit.adapters.parts import build_optimizer, build_rates, mean_loss
from course_lm.audit.spec import Batches, Settings

PACKAGE = "torch"
FULL = "its validation is for full rows of one number"
NOT_OFFERED = {
    "C2": "the tutorial's rows are full",
    "C8": "the tutorial's rates are for epochs",
    "C9": "the tutorial sets no decay",
    "C11": FULL,
    "C12": FULL,
}
IGNORES = {"accumulation_steps", "validation", "loss_scale", "overflow_steps"}


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place; return what the tutorial lacks."""
    optimizer = build_optimizer(model, settings)
    rates = build_rates(optimizer, settings)
    optimizer.register_step_post_hook(lambda *_: rates.step())
    for batches in epochs:
        model.train()
        for batch in batches:
            loss = mean_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if settings.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
    return {"ignores": IGNORES}


LOOPS = {"the transformer tutorial, retold": loop}
