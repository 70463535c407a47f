"""Fabric alone, with a mean loss, in the loop of its page on gradient accumulation.

C3: `iteration % n != 0` counts from 0, so the first step is made of one batch and the last batches of an epoch make
none; the means of a window are added up, not divided. Counted from 1 and divided, as in the second line, each
micro-batch still counts the same, however many targets it has.

C4: counted from 1, the last, smaller window of an epoch makes no step, and its gradient is added to the next epoch's
first; nothing in Fabric closes it.

C5: a batch without a target makes a step: momentum goes on; nothing in Fabric skips it.

C7: a gradient that is not finite reaches the weights; `Fabric.clip_gradients`, called in each step, raises instead.
"""

import tiny
import torch
from lightning.fabric import Fabric  # pyrefly: ignore[missing-import]
from torch.utils.data import DataLoader


def trained(*batches, accumulate=1, first=0):
    peer, start = Fabric(accelerator="cpu", devices=1), tiny.model()
    model, optimizer = peer.setup(start, torch.optim.SGD(start.parameters(), lr=0.5, momentum=0.9))
    for iteration, batch in enumerate(peer.setup_dataloaders(DataLoader(batches, batch_size=None)), first):
        is_accumulating = iteration % accumulate != 0
        with peer.no_backward_sync(model, enabled=is_accumulating):
            peer.backward(tiny.loss_of(model(batch[0]), batch))
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
    return start


def c3():
    moved = tiny.weights_moved(trained(tiny.BOTH), trained(tiny.ONE, tiny.FOUR, accumulate=2))
    return "distance from the weights of one batch of the same targets", moved, 0


def c4():
    moved = [tiny.weights_moved(tiny.model(), trained(tiny.FOUR, accumulate=n, first=1)) for n in (2, 1)]
    return "way of the weights in a window of one batch where two are accumulated", *moved


def c5():
    moved = tiny.weights_moved(trained(tiny.FOUR), trained(tiny.FOUR, tiny.EMPTY))
    return "way of the weights in a step on a batch without a target", moved, 0


def c7():
    return "weights that are not finite after a loss of NaN", tiny.not_finite(trained(tiny.FOUR, tiny.POISON)), 0


tiny.answer({"c3": c3, "c4": c4, "c5": c5, "c7": c7})
