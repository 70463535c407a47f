"""This package's own Trainer, with its defaults but for what a run decides.

The optimizer and the schedule are given to it, and nothing is written: the best weights are its copy of them.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from torch import nn

import course_lm
from course_lm.audit.adapters.parts import UNSCALED, Batch, build_optimizer
from course_lm.audit.spec import Batches, Settings
from course_lm.trainer import Trainer

PACKAGE, VERSION = "course-lm", course_lm.__version__  # it is not installed
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
    training = {
        "gradient_accumulation_steps": settings.accumulation_steps,
        "max_grad_norm": settings.max_grad_norm,
        "on_nonfinite": settings.on_nonfinite,
        "num_epochs": len(epochs),
        "eval_tokens": None,
        "precision": "fp32",
        "device": "cpu",
        "output_dir": None,
        "restore_best": False,
        "logging_steps": 10**6,
    }
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        trainer = Trainer(
            model, {"training": training}, optimizer=build_optimizer(model, settings), schedule=settings.schedule
        )
        history = trainer.train(Epochs(epochs), list(settings.validation) or None)
    losses = [record["val_loss"] for record in history.records if "val_loss" in record]
    return {"validation_losses": losses, "best_weights": trainer.best_weights, "ignores": set(UNSCALED)}
