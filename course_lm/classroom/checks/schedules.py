"""Checks of lesson 05: the steps of a run, a schedule in tokens, a cooldown, and a loop that counts right."""

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from course_lm.accumulation import windows
from course_lm.classroom.checks.report import Report, compare
from course_lm.schedules import cosine, warmup_stable_decay

Schedule = Callable[[int], float]
MicroBatch = Callable[[], Tensor]


def optimizer_steps(fn: Callable[..., object]) -> Report:
    """Steps of a run: `fn(num_documents, batch_size, accumulation_steps, num_epochs)`, smaller tails included."""
    return compare(
        fn,
        reference=lambda documents, size, accumulation, epochs: epochs * _ceil(_ceil(documents, size), accumulation),
        cases={
            "one epoch that divides evenly": (96, 8, 4, 1),
            "a smaller last batch and a smaller last window": (1001, 8, 4, 3),
            "a last window of one smaller batch": (993, 8, 4, 5),
            "a smaller last batch that completes its window": (95, 8, 4, 2),
            "less than one window in an epoch": (10, 4, 8, 7),
        },
        mistakes={
            "micro-batches are counted instead of optimizer steps": lambda documents, size, accumulation, epochs: (
                epochs * _ceil(documents, size)
            ),
            "the last, smaller window of each epoch is dropped": lambda documents, size, accumulation, epochs: (
                epochs * (_ceil(documents, size) // accumulation)
            ),
            "the last, smaller batch of each epoch is dropped": lambda documents, size, accumulation, epochs: (
                epochs * _ceil(documents // size, accumulation)
            ),
            "both tails of each epoch are dropped": lambda documents, size, accumulation, epochs: (
                epochs * (documents // size // accumulation)
            ),
            "the steps of the whole run are rounded once, as if a window went on into the next epoch": (
                lambda documents, size, accumulation, epochs: _ceil(epochs * _ceil(documents, size), accumulation)
            ),
            "only one epoch is counted": lambda documents, size, accumulation, epochs: _ceil(
                _ceil(documents, size), accumulation
            ),
            "nothing is rounded": lambda documents, size, accumulation, epochs: (
                epochs * documents / size / accumulation
            ),
        },
    )


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def rate_by_tokens(fn: Callable[..., object]) -> Report:
    """Warm-up, half a cosine to a tenth: `fn(tokens, peak_lr, warmup_tokens, decay_tokens)`, all counts in tokens."""

    def reference(tokens: int, peak: float, warmup: int, decay: int) -> float:
        return cosine(tokens, peak_lr=peak, total_steps=decay, warmup_steps=warmup, min_lr=0.1 * peak)

    def falling(factor: Callable[[float, float], float]) -> Callable[..., float]:
        """`factor(progress, tokens / decay_tokens)` of the peak after the warm-up, a tenth after the decay."""

        def rate(tokens: int, peak: float, warmup: int, decay: int) -> float:
            if tokens < warmup:
                return peak * tokens / warmup
            progress = (tokens - warmup) / (decay - warmup)
            return peak * (factor(progress, tokens / decay) if tokens < decay else 0.1)

        return rate

    def rising_again(tokens: int, peak: float, warmup: int, decay: int) -> float:
        progress = (tokens - warmup) / (decay - warmup)
        return reference(tokens, peak, warmup, decay) if progress < 0 else peak * (0.1 + 0.9 * _half_wave(progress))

    def without_warm_up(tokens: int, peak: float, warmup: int, decay: int) -> float:
        return reference(max(tokens, warmup), peak, warmup, decay)

    return compare(
        fn,
        reference=reference,
        cases={
            "the numbers of GPT-3": (6e-5, 375_000_000, 260_000_000_000),
            "a long warm-up": (3e-3, 4_000, 20_000),
            "no warm-up": (1.0, 0, 1_000),
        },
        mistakes={
            "the cosine makes a full wave instead of half a wave": falling(lambda p, _: 0.1 + 0.9 * _half_wave(2 * p)),
            "π is missing": falling(lambda p, _: 0.1 + 0.9 * _half_wave(p / math.pi)),
            "the warm-up is not subtracted: the cosine runs over all tokens": falling(
                lambda _, whole: 0.1 + 0.9 * _half_wave(whole)
            ),
            "the rate falls to 0, not to a tenth of the peak": lambda tokens, peak, warmup, decay: cosine(
                tokens, peak_lr=peak, total_steps=decay, warmup_steps=warmup
            ),
            "the cosine falls to 0 and is cut off at a tenth": lambda tokens, peak, warmup, decay: (
                reference(tokens, peak, warmup, decay)
                if tokens < warmup
                else max(0.1 * peak, cosine(tokens, peak_lr=peak, total_steps=decay, warmup_steps=warmup))
            ),
            "the tenth is added to a cosine of full height": falling(lambda p, _: 0.1 + _half_wave(p)),
            "the wave goes on after decay_tokens, and the rate rises again": rising_again,
            "there is no warm-up": without_warm_up,
        },
        run=_on_a_grid,
    )


def _half_wave(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _on_a_grid(fn: Callable[..., Any], peak: float, warmup: int, decay: int) -> list[float] | None:
    """The rate at token counts from 0 to beyond the decay."""
    counts = [warmup * part // 4 for part in range(4)] + [warmup + (decay - warmup) * part // 8 for part in range(12)]
    return _written([fn(tokens, peak, warmup, decay) for tokens in counts])


def cooldown_rate(fn: Callable[..., object]) -> Report:
    """Warm-up, plateau, 1 − sqrt cooldown: `fn(step, peak_lr, total_steps, warmup_steps, decay_steps)`."""

    def shaped(factor: Callable[[float], float], shift: int = 0) -> Callable[..., float]:
        """A warm-up, then `factor(progress)` of the peak, from 1 at progress 0 to 0 at progress 1."""

        def rate(step: int, peak: float, total: int, warmup: int, decay: int) -> float:
            if step < warmup:
                return peak * step / warmup
            progress = (step - (total - decay) + shift) / decay
            return peak * factor(min(1.0, max(0.0, progress)))

        return rate

    def as_long_as_what_follows(step: int, peak: float, total: int, warmup: int, decay: int) -> float:
        return right(step, peak, total, warmup, total - warmup)

    def from_the_step(step: int, peak: float, total: int, warmup: int, decay: int) -> float:
        return right(step, peak, total, warmup, total - decay)

    right = shaped(lambda progress: 1 - math.sqrt(progress))
    return compare(
        fn,
        reference=right,
        cases={
            "50 steps, the last 20 of them decay": (3e-3, 50, 10, 20),
            "another peak, a short decay": (1.0, 24, 4, 3),
            "no warm-up": (0.5, 30, 0, 10),
        },
        mistakes={
            "the root is left out: the decay is a straight line": lambda step, peak, total, warmup, decay: (
                warmup_stable_decay(
                    step, peak_lr=peak, total_steps=total, warmup_steps=warmup, decay_ratio=decay / total
                )
            ),
            "the root is taken of the steps that remain: sqrt(1 − progress)": shaped(lambda p: math.sqrt(1 - p)),
            "the decay runs over everything after the warm-up": as_long_as_what_follows,
            "decay_steps is taken as the step at which the decay begins, not as its length": from_the_step,
            "the decay is one step early": shaped(lambda progress: 1 - math.sqrt(progress), shift=1),
            "the decay rises from 0 to the peak: sqrt(progress)": shaped(lambda p: math.sqrt(p) if p > 0 else 1.0),
            "there is no warm-up": lambda step, peak, total, warmup, decay: right(step, peak, total, 0, decay),
        },
        run=_at_every_step,
    )


def _at_every_step(fn: Callable[..., Any], peak: float, total: int, *numbers: int) -> list[float] | None:
    return _written([fn(step, peak, total, *numbers) for step in range(total + 1)])


def _written(rates: list[Any]) -> list[float] | None:
    return None if rates[0] in (None, ...) else rates


def scheduled_steps(fn: Callable[..., object]) -> Report:
    """A loop with accumulation: `fn(micro_batches, optimizer, accumulation_steps, lr_at)`, judged by its weights."""
    return compare(
        fn,
        reference=_loop(),
        cases={
            "eight micro-batches in windows of four": (8, 4, lambda k: 0.5 / (k + 2)),
            "seven micro-batches: the last window is smaller": (7, 3, lambda k: 0.1 * (k + 1)),
            "no accumulation": (3, 1, lambda k: 0.3 - 0.05 * k),
        },
        mistakes={
            "the schedule counts micro-batches: a step runs at the rate of its last micro-batch": _loop(
                k_of=lambda step, accumulation, seen: seen - 1
            ),
            "the schedule counts micro-batches: a step runs at the rate of its first micro-batch": _loop(
                k_of=lambda step, accumulation, seen: step * accumulation
            ),
            "the learning rate is one step ahead: lr_at(k + 1)": _loop(k_of=lambda step, accumulation, seen: step + 1),
            "lr_scale is ignored": _loop(scaled=False),
            "only the first parameter group gets the rate": _loop(groups=1),
            "the last, smaller window is dropped": _loop(tail=False),
            "the gradients are summed, not averaged over the window": _loop(divided=False),
            "the gradients are never cleared": _loop(cleared=False),
            "the last, smaller window is divided by accumulation_steps, not by its own size": _loop(by_own_size=False),
        },
        run=_weights_after,
    )


def _loop(
    *,
    k_of: Callable[[int, int, int], int] = lambda step, accumulation, seen: step,
    scaled: bool = True,
    groups: int | None = None,
    tail: bool = True,
    divided: bool = True,
    by_own_size: bool = True,
    cleared: bool = True,
) -> Callable[..., None]:
    """The loop of the exercise, right unless told otherwise; `k_of(step, accumulation, seen)` counts from 0."""

    def train(batches: Sequence[MicroBatch], optimizer: Optimizer, accumulation: int, lr_at: Schedule) -> None:
        seen = 0
        for step, window in zip(count(), windows(batches, accumulation)):
            if len(window) < accumulation and not tail:
                return
            seen += len(window)
            for group in optimizer.param_groups[:groups]:
                scale = group.get("lr_scale", 1.0) if scaled else 1.0
                group["lr"] = lr_at(k_of(step, accumulation, seen)) * scale
            if cleared:
                optimizer.zero_grad()
            size = len(window) if by_own_size else accumulation
            for batch in window:
                (batch() / (size if divided else 1)).backward()
            optimizer.step()

    return train


def _weights_after(fn: Callable[..., object], batches: int, accumulation: int, lr_at: Schedule) -> list[Tensor] | None:
    """The weights that a loop leaves; None where it changes none of them."""
    weights = [torch.ones(2, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
    for weight in weights:
        weight.requires_grad_()
    optimizer = SGD([{"params": weights[:1]}, {"params": weights[1:], "lr_scale": 0.5}], lr=0.7)
    fn([_bowl(weights, seed) for seed in range(batches)], optimizer, accumulation, lr_at)
    after = [weight.detach() for weight in weights]
    return None if bool((after[0] == 1).all()) else after


def _bowl(weights: Sequence[Tensor], seed: int) -> MicroBatch:
    """A micro-batch: the squared distance to a point of its own."""
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in weights]
    return lambda: sum((((weight - point) ** 2).mean() for weight, point in zip(weights, points)), torch.tensor(0.0))
