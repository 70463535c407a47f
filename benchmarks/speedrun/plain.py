"""An entry for `course-lm speedrun`: the loop as it is usually written, with AdamW and a cosine schedule."""

from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.audit.adapters.parts import build_optimizer
from course_lm.audit.spec import Settings

PEAK, WARM_UP, BATCH_SIZE = 5e-3, 0.08, 8


@dataclass
class Cosine:
    """The rate at the share of the budget that is spent, whatever the step."""

    budget: Any
    peak: float = PEAK

    def __call__(self, step: int) -> float:
        progress = self.budget.progress
        falling = 0.5 * (1 + cos(pi * max(0.0, progress - WARM_UP) / (1 - WARM_UP)))
        return self.peak * min(1.0, (progress + 1e-3) / WARM_UP) * falling


def sum_of(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")


def loop(model: nn.Module, epochs: Any, settings: Settings) -> dict[str, Any]:
    optimizer, step = build_optimizer(model, settings), 0
    for batches in epochs:
        for batch in batches:
            targets = int((batch["labels"][:, 1:] != -100).sum())
            if not targets:
                continue
            for group in optimizer.param_groups:
                group["lr"] = settings.schedule(step)
            optimizer.zero_grad()
            (sum_of(model, batch) / targets).backward()
            if settings.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            step += 1
    return {"ignores": IGNORED}


IGNORED = {"accumulation_steps", "validation", "document_ids", "loss_scale", "overflow_steps", "on_nonfinite"}


def entry(new_model: Any, batches: Any, budget: Any) -> nn.Module:
    model = new_model()
    loop(model, [batches(BATCH_SIZE)], Settings(schedule=Cosine(budget), max_grad_norm=1.0))
    return model
