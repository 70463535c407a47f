"""skorch's `NeuralNet` with the callbacks `LRScheduler`, `GradientNormClipping` and `Checkpoint`.

The criterion is the mean over a batch's targets, the optimizer torch's own. `LRScheduler` moves the rate after each
batch. The validation data are given with `predefined_split`, and `Checkpoint` saves the weights of the lowest
`valid_loss`. A validation batch without a target is left out. The net has no accumulation; that of its FAQ has
an adapter of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from skorch import NeuralNet  # pyrefly: ignore[missing-import]
from skorch.callbacks import (  # pyrefly: ignore[missing-import]
    Callback,
    Checkpoint,
    GradientNormClipping,
    LRScheduler,
)
from skorch.helper import predefined_split  # pyrefly: ignore[missing-import]
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from course_lm.audit.adapters.parts import UNSCALED, Batch, Loop, build_optimizer
from course_lm.audit.runs import count_targets
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
ALONE = "the net has no accumulation"
PACKAGE = "skorch"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C3": ALONE, "C4": ALONE, "C9": "the user builds the optimizer"}
Item = tuple[Batch, Tensor]


class ShiftedLoss(nn.Module):
    """The mean loss of the targets, in nats, of logits (B, T, V) and labels (B, T)."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Epochs(Dataset[Item]):
    """The batches of the epoch that has begun last, each with its labels (B, T)."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.at = epochs, 0

    def __len__(self) -> int:
        return len(self.epochs[self.at])

    def __getitem__(self, index: int) -> Item:
        batch = self.epochs[self.at][index]
        return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]


class NextEpoch(Callback):
    """Open the next epoch's batches."""

    def __init__(self, data: Epochs) -> None:
        self.data = data

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        self.data.at = min(self.data.at + 1, len(self.data.epochs) - 1)


def driven(net_of: Callable[[Settings], Any], ignores: frozenset[str]) -> Loop:
    """A loop that fits the class of net that `net_of` makes of the settings."""

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        data, size = Epochs(epochs), 1 if "accumulation_steps" in ignores else settings.accumulation_steps
        validation = [] if "validation" in ignores else [one for one in settings.validation if count_targets(one)]
        with TemporaryDirectory() as folder:
            best = Checkpoint(monitor="valid_loss_best", dirname=folder)
            callbacks = [
                NextEpoch(data),
                LRScheduler(LambdaLR, step_every="batch", lr_lambda=rates(epochs, settings, size)),
            ]
            if settings.max_grad_norm is not None:
                callbacks.append(GradientNormClipping(settings.max_grad_norm))
            net = net_of(settings)(
                model,
                criterion=ShiftedLoss,
                optimizer=lambda _, lr: build_optimizer(model, settings),
                max_epochs=len(epochs),
                iterator_train__batch_size=None,
                iterator_valid__batch_size=None,
                train_split=predefined_split(Epochs([validation])) if validation else None,
                callbacks=[*callbacks, best] if validation else callbacks,
                verbose=0,
            ).fit(data)
            found = {}
            if validation:
                weights = torch.load(best.get_formatted_files(net)["f_params"])
                found = {"validation_losses": net.history[:, "valid_loss"], "best_weights": weights}
        return found | {"ignores": ignores}

    return loop


def rates(epochs: Sequence[Batches], settings: Settings, size: int) -> Callable[[int], float]:
    """The schedule as a function of the batches that were read; an epoch's last, smaller window makes no step."""
    steps = list(steps_before(epochs, size))
    return lambda read: settings.schedule(steps[min(read, len(steps) - 1)])


def steps_before(epochs: Sequence[Batches], size: int) -> Iterator[int]:
    """For each batch of a run the steps before it."""
    done = 0
    for batches in epochs:
        yield from (done + at // size for at in range(len(batches)))
        done += len(batches) // size


loop = driven(lambda _: NeuralNet, frozenset({"accumulation_steps", *UNSCALED}))
