"""Checks of lesson 12: the same step in less memory, a loss of one's own, the files of a run."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lm.classroom.checks.report import Report, compare


def same_step(fn: Callable[..., object]) -> Report:
    """(batch_size, accumulation_steps) of the same step: `fn(batch_size, accumulation_steps, rows_that_fit)`."""

    def largest(total: int, divided: int, fit: int) -> tuple[int, int]:
        rows = max(rows for rows in range(1, min(fit, total) + 1) if divided % rows == 0)
        return rows, total // rows

    def rounded(how: Callable[[float], int]) -> Callable[[int, int, int], tuple[int, int]]:
        def split(batch: int, steps: int, fit: int) -> tuple[int, int]:
            rows = min(fit, batch * steps)
            return rows, how(batch * steps / rows)

        return split

    def swapped(batch: int, steps: int, fit: int) -> tuple[int, int]:
        rows, windows = largest(batch * steps, batch * steps, fit)
        return windows, rows

    return compare(
        fn,
        reference=lambda batch, steps, fit: largest(batch * steps, batch * steps, fit),
        cases={
            "half the memory": (32, 1, 16),
            "ten rows fit": (32, 4, 10),
            "nine rows fit": (12, 2, 9),
            "a prime number of rows": (7, 1, 5),
            "more rows fit than a step has": (16, 2, 100),
            "one row fits": (8, 3, 1),
        },
        mistakes={
            "batch_size is lowered and accumulation_steps is not raised": lambda batch, steps, fit: (
                min(batch, fit),
                steps,
            ),
            "as many rows are taken as fit, and rounding up makes the step larger": rounded(math.ceil),
            "as many rows are taken as fit, and rounding down makes the step smaller": rounded(math.floor),
            "only divisors of the old batch_size are tried, not of all rows of the step": lambda batch, steps, fit: (
                largest(batch * steps, batch, min(fit, batch))
            ),
            "one row at a time is taken, which fits and is the slowest": lambda batch, steps, fit: (1, batch * steps),
            "the two numbers are swapped": swapped,
        },
        run=lambda fn, *args: _as_pair(fn(*args)),
    )


def _as_pair(result: object) -> object:
    return tuple(result) if isinstance(result, list) else result


def focal_loss(fn: Callable[..., object]) -> Report:
    """(1 − p)² · −log p over the targets: `fn(logits, labels, reduction=...)`, "mean" or "sum"."""

    def variant(
        shift: bool = True, ignored: bool = False, power: int = 2, easy: bool = False, always: str = "", over: str = ""
    ) -> Callable[..., Tensor]:
        def loss(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
            if shift:
                logits, labels = logits[:, :-1], labels[:, 1:]
            real = labels != -100
            log_p = F.log_softmax(logits, -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]  # (B, T)
            weight = log_p.exp() if easy else 1 - log_p.exp()
            losses = -(weight**power) * log_p * (1 if ignored else real)
            if (always or reduction) == "sum":
                return losses.sum()
            return losses.mean() if over == "positions" else losses.sum() / real.sum()

        return loss

    return compare(
        fn,
        reference=variant(),
        cases={
            "two rows": _logits_and_labels(0, torch.float32),
            "large logits": _logits_and_labels(1, torch.float64, scale=20.0),
            "three rows in float64": _logits_and_labels(2, torch.float64, rows=3),
        },
        mistakes={
            "logits and labels are not shifted against each other": variant(shift=False),
            "labels of −100 are counted": variant(ignored=True),
            "`reduction` is not looked at: the sum is divided too": variant(always="mean"),
            "`reduction` is not looked at: the mean is not divided": variant(always="sum"),
            "the mean is over all positions, the ignored ones too": variant(over="positions"),
            "the factor is p², which favours what is known already": variant(easy=True),
            "the factor is 1 − p, not its square": variant(power=1),
            "the factor is missing: this is the plain loss": variant(power=0),
        },
        run=_both_reductions,
    )


def _both_reductions(fn: Callable[..., Any], logits: Tensor, labels: Tensor) -> object:
    total = fn(logits, labels, "sum")
    if total is None or total is Ellipsis:
        return total
    return total, fn(logits, labels, "mean")


def _logits_and_labels(
    seed: int, dtype: torch.dtype, rows: int = 2, length: int = 6, vocab_size: int = 5, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, length, vocab_size, generator=generator, dtype=dtype)
    labels = torch.randint(vocab_size, (rows, length), generator=generator)
    labels[0, 4:], labels[1, :2] = -100, -100
    return logits, labels


def checkpoints_left(fn: Callable[..., object]) -> Report:
    """Names of a finished run's checkpoints: `fn(steps_per_epoch, num_epochs, save_steps, save_total_limit)`."""

    def written(per_epoch: int, epochs: int, save: int, both: bool = False) -> list[str]:
        """The files on the way, in the order in which they are written."""
        names = []
        for step in range(1, per_epoch * epochs + 1):
            ends = step % per_epoch == 0
            if step % save == 0 and (both or not ends):
                names.append(f"checkpoint_step_{step}.pt")
            if ends:
                names.append(f"checkpoint_epoch_{step // per_epoch}.pt")
        return names

    def kept(both: bool = False, last: bool = True, oldest: bool = False, room: int = 0) -> Callable[..., list[str]]:
        def names(per_epoch: int, epochs: int, save: int, limit: int) -> list[str]:
            files = written(per_epoch, epochs, save, both)
            count = limit - room
            left = files[:count] if oldest else files[max(0, len(files) - count) :]
            return left + ["checkpoint_last.pt"] * last

        return names

    def apart(per_epoch: int, epochs: int, save: int, limit: int) -> list[str]:
        files = written(per_epoch, epochs, save)
        counted = {kind: [name for name in files if kind in name][-limit:] for kind in ("step", "epoch")}
        return [name for name in files if name in counted["step"] + counted["epoch"]] + ["checkpoint_last.pt"]

    def all_epochs(per_epoch: int, epochs: int, save: int, limit: int) -> list[str]:
        files = written(per_epoch, epochs, save)
        steps = [name for name in files if "step" in name][-limit:]
        return [name for name in files if "epoch" in name or name in steps] + ["checkpoint_last.pt"]

    return compare(
        fn,
        reference=kept(),
        cases={
            "two epochs of ten": (10, 2, 4, 3),
            "saves that fall on the ends of epochs": (10, 3, 5, 4),
            "one is kept": (10, 2, 4, 1),
            "no save within an epoch": (10, 3, 100, 2),
            "fewer files than may stay": (6, 1, 4, 5),
        },
        mistakes={
            "a step file is written at the end of an epoch too": kept(both=True),
            "files of steps and of epochs are limited apart": apart,
            "files of epochs are never deleted": all_epochs,
            "checkpoint_last.pt counts within the limit": kept(room=1),
            "checkpoint_last.pt is forgotten": kept(last=False),
            "the oldest files stay, not the newest": kept(oldest=True),
        },
        run=lambda fn, *args: _in_order(fn(*args)),
    )


def _in_order(result: object) -> object:
    """A list or a set of names, sorted: their order does not matter."""
    return sorted(result) if isinstance(result, list | tuple | set) else result
