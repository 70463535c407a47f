"""The last batches of an epoch make no step: their gradient is added to the first step of the next epoch.

A step at the last batch of an epoch as well, divided by its number of batches, avoids it. Here are three batches in
each of two epochs, and a step at every second.
"""

import sys

import torch

weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1.0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
steps, taken = [], weight.item()
for _ in range(2):
    for index, gradient in enumerate([1.0, 1.0, 100.0]):
        scaler.scale((weight * gradient).sum() / 2).backward()
        if (index + 1) % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            steps.append(taken - weight.item())
            taken = weight.item()
right = [1.0, 100.0, 1.0, 100.0]
print(f"gradients of the steps {steps}, of each epoch's windows {right}")
sys.exit(steps == right)
