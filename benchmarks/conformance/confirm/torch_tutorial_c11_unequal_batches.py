"""A validation of two batches with one and nine targets: the mean of the batches' means is not that of the targets.

It is right where all batches have one size, as the tutorial's have. A sum of losses divided by the number of targets
avoids it.
"""

import sys

import torch

loss_fn = torch.nn.CrossEntropyLoss()
logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
batches = [torch.tensor([0]), torch.tensor([1] * 9)]
running_loss = torch.zeros((), dtype=torch.float64)
for targets in batches:
    running_loss += loss_fn(logits.expand(len(targets), 2), targets)
averaged = running_loss / len(batches)
targets = torch.cat(batches)
right = loss_fn(logits.expand(len(targets), 2), targets)
print(f"validation loss {averaged:.4f}, of all ten targets {right:.4f}")
sys.exit(torch.allclose(averaged, right))
