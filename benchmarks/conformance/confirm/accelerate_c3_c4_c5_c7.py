"""accelerate alone, with a mean loss, in the loops of its guide to gradient accumulation.

C3: the guide's section on samples of variable size, which counts the targets first, avoids it.

C4: it is divided by `gradient_accumulation_steps`; the same section avoids it.

C5: the schedule goes on as well; the user leaves out such a batch.

C7: no gradient scaler runs here; `clip_grad_norm_` returns the norm, so the user can test it before `optimizer.step()`.
"""

import sys

import tiny
import torch
from accelerate import Accelerator  # pyrefly: ignore[missing-import]
from accelerate.state import GradientState  # pyrefly: ignore[missing-import]
from torch.utils.data import DataLoader

COUNTS = sys.argv[2] == "targets counted first"


def trained(*batches, accumulate=1):
    GradientState._reset_state()
    peer, start = Accelerator(gradient_accumulation_steps=accumulate, cpu=True), tiny.model()
    optimizer = torch.optim.SGD(start.parameters(), lr=0.5, momentum=0.9)
    model, optimizer, loader = peer.prepare(start, optimizer, DataLoader(batches, batch_size=None))
    count_first(peer, model, optimizer, list(loader)) if COUNTS else accumulating(peer, model, optimizer, loader)
    return start


def accumulating(peer, model, optimizer, loader):
    for batch in loader:
        with peer.accumulate(model):
            peer.backward(tiny.loss_of(model(batch[0]), batch))
            optimizer.step()
            optimizer.zero_grad()


def count_first(peer, model, optimizer, batches):
    size = peer.gradient_accumulation_steps
    for start in range(0, len(batches), size):
        window = batches[start : start + size]
        targets = sum(int((batch[1] != -100).sum()) for batch in window)
        for batch in window:
            share = (batch[1] != -100).sum() / targets
            peer.backward(tiny.loss_of(model(batch[0]), batch) * share * size)
        optimizer.step()
        optimizer.zero_grad()


tiny.answer(tiny.of_a_mean_loss(trained))
