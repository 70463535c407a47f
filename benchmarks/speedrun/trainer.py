"""An entry for `course-lm speedrun`: the package's `Trainer`, with AdamW and its own cosine schedule over steps."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from course_lm.audit.adapters.parts import build_optimizer
from course_lm.audit.spec import Settings
from course_lm.config import TrainingConfig
from course_lm.monitoring.utilization import Work
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.trainer import Trainer

PEAK, BATCH_SIZE = 5e-3, 8
RESERVE = 1.05  # `Work` counts attention's backward pass without what its kernel computes again


class Epochs:
    """Lists of batches as a loader."""

    def __init__(self, epochs: Any) -> None:
        self.epochs, self.epoch = epochs, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.epochs[self.epoch])

    def length_of_epoch(self, epoch: int) -> int:
        return len(self.epochs[epoch])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.epochs[self.epoch])


def loop(model: nn.Module, epochs: Any, settings: Settings) -> dict[str, Any]:
    config = TrainingConfig().updated(
        {
            "training": {
                "num_epochs": len(epochs),
                "gradient_accumulation_steps": settings.accumulation_steps,
                "max_grad_norm": settings.max_grad_norm,
                "on_nonfinite": settings.on_nonfinite,
                "precision": "fp32",
                "device": "cpu",
                "output_dir": None,
                "eval_tokens": None,
            }
        },
        "this entry",
    )
    optimizer = build_optimizer(model, settings)
    trainer = Trainer(model, config, optimizer=optimizer, schedule=settings.schedule)
    history = trainer.train(Epochs(epochs), list(settings.validation) or None)
    losses = [record["val_loss"] for record in history.validation]
    return {"validation_losses": losses, "best_weights": trainer.best_weights, "ignores": IGNORED}


IGNORED = {"loss_scale", "overflow_steps"}


def entry(new_model: Any, batches: Any, budget: Any) -> nn.Module:
    model = new_model()
    read, work = [], Work(model)
    spent = 0.0
    for batch in batches(BATCH_SIZE):
        spent += RESERVE * work.of(batch)
        if spent > budget.flops:
            break
        read.append(batch)
    schedule = build_schedule(ScheduleConfig(), peak_lr=PEAK, total_steps=len(read))
    loop(model, [read], Settings(schedule=schedule, max_grad_norm=1.0))
    return model
