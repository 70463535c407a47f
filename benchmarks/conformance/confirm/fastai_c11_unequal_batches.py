"""The recorder's `AvgLoss` weighs a batch by its rows.

A metric of the user's own that counts targets, and `monitor` with its name in `SaveModelCallback`, avoid it.
"""

import sys

import torch
from fastai.basics import DataLoaders, Learner  # pyrefly: ignore[missing-import]
from fastai.callback import progress  # noqa: F401  # pyrefly: ignore[missing-import]  # adds `no_bar`

batches = [torch.tensor([[0]]), torch.tensor([[1] * 9])]
logits = torch.tensor([2.0, 0.0])
learner = Learner(
    DataLoaders([], [(logits.expand(1, y.shape[1], 2), y) for y in batches]),
    torch.nn.Linear(2, 2, bias=False),
    loss_func=lambda pred, y: torch.nn.functional.cross_entropy(pred.flatten(0, 1), y.flatten()),
)
torch.nn.init.eye_(learner.model.weight)
with learner.no_bar(), learner.no_logging():
    got = learner.validate()[0]
right = torch.nn.functional.cross_entropy(logits.expand(10, 2), torch.cat(batches, 1).flatten()).item()
print(f"validation loss {got:.4f}, of all ten targets {right:.4f}")
sys.exit(abs(got - right) < 1e-5)
