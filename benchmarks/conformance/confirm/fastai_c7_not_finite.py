"""`TerminateOnNaNCallback` reads the loss after the step, and ends `fit` without an error.

A callback of the user's own that raises `CancelBatchException` in `before_step` avoids it.
"""

import sys

import torch
from fastai.basics import DataLoaders, Learner, OptimWrapper  # pyrefly: ignore[missing-import]
from fastai.callback.tracker import TerminateOnNaNCallback  # pyrefly: ignore[missing-import]

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
one = torch.ones(1, 1)
learner = Learner(
    DataLoaders([(one, one), (one, float("nan") * one), (one, one)], []),
    model,
    loss_func=lambda pred, y: (pred * y).sum(),
    opt_func=OptimWrapper(opt=torch.optim.SGD(model.parameters(), lr=0.1)),
)
with learner.no_bar(), learner.no_logging():
    learner.fit(1, lr=0.1, cbs=TerminateOnNaNCallback())
print(f"weight {model.weight.item()}, before that batch 0.9")
sys.exit(bool(model.weight.isfinite().all()))
