"""SGD with momentum, a batch without a target after one with a target. The scaler lets a gradient of 0 pass. Leaving
out such batches avoids it.
"""

import sys

import torch
import torch.nn.functional as F

weight = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
seen = []
for target in (0, -100):
    loss = F.cross_entropy(weight, torch.tensor([target]))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    seen.append(weight[0, 0].item())
print(f"loss {loss.item()}, weight {seen[1]:.4f}, without the empty batch {seen[0]:.4f}")
sys.exit(seen[0] == seen[1])
