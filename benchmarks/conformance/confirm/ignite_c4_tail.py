"""The trainer counts the iterations of the whole run: the last batches of an epoch wait for the next epoch's first.

Those of the run are lost. A number of batches in an epoch that `gradient_accumulation_steps` divides avoids it. Here
are three batches in each of three epochs, and a step at every second.
"""

import sys
from itertools import pairwise

import torch
from ignite.engine import create_supervised_trainer  # pyrefly: ignore[missing-import]

model = torch.nn.Linear(1, 1, bias=False).double()
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
seen = [0.0]
optimizer.register_step_post_hook(lambda *_: seen.append(model.weight.item()))
trainer = create_supervised_trainer(
    model, optimizer, lambda y_pred, y: (y_pred * y).sum(), gradient_accumulation_steps=2
)
one = torch.ones(1, 1, dtype=torch.float64)
trainer.run([(one, one), (one, one), (one, 100 * one)], max_epochs=3)
steps = [before - after for before, after in pairwise(seen)]
right = [1.0, 100.0] * 3
print(f"gradients of the steps {steps}, of each epoch's windows {right}")
sys.exit(steps == right)
