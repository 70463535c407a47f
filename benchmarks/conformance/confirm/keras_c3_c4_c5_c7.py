"""Keras alone, on torch: `fit` with SGD and `SparseCategoricalCrossentropy(ignore_class=-100)`, a mean over targets.

C3: `gradient_accumulation_steps` averages the gradients of the batches' mean losses. Batches with the same number of
targets avoid it.

C4: the optimizer counts the batches of the whole run: the last of an epoch wait for the next epoch's first, and those
of the run are lost. A number of batches in an epoch that `gradient_accumulation_steps` divides avoids it.

C5: the loss is 0, but momentum moves the weights. Leaving out such batches avoids it. In the audit's run the rates move
too, and Keras' momentum holds each gradient times the rate of its own step, unlike torch's, so the fault has no name.

C7: `TerminateOnNaN` looks after the step; with `raise_error=True` (keras-team/keras#21841) it ends the run with an
error. `LossScaleOptimizer` around the optimizer skips a step whose gradient is not finite.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras  # pyrefly: ignore[missing-import]
import tiny
import torch
from torch import nn


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = tiny.model()

    def forward(self, ids):
        logits = self.table(ids)
        return logits * float("nan") if not ids.is_meta and bool((ids == 4).any()) else logits


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.wrapped = keras.layers.TorchModuleWrapper(Table())

    def call(self, ids):
        return self.wrapped(ids)


def fitted(*batches, epochs=1, optimizer=None, validation=()):
    model = Model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.3, momentum=0.9), loss=loss)
    train, valid = (torch.utils.data.DataLoader(list(given), batch_size=None) for given in (batches, validation))
    told = model.fit(train, epochs=epochs, validation_data=valid if validation else None, verbose=0)
    return model, told.history


def trained(*batches, accumulate=1):
    steps = accumulate if accumulate > 1 else None
    return fitted(*batches, optimizer=keras.optimizers.SGD(0.3, momentum=0.9, gradient_accumulation_steps=steps))[0]


if __name__ == "__main__":
    tiny.answer(tiny.of_a_mean_loss(trained))
