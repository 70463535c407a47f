"""Exercises of lesson 06: the rates of a sweep, its smoothed losses, where they fall steepest, what to run next."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from course_lm.classroom.checks import exercise

_Curve = tuple[list[float], list[float]]


@exercise(
    cases={
        "three rates": (0.002, 0.5, 3),
        "seven decades": (1e-6, 10.0, 8),
        "thirty steps": (2e-5, 0.3, 30),
    },
    without=("geomspace", "logspace"),
)
def sweep_rates(start_lr, end_lr, num_iter):
    """The learning rates of a range test: `fn(start_lr, end_lr, num_iter)`, each a constant factor above the last."""
    ratio = end_lr / start_lr
    return [start_lr * ratio ** (k / (num_iter - 1)) for k in range(num_iter)]


@exercise(
    cases={
        "three losses by hand": ([4.0, 2.0, 1.0], 0.5),
        "a descent with noise": ([7.0, 6.9, 7.1, 6.6, 6.2, 5.9, 5.1, 4.9, 5.0, 4.7, 4.6, 4.8, 9.0], 0.7),
        "one loss": ([3.0], 0.9),
        "little smoothing": ([5.0, 4.0, 6.0], 0.1),
    },
)
def smoothed_losses(losses, smoothing):
    """Bias-corrected moving average: `fn(losses, smoothing)`, in which the past weighs `smoothing` in [0, 1)."""
    curve, mean = [], 0.0
    for n, loss in enumerate(losses, start=1):
        mean = smoothing * mean + (1 - smoothing) * loss
        curve.append(mean / (1 - smoothing**n))
    return curve


def _on_each_curve(fn: Callable[..., Any], curves: Sequence[_Curve]) -> list[Any]:
    return [fn(lrs, losses) for lrs, losses in curves]


def _curves(*, seed: int, num_points: int, is_even: bool = True, holes: str = "") -> list[_Curve]:
    """Eight short sweeps of which the steepest point is beyond doubt: any central differences agree, none at an end.

    `holes` says where nan and inf are: "inside", "at the ends" or nowhere.
    """
    generator, curves = random.Random(seed), list[_Curve]()
    while len(curves) < 8:
        steps = [1.0] * num_points if is_even else [generator.choice((0.5, 1.0, 2.0)) for _ in range(num_points)]
        lrs = [float(f"{10 ** (total - 6):.1g}") for total in accumulate(steps)]
        losses = [round(generator.uniform(2, 9), 1) for _ in lrs]
        if holes:
            inside = generator.sample(range(1, num_points - 1), 2)
            for place, hole in zip(inside if holes == "inside" else (0, -1), (math.nan, math.inf)):
                losses[place] = hole
        kept = np.isfinite(losses)
        if _is_clear(np.array(lrs)[kept], np.array(losses)[kept]):
            curves.append((lrs, losses))
    return curves


def _is_clear(lrs: np.ndarray, losses: np.ndarray) -> bool:
    """Whether the lowest slope is inside, well below the others, and at one place by both usual formulas."""
    if any(one >= other for one, other in pairwise(lrs)):
        return False
    by_parabola, by_secant = np.gradient(losses, np.log(lrs)), _secants(losses, np.log(lrs))
    place = int(by_parabola.argmin())
    rest = [float(np.diff(np.sort(slopes)[:2])[0]) for slopes in (by_parabola, by_secant)]
    return 0 < place < len(lrs) - 1 and place == int(by_secant.argmin()) and min(rest) > 0.02


def _secants(losses: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The slope from the point before to the point after; the ends have none, which is inf."""
    slopes = (losses[2:] - losses[:-2]) / (places[2:] - places[:-2])
    return np.concatenate([[np.inf], slopes, [np.inf]])


@exercise(
    cases={
        "rates at even distances": (_curves(seed=0, num_points=6),),
        "rates at uneven distances": (_curves(seed=1, num_points=6, is_even=False),),
        "nan and inf in between": (_curves(seed=2, num_points=8, holes="inside"),),
        "nan and inf at the ends": (_curves(seed=3, num_points=8, holes="at the ends"),),
    },
    run=_on_each_curve,
)
def steepest_rate(lrs, losses):
    """Where d loss / d log(lr) is lowest, among finite points: `fn(lrs, losses)`, by central differences."""
    kept = np.isfinite(losses)
    rates, finite = np.array(lrs)[kept], np.array(losses)[kept]
    return float(rates[np.gradient(finite, np.log(rates)).argmin()])


@exercise(
    cases={
        "the best rate is the highest": ({1e-3: 4.97, 2e-3: 4.5, 4e-3: 4.25},),
        "the best rate is the lowest": ({2e-3: 4.5, 6e-3: 4.6, 1.8e-2: 5.2},),
        "the best rate is inside": ({1e-3: 4.97, 4e-3: 4.25, 1.6e-2: 5.18},),
        "rates in no order": ({4e-3: 4.25, 1e-3: 4.97, 2e-3: 4.5},),
        "a best rate inside that was run last": ({1.6e-2: 5.18, 1e-3: 4.97, 4e-3: 4.25},),
        "a run without a number": ({1e-3: 4.97, 3e-3: 4.31, 9e-3: math.nan},),
        "a run without a number, tried first": ({9e-3: math.nan, 1e-3: 4.31, 3e-3: 4.97},),
        "a run without a number, at the lowest rate": ({1e-3: math.nan, 3e-3: 4.31, 9e-3: 4.97},),
        "an infinite loss": ({1e-3: 4.3, 2e-3: 4.9, 4e-3: math.inf},),
    },
)
def next_rates(losses):
    """Which learning rates to run next: `fn(losses)`, with the validation loss of each rate; a list, maybe empty."""
    rates = sorted(losses)
    factor = rates[1] / rates[0]
    best = min(rates, key=lambda lr: losses[lr] if math.isfinite(losses[lr]) else math.inf)
    if best == rates[0]:
        return [best / factor]
    return [best * factor] if best == rates[-1] else []
