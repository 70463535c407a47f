"""Exercises of lesson 05: the steps of a run, those of several lengths, and a loop that counts right."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import SGD

from course_lm.accumulation import windows
from course_lm.classroom.checks import at_each, exercise

_Schedule = Callable[[int], float]
_MicroBatch = Callable[[], Tensor]


@exercise(
    cases={
        "one epoch that divides evenly": ([96, 32, 64], 8, 4, 1),
        "full batches, a smaller last window": ([88, 40, 80], 8, 4, 3),
        "a smaller last batch that completes its window": ([95, 90, 57], 8, 4, 2),
        "a smaller last batch, alone in its window": ([97, 103, 33, 71], 8, 4, 5),
        "a smaller last batch in a smaller last window": ([82, 75, 109, 42, 22], 8, 4, 2),
        "less than one window in an epoch": ([10, 7, 1, 12], 4, 8, 7),
    },
    run=at_each(0),
)
def optimizer_steps(num_documents, batch_size, accumulation_steps, num_epochs):
    """Steps of a run: `fn(num_documents, batch_size, accumulation_steps, num_epochs)`, smaller tails included."""
    micro_batches = math.ceil(num_documents / batch_size)
    return num_epochs * math.ceil(micro_batches / accumulation_steps)


@exercise(
    cases={
        "one length": ([1600], 0.2),
        "three lengths, the longest one first": ([1600, 100, 400], 0.2),
        "decays that are no whole numbers": ([50, 137, 51, 52], 0.15),
        "no plateau: the rate falls from the start": ([40, 80], 1.0),
    }
)
def wsd_steps(lengths, decay_ratio):
    """Steps of one plateau with a branch for each of `lengths`: `fn(lengths, decay_ratio)`."""
    decays = [round(decay_ratio * length) for length in lengths]
    plateau = max(length - decay for length, decay in zip(lengths, decays))
    return plateau + sum(decays)


def _after(fn: Callable[..., object], batches: int, accumulation: int, lr_at: _Schedule) -> dict[str, object] | None:
    """How often a loop calls `optimizer.step` and which weights it leaves; None where it changes none of them."""
    weights = [torch.full((size,), start, dtype=torch.float64) for size, start in ((2, 1.0), (3, 0.0))]
    for weight in weights:
        weight.requires_grad_()
    # with momentum it is not the same to scale the gradient and to scale the rate
    optimizer = SGD([{"params": [weight]} for weight in weights], lr=0.7, momentum=0.9)
    calls: list[object] = []
    optimizer.register_step_post_hook(lambda *call: calls.append(call))
    fn([_bowl(weights, seed) for seed in range(batches)], optimizer, accumulation, lr_at)
    after = [weight.detach() for weight in weights]
    is_unchanged = bool((after[0] == 1).all() and (after[1] == 0).all())
    return None if is_unchanged else {"calls of optimizer.step": len(calls), "the weights": after}


def _bowl(weights: Sequence[Tensor], seed: int) -> _MicroBatch:
    """A micro-batch: the squared distance to a point of its own."""
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in weights]
    return lambda: sum((((weight - point) ** 2).mean() for weight, point in zip(weights, points)), torch.tensor(0.0))


@exercise(
    cases={
        "no accumulation": (3, 1, lambda k: 0.3 - 0.05 * k),
        "seven micro-batches: the last window is smaller": (7, 3, lambda k: 0.1 * (k + 1)),
        "eight micro-batches in windows of four": (8, 4, lambda k: 0.5 / (k + 2)),
    },
    run=_after,
    unchanged="the weights do not move: is `optimizer.step()` called while the gradients are there?",
)
def scheduled_steps(micro_batches, optimizer, accumulation_steps, lr_at):
    """A loop with accumulation: `fn(micro_batches, optimizer, accumulation_steps, lr_at)`, judged by its weights."""
    for k, window in enumerate(windows(micro_batches, accumulation_steps)):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(k)
        optimizer.zero_grad()
        for micro_batch in window:
            (micro_batch() / len(window)).backward()
        optimizer.step()
