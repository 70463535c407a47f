"""Three iterations of which the second overflows: the scaler skips its step, and the rate goes on as if it were made.

`iter_num` counts iterations, and the rate is a function of it. A count of the steps that the scaler makes avoids it.
"""

import sys

import torch

weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
used = []
optimizer.register_step_post_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
for iter_num, factor in enumerate((1.0, float("inf"), 1.0)):
    optimizer.param_groups[0]["lr"] = 0.5**iter_num
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
right = [0.5**step for step in range(len(used))]
print(f"rates of the steps made {used}, as a function of their number {right}")
sys.exit(used == right)
