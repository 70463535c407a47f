"""SGD with momentum, a batch without a target after one with a target. Leaving out such batches avoids it."""

import sys

import torch
import torch.nn.functional as F
from ignite.engine import create_supervised_trainer  # pyrefly: ignore[missing-import]


def weight(targets):
    model = torch.nn.Linear(1, 3, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy)
    trainer.run([(torch.ones(1, 1).double(), torch.tensor([target])) for target in targets], max_epochs=1)
    return model.weight[0, 0].item()


got, right = weight([0, -100]), weight([0])
print(f"weight {got:.4f}, without the empty batch {right:.4f}")
sys.exit(got == right)
