"""skorch alone: a `NeuralNet` with torch's `CrossEntropyLoss`, a mean over a batch's targets, and SGD with momentum.

C5: `train_step` makes the step, and momentum moves the weights. Leaving out such batches avoids it.

C7: no callback of skorch's looks at the loss before the step. A callback of the user's whose `on_grad_computed` raises
avoids it.

C11: `valid_loss` weighs a batch by its rows, not by its targets. An `EpochScoring` of the user's that counts targets
avoids it, and its name as `monitor` of `Checkpoint`.
"""

import tiny
import torch
from skorch import NeuralNet  # pyrefly: ignore[missing-import]
from skorch.helper import predefined_split  # pyrefly: ignore[missing-import]
from torch import nn


class Model(nn.Module):
    """The model of 25 weights, with its logits (B, V, T) as `CrossEntropyLoss` wants them."""

    def __init__(self):
        super().__init__()
        self.table = tiny.model()

    def forward(self, ids):
        logits = self.table(ids).transpose(1, 2)
        return logits * float("nan") if bool((ids == 4).any()) else logits


class Batches(torch.utils.data.Dataset):
    def __init__(self, *batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def fitted(*batches, net=NeuralNet, validation=()):
    return net(
        Model,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        lr=0.3,
        max_epochs=1,
        iterator_train__batch_size=None,
        iterator_valid__batch_size=None,
        train_split=predefined_split(Batches(*validation)) if validation else None,
        verbose=0,
    ).fit(Batches(*batches))


def trained(*batches):
    return fitted(*batches).module_


def c11():
    net = fitted(tiny.FOUR, validation=(tiny.ONE, tiny.FOUR))
    logits = net.module_.table
    sums = [float(tiny.loss_of(logits(batch[0]), batch).detach()) * n for batch, n in ((tiny.ONE, 1), (tiny.FOUR, 4))]
    told = net.history[-1, "valid_loss"]
    return "valid_loss of batches of 1 and 4 targets, nats per target", told, sum(sums) / 5


if __name__ == "__main__":
    shown = tiny.of_a_mean_loss(trained)
    tiny.answer({"c5": shown["c5"], "c7": shown["c7"], "c11": c11})
