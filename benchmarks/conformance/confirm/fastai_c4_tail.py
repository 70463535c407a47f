"""`GradientAccumulation` counts samples through the whole of `fit`: the last of an epoch wait for the next.

What is left at the end of `fit` is in the first step of the next `fit`. A loader with `drop_last` and a number of
samples in an epoch that `n_acc` divides avoids it. Here are three batches of one sample in each of two fits, `n_acc=2`.
"""

import sys
from itertools import pairwise

import torch
from fastai.basics import DataLoaders, Learner, OptimWrapper  # pyrefly: ignore[missing-import]
from fastai.callback.training import GradientAccumulation  # pyrefly: ignore[missing-import]

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
seen = [0.0]
optimizer.register_step_post_hook(lambda *_: seen.append(model.weight.item()))
one = torch.ones(1, 1)
data = [(one, one), (one, one), (one, 100 * one)]
learner = Learner(
    DataLoaders(data, []), model, loss_func=lambda pred, y: (pred * y).sum(), opt_func=OptimWrapper(opt=optimizer)
)
with learner.no_bar(), learner.no_logging():
    learner.fit(1, lr=1.0, cbs=GradientAccumulation(2))
    learner.fit(1, lr=1.0, cbs=GradientAccumulation(2))
steps = [before - after for before, after in pairwise(seen)]
right = [1.0, 100.0] * 2
print(f"gradients of the steps of two fits of an epoch {steps}, of each epoch's windows {right}")
sys.exit(steps == right)
