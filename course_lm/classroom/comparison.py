"""What paired runs say: the change in perplexity seed by seed, its interval, and p-values adjusted for their number."""

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeVar

import torch

T_95 = {3: 4.303, 6: 2.571, 10: 2.262}  # pairs → Student's factor t for 95 %, with one degree of freedom less
Name = TypeVar("Name", bound=Hashable)


def changes_in_perplexity(losses: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """In per cent, for each pair of losses (nats per token) of one seed. Negative is better than the baseline."""
    return [100 * math.expm1(loss - other) for loss, other in zip(losses, baseline, strict=True)]


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """The mean of paired changes, and what its 95 % interval reaches to either side: t s / sqrt(n)."""
    return fmean(changes), T_95[len(changes)] * stdev(changes) / math.sqrt(len(changes))


def p_value(changes: Sequence[float]) -> float:
    """How often the mean of so many normal numbers around 0 lies as far from 0: Student's test, two-sided.

    With t = sqrt(n - 1) tan(a) the density is proportional to cos(a) ** (n - 2), which is summed beyond the found t.
    """
    degrees = len(changes) - 1
    t = abs(fmean(changes)) / stdev(changes) * math.sqrt(len(changes))

    def area(start: float) -> float:
        angles = torch.linspace(start, math.pi / 2, 10_001, dtype=torch.float64)
        return float(torch.trapezoid(angles.cos() ** (degrees - 1), angles))

    return area(math.atan(t / math.sqrt(degrees))) / area(0.0)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """The p-values adjusted for their number: the smallest times n, the next times n - 1, and so on, never falling.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted: dict[Name, float] = {}
    highest = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = highest
    return adjusted
