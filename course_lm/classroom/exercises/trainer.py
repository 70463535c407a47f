"""Exercises of lesson 12: the same step in less memory, a loss of one's own, the files of a run."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.classroom.checks import exercise, with_gradient
from course_lm.classroom.checks.comparison import plain


def _for_each_fit(fn: Callable[..., object], fits: Iterable[int], batch_size: int, steps: int) -> list[object]:
    return [fn(batch_size, steps, fit) for fit in fits]


@exercise(
    cases={
        "seven rows at a time": ((5, 100, 7, 1), 7, 1),
        "32 rows at a time": ((16, 10, 64, 1), 32, 1),
        "four times 32 rows": ((10, 32, 40, 64, 100, 200), 32, 4),
        "twice twelve rows": ((9, 11, 5, 23), 12, 2),
    },
    run=_for_each_fit,
)
def same_step(batch_size, accumulation_steps, rows_that_fit):
    """(batch_size, accumulation_steps) of the same step: `fn(batch_size, accumulation_steps, rows_that_fit)`."""
    total = batch_size * accumulation_steps
    rows = min(rows_that_fit, total)
    while total % rows:
        rows -= 1
    return rows, total // rows


def _logits_and_labels(
    seed: int,
    dtype: torch.dtype,
    rows: int = 2,
    length: int = 6,
    vocab_size: int = 5,
    scale: float = 1.0,
    digits: int = 6,
) -> tuple[Tensor, Tensor]:
    """Logits and labels, some of which are −100, with other numbers of them in the rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(rows, length, vocab_size, generator=generator)).to(dtype)
    labels = torch.randint(vocab_size, (rows, length), generator=generator)
    labels[0, max(2, length - 2) :], labels[1, : length // 3] = -100, -100
    return logits.mul(10**digits).round().div(10**digits), labels


@exercise(
    cases={
        "two short rows, the mean": _logits_and_labels(3, torch.float64, length=3, vocab_size=2, digits=1),
        "three rows, the mean by name": (*_logits_and_labels(2, torch.float64, rows=3, length=7), "mean"),
        "two rows in float32, the sum": (*_logits_and_labels(0, torch.float32), "sum"),
        "large logits": _logits_and_labels(1, torch.float64, scale=500.0),
    },
    run=with_gradient,
    close=(1e-5, 1e-7),
)
def focal_loss(logits, labels, reduction="mean"):
    """(1 − p)² · −log p over the targets: `fn(logits, labels, reduction)`, "mean" or "sum"; value and gradient."""
    targets = labels[:, 1:].flatten()
    nats = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="none")
    total = ((1 - torch.exp(-nats)) ** 2 * nats).sum()
    return total if reduction == "sum" else total / (targets != -100).sum()


def _in_order(fn: Callable[..., object], *args: int) -> object:
    """The names, sorted: in which order an answer gives them does not matter."""
    names = plain(fn(*args))
    if isinstance(names, list | tuple | set) and all(isinstance(name, str) for name in names):
        return sorted(names)
    return names


@exercise(
    cases={
        "two epochs of ten": (10, 2, 4, 3),
        "saves that fall on the ends of epochs": (10, 3, 5, 4),
        "one is kept": (10, 2, 4, 1),
        "no save within an epoch": (10, 5, 100, 2),
        "fewer files than may stay": (6, 1, 4, 5),
        "twelve epochs": (3, 12, 2, 6),
        "epochs of one step": (1, 4, 2, 6),
        "many are kept": (7, 4, 3, 9),
    },
    run=_in_order,
)
def checkpoints_left(steps_per_epoch, num_epochs, save_steps, save_total_limit):
    """Names of a finished run's checkpoints: `fn(steps_per_epoch, num_epochs, save_steps, save_total_limit)`."""
    names = []
    for step in range(1, steps_per_epoch * num_epochs + 1):
        if step % steps_per_epoch == 0:
            names.append(f"checkpoint_epoch_{step // steps_per_epoch}.safetensors")
        elif step % save_steps == 0:
            names.append(f"checkpoint_step_{step}.safetensors")
    return [*names[-save_total_limit:], "checkpoint_last.safetensors"]
