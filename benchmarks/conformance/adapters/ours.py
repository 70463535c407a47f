"""This package's own Trainer, with its defaults but for what a run decides.

The optimizer and the schedule are given to it, and nothing is written: the best weights are its copy of them.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from torch import nn

import course_lm
from course_lm.audit.adapters.parts import UNSCALED, Batch, build_optimizer
from course_lm.audit.spec import Batches, Settings
from course_lm.monitoring.records import Record
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


class StopAt:
    """An observer that stops its trainer after so many steps."""

    trainer: Trainer

    def __init__(self, step: int | None) -> None:
        self.step = step

    def start(self, step: int, total_steps: int | None) -> None: ...

    def log(self, record: Record) -> None:
        if record["event"] == "train" and record["step"] == self.step:
            self.trainer.stop()

    def close(self) -> None: ...


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train as the settings say; without a folder nothing is written."""
    return resumed(model, epochs, settings, None, None)


def resumed(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, folder: Path | None, stop_after: int | None
) -> Mapping[str, Any]:
    """Train from what the folder holds; stop after so many steps."""
    training = {
        "gradient_accumulation_steps": settings.accumulation_steps,
        "max_grad_norm": settings.max_grad_norm,
        "on_nonfinite": settings.on_nonfinite,
        "num_epochs": len(epochs),
        "eval_tokens": None,
        "precision": "fp32",
        "device": "cpu",
        "output_dir": folder and str(folder),
        "restore_best": False,
        "deterministic": False,
        "logging_steps": 1,
    }
    stop = StopAt(stop_after)
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        trainer = stop.trainer = Trainer(
            model,
            {"training": training},
            optimizer=build_optimizer(model, settings),
            schedule=settings.schedule,
            observers=[stop],
        )
        history = trainer.train(Epochs(epochs), list(settings.validation) or None)
    losses = [record["val_loss"] for record in history.records if "val_loss" in record]
    return {"validation_losses": losses, "best_weights": trainer.best_weights, "ignores": set(UNSCALED)}


RESUMES = {"": resumed}
