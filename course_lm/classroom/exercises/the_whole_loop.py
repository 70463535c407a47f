"""Exercises of lesson 00: the floor, a schedule, and the loop itself."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from course_lm import schedules
from course_lm.batching import pad_rows
from course_lm.classroom.checks import at_each, exercise

_VOCAB_SIZE = 11
_OWN_LR = 0.05  # the optimizer's, which no step may run at


@exercise(
    cases={
        "one document": ([12.0], [[1, 7, 8, 9, 1]]),
        "documents of different lengths": ([4.0, 30.0, 9.5], [[1, 7, 1], [1] + [5] * 19 + [1], [1, 8, 9, 1]]),
        "an empty document among others": ([6.0, 1.0, 8.0], [[1, 4, 5, 5, 6, 1], [1, 1], [1, 9, 6, 1]]),
    },
)
def floor_per_token(neg_log_p, documents):
    """What the true distribution pays per token: `fn(neg_log_p, documents)`, −log p of each document and its ids."""
    targets = sum(len(document) - 1 for document in documents)
    return sum(neg_log_p) / targets


@exercise(
    cases={
        "10 steps, 4 of them warm-up": (range(11), 1.0, 10, 4),
        "another peak": (range(26), 3e-4, 25, 5),
        "no warm-up": (range(5), 0.5, 4, 0),
    },
    run=at_each(0),
)
def linear_lr(step, peak_lr, total_steps, warmup_steps):
    """Warm-up, then a straight line to 0: `fn(step, peak_lr, total_steps, warmup_steps)`."""
    if step < warmup_steps:
        return peak_lr * step / warmup_steps
    return peak_lr * (total_steps - step) / (total_steps - warmup_steps)


linear_lr.also(
    "a cosine falls instead of a straight line",
    lambda step, peak, total, warmup: schedules.cosine(step, peak_lr=peak, total_steps=total, warmup_steps=warmup),
)


class _TinyModel(nn.Module):
    """The smallest model with a use for every part of the loop: padding and eval mode change what it gives."""

    def __init__(self, std: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = (_VOCAB_SIZE, 4), (4, _VOCAB_SIZE)
        embedding, head = (std * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        self.embedding, self.head = nn.Parameter(embedding), nn.Parameter(head)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Tensor) -> Tensor:
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        vectors = self.embedding[input_ids] * real.unsqueeze(-1)  # (B, T, 4)
        mean = vectors.sum(1, keepdim=True) / real.sum(1).view(-1, 1, 1)
        return (vectors + mean) * (1.0 if self.training else 0.8) @ self.head


def _batches(count: int) -> list[dict[str, Any]]:
    """Batches whose numbers of targets differ."""
    return [_batch([6, 2 + seed, 4 - seed // 2], seed) for seed in range(count)]


def _batch(lengths: list[int], seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, _VOCAB_SIZE, (sum(lengths),), generator=generator)
    return {**pad_rows(tokens, torch.tensor(lengths), width=max(lengths), pad_id=0)}


def _weights_after(fn: Callable[..., object], batches: object, lr_at: object, std: float) -> list[Tensor]:
    """The weights that training leaves; `std` decides whether their gradients are long or short."""
    model = _TinyModel(std)
    optimizer = SGD([{"params": [model.embedding]}, {"params": [model.head]}], lr=_OWN_LR, momentum=0.9)
    fn(model, batches, optimizer, lr_at)
    return [model.embedding.detach(), model.head.detach()]


@exercise(
    cases={
        "one batch": (_batches(1), lambda k: 0.01 + 0.02 * k, 0.8),
        "long gradients": (_batches(3), lambda k: 0.01 * (3 - k), 3.0),
        "short gradients": (_batches(4), lambda k: 0.03 - 0.005 * k, 0.1),
    },
    run=_weights_after,
    close=(1e-6, 1e-8),  # an exact clip, without torch's 1e-6, is as good
)
def train_steps(model, batches, optimizer, lr_at):
    """The loop: `fn(model, batches, optimizer, lr_at)` makes one optimizer step for each batch."""
    for k, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(k)
        optimizer.zero_grad()
        logits = model(batch["input_ids"], batch["attention_mask"])
        targets = batch["labels"][:, 1:]
        F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
