"""fastai's `Learner` with `GradientAccumulation`, `GradientClip` and `ParamScheduler`.

`n_acc` counts the samples of `yb`. Each batch is handed over as one sample, so that `n_acc` batches make a step
whatever their rows are; a validation batch has its own rows. The rate is a function of the training's progress, which
is turned back into the number of windows read before. The optimizer is torch's own in `OptimWrapper`, the loss the mean
over a batch's targets. The best weights are those that `SaveModelCallback` saves: of the lowest `valid_loss`. A run
that is to be refused has `TerminateOnNaNCallback`.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from typing import Any

import torch.nn.functional as F
from fastai.callback.schedule import ParamScheduler  # pyrefly: ignore[missing-import]
from fastai.callback.tracker import TerminateOnNaNCallback  # pyrefly: ignore[missing-import]
from fastai.callback.training import GradientAccumulation, GradientClip  # pyrefly: ignore[missing-import]
from fastai.data.core import DataLoaders  # pyrefly: ignore[missing-import]
from fastai.learner import Callback, Learner  # pyrefly: ignore[missing-import]
from fastai.optimizer import OptimWrapper  # pyrefly: ignore[missing-import]
from torch import Tensor, nn

from course_lm.audit.adapters.parts import Batch, build_optimizer, logits_for
from course_lm.audit.runs import count_targets
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
PACKAGE = "fastai"
PRECISION = "float32"  # the recorder mixes the loss with a float32 number
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C9": "the user builds the optimizer"}
NOT_TRIED = {"C13": "`fit(start_epoch=…)` goes on at an epoch's start alone, and the adapter stops no run"}
Item = tuple[Batch, Tensor]


class Batched(nn.Module):
    """The model, called with a whole batch as fastai calls it with x."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """The logits (B, T, V)."""
        return logits_for(self.model, batch)


class Epochs:
    """A loader that reads the next epoch's batches each time that it is asked for an iterator."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.read = epochs, 0

    def __len__(self) -> int:
        return len(self.epochs[min(self.read, len(self.epochs) - 1)])

    def __iter__(self) -> Any:
        self.read += 1
        return iter([(batch, batch["labels"][None]) for batch in self.epochs[self.read - 1]])


class Validation(Callback):
    """Keep the recorder's `valid_loss` of each epoch, and the weights of the lowest."""

    order = 61  # that of SaveModelCallback

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.weights: dict[str, Tensor] | None = None

    def after_epoch(self) -> None:
        """Read the value as fastai's trackers do."""
        names = list(self.recorder.metric_names[1:])
        self.losses.append(float(self.recorder.values[-1][names.index("valid_loss")]))
        if self.losses[-1] == min(self.losses):
            self.weights = deepcopy(self.learn.model.model.state_dict())


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place; return the validation losses and the best weights."""
    validation = [(batch, batch["labels"]) for batch in settings.validation if count_targets(batch)]
    optimizer = OptimWrapper(opt=build_optimizer(model, settings))
    loaders = DataLoaders(Epochs(epochs), validation)
    learner = Learner(loaders, Batched(model), loss_func=shifted_loss, opt_func=optimizer, train_bn=False)
    watch = Validation()
    callbacks = [ParamScheduler({"lr": rates(epochs, settings)})]
    if validation:
        callbacks.append(watch)
    if settings.accumulation_steps > 1:
        callbacks.append(GradientAccumulation(settings.accumulation_steps))
    if settings.max_grad_norm is not None:
        callbacks.append(GradientClip(settings.max_grad_norm))
    if settings.on_nonfinite == "raise":
        callbacks.append(TerminateOnNaNCallback())
    with learner.no_bar(), learner.no_logging():
        learner.fit(len(epochs), lr=settings.schedule(0), cbs=callbacks)
    found = {"validation_losses": watch.losses, "best_weights": watch.weights} if validation else {}
    return found | {"ignores": {"loss_scale", "overflow_steps"}}


def rates(epochs: Sequence[Batches], settings: Settings) -> Any:
    """The schedule as a function of fastai's progress, of which each epoch has the same share."""
    before = [0, *accumulate(map(len, epochs))]

    def rate(progress: float) -> float:
        done = progress * len(epochs) + 1e-6  # the progress is a sum of rounded shares
        epoch = min(int(done), len(epochs) - 1)
        read = before[epoch] + int((done - epoch) * len(epochs[epoch]))
        return settings.schedule(read // settings.accumulation_steps)

    return rate


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the targets, in nats, of logits (B, T, V) and labels (B, T) or (1, B, T)."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.reshape(logits.shape[:2])[:, 1:].flatten())
