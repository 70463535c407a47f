"""Exercises of lesson 12: a loss, a resume and an observer of one's own."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.classroom.checks import Refused, exercise, with_gradient


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


@exercise(
    cases={
        "in the middle of an epoch": ({"step": 1, "epoch": 0, "batch": 2}, 4, 2, 4),
        "epochs with a tail": ({"step": 4, "epoch": 1, "batch": 3}, 7, 3, 9),
        "at the end of an epoch": ({"step": 2, "epoch": 0, "batch": 5}, 5, 3, 4),
        "three batches a step until now, two from now on": ({"step": 5, "epoch": 2, "batch": 3}, 6, 2, 9),
        "one batch a step": ({"step": 7, "epoch": 2, "batch": 1}, 3, 1, 11),
        "a run that is over": ({"step": 6, "epoch": 1, "batch": 6}, 8, 2, 6),
    },
)
def windows_to_go(state, num_batches, accumulation_steps, max_steps):
    """What a resumed run reads: `fn(state, num_batches, accumulation_steps, max_steps)`, lists of (epoch, batch)."""
    epoch, batch, found = state["epoch"], state["batch"], []
    for _ in range(state["step"], max_steps):
        if batch == num_batches:
            epoch, batch = epoch + 1, 0
        end = min(batch + accumulation_steps, num_batches)
        found.append([(epoch, number) for number in range(batch, end)])
        batch = end
    return found


def _filled_from_next_epoch(state, num_batches, accumulation_steps, max_steps):
    first = state["epoch"] * num_batches + state["batch"]
    starts = [first + k * accumulation_steps for k in range(max_steps - state["step"])]
    return [[divmod(start + i, num_batches) for i in range(accumulation_steps)] for start in starts]


def _place_from_steps(state, num_batches, accumulation_steps, max_steps):
    epoch, steps = divmod(state["step"], -(-num_batches // accumulation_steps))
    place = {"step": state["step"], "epoch": epoch, "batch": steps * accumulation_steps}
    return windows_to_go.solution(place, num_batches, accumulation_steps, max_steps)


windows_to_go.also("the window at the end of an epoch is filled up from the next one", _filled_from_next_epoch)
windows_to_go.also("the place follows from the number of steps: `epoch` and `batch` are not read", _place_from_steps)


def _means_told(fn: Callable[..., Any], told: Iterable[tuple[str, list[float]]], decay: float) -> list[Tensor]:
    """What `mean()` gives after each training record; `told` holds each record's event and the model's weights."""
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    observer, means = fn(model, decay), []
    for name in ("start", "log", "close", "mean"):
        if not callable(getattr(observer, name, None)):
            raise Refused(f"the observer has no method `{name}`: it needs start, log, close and mean")
    observer.start(0, None)
    for step, (event, numbers) in enumerate(told, 1):
        weights = torch.tensor(numbers, dtype=torch.float64)
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        observer.log({"event": event, "step": step})
        if not torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()), weights):
            raise Refused("the observer has changed the weights of the model")
        if event == "train":
            means.append(observer.mean())
    if any(isinstance(mean, Tensor) and mean.requires_grad for mean in means):
        raise Refused("the mean has a gradient, so the graph of all steps is kept: `detach` the weights")
    observer.close()
    return means


@exercise(
    cases={
        "two steps": ([("train", [1.0, 2.0, 3.0]), ("train", [3.0, 0.0, 1.0])], 0.5),
        "validations between": (
            [
                ("train", [4.0, 1.0, 0.5]),
                ("validation", [4.0, 1.0, 0.5]),
                ("train", [2.0, 3.0, 1.5]),
                ("epoch", [2.0, 3.0, 1.5]),
                ("train", [1.0, -2.0, 2.5]),
            ],
            0.8,
        ),
        "a fast average": ([("train", [float(k * k), 1.0 - k, 2.0 * k]) for k in range(1, 5)], 0.3),
    },
    run=_means_told,
)
def averager(model, decay):
    """An observer: `fn(model, decay)`; its `mean()` after each training record is compared, a vector of all weights."""

    class Averager:
        total, shares = 0.0, 0.0

        def start(self, step, total_steps):
            pass

        def log(self, record):
            if record["event"] == "train":
                new = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
                self.total = decay * self.total + new
                self.shares = decay * self.shares + 1

        def close(self):
            pass

        def mean(self):
            return self.total / self.shares

    return Averager()


def _keeps_live_weights(model: torch.nn.Module, decay: float) -> object:
    kind: Any = type(averager.solution(model, decay))

    class Averager(kind):
        def mean(self):
            return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    return Averager()


averager.also(
    "the mean is that of the newest weights alone, as where the weights were kept and not copied", _keeps_live_weights
)
