"""Keras on torch: `compile` and `fit` of a `keras.Model` around the audit's model, with Keras' own optimizers and loss.

The loss is `SparseCategoricalCrossentropy` with `ignore_class=-100`; the user shifts the labels. The optimizers have
`gradient_accumulation_steps`, `global_clipnorm`, a `LearningRateSchedule` and `weight_decay`, from which
`exclude_from_weight_decay` takes the vectors. Keras has no decay that is added to the gradient once it is clipped, as
that of torch's Adam: an `L2` regularizer is clipped with the gradient. So the runs about Adam with decay have an
optimizer of the user's own. Keras' epsilon is added before Adam's second moment is corrected, so a callback gives it
another value for each step. A run that is to be refused has `TerminateOnNaN`. `ModelCheckpoint` saves the weights of
the lowest `val_loss`. A validation batch without a target is left out.

A run that stops has `BackupAndRestore` with a backup after each batch, and a callback that raises; another `fit` with
the same folder goes on.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from course_lm.audit.adapters.parts import UNSCALED, Batch, logits_for
from course_lm.audit.model import VOCABULARY
from course_lm.audit.runs import Constant, count_targets
from course_lm.audit.spec import Batches, Settings

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras  # pyrefly: ignore[missing-import]

PACKAGE = "keras"
PRECISION = "float32"  # Keras keeps a rate in float32, whatever its `floatx` is
NOT_OFFERED = {"C1": "the user shifts the labels"}
Item = tuple[dict[str, Tensor], Tensor]


class Shifted(nn.Module):
    """The audit's model, whose logits (B, T - 1, V) are those of the positions that have a next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        ids = batch["input_ids"]
        if ids.is_meta:  # Keras asks for a shape
            return torch.empty(*ids[:, 1:].shape, VOCABULARY, device="meta")
        return logits_for(self.model, batch)[:, :-1]


class Wrapped(keras.Model):
    """A model of Keras, as its guide to torch modules has it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shifted = keras.layers.TorchModuleWrapper(Shifted(model))
        self.built = True  # the module's weights are there; loading asks for this

    def call(self, batch: Batch) -> Any:
        """The logits (B, T - 1, V)."""
        return self.shifted(batch)


class Epochs(Dataset[Item]):
    """The batches of the epoch that has begun last, each with its labels (B, T - 1)."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.at = epochs, 0

    def __len__(self) -> int:
        return len(self.epochs[self.at])

    def __getitem__(self, index: int) -> Item:
        batch = self.epochs[self.at][index]
        return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"][:, 1:]


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of the settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, step: Any) -> Any:
        return keras.ops.convert_to_tensor(self.settings.schedule(int(step)), dtype="float32")


class Coupled(keras.optimizers.Adam):
    """Adam whose decay of the matrices is added to the clipped gradient."""

    decay = 0.0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        own = self.decay * variable.value if len(variable.shape) > 1 else 0.0
        super().update_step(gradient + own, variable, learning_rate)


class Corrected(keras.callbacks.Callback):
    """Give Adam before each batch the epsilon that its formula needs to be that of torch's Adam."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        steps = int(self.model.optimizer.iterations)
        self.model.optimizer.epsilon = self.settings.epsilon * (1.0 - self.settings.beta2 ** (steps + 1)) ** 0.5


class Stop(keras.callbacks.Callback):
    """Raise KeyboardInterrupt once the optimizer has made so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == self.steps:
            raise KeyboardInterrupt


def fitted(model: nn.Module, epochs: Sequence[Batches], settings: Settings, callbacks: Sequence[Any]) -> Any:
    """The history of `fit`, with the epochs in their order."""
    data = Epochs(epochs)
    validation = [batch for batch in settings.validation if count_targets(batch)]

    def open_epoch(epoch: int, logs: Any) -> None:
        data.at = epoch

    wrapped = Wrapped(model)
    wrapped.compile(
        optimizer=optimizer_for(wrapped, settings),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100),
    )
    return wrapped.fit(
        DataLoader(data, batch_size=None),
        epochs=len(epochs),
        validation_data=DataLoader(Epochs([validation]), batch_size=None) if validation else None,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=open_epoch), Corrected(settings), *callbacks],
        verbose=0,
    ).history


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place; return the validation losses, and the weights of the checkpoint with the lowest."""
    callbacks, best = [], deepcopy(model)
    if settings.on_nonfinite == "raise":
        callbacks.append(keras.callbacks.TerminateOnNaN(raise_error=True))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "best.weights.h5"
        if settings.validation:
            callbacks.append(keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True))
        told = fitted(model, epochs, settings, callbacks)
        if path.exists():
            Wrapped(best).load_weights(path)
    found = {"validation_losses": told["val_loss"], "best_weights": best.state_dict()} if settings.validation else {}
    return found | {"ignores": set(UNSCALED)}


def resumed(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, folder: Path, stop_after: int | None
) -> Mapping[str, Any]:
    """A loop that goes on from the backup in its folder."""
    backup = keras.callbacks.BackupAndRestore(folder / "backup", save_freq=1, delete_checkpoint=False)
    with suppress(KeyboardInterrupt):
        fitted(model, epochs, settings, [backup] if stop_after is None else [backup, Stop(stop_after)])
    return {"ignores": {"validation", *UNSCALED}}


def optimizer_for(model: Any, settings: Settings) -> Any:
    """Keras' optimizer of that name."""
    vectors = [weight for weight in model.trainable_variables if len(weight.shape) < 2]
    constant = isinstance(settings.schedule, Constant)
    rate = settings.schedule(0) if constant else Rates(settings)
    steps = settings.accumulation_steps if settings.accumulation_steps > 1 else None
    decay = 0.0 if settings.optimizer == "adam" else settings.weight_decay
    if settings.optimizer == "sgd":
        made = keras.optimizers.SGD(
            rate,
            settings.momentum,
            weight_decay=decay,
            global_clipnorm=settings.max_grad_norm,
            gradient_accumulation_steps=steps,
        )
    else:
        made = {"adam": Coupled, "adamw": keras.optimizers.AdamW}[settings.optimizer](
            rate,
            beta_1=settings.beta1,
            beta_2=settings.beta2,
            weight_decay=decay,
            global_clipnorm=settings.max_grad_norm,
            gradient_accumulation_steps=steps,
        )
    if settings.optimizer == "adam":
        made.decay = settings.weight_decay
    made.exclude_from_weight_decay(var_list=vectors)
    return made


RESUMES = {"": resumed}
