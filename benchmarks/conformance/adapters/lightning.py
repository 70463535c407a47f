"""Lightning's Trainer with the module of its tutorials: the mean loss of a batch, and a rate by the step.

`Trainer` has its defaults but for accumulation, clipping and the number of epochs. `val_loss` is logged as the
tutorials log it. The second line has what the documentation offers: `detect_anomaly=True`, a `training_step` that
returns None for a batch without a target, and a `val_loss` logged with the number of targets as its `batch_size`.
"""

from typing import Any

import torch
from torch import nn

from course_lm.audit import lightning
from course_lm.audit.adapters.lightning_trainer import textbook_module
from course_lm.audit.adapters.parts import Batch, mean_loss
from course_lm.audit.spec import Settings

USERS = "the user writes the loss"
PACKAGE = "lightning"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C9": "the user builds the optimizer"}
NOT_TRIED = {"C12": "the best weights are a checkpoint's, which this adapter does not write"}


def careful_module(model: nn.Module, settings: Settings) -> Any:
    """The textbook's module with the documented ways to skip a batch and to weigh one."""
    Textbook = type(textbook_module(model, settings))

    class Careful(Textbook):
        def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor | None:
            return super().training_step(batch, batch_idx) if targets(batch) else None

        def validation_step(self, batch: Batch, batch_idx: int) -> None:
            if targets(batch):
                self.log("val_loss", mean_loss(self.model, batch), batch_size=targets(batch))

    return Careful()


def targets(batch: Batch) -> int:
    """Target tokens of a batch."""
    return int((batch["labels"][:, 1:] != -100).sum())


LOOPS = {
    "": lightning(),
    "anomalies, None and `batch_size`": lightning(careful_module, detect_anomaly=True),  # pyrefly: ignore[bad-argument-type]
}
