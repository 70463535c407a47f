"""`Loss` weighs a batch by its rows: its default is `batch_size=len`. A function that counts targets avoids it."""

import sys

import torch
from ignite.engine import create_supervised_evaluator  # pyrefly: ignore[missing-import]
from ignite.metrics import Loss  # pyrefly: ignore[missing-import]

LOGITS = torch.tensor([2.0, 0.0], dtype=torch.float64)


def loss_fn(y_pred, y):
    return torch.nn.functional.cross_entropy(y_pred.flatten(0, 1), y.flatten())


def validation_loss(batch_size):
    evaluator = create_supervised_evaluator(torch.nn.Identity())
    Loss(loss_fn, batch_size=batch_size).attach(evaluator, "loss")
    batches = [torch.tensor([[0]]), torch.tensor([[1] * 9])]
    return evaluator.run([(LOGITS.expand(1, y.shape[1], 2), y) for y in batches]).metrics["loss"]


got, right = validation_loss(len), validation_loss(torch.numel)
print(f"validation loss {got:.4f}, of all ten targets {right:.4f}")
sys.exit(abs(got - right) < 1e-9)
