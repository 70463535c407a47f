"""Checks of lesson 06: the rates of a sweep, its smoothed losses, where they fall steepest, and group ratios."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np
from torch import Tensor

from course_lm.classroom.checks.report import Report, compare
from course_lm.monitoring import smooth

Numbers = Sequence[float]
Groups = Sequence[Mapping[str, float]]


def sweep_rates(fn: Callable[..., object]) -> Report:
    """The learning rates of a range test: `fn(start_lr, end_lr, num_iter)`, each a constant factor above the last."""

    def rising(share: Callable[[int, int], float], extra: int = 0) -> Callable[[float, float, int], list[float]]:
        """The ratio to the power of `share(step, num_iter)` at each step."""
        return lambda start, end, count: [start * (end / start) ** share(step, count) for step in range(count + extra)]

    def by_mixed_bases(start: float, end: float, count: int) -> list[float]:
        return np.exp(np.linspace(math.log10(start), math.log10(end), count)).tolist()

    return compare(
        fn,
        reference=lambda start, end, count: np.geomspace(start, end, count).tolist(),
        cases={
            "seven decades": (1e-6, 10.0, 8),
            "a hundred steps": (1e-5, 1.0, 100),
            "two steps": (3e-4, 5e-2, 2),
        },
        mistakes={
            "the differences are equal, not the factors": lambda start, end, count: np.linspace(
                start, end, count
            ).tolist(),
            "end_lr is never reached: num_iter rates have num_iter − 1 factors between them": rising(
                lambda step, count: step / count
            ),
            "start_lr is left out: the steps are counted from 1": rising(lambda step, count: (step + 1) / count),
            "there is one rate too many": rising(lambda step, count: step / count, extra=1),
            "the logarithm has base 10 and the power base e": by_mixed_bases,
            "the rates are logarithms: the power is missing": lambda start, end, count: np.linspace(
                math.log10(start), math.log10(end), count
            ).tolist(),
        },
        close=(1e-6, 1e-15),
        run=_as_list,
    )


def smoothed_losses(fn: Callable[..., object]) -> Report:
    """Bias-corrected moving average: `fn(losses, smoothing)`, in which the past weighs `smoothing` in [0, 1)."""
    falling = [7.0, 6.9, 7.1, 6.6, 6.2, 5.9, 5.1, 4.9, 5.0, 9.0]
    return compare(
        fn,
        reference=smooth,
        cases={
            "three losses by hand": ([4.0, 2.0, 0.0], 0.5),
            "a constant loss": ([6.0] * 5, 0.9),
            "a descent with noise": (falling, 0.7),
            "no smoothing": (falling, 0.0),
        },
        mistakes={
            "nothing is divided by the weight gathered so far: the curve starts near 0": _running_means,
            "the average starts at the first loss, which keeps too much weight": lambda losses, smoothing: (
                _running_means(losses, smoothing, start=losses[0])
            ),
            "the average starts at the first loss and is corrected as if it had started at 0": lambda losses, beta: (
                _corrected(_running_means(losses, beta, start=losses[0]), beta)
            ),
            "the weights are swapped: the newest loss weighs smoothing": lambda losses, smoothing: _corrected(
                _running_means(losses, 1 - smoothing), smoothing, 1 - smoothing
            ),
            "the exponent of the correction is one too high": lambda losses, smoothing: _corrected(
                _running_means(losses, smoothing), smoothing, first=2
            ),
            "the corrected value is carried on: the correction is for the curve alone": _correction_carried_on,
        },
        run=_as_list,
    )


def _as_list(fn: Callable[..., object], *args: object) -> object:
    """What an answer returns; an array or a tensor is as good as a list."""
    result = fn(*args)
    return result.tolist() if isinstance(result, np.ndarray | Tensor) else result


def _running_means(losses: Numbers, smoothing: float, start: float = 0.0) -> list[float]:
    means = accumulate(losses, lambda mean, loss: smoothing * mean + (1 - smoothing) * loss, initial=start)
    return list(means)[1:]


def _corrected(means: Numbers, smoothing: float, base: float | None = None, first: int = 1) -> list[float]:
    base = smoothing if base is None else base
    return [mean / (1 - base**count) if base**count != 1 else math.nan for count, mean in enumerate(means, first)]


def _correction_carried_on(losses: Numbers, smoothing: float) -> list[float]:
    curve, mean = [], 0.0
    for count, loss in enumerate(losses, 1):
        mean = (smoothing * mean + (1 - smoothing) * loss) / (1 - smoothing**count)
        curve.append(mean)
    return curve


def steepest_rate(fn: Callable[..., object]) -> Report:
    """Where d loss / d log(lr) is lowest, among finite points: `fn(lrs, losses)`, by central differences."""

    def steepest(slope: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Numbers, Numbers], float]:
        """The rate where `slope(rates, losses)` of the finite points is lowest."""

        def rate(lrs: Numbers, losses: Numbers) -> float:
            rates, values = _finite(lrs, losses)
            return float(rates[np.argmin(slope(rates, values))])

        return rate

    def with_all_points(lrs: Numbers, losses: Numbers) -> float:
        return float(lrs[int(np.gradient(np.array(losses), np.log(lrs)).argmin())])

    def looked_up_among_all(lrs: Numbers, losses: Numbers) -> float:
        rates, values = _finite(lrs, losses)
        return float(lrs[int(np.gradient(values, np.log(rates)).argmin())])

    return compare(
        fn,
        reference=steepest(lambda rates, losses: np.gradient(losses, np.log(rates))),
        cases={
            "a descent and a steeper rise": _sweep(),
            "a descent alone": _sweep(end=18),
            "rates at uneven distances": _uneven_sweep(),
            "nan and inf in between": _sweep(holes={2: math.nan, 5: math.inf, 22: math.nan, 23: math.inf}),
        },
        mistakes={
            "the slope is taken over the index, as if the rates stood at even distances": steepest(
                lambda rates, losses: np.gradient(losses)
            ),
            "the slope is taken over the rate and not over its logarithm": steepest(
                lambda rates, losses: np.gradient(losses, rates)
            ),
            "the lowest loss is looked for, not the steepest descent": steepest(lambda rates, losses: losses),
            "the largest slope is looked for, where the loss rises": steepest(
                lambda rates, losses: -np.gradient(losses, np.log(rates))
            ),
            "the sign of the slope is lost: the steepest rise counts too": steepest(
                lambda rates, losses: -np.abs(np.gradient(losses, np.log(rates)))
            ),
            "points that are not finite stay in: the lowest slope is then nan": with_all_points,
            "the place among the finite points is looked up among all points": looked_up_among_all,
        },
        close=(1e-6, 1e-15),
    )


def _finite(lrs: Numbers, losses: Numbers) -> tuple[np.ndarray, np.ndarray]:
    kept = np.isfinite(losses)
    return np.array(lrs)[kept], np.array(losses)[kept]


def _sweep(end: int = 24, holes: Mapping[int, float] | None = None) -> tuple[list[float], list[float]]:
    """The first `end` of 24 rates; the loss falls a little at first, steepest at the 13th, and rises from the 19th."""
    lrs = np.geomspace(1e-6, 1.0, 24)
    losses = 7 - 3 / (1 + np.exp(-2.0 * (np.arange(24) - 12.0)))
    losses[:4] += [0.3, 0.2, 0.1, 0.0]
    losses[18:] += np.array([0.2, 0.6, 1.5, 4.0, 9.0, 20.0])
    for place, value in (holes or {}).items():
        losses[place] = value
    return lrs[:end].tolist(), losses[:end].tolist()


def _uneven_sweep() -> tuple[list[float], list[float]]:
    """Dense below 1e-4 and sparse above: the loss falls most from point to point where the points lie far apart."""
    lrs = np.concatenate([np.geomspace(1e-6, 1e-4, 12, endpoint=False), np.geomspace(1e-4, 1.0, 6)])
    losses = 7 - 0.3 * np.log10(lrs / 1e-6)
    losses[6:9] -= [0.15, 0.3, 0.45]
    losses[9:] -= 0.5
    losses[-1] += 3
    return lrs.tolist(), losses.tolist()


def group_rates(fn: Callable[..., object]) -> Report:
    """What each parameter group gets at one step of a sweep: `fn(groups, lr)`, groups with "lr" and "lr_scale"."""

    def relative_to(unit: Callable[[Numbers], float]) -> Callable[[Groups, float], list[float]]:
        """Without an `lr_scale`: a group's rate divided by `unit(all rates)`."""

        def rates(groups: Groups, lr: float) -> list[float]:
            if any("lr_scale" in group for group in groups):
                return [lr * group.get("lr_scale", 1.0) for group in groups]
            own = [group["lr"] for group in groups]
            return [lr * rate / unit(own) for rate in own]

        return rates

    def without_scales(groups: Groups, lr: float) -> list[float]:
        return relative_to(max)([{"lr": group["lr"]} for group in groups], lr)

    def ratio_where_no_scale(groups: Groups, lr: float) -> list[float]:
        largest = max(group["lr"] for group in groups)
        return [lr * group.get("lr_scale", group["lr"] / largest) for group in groups]

    def both(groups: Groups, lr: float) -> list[float]:
        largest = max(group["lr"] for group in groups)
        return [lr * group["lr"] / largest * group.get("lr_scale", 1.0) for group in groups]

    return compare(
        fn,
        reference=relative_to(max),
        cases={
            "three rates": ([{"lr": 2e-3}, {"lr": 4e-3}, {"lr": 1e-3}], 0.1),
            "equal rates": ([{"lr": 0.05}, {"lr": 0.05}], 1e-4),
            "a scale for each": ([{"lr": 1e-3, "lr_scale": 2.0}, {"lr": 5e-3, "lr_scale": 0.25}], 0.01),
            "a scale for one of two": ([{"lr": 1e-3}, {"lr": 2e-3, "lr_scale": 2.0}], 0.3),
        },
        mistakes={
            "every group gets the same rate": lambda groups, lr: [lr for _ in groups],
            "the ratios are taken to the first group and not to the largest rate": relative_to(lambda own: own[0]),
            "the ratios are taken to the sum of the rates": relative_to(sum),
            "the ratios are taken to the smallest rate": relative_to(min),
            "lr is multiplied by the rates themselves": relative_to(lambda own: 1.0),
            "lr_scale is not looked at": without_scales,
            "a group without lr_scale gets its ratio of rates, although another has a scale": ratio_where_no_scale,
            "lr_scale and the ratio of the rates are both applied": both,
        },
        close=(1e-6, 1e-15),
        run=_as_list,
    )
