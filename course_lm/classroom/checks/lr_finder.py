"""Checks of lesson 06: the rates of a sweep, its smoothed losses, where they fall steepest, and group ratios."""

import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise, takewhile
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from course_lm.classroom.checks.comparison import difference, plain
from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare, names_in
from course_lm.monitoring import smooth

Numbers = Sequence[float]
Groups = Sequence[Mapping[str, float]]
Curve = tuple[list[float], list[float]]

_FORBIDDEN = ("geomspace", "logspace")


def sweep_rates(fn: Callable[..., object]) -> Report:
    """The learning rates of a range test: `fn(start_lr, end_lr, num_iter)`, each a constant factor above the last."""
    share, between, count = "(k / (num_iter - 1))", "(num_iter - 1)", "range(num_iter)"
    factor = f"ratio ** {share}"

    def on_logarithms(log: Callable[[float], float], power: Callable[[float], float]) -> Callable[..., list[float]]:
        return lambda start, end, count: [power(one) for one in np.linspace(log(start), log(end), count).tolist()]

    def rounded(digits: int) -> Edit:
        return Edit(f"start_lr * {factor}", f"round(start_lr * {factor}, {digits})")

    return compare(
        fn,
        reference=_rates,
        run=_without_ready_made_rates,
        cases={
            "three rates": (0.002, 0.5, 3),
            "seven decades": (1e-6, 10.0, 8),
            "thirty steps": (2e-5, 0.3, 30),
        },
        shown=["three rates", "seven decades"],
        mistakes={
            "the differences are equal, not the factors": Edit(factor, f"(1 + (ratio - 1) * {share})"),
            "end_lr is never reached: num_iter rates have num_iter − 1 factors between them": Edit(between, "num_iter"),
            "start_lr is left out: the steps are counted from 1": (Edit("k /", "(k + 1) /"), Edit(between, "num_iter")),
            "there is one rate too many": (Edit(between, "num_iter"), Edit(count, "range(num_iter + 1)")),
            "there is one rate too many: the list goes on beyond end_lr": Edit(count, "range(num_iter + 1)"),
            "there is one rate too few: end_lr is left out": Edit(count, "range(num_iter - 1)"),
            "there is one rate too few: start_lr is left out": Edit(count, "range(1, num_iter)"),
            "the steps are counted from 1, so that the rates begin one factor too high": Edit("k /", "(k + 1) /"),
            "the logarithm has base 10 and the power base e": on_logarithms(math.log10, math.exp),
            "the logarithm has base e and the power base 10": on_logarithms(math.log, lambda one: 10.0**one),
            "the logarithm has base 10 and the power base 2": on_logarithms(math.log10, lambda one: 2.0**one),
            "the logarithm has base e and the power base 2": on_logarithms(math.log, lambda one: 2.0**one),
            "the rates are logarithms: the power is missing": AnyOf(
                on_logarithms(math.log10, float), on_logarithms(math.log, float), on_logarithms(math.log2, float)
            ),
            "start_lr and end_lr are taken as exponents: their logarithms are missing": AnyOf(
                on_logarithms(float, lambda one: 10.0**one), on_logarithms(float, math.exp)
            ),
            "each rate is the whole ratio above the one before: its root is missing": Edit(share, "k"),
            "the ratio is divided by the number of factors; its root belongs there": AnyOf(
                Edit(factor, "(ratio / (num_iter - 1)) ** k"), Edit(factor, "(ratio / num_iter) ** k")
            ),
            "the factor is 1 plus an equal share of the way, as in simple interest": Edit(
                factor, "(1 + (ratio - 1) / (num_iter - 1)) ** k"
            ),
            "each rate is ten times the one before, wherever the sweep ends": Edit(factor, "10 ** k"),
            "each rate is twice the one before, wherever the sweep ends": Edit(factor, "2 ** k"),
            "the order is turned around: from end_lr down to start_lr": Edit(
                "start_lr * ratio **", "end_lr / ratio **"
            ),
            "the factors are too small for num_iter rates, and the last one is set to end_lr": Edit(
                f"start_lr * {factor}", "start_lr * ratio ** (k / num_iter) if k < num_iter - 1 else end_lr"
            ),
            "the factors grow on the way: the share is squared": Edit(share, "(k / (num_iter - 1)) ** 2"),
            "the ratio is turned around: the rates fall from start_lr": Edit("end_lr / start_lr", "start_lr / end_lr"),
            "the difference of the ends stands where their ratio belongs": Edit(
                "end_lr / start_lr", "end_lr - start_lr"
            ),
            "only the factors from one rate to the next are returned": Edit(
                f"start_lr * {factor}", "ratio ** (1 / (num_iter - 1))"
            ),
            "the rates are rounded, so that small ones lose their digits": AnyOf(*map(rounded, range(3, 9))),
            "`geomspace` makes the rates, and the exercise asks for a way without": lambda *ends: np.geomspace(*ends),
            "`logspace` makes the rates, and the exercise asks for a way without": lambda start, end, count: (
                np.logspace(math.log10(start), math.log10(end), count)
            ),
        },
        hints={
            between: "Between the first and the last of `num_iter` rates lie `num_iter - 1` factors.",
            "ratio **": "Step k is at `start_lr` times the ratio to the power of a share from 0 to 1.",
            "end_lr / start_lr": "All factors together make `end_lr / start_lr`.",
        },
    )


def _without_ready_made_rates(fn: Callable[..., object], start: float, end: float, count: int) -> object:
    """Call `fn`, and refuse right rates that a forbidden function made; wrong ones have a mistake to name.

    The functions are caught where they are called by way of their modules, and by their names in the answer's code.
    """
    answer = inspect.unwrap(fn)
    makers = ((np, "geomspace"), (np, "logspace"), (torch, "logspace"))
    used = [name for module, name in makers if answer is inspect.unwrap(getattr(module, name))]
    used += [name for name in names_in(answer) if name in _FORBIDDEN]

    def noted(name: str, original: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **named: (used.append(name), original(*args, **named))[1]

    with ExitStack() as stack:
        for module, name in makers:
            stack.enter_context(patch.object(module, name, noted(name, getattr(module, name))))
        result = plain(fn(start, end, count))
    if used and difference(_rates(start, end, count), result) is None:
        raise Refused(f"`{used[0]}` makes these rates; do without it, with a power")
    return result


def _rates(start: float, end: float, count: int) -> list[float]:
    return [start * (end / start) ** (k / (count - 1)) for k in range(count)]


def smoothed_losses(fn: Callable[..., object]) -> Report:
    """Bias-corrected moving average: `fn(losses, smoothing)`, in which the past weighs `smoothing` in [0, 1)."""
    mean, correction = "smoothing * mean + (1 - smoothing) * loss", " / (1 - smoothing**n)"
    start, append = "[], 0.0", "curve.append(mean / (1 - smoothing**n))"
    uncorrected, from_first = Edit(correction, ""), Edit(start, "[], losses[0]")
    swapped = (Edit("smoothing * mean", "(1 - smoothing) * mean"), Edit("(1 - smoothing) * loss", "smoothing * loss"))
    falling = [7.0, 6.9, 7.1, 6.6, 6.2, 5.9, 5.1, 4.9, 5.0, 4.7, 4.6, 4.8, 9.0]
    return compare(
        fn,
        reference=smooth,
        cases={
            "three losses by hand": ([4.0, 2.0, 1.0], 0.5),
            "a descent with noise": (falling, 0.7),
            "one loss": ([3.0], 0.9),
            "little smoothing": ([5.0, 4.0, 6.0], 0.1),
        },
        shown=["three losses by hand", "a descent with noise", "one loss", "little smoothing"],
        mistakes={
            "nothing is divided by the weight gathered so far: the curve starts near 0": uncorrected,
            "the average starts at the first loss, which keeps too much weight": (from_first, uncorrected),
            "the average starts at the first loss and is corrected as if it had started at 0": from_first,
            "the weights are swapped: the newest loss weighs smoothing": (
                *swapped,
                Edit("smoothing**n", "(1 - smoothing) ** n"),
            ),
            "the weights are swapped in the mean, and its correction is for the right ones": swapped,
            "the weights are swapped, and nothing is corrected": (*swapped, uncorrected),
            "the weights are swapped, and the average starts at the first loss": (*swapped, uncorrected, from_first),
            "the losses are counted from 0: the first correction divides by 0": AnyOf(
                Edit(", start=1", ""),
                lambda losses, smoothing: _corrected(_running_means(losses, smoothing), smoothing, 0),
            ),
            "the exponent of the correction is one too high": Edit("smoothing**n", "smoothing ** (n + 1)"),
            "a sum grows that no division brings back: the power n is missing in the correction, or all of it": Edit(
                "smoothing**n", "smoothing"
            ),
            "the correction has smoothing times n where the power belongs": Edit("smoothing**n", "smoothing * n"),
            "every step has the correction of the last one": Edit("smoothing**n", "smoothing ** len(losses)"),
            "the correction has the power of 1 − smoothing: the past's weight belongs there": Edit(
                "smoothing**n", "(1 - smoothing) ** n"
            ),
            "the mean is divided by the weight that is missing, smoothing to the power n": Edit(
                "(1 - smoothing**n)", "(smoothing**n)"
            ),
            "the mean is multiplied by the gathered weight, not divided by it": Edit(
                correction, " * (1 - smoothing**n)"
            ),
            "the corrected value is carried on: the correction is for the curve alone": Edit(
                append, "mean = mean / (1 - smoothing**n)\n        curve.append(mean)"
            ),
            "the new loss enters with its whole weight: the factor 1 − smoothing is missing": Edit(
                "(1 - smoothing) * loss", "loss"
            ),
            "smoothing is not used: this is the plain mean of all losses so far": lambda losses, smoothing: [
                sum(losses[:end]) / end for end in range(1, len(losses) + 1)
            ],
            "the mean is divided by the number of losses, not by the weight gathered": Edit("(1 - smoothing**n)", "n"),
            "the weights are turned around: the oldest loss weighs most": lambda losses, smoothing: [
                float(np.average(losses[:end], weights=[smoothing**age for age in range(end)]))
                for end in range(1, len(losses) + 1)
            ],
            "the losses are returned as they are": Edit(append, "curve.append(loss)"),
            "only the last value is returned, not the curve": Edit("return curve", "return curve[-1]"),
            "the first value is left out of the curve": Edit("return curve", "return curve[1:]"),
            "the mean over the loss before goes into the curve, without the loss itself": lambda losses, smoothing: (
                _corrected([0.0, *_running_means(losses, smoothing)[:-1]], smoothing)
            ),
            "the correction reaches the first value alone": Edit(
                append, "curve.append(mean / (1 - smoothing**n) if n == 1 else mean)"
            ),
            "the first value is the loss itself, and the mean after it starts at 0": lambda losses, smoothing: [
                losses[0],
                *_corrected(_running_means(losses[1:], smoothing), smoothing),
            ],
            "the values are rounded": AnyOf(
                *(Edit(append, f"curve.append(round(mean / (1 - smoothing**n), {digits}))") for digits in (2, 3, 4))
            ),
        },
        hints={
            "[], 0.0": "The running mean starts at 0; the division makes up for that.",
            mean: "The past weighs `smoothing`, the new loss what is left: `1 - smoothing`.",
            append: "After n losses the weight 1 − smoothingⁿ is gathered: divide by it for the curve alone.",
        },
    )


def _running_means(losses: Numbers, smoothing: float) -> list[float]:
    means = accumulate(losses, lambda mean, loss: smoothing * mean + (1 - smoothing) * loss, initial=0.0)
    return list(means)[1:]


def _corrected(means: Numbers, base: float, first: int = 1) -> list[float]:
    """Means over the weight gathered so far; where that is 0, what arrays give: inf."""
    return [mean / (1 - base**count) if base**count != 1 else math.inf for count, mean in enumerate(means, first)]


def steepest_rate(fn: Callable[..., object]) -> Report:
    """Where d loss / d log(lr) is lowest, among finite points: `fn(lrs, losses)`, by central differences."""
    slope, kept, lowest = "np.gradient(finite, np.log(rates))", "np.isfinite(losses)", ".argmin()"

    def by_points(chosen: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[Numbers, Numbers], float]:
        """`chosen(log_rates, losses)` of the finite points gives the logarithm of a rate."""

        def rate(lrs: Numbers, losses: Numbers) -> float:
            rates, values = _finite(lrs, losses)
            return float(np.exp(chosen(np.log(rates), values)))

        return rate

    def by_differences(place: Callable[[np.ndarray], np.ndarray]) -> Callable[[Numbers, Numbers], float]:
        """The steepest difference of neighbours; `place(log_rates)` says where each one counts."""
        return by_points(lambda logs, values: place(logs)[np.argmin(np.diff(values) / np.diff(logs))])

    def by_secants(place: Callable[[np.ndarray], np.ndarray]) -> Callable[[Numbers, Numbers], float]:
        """From the point before to the point after, without the ends, over `place(log_rates)`."""

        def chosen(logs: np.ndarray, values: np.ndarray) -> float:
            x = place(logs)
            return logs[np.argmin((values[2:] - values[:-2]) / (x[2:] - x[:-2])) + 1]

        return by_points(chosen)

    def of_slopes(choose: Callable[[np.ndarray], int]) -> Callable[[Numbers, Numbers], float]:
        """The slopes of all points, finite or not."""

        def rate(lrs: Numbers, losses: Numbers) -> float:
            with np.errstate(invalid="ignore"):
                return float(lrs[choose(np.gradient(np.array(losses), np.log(lrs)))])

        return rate

    def filled(fill: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Numbers, Numbers], float]:
        return lambda lrs, losses: _steepest(lrs, fill(np.log(lrs), np.array(losses)))

    def until_first_gap(lrs: Numbers, losses: Numbers) -> float:
        whole = list(takewhile(math.isfinite, losses))
        return _steepest(lrs[: len(whole)], np.array(whole))

    return compare(
        fn,
        reference=lambda lrs, losses: _steepest(*_finite(lrs, losses)),
        run=_on_each_curve,
        cases={
            "rates at even distances": (_curves(seed=0, num_points=6),),
            "rates at uneven distances": (_curves(seed=1, num_points=6, is_even=False),),
            "nan and inf in between": (_curves(seed=2, num_points=8, holes=(math.nan, math.inf)),),
            "nan and inf at the ends": (_curves(seed=3, num_points=8, holes=(math.nan, math.inf), is_at_ends=True),),
        },
        shown=["rates at even distances", "nan and inf at the ends"],
        mistakes={
            "the slope is taken over the index, as if the rates stood at even distances": AnyOf(
                Edit(", np.log(rates)", ""), by_secants(lambda logs: np.arange(len(logs)))
            ),
            "the slope is taken over the rate and not over its logarithm": AnyOf(
                Edit("np.log(rates)", "rates"), by_secants(np.exp)
            ),
            "the lowest loss is looked for, not the steepest descent": Edit(slope, "finite"),
            "the largest slope is looked for, where the loss rises": AnyOf(
                Edit(lowest, ".argmax()"), by_secants(lambda logs: -logs)
            ),
            "the sign of the slope is lost: the steepest rise counts too": (
                Edit("np.gradient(finite", "np.abs(np.gradient(finite"),
                Edit(lowest, ").argmax()"),
            ),
            "the slope that is nearest to 0 is looked for: the curve is flattest there": (
                Edit("np.gradient(finite", "np.abs(np.gradient(finite"),
                Edit(lowest, ").argmin()"),
            ),
            "points that are not finite stay in: the lowest slope is then nan": AnyOf(
                Edit(kept, "np.ones(len(losses), bool)"), of_slopes(_first_lowest)
            ),
            "points that are not finite stay in, and their neighbours have no slope": AnyOf(
                of_slopes(lambda slopes: int(np.where(np.isfinite(slopes), slopes, np.inf).argmin())),
            ),
            "points that are not finite stay in: a slope next to inf is −inf": of_slopes(
                lambda slopes: int(np.nanargmin(slopes))
            ),
            "inf stays in: only nan is left out": AnyOf(Edit(kept, "~np.isnan(losses)"), _without_nan),
            "nan stays in: only inf is left out": AnyOf(Edit(kept, "~np.isinf(losses)"), _without_inf),
            "the place among the finite points is looked up among all points": Edit(
                "float(rates[", "float(np.array(lrs)["
            ),
            "each loss is compared with the next one: these are forward differences": by_differences(
                lambda logs: logs[:-1]
            ),
            "each loss is compared with the one before: these are backward differences": by_differences(
                lambda logs: logs[1:]
            ),
            "the middle between two neighbours is returned, which is no rate of the sweep": AnyOf(
                by_differences(lambda logs: (logs[1:] + logs[:-1]) / 2),
                by_differences(lambda logs: np.log((np.exp(logs[1:]) + np.exp(logs[:-1])) / 2)),
            ),
            "the largest drop to the next loss is looked for, whatever the distance of the rates": by_points(
                lambda logs, values: logs[np.argmin(np.diff(values))]
            ),
            "the largest drop from the loss before is looked for, whatever the distance of the rates": by_points(
                lambda logs, values: logs[np.argmin(np.diff(values)) + 1]
            ),
            "the slopes begin at the second point, and their places are counted from the first": by_points(
                lambda logs, values: logs[np.argmin((values[2:] - values[:-2]) / (logs[2:] - logs[:-2]))]
            ),
            "the place is counted one point too far": by_points(
                lambda logs, values: logs[np.argmin((values[2:] - values[:-2]) / (logs[2:] - logs[:-2])) + 2]
            ),
            "the losses are smoothed first": AnyOf(
                *(_smoothed_first(weight) for weight in (0.3, 0.5, 0.7, 0.9, 0.98)),
                by_points(_steepest_of_three_means),
            ),
            "everything after the first loss that is not finite is left out": until_first_gap,
            "losses that are not finite count as 0": filled(
                lambda logs, values: np.where(np.isfinite(values), values, 0.0)
            ),
            "losses that are not finite are filled in from their neighbours": filled(
                lambda logs, values: np.interp(logs, logs[np.isfinite(values)], values[np.isfinite(values)])
            ),
            "losses that are not finite count as the highest one": filled(
                lambda logs, values: np.where(np.isfinite(values), values, values[np.isfinite(values)].max())
            ),
            "the place is returned, not the rate": Edit(
                "float(rates[np.gradient(finite, np.log(rates)).argmin()])",
                ("int(np.gradient(finite, np.log(rates)).argmin())"),
            ),
            "the logarithm of the rate is returned": AnyOf(
                Edit("float(rates[", "float(np.log(rates)["), Edit("float(rates[", "float(np.log10(rates)[")
            ),
            "the loss at the steepest point is returned, not the rate": Edit("float(rates[", "float(finite["),
            "the lowest slope itself is returned, not the rate": Edit(
                "float(rates[np.gradient(finite, np.log(rates)).argmin()])",
                "float(np.gradient(finite, np.log(rates)).min())",
            ),
            "the slope of the loss's logarithm is taken": Edit("gradient(finite,", "gradient(np.log(finite),"),
            "the slope is turned around: d log(rate) / d loss": by_points(
                lambda logs, values: logs[np.argmin(np.gradient(logs, values))]
            ),
            "only the points before the lowest loss are looked at": by_points(
                lambda logs, values: logs[np.argmin(np.gradient(values, logs)[: values.argmin() + 1])]
            ),
            "a tenth of the rate with the lowest loss is returned": by_points(
                lambda logs, values: logs[values.argmin()] - math.log(10)
            ),
            "a tenth of the rate at the steepest point is returned": Edit("float(rates[", "0.1 * float(rates["),
        },
        hints={
            "np.isfinite": "Leave out the rate together with its loss, before any difference is taken.",
            "np.gradient": "`np.gradient(losses, np.log(rates))` divides each difference by its distance on the axis.",
        },
    )


def _finite(lrs: Numbers, losses: Numbers) -> tuple[np.ndarray, np.ndarray]:
    kept = np.isfinite(losses)
    return np.array(lrs)[kept], np.array(losses)[kept]


def _steepest(lrs: Numbers | np.ndarray, losses: np.ndarray) -> float:
    return float(lrs[int(np.gradient(losses, np.log(lrs)).argmin())])


def _first_lowest(slopes: np.ndarray) -> int:
    """Where Python's own `min` finds the lowest of numbers, of which some are nan."""
    listed = slopes.tolist()
    return min(range(len(listed)), key=listed.__getitem__)


def _without_nan(lrs: Numbers, losses: Numbers) -> float:
    return _first_of(lrs, losses, lambda loss: not math.isnan(loss))


def _without_inf(lrs: Numbers, losses: Numbers) -> float:
    return _first_of(lrs, losses, lambda loss: not math.isinf(loss))


def _first_of(lrs: Numbers, losses: Numbers, is_kept: Callable[[float], bool]) -> float:
    rates, values = zip(*((lr, loss) for lr, loss in zip(lrs, losses) if is_kept(loss)))
    with np.errstate(invalid="ignore"):
        return rates[_first_lowest(np.gradient(values, np.log(rates)))]


def _smoothed_first(weight: float) -> Callable[[Numbers, Numbers], float]:
    def rate(lrs: Numbers, losses: Numbers) -> float:
        rates, values = _finite(lrs, losses)
        return _steepest(rates, np.array(smooth(values.tolist(), weight)))

    return rate


def _steepest_of_three_means(logs: np.ndarray, losses: np.ndarray) -> float:
    ends = np.concatenate([losses[:1], losses, losses[-1:]])
    return logs[np.gradient((ends[:-2] + ends[1:-1] + ends[2:]) / 3, logs).argmin()]


def _on_each_curve(fn: Callable[..., Any], curves: Sequence[Curve]) -> list[Any]:
    return [plain(fn(list(lrs), list(losses))) for lrs, losses in curves]


def _curves(
    *, seed: int, num_points: int, is_even: bool = True, holes: Numbers = (), is_at_ends: bool = False
) -> list[Curve]:
    """Eight short sweeps of which the steepest point is beyond doubt: any central differences agree, none at an end."""
    generator, curves = random.Random(seed), list[Curve]()
    while len(curves) < 8:
        steps = [1.0] * num_points if is_even else [generator.choice((0.5, 1.0, 2.0)) for _ in range(num_points)]
        lrs = [float(f"{10 ** (total - 6):.1g}") for total in accumulate(steps)]
        losses = [round(generator.uniform(2, 9), 1) for _ in lrs]
        places = (0, num_points - 1) if is_at_ends else generator.sample(range(1, num_points - 1), len(holes))
        for place, hole in zip(places, holes):
            losses[place] = hole
        if _is_clear(*_finite(lrs, losses)):
            curves.append((lrs, losses))
    return curves


def _is_clear(lrs: np.ndarray, losses: np.ndarray) -> bool:
    """Whether the lowest slope is inside, well below the others, and at one place by both usual formulas."""
    logs = np.log(lrs)
    if any(one >= other for one, other in pairwise(lrs)):
        return False
    by_parabola, by_secant = np.gradient(losses, logs), (losses[2:] - losses[:-2]) / (logs[2:] - logs[:-2])
    place = int(by_parabola.argmin())
    rest = np.sort(by_parabola)[1] - by_parabola.min(), np.sort(by_secant)[1] - by_secant.min()
    return 0 < place < len(lrs) - 1 and place == 1 + int(by_secant.argmin()) and min(rest) > 0.02


def group_rates(fn: Callable[..., object]) -> Report:
    """What each parameter group gets at one step of a sweep: `fn(groups, lr)`, groups with "lr" and "lr_scale"."""
    decided, largest = 'any("lr_scale" in group for group in groups)', 'max(group["lr"] for group in groups)'
    scale, share = 'group.get("lr_scale", 1.0)', 'lr * group["lr"] / largest'
    scaled = f"return [lr * {scale} for group in groups]"
    return compare(
        fn,
        reference=_rates_of_groups,
        cases={
            "four rates": ([{"lr": 2e-3}, {"lr": 1e-3}, {"lr": 5e-3}, {"lr": 4e-3}], 0.1),
            "a scale for each": ([{"lr": 1e-3, "lr_scale": 2.0}, {"lr": 5e-3, "lr_scale": 0.25}], 0.01),
            "a scale for one of two": ([{"lr": 1e-3}, {"lr": 2e-3, "lr_scale": 3.0}], 0.3),
            "a scale for the first of three": ([{"lr": 1e-3, "lr_scale": 0.5}, {"lr": 4e-3}, {"lr": 2e-3}], 0.2),
            "a scale of 0, as for a frozen group": ([{"lr": 1e-3}, {"lr": 2e-3, "lr_scale": 0.0}], 0.3),
            "a scale of 1": ([{"lr": 1e-3}, {"lr": 2e-3, "lr_scale": 1.0}], 0.3),
        },
        shown=["four rates", "a scale for one of two"],
        mistakes={
            "every group gets the same rate": lambda groups, lr: [lr for _ in groups],
            "without any lr_scale, every group gets the same rate": Edit(share, "lr"),
            "the ratios are taken to the first group and not to the largest rate": Edit(largest, 'groups[0]["lr"]'),
            "the ratios are taken to the last group and not to the largest rate": Edit(largest, 'groups[-1]["lr"]'),
            "the ratios are taken to the sum of the rates": Edit(largest, 'sum(group["lr"] for group in groups)'),
            "the ratios are taken to the mean of the rates": Edit(
                largest, 'sum(group["lr"] for group in groups) / len(groups)'
            ),
            "the ratios are taken to the smallest rate": Edit(largest, 'min(group["lr"] for group in groups)'),
            "lr is multiplied by the rates themselves": Edit(share, 'lr * group["lr"]'),
            "the ratios are turned around: the largest rate over a group's own": Edit(
                share, 'lr * largest / group["lr"]'
            ),
            "the ratios are returned without lr": Edit(share, 'group["lr"] / largest'),
            "without any lr_scale, the groups keep their own rates": Edit(share, 'group["lr"]'),
            "lr_scale is not looked at": Edit(decided, "False"),
            "a group without lr_scale gets its ratio of rates, although another has a scale": Edit(
                scale, 'group.get("lr_scale", group["lr"] / max(one["lr"] for one in groups))'
            ),
            "lr_scale and the ratio of the rates are both applied": Edit(
                scale, 'group["lr"] / max(one["lr"] for one in groups) * group.get("lr_scale", 1.0)'
            ),
            "a group's own rate is multiplied by its lr_scale: the sweep's lr is not used": Edit(
                f"lr * {scale}", f'group["lr"] * {scale}'
            ),
            "lr_scale multiplies lr and the group's own rate": Edit(f"lr * {scale}", f'lr * group["lr"] * {scale}'),
            "the scales are returned without lr": Edit(f"lr * {scale}", scale),
            "lr is divided by lr_scale": Edit(f"lr * {scale}", f"lr / ({scale} or math.inf)"),
            "the scales count as ratios to the largest of them": Edit(
                f"lr * {scale}", f'lr * {scale} / max(one.get("lr_scale", 1.0) for one in groups)'
            ),
            "the scales are used only if every group has one": Edit(decided, decided.replace("any", "all")),
            "the first group alone decides whether there are scales": Edit(decided, '"lr_scale" in groups[0]'),
            "the last group alone decides whether there are scales": Edit(decided, '"lr_scale" in groups[-1]'),
            "a group without lr_scale beside others gets 0": Edit(scale, 'group.get("lr_scale", 0.0)'),
            "a group without lr_scale beside others is left out": Edit(
                scaled, f'return [lr * {scale} for group in groups if "lr_scale" in group]'
            ),
            "a group without lr_scale beside others keeps its own rate": Edit(
                scaled,
                scaled.replace(f"lr * {scale}", 'lr * group["lr_scale"] if "lr_scale" in group else group["lr"]'),
            ),
            "a scale of 0 counts as none, and the group gets lr": Edit(scale, '(group.get("lr_scale") or 1.0)'),
            "a scale of 0 counts as none when it is decided whether there are scales": Edit(
                decided, 'any(group.get("lr_scale") for group in groups)'
            ),
            "a scale of 0 counts as none, and the group gets its ratio of rates": lambda groups, lr: [
                lr * (group.get("lr_scale") or group["lr"] / max(one["lr"] for one in groups)) for group in groups
            ],
            "a scale of 1 counts as none when it is decided whether there are scales": Edit(
                decided, 'any(group.get("lr_scale", 1.0) != 1 for group in groups)'
            ),
        },
        hints={
            "any(": "Whether there are scales is decided once, for all groups together, before any rate is made.",
            scale: "A group without a scale, beside others that have one, counts as 1.",
            "max(": "The largest rate is one number for all groups.",
            share: "`lr` times the group's own rate over the largest: the group with the largest rate gets `lr`.",
        },
    )


def _rates_of_groups(groups: Groups, lr: float) -> list[float]:
    own = [group["lr"] for group in groups]
    if any("lr_scale" in group for group in groups):
        return [lr * group.get("lr_scale", 1.0) for group in groups]
    return [lr * rate / max(own) for rate in own]
