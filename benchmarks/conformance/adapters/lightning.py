"""Lightning's Trainer with the module of its tutorials: the mean loss of a batch, and a rate by the step.

`Trainer` has its defaults but for accumulation, clipping and the number of epochs. `val_loss` is logged as the
tutorials log it. The second line has what the documentation offers: `detect_anomaly=True`, a `training_step` that
returns None for a batch without a target, and a `val_loss` logged with the number of targets as its `batch_size`.

A run that stops has `max_steps` and a `ModelCheckpoint` at that step; `ckpt_path` goes on. The loader of the second
line has `state_dict` and `load_state_dict`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer  # pyrefly: ignore[missing-import]
from lightning.pytorch.callbacks import ModelCheckpoint  # pyrefly: ignore[missing-import]
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.conformance.resume import Resumed, loader_of
from course_lm.audit import lightning
from course_lm.audit.adapters.lightning_trainer import _arguments, textbook_module
from course_lm.audit.adapters.parts import UNSCALED, Batch, mean_loss, silence
from course_lm.audit.spec import Batches, Settings

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


class Stateful(DataLoader[Batch]):
    """A loader that knows how many batches of its epoch were read."""

    read = 0

    def __iter__(self) -> Iterator[Any]:  # pyrefly: ignore[bad-override]
        self.read %= len(self)
        for batch in islice(super().__iter__(), self.read, None):
            self.read += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.read = state["read"]


def resumes(loader_class: type) -> Resumed:
    """A loop that goes on from the checkpoint in its folder."""

    def resumed(
        model: nn.Module, epochs: Sequence[Batches], settings: Settings, folder: Path, stop_after: int | None
    ) -> Mapping[str, Any]:
        chosen = _arguments(settings, len(epochs)) | {"reload_dataloaders_every_n_epochs": 0}
        if stop_after is not None:
            saver = ModelCheckpoint(folder, every_n_train_steps=stop_after)
            chosen |= {"max_steps": stop_after, "callbacks": [saver], "enable_checkpointing": True}
        with silence("lightning.pytorch", "lightning.fabric"):
            trainer, saved = Trainer(**chosen, default_root_dir=folder), next(folder.glob("*.ckpt"), None)
            trainer.fit(textbook_module(model, settings), loader_of(epochs, loader_class), ckpt_path=saved)
        return {"ignores": {*UNSCALED, "validation"}}

    return resumed


CAREFUL = "anomalies, None, `batch_size` and a loader with a state"
LOOPS = {
    "": lightning(),
    CAREFUL: lightning(careful_module, detect_anomaly=True),  # pyrefly: ignore[bad-argument-type]
}
RESUMES = {"": resumes(DataLoader), CAREFUL: resumes(Stateful)}
