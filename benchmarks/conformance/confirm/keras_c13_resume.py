"""Keras alone: six items in each of two epochs, and `BackupAndRestore(save_freq=1)`, stopped after two items.

C13: the number of the batch is written into the backup, and nothing reads it: with a number as `save_freq` the weights
are those of the stop, and the epoch is read from its first batch again. So is an epoch that was at its end.
`save_freq="epoch"`, the default, avoids this: the steps since the last epoch's end are made once more, and they leave
the same weights where nothing is random. No random state is kept, torch's or that of Keras' own `Dropout`, so there
are other masks then too.
"""

import os
import sys
from contextlib import suppress
from tempfile import TemporaryDirectory

os.environ["KERAS_BACKEND"] = "torch"
import keras  # pyrefly: ignore[missing-import]
import torch


class Watched(torch.nn.Linear):
    def forward(self, x):
        if x.is_meta:  # Keras asks for a shape
            return x
        seen.append((int(x), round(torch.rand(()).item(), 4)))
        return super().forward(x)


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.wrapped = keras.layers.TorchModuleWrapper(Watched(1, 1))
        self.built = True

    def call(self, x):
        return self.wrapped(x)


def stop(batch, logs):
    if len(seen) == 2:
        raise KeyboardInterrupt


def items(*callbacks):
    """The items of a run, with a random number that is drawn for each."""
    seen.clear()
    keras.utils.set_random_seed(0)
    model = Model()
    model.compile(optimizer="sgd", loss="mse")
    data = torch.arange(6.0).reshape(6, 1)
    with suppress(KeyboardInterrupt):
        model.fit(data, data, batch_size=1, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)
    return list(seen)


seen: list[tuple[int, float]] = []
with TemporaryDirectory() as folder:
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=1, delete_checkpoint=False)
    right = items()[2:]
    items(backup, keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    wrong = items(backup)
read, expected = ([item for item, _ in one] for one in (wrong, right))
print(f"items after the stop {read}, without it {expected};", end=" ")
print(f"first random number {wrong[0][1]}, without it {right[0][1]}")
sys.exit(read == expected)
