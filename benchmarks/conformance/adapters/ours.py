"""This package's own Trainer, with its defaults but for what a run decides.

The optimizer and the schedule are given to it; the batches are read in their order. Epochs of one length are what it
knows, so the loader's length is that of the longest and `max_steps` ends the run.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from course_lm.audit.adapters.parts import UNSCALED, Batch, build_optimizer
from course_lm.audit.spec import Batches, Settings
from course_lm.trainer import Trainer

PACKAGE = "course-lm"
NOT_OFFERED: dict[str, str] = {}


class Epochs:
    """A loader that has other batches in each epoch."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.epoch = epochs, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.epochs[self.epoch])

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.epochs[self.epoch])


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train as the settings say; without a folder nothing is written."""
    config = {
        "training.gradient_accumulation_steps": settings.accumulation_steps,
        "training.max_grad_norm": settings.max_grad_norm,
        "training.on_nonfinite": settings.on_nonfinite,
        "training.num_epochs": len(epochs),
        "training.eval_tokens": None,
        "training.precision": "fp32",
        "training.device": "cpu",
        "training.output_dir": None,
        "training.restore_best": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(model, config, optimizer=build_optimizer(model, settings), schedule=settings.schedule)
        history = trainer.train(Epochs(epochs), list(settings.validation) or None)
    losses = [record["val_loss"] for record in history if "val_loss" in record]
    return {"validation_losses": losses, "best_weights": trainer.best_weights, "ignores": set(UNSCALED)}
