"""A batch without a target after one with a target, SGD with momentum: the loss is NaN, and a step is made.

The gradient is 0, and the momentum moves the weight again. Leaving out batches without a target avoids it.
"""

import sys

import torch

loss_fn = torch.nn.CrossEntropyLoss()
weight = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
seen = []
for target in (0, -100):
    optimizer.zero_grad()
    loss = loss_fn(weight, torch.tensor([target]))
    loss.backward()
    optimizer.step()
    seen.append(weight[0, 0].item())
print(f"loss {loss.item()}, weight {seen[1]:.4f}, without the empty batch {seen[0]:.4f}")
sys.exit(seen[0] == seen[1])
