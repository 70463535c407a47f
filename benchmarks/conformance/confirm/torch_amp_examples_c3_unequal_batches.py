"""Batches with one and with nine targets. A sum of losses divided by the number of the window's targets avoids it."""

import sys

import torch
import torch.nn.functional as F

batches = [torch.tensor([0]), torch.tensor([1] * 9)]


def change(batches):
    """The change of the first logit in one step at rate 1, with a scale of 1024."""
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([logits], lr=1.0), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for targets in batches:
        loss = F.cross_entropy(logits.expand(len(targets), 4), targets) / len(batches)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    return logits[0].item()


got, right = change(batches), change([torch.cat(batches)])
print(f"change of the first logit {got:.4f}, by one batch of all ten targets {right:.4f}")
sys.exit(abs(got - right) < 1e-9)
