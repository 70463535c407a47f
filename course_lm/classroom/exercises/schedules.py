"""Exercises of lesson 05: the steps of a run, a schedule in tokens, a cooldown, and a loop that counts right."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from course_lm.accumulation import windows
from course_lm.classroom.checks import Refused, exercise

_Schedule = Callable[[int], float]
_MicroBatch = Callable[[], Tensor]


def _for_each_number(fn: Callable[..., object], documents: Sequence[int], *numbers: int) -> list[object]:
    return [fn(number, *numbers) for number in documents]


@exercise(
    cases={
        "one epoch that divides evenly": ([96, 32, 64], 8, 4, 1),
        "full batches, a smaller last window": ([88, 40, 80], 8, 4, 3),
        "a smaller last batch that completes its window": ([95, 90, 57], 8, 4, 2),
        "a smaller last batch, alone in its window": ([97, 103, 33, 71], 8, 4, 5),
        "a smaller last batch in a smaller last window": ([82, 75, 109, 42, 22], 8, 4, 2),
        "less than one window in an epoch": ([10, 7, 1, 12], 4, 8, 7),
    },
    run=_for_each_number,
)
def optimizer_steps(num_documents, batch_size, accumulation_steps, num_epochs):
    """Steps of a run: `fn(num_documents, batch_size, accumulation_steps, num_epochs)`, smaller tails included."""
    micro_batches = math.ceil(num_documents / batch_size)
    return num_epochs * math.ceil(micro_batches / accumulation_steps)


def _on_a_grid(fn: Callable[..., Any], peak: float, warmup: int, decay: int) -> list[Any]:
    """The rate at token counts from 0 to beyond the decay, those beside its corners among them."""
    counts = [warmup * part // 4 for part in range(4)] + [warmup + (decay - warmup) * part // 8 for part in range(12)]
    corners = [count + step for count in (warmup, decay) for step in (-1, 1) if count]
    return [fn(tokens, peak, warmup, decay) for tokens in sorted({*counts, *corners})]


@exercise(
    cases={
        "few tokens": (2.0, 4, 12),
        "no warm-up": (1.0, 0, 1_000),
        "the numbers of GPT-3": (6e-5, 375_000_000, 260_000_000_000),
    },
    run=_on_a_grid,
)
def rate_by_tokens(tokens, peak_lr, warmup_tokens, decay_tokens):
    """Warm-up, half a cosine to a tenth: `fn(tokens, peak_lr, warmup_tokens, decay_tokens)`, all counts in tokens."""
    if tokens < warmup_tokens:
        return peak_lr * tokens / warmup_tokens
    progress = min(1.0, (tokens - warmup_tokens) / (decay_tokens - warmup_tokens))
    return peak_lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def _at_every_step(fn: Callable[..., Any], peak: float, total: int, *numbers: int) -> list[Any]:
    rates = [fn(step, peak, total, *numbers) for step in range(total + 1)]
    if any(isinstance(rate, complex) for rate in rates):
        raise Refused("a negative p to the power of 0.5 is a complex number: p is 0 before the cooldown")
    return rates


@exercise(
    cases={
        "another peak, a short decay": (1.0, 24, 4, 3),
        "50 steps, the last 20 of them decay": (3e-3, 50, 10, 20),
        "no warm-up": (0.5, 30, 0, 10),
    },
    run=_at_every_step,
)
def cooldown_rate(step, peak_lr, total_steps, warmup_steps, decay_steps):
    """Warm-up, plateau, 1 − sqrt cooldown: `fn(step, peak_lr, total_steps, warmup_steps, decay_steps)`."""
    if step < warmup_steps:
        return peak_lr * step / warmup_steps
    p = max(0.0, (step - (total_steps - decay_steps)) / decay_steps)
    return peak_lr * (1 - math.sqrt(p))


def _after(fn: Callable[..., object], batches: int, accumulation: int, lr_at: _Schedule) -> dict[str, object] | None:
    """How often a loop calls `optimizer.step` and which weights it leaves; None where it changes none of them."""
    weights = [torch.full((size,), start, dtype=torch.float64) for size, start in ((2, 1.0), (3, 0.0), (1, 2.0))]
    for weight in weights:
        weight.requires_grad_()
    scales = ({}, {"lr_scale": 0.5}, {"lr_scale": 0.0})
    # with momentum it is not the same to scale the gradient and to scale the rate
    optimizer = SGD([{"params": [weight], **scale} for weight, scale in zip(weights, scales)], lr=0.7, momentum=0.9)
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
            group["lr"] = lr_at(k) * group.get("lr_scale", 1.0)
        optimizer.zero_grad()
        for micro_batch in window:
            (micro_batch() / len(window)).backward()
        optimizer.step()
