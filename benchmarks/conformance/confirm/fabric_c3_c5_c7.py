"""Fabric alone, with a mean loss, in the loop of its page on gradient accumulation.

C3: the page's example `iteration % n != 0` counts from 0, so the first step has one batch, and what is left at an
epoch's end waits for the next epoch's first step. The page writes `loss = ...`; with a mean loss, the means are added
up, not divided. Counted from 1 and divided, as in our loop, each micro-batch still counts the same.

C5: the page's loop and ours make the step; the user leaves out such a batch.

C7: `Fabric.clip_gradients`, called in each step as in our loop, raises before it.
"""

import sys

import tiny
import torch
from lightning.fabric import Fabric  # pyrefly: ignore[missing-import]
from torch.utils.data import DataLoader

OURS = "our loop" in sys.argv[2]


def trained(*batches, accumulate=1):
    peer, start = Fabric(accelerator="cpu", devices=1), tiny.model()
    model, optimizer = peer.setup(start, torch.optim.SGD(start.parameters(), lr=0.5, momentum=0.9))
    for iteration, batch in enumerate(peer.setup_dataloaders(DataLoader(batches, batch_size=None)), int(OURS)):
        is_accumulating = iteration % accumulate != 0
        with peer.no_backward_sync(model, enabled=is_accumulating):
            peer.backward(tiny.loss_of(model(batch[0]), batch) / (accumulate if OURS else 1))
        if is_accumulating:
            continue
        if OURS:
            peer.clip_gradients(model, optimizer, max_norm=float("inf"))
        optimizer.step()
        optimizer.zero_grad()
    return start


tiny.answer(tiny.of_a_mean_loss(trained))
