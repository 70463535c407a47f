"""accelerate alone, with a mean loss, in the finished code of its guide to gradient accumulation.

C3: each micro-batch counts the same, however many targets it has; the guide's section on samples of variable size,
which counts the targets first, avoids it.

C4: the loss of the last, smaller window of an epoch is divided by `gradient_accumulation_steps`, not by its own number
of batches; the same section avoids it.

C5: a batch without a target makes a step: momentum goes on, and so does the schedule; nothing in accelerate skips it.

C7: a gradient that is not finite reaches the weights where no gradient scaler runs; `clip_grad_norm_` returns the norm,
which the user can look at before the step.
"""

import tiny
import torch
from accelerate import Accelerator  # pyrefly: ignore[missing-import]
from accelerate.state import GradientState  # pyrefly: ignore[missing-import]
from torch.utils.data import DataLoader


def trained(*batches, accumulate=1):
    GradientState._reset_state()
    peer, start = Accelerator(gradient_accumulation_steps=accumulate, cpu=True), tiny.model()
    optimizer = torch.optim.SGD(start.parameters(), lr=0.5, momentum=0.9)
    model, optimizer, loader = peer.prepare(start, optimizer, DataLoader(batches, batch_size=None))
    for batch in loader:
        with peer.accumulate(model):
            peer.backward(tiny.loss_of(model(batch[0]), batch))
            optimizer.step()
            optimizer.zero_grad()
    return start


def c3():
    moved = tiny.weights_moved(trained(tiny.BOTH), trained(tiny.ONE, tiny.FOUR, accumulate=2))
    return "distance from the weights of one batch of the same targets", moved, 0


def c4():
    moved = [tiny.weights_moved(tiny.model(), trained(tiny.FOUR, accumulate=n)) for n in (2, 1)]
    return "way of the weights in a window of one batch, gradient_accumulation_steps=2", *moved


def c5():
    moved = tiny.weights_moved(trained(tiny.FOUR), trained(tiny.FOUR, tiny.EMPTY))
    return "way of the weights in a step on a batch without a target", moved, 0


def c7():
    return "weights that are not finite after a loss of NaN", tiny.not_finite(trained(tiny.FOUR, tiny.POISON)), 0


tiny.answer({"c3": c3, "c4": c4, "c5": c5, "c7": c7})
