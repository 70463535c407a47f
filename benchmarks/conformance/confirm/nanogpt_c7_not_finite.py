"""One batch with a loss of NaN. The loop clips without `error_if_nonfinite=True`, which raises before the step."""

import sys

import torch

weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for factor in (1.0, float("inf"), 1.0):
    optimizer.zero_grad()
    loss = (weight * factor - weight * factor).sum() + weight.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    optimizer.step()
print(f"weight {weight.item()}, without the middle step {1 - 2 * 0.1:.1f}")
sys.exit(bool(weight.isfinite().all()))
