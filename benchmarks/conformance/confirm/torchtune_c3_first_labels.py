"""A batch's mean loss weighs by its labels, with the first label of each row, which the loss shifts away.

Rows of 4 and 4 tokens have 6 targets and count 8. Labels of -100 at the first position avoid it. The loop's arithmetic
is that of the recipe's `train`: loss times labels, gradients by `training.scale_grads`.
"""

import sys

import torch
from torchtune import training  # pyrefly: ignore[missing-import]

loss_fn = torch.nn.CrossEntropyLoss(ignore_index=-100)
model = torch.nn.Embedding(1, 2).double()
torch.nn.init.zeros_(model.weight)
batches = [torch.zeros(2, 4, dtype=torch.long), torch.ones(1, 9, dtype=torch.long)]
num_tokens = torch.tensor(0)
for labels in batches:
    current_num_tokens = (labels != loss_fn.ignore_index).sum()
    num_tokens += current_num_tokens
    shifted = torch.hstack((labels[..., 1:], torch.full((len(labels), 1), -100)))
    (loss_fn(model(torch.zeros_like(labels)).flatten(0, 1), shifted.flatten()) * current_num_tokens).backward()
training.scale_grads(model, 1 / num_tokens)
got = next(iter(model.parameters())).grad[0, 0].item()  # type: ignore[union-attr]
right = 0.5 - 6 / 14  # six of fourteen targets are token 0
print(f"gradient of the first logit {got:.4f}, of the mean over all fourteen targets {right:.4f}")
sys.exit(abs(got - right) < 1e-9)
