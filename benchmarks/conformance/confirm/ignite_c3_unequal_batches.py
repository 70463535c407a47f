"""Two batches with one and with nine targets: the trainer divides the loss of each by `gradient_accumulation_steps`.
Batches with the same number of targets avoid it.
"""

import sys

import torch
import torch.nn.functional as F
from ignite.engine import create_supervised_trainer  # pyrefly: ignore[missing-import]

batches = [(torch.ones(1, 1).double(), torch.tensor([0])), (torch.ones(9, 1).double(), torch.tensor([1] * 9))]


def gradient(batches, steps):
    model = torch.nn.Linear(1, 4, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy, gradient_accumulation_steps=steps)
    trainer.run(batches, max_epochs=1)
    return -model.weight[0].item()


together = [tuple(torch.cat(parts) for parts in zip(*batches))]
got, right = gradient(batches, 2), gradient(together, 1)
print(f"gradient of the first logit {got:.4f}, of one batch of all ten targets {right:.4f}")
sys.exit(abs(got - right) < 1e-9)
