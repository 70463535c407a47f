"""Exercises of lesson 04: tune a rate, Adam without its correction, a step of Lion."""

import math

import torch
from torch import Tensor

from course_lm.classroom.checks import at_each, exercise


def _drawn(seed: int) -> Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@exercise(
    cases={
        "the best is in the middle": ({0.001: [4.8, 4.7, 4.9], 0.004: [3.5, 3.4, 3.6], 0.016: [4.4, 5.1, 4.6]},),
        "the lowest single run is not at the best rate": (
            {0.1: [9.0, 9.0], 0.2: [2.0, 5.0], 0.4: [3.0, 3.2], 0.8: [6.0, 2.9]},
        ),
        "a run at a higher rate has diverged": ({1.0: [3.0, 3.1], 2.0: [2.5, 2.6], 4.0: [2.0, float("nan")]},),
        "diverged runs, and rates in another order": (
            {0.4: [float("nan"), 5.0], 0.1: [3.0, 3.5], 0.8: [math.inf, 9.0], 0.2: [2.0, 2.5]},
        ),
        "the best is the lowest rate": ({0.02: [6.0, 6.0], 0.01: [5.0, 5.5], 0.04: [7.0, 7.0]},),
        "the best is the highest rate": ({0.01: [7.0, 6.0], 0.02: [5.0, 5.0], 0.04: [4.0, 4.5]},),
        "the best mean is not the best median": (
            {0.1: [5.0] * 3, 0.2: [1.0, 1.0, 9.0], 0.4: [3.0] * 3, 0.8: [4.0] * 3},
        ),
        "another number of seeds for each rate": ({1: [4.0], 2: [3.0, 3.0, 3.0], 4: [3.5, 3.5], 8: [9.0]},),
    },
)
def tuned_rate(losses):
    """The rate with the lowest mean loss: `fn(losses)`, lists of losses by rate; None where it is at the edge."""
    means = {rate: sum(runs) / len(runs) for rate, runs in losses.items()}
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    best = min(finite, key=lambda rate: finite[rate])
    return None if best in (min(losses), max(losses)) else best


@exercise(
    cases={
        "PyTorch's betas": ([1, 2, 10, 1000], 0.9, 0.999),
        "beta2 0.95": ([1, 3, 30], 0.9, 0.95),
        "no mean of gradients": ([1, 4], 0.0, 0.75),
    },
    run=at_each(0),
)
def uncorrected_length(t, beta1, beta2):
    """The length of Adam's step t without correction, in rates: `fn(t, beta1, beta2)`, gradients that stay the same."""
    return (1 - beta1**t) / math.sqrt(1 - beta2**t)


@exercise(
    cases={
        "one weight": (*map(torch.tensor, ([2.0], [0.5], [-0.15])), 0.1, 0.75, 0.5, 0.2),
        "a matrix": (_drawn(3), _drawn(4), _drawn(5), 0.01, 0.9, 0.99, 0.1),
        "the mean decides the sign": (
            *map(torch.tensor, ([1.0, -3.0, 2.0], [3.0, 0.2, -3.0], [-0.5, 4.0, 2.3])),
            0.1,
            0.9,
            0.6,
            0.0,
        ),
        "no gradient yet": (_drawn(6), 0 * _drawn(6), 0 * _drawn(6), 0.5, 0.9, 0.99, 0.1),
    },
)
def lion_step(weight, gradient, m, lr, beta1, beta2, weight_decay):
    """One step of Lion: `fn(weight, gradient, m, lr, beta1, beta2, weight_decay)` gives the weight and the mean."""
    direction = torch.sign(beta1 * m + (1 - beta1) * gradient)
    m = beta2 * m + (1 - beta2) * gradient
    return (1 - lr * weight_decay) * weight - lr * direction, m
