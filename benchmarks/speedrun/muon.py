"""An entry for `course-lm speedrun`: the package's `train_step` with Muon, whose products count too."""

from typing import Any

from plain import Cosine
from torch import nn

from course_lm.accumulation import windows
from course_lm.audit.adapters.parts import build_optimizer
from course_lm.audit.spec import Settings
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig
from course_lm.optim import build_optimizer as build_own
from course_lm.step import train_step

PEAK, BATCH_SIZE = 2e-2, 8


def loop(model: nn.Module, epochs: Any, settings: Settings, optimizer: Any = None) -> dict[str, Any]:
    """The optimizer is the one that `settings` ask for, or the given one: the audit has no Muon to compare it with."""
    optimizer, step = optimizer or build_optimizer(model, settings), 0
    losses = []
    for batches in epochs:
        for window in windows(batches, settings.accumulation_steps):
            how = {"max_grad_norm": settings.max_grad_norm, "on_nonfinite": settings.on_nonfinite}
            result = train_step(model, window, optimizer, lr=settings.schedule(step), **how)
            step += not result.skipped
        if settings.validation:
            losses.append(evaluate(model, settings.validation)["val_loss"])
    return {"validation_losses": losses, "ignores": IGNORED}


IGNORED = {"loss_scale", "overflow_steps"}


def entry(new_model: Any, batches: Any, budget: Any) -> nn.Module:
    model = new_model()
    muon = build_own(model, OptimizerConfig(type="muon", learning_rate=PEAK, weight_decay=0.0))
    settings = Settings(schedule=Cosine(budget, PEAK), max_grad_norm=1.0)
    loop(model, [batches(BATCH_SIZE)], settings, muon)
    return model
