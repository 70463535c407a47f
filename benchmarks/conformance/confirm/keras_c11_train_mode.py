"""`TorchModuleWrapper` sets its module to train mode unless it is told `training=False`. In a model whose `call` has no
argument `training`, as that of the wrapper's own page, it is not told. A `call` that has the argument and hands it to
the wrapper avoids it.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras  # pyrefly: ignore[missing-import]
import tiny
import torch

seen = []


class Watched(torch.nn.Linear):
    def forward(self, x):
        seen.append(self.training)
        return super().forward(x)


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.wrapped = keras.layers.TorchModuleWrapper(Watched(1, 1))

    def call(self, x):
        return self.wrapped(x)


model, x = Model(), torch.ones(2, 1)
model.compile(optimizer="sgd", loss="mse")
model.evaluate(x, x, verbose=0)
tiny.answer({"c11": lambda: ("the module is in train mode while `evaluate` runs", float(seen[-1]), 0.0)})
