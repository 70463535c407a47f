"""Answers to the exercises of lesson 06: wrong ones, each with the mistake that must be named, and right ones."""

import math
from fractions import Fraction
from itertools import accumulate, islice, pairwise, repeat
from operator import mul

import numpy as np
import torch

from course_lm import lr_finder

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("lr_finder",)
SABOTAGE = (
    "batching/data.py",
    "reader = copy(loader)",
    "reader = loader",
)


def rates_in_a_line(start_lr, end_lr, num_iter):
    step = (end_lr - start_lr) / (num_iter - 1)
    return [start_lr + k * step for k in range(num_iter)]


def rates_without_the_end(start_lr, end_lr, num_iter):
    factor = (end_lr / start_lr) ** (1 / num_iter)
    rates = [start_lr]
    while len(rates) < num_iter:
        rates.append(rates[-1] * factor)
    return rates


def rates_without_the_start(start_lr, end_lr, num_iter):
    return np.geomspace(start_lr, end_lr, num_iter + 1)[1:]


def rates_with_one_more(start_lr, end_lr, num_iter):
    return [start_lr * math.exp(k / num_iter * math.log(end_lr / start_lr)) for k in range(num_iter + 1)]


def rates_beyond_the_end(start_lr, end_lr, num_iter):
    rates = [start_lr]
    for _ in range(num_iter):
        rates.append(rates[-1] * (end_lr / start_lr) ** (1 / (num_iter - 1)))
    return rates


def rates_by_the_whole_ratio(start_lr, end_lr, num_iter):
    return list(accumulate(repeat(end_lr / start_lr, num_iter - 1), mul, initial=start_lr))


def rates_times_ten(start_lr, end_lr, num_iter):
    return list(islice(accumulate(repeat(10), mul, initial=start_lr), num_iter))


def rates_ready_made(start_lr, end_lr, num_iter):
    return torch.logspace(math.log10(start_lr), math.log10(end_lr), num_iter, dtype=torch.float64)


def rates_in_float32(start_lr, end_lr, num_iter):
    return torch.linspace(math.log(start_lr), math.log(end_lr), num_iter).exp()


def rates_one_by_one(start_lr, end_lr, num_iter):
    for k in range(num_iter):
        yield start_lr ** Fraction(num_iter - 1 - k, num_iter - 1) * end_lr ** Fraction(k, num_iter - 1)


def rates_in_mixed_bases(start_lr, end_lr, num_iter):
    low, high = math.log10(start_lr), math.log10(end_lr)
    return [math.exp(low + (high - low) * k / (num_iter - 1)) for k in range(num_iter)]


def rates_as_logarithms(start_lr, end_lr, num_iter):
    decades = math.log10(end_lr / start_lr)
    return [math.log10(start_lr) + decades * k / (num_iter - 1) for k in range(num_iter)]


def rates_by_multiplying(start_lr, end_lr, num_iter):
    factor = (end_lr / start_lr) ** (1 / (num_iter - 1))
    rates = [start_lr]
    for _ in range(num_iter - 1):
        rates.append(rates[-1] * factor)
    return rates


def rates_by_logarithms(start_lr, end_lr, num_iter):
    low, high = math.log(start_lr), math.log(end_lr)
    return [math.exp(low + (high - low) * k / (num_iter - 1)) for k in range(num_iter)]


def averages(*, from_first=False, correct=True, swapped=False, exponent=0, carried=False):
    """A moving average written as a loop, right unless told otherwise."""

    def smoothed_losses(losses, smoothing):
        old, new = (1 - smoothing, smoothing) if swapped else (smoothing, 1 - smoothing)
        mean = losses[0] if from_first else 0.0
        curve, remaining = [], old**exponent
        for loss in losses:
            mean = old * mean + new * loss
            remaining *= old
            value = mean / (1 - remaining) if correct and remaining != 1 else math.nan if correct else mean
            if carried:
                mean = value
            curve.append(value)
        return curve

    return smoothed_losses


def averages_by_weights(losses, smoothing):
    curve = []
    for count in range(1, len(losses) + 1):
        weights = [smoothing**age for age in reversed(range(count))]
        curve.append(float(np.average(losses[:count], weights=weights)))
    return curve


def averages_from_count_zero(losses, smoothing):
    with np.errstate(divide="ignore"):
        means = np.array(averages(correct=False)(losses, smoothing))
        return means / (1 - smoothing ** np.arange(len(losses)))


def plain_means(losses, smoothing):
    return np.cumsum(losses) / np.arange(1, len(losses) + 1)


def averages_with_the_oldest_first(losses, smoothing):
    weights = smoothing ** np.arange(len(losses))
    return np.cumsum(losses * weights) / np.cumsum(weights)


def averages_of_whole_losses(losses, smoothing):
    return list(accumulate(losses, lambda mean, loss: smoothing * mean + loss))


def averages_as_array(losses, smoothing):
    return np.array(averages_by_weights(losses, smoothing), dtype=np.float32)


def averages_in_a_generator(losses, smoothing):
    total = weight = 0.0
    for loss in losses:
        total, weight = smoothing * total + loss, smoothing * weight + 1
        yield total / weight


def finite_points(lrs, losses):
    return [(lr, loss) for lr, loss in zip(lrs, losses) if math.isfinite(loss)]


def steepest(*, x=math.log, best=min, sign=lambda slope: slope, finite=True):
    """The steepest point by torch's gradient, right unless told otherwise."""

    def steepest_rate(lrs, losses):
        points = finite_points(lrs, losses) if finite else list(zip(lrs, losses))
        place = torch.tensor([x(lr) if x else float(at) for at, (lr, _) in enumerate(points)], dtype=torch.float64)
        heights = torch.tensor([loss for _, loss in points], dtype=torch.float64)
        (slopes,) = torch.gradient(heights, spacing=(place,))
        signed = [sign(slope) for slope in slopes.tolist()]
        return points[signed.index(best(signed))][0]

    return steepest_rate


def steepest_with_nan(lrs, losses):
    slopes = np.gradient(losses, np.log10(lrs))
    return lrs[np.argmin(slopes)]


def steepest_at_a_shifted_place(lrs, losses):
    rates, heights = zip(*finite_points(lrs, losses))
    return lrs[np.argmin(np.gradient(heights, np.log2(rates)))]


def lowest_loss(lrs, losses):
    return min(finite_points(lrs, losses), key=lambda point: point[1])[0]


def steepest_by_the_package(lrs, losses):
    """`suggest` reads with smoothing and a range; here only its slope is asked for, so the average is switched off."""
    points = finite_points(lrs, losses)
    smooth = lr_finder.smooth([loss for _, loss in points], 0.0)
    return [lr for lr, _ in points][int(np.gradient(smooth, np.log([lr for lr, _ in points])).argmin())]


def steepest_by_secants(*, x=math.log10):
    def steepest_rate(lrs, losses):
        points = finite_points(lrs, losses)
        slopes = [(c[1] - a[1]) / (x(c[0]) - x(a[0])) for a, c in zip(points, points[2:])]
        return points[1 + slopes.index(min(slopes))][0]

    return steepest_rate


def steepest_between(*, at):
    def steepest_rate(lrs, losses):
        points = finite_points(lrs, losses)
        slopes = [(b[1] - a[1]) / math.log(b[0] / a[0]) for a, b in pairwise(points)]
        return points[slopes.index(min(slopes)) + at][0]

    return steepest_rate


def steepest_of_smoothed(lrs, losses):
    points = finite_points(lrs, losses)
    curve = lr_finder.smooth([loss for _, loss in points], 0.9)
    return steepest()([lr for lr, _ in points], curve)


def steepest_with_inf(lrs, losses):
    points = [(lr, loss) for lr, loss in zip(lrs, losses) if loss == loss]
    slopes = np.gradient([loss for _, loss in points], np.log([lr for lr, _ in points]))
    return points[slopes.argmin()][0]


def steepest_place(lrs, losses):
    points = finite_points(lrs, losses)
    return [lr for lr, _ in points].index(steepest()(lrs, losses))


def equal_rates(groups, lr):
    return [lr] * len(groups)


def rates_by(unit):
    def group_rates(groups, lr):
        if [group for group in groups if "lr_scale" in group]:
            return [group.get("lr_scale", 1) * lr for group in groups]
        own = np.array([group["lr"] for group in groups])
        return (lr * own / unit(own)).tolist()

    return group_rates


def rates_without_scales(groups, lr):
    top = max(group["lr"] for group in groups)
    return [group["lr"] / top * lr for group in groups]


def rates_with_ratios_beside_scales(groups, lr):
    top = max(group["lr"] for group in groups)
    return [lr * (group["lr_scale"] if "lr_scale" in group else group["lr"] / top) for group in groups]


def rates_with_both(groups, lr):
    return [rate * group.get("lr_scale", 1.0) for rate, group in zip(rates_without_scales(groups, lr), groups)]


def rates_with_scales_if_all(groups, lr):
    if all("lr_scale" in group for group in groups):
        return [lr * group["lr_scale"] for group in groups]
    return rates_without_scales(groups, lr)


def rates_with_own_where_no_scale(groups, lr):
    if not any("lr_scale" in group for group in groups):
        return rates_without_scales(groups, lr)
    return [lr * group["lr_scale"] if "lr_scale" in group else group["lr"] for group in groups]


def rates_with_true_scales(groups, lr):
    if any("lr_scale" in group for group in groups):
        return [lr * (group.get("lr_scale") or 1) for group in groups]
    return rates_without_scales(groups, lr)


def rates_in_a_tuple(groups, lr):
    has_scales = sum("lr_scale" in group for group in groups) > 0
    top = np.float64(max(group["lr"] for group in groups))
    return (*(lr * (group.get("lr_scale", 1) if has_scales else group["lr"] / top) for group in groups),)


def rates_by_torch(groups, lr):
    scales = torch.tensor([group.get("lr_scale", math.nan) for group in groups], dtype=torch.float64)
    own = torch.tensor([group["lr"] for group in groups], dtype=torch.float64)
    ratios = own / own.max() if scales.isnan().all() else scales.nan_to_num(nan=1.0)
    return (lr * ratios).tolist()


WRONG_ANSWERS = {
    "sweep_rates": [
        (rates_in_a_line, "the differences are equal, not the factors"),
        (
            rates_without_the_end,
            "end_lr is never reached: num_iter rates have num_iter − 1 factors between them",
        ),
        (rates_without_the_start, "start_lr is left out: the steps are counted from 1"),
        (rates_with_one_more, "there is one rate too many"),
        (rates_in_mixed_bases, "the logarithm has base 10 and the power base e"),
        (rates_as_logarithms, "the rates are logarithms: the power is missing"),
        (rates_beyond_the_end, "there is one rate too many: the list goes on beyond end_lr"),
        (rates_by_the_whole_ratio, "each rate is the whole ratio above the one before: its root is missing"),
        (rates_times_ten, "each rate is ten times the one before, wherever the sweep ends"),
        (rates_ready_made, "`logspace` makes the rates, and the exercise asks for a way without"),
        (np.geomspace, "`geomspace` makes the rates, and the exercise asks for a way without"),
    ],
    "smoothed_losses": [
        (
            averages(correct=False),
            "nothing is divided by the weight gathered so far: the curve starts near 0",
        ),
        (
            averages(from_first=True, correct=False),
            "the average starts at the first loss, which keeps too much weight",
        ),
        (
            averages(from_first=True),
            "the average starts at the first loss and is corrected as if it had started at 0",
        ),
        (averages(swapped=True), "the weights are swapped: the newest loss weighs smoothing"),
        (averages(exponent=1), "the exponent of the correction is one too high"),
        (averages(carried=True), "the corrected value is carried on: the correction is for the curve alone"),
        (averages_from_count_zero, "the losses are counted from 0: the first correction divides by 0"),
        (plain_means, "smoothing is not used: this is the plain mean of all losses so far"),
        (averages_with_the_oldest_first, "the weights are turned around: the oldest loss weighs most"),
        (
            averages_of_whole_losses,
            "a sum grows that no division brings back: the power n is missing in the correction, or all of it",
        ),
    ],
    "steepest_rate": [
        (steepest(x=None), "the slope is taken over the index, as if the rates stood at even distances"),
        (steepest(x=float), "the slope is taken over the rate and not over its logarithm"),
        (lowest_loss, "the lowest loss is looked for, not the steepest descent"),
        (steepest(best=max), "the largest slope is looked for, where the loss rises"),
        (steepest(best=max, sign=abs), "the sign of the slope is lost: the steepest rise counts too"),
        (steepest_with_nan, "points that are not finite stay in: the lowest slope is then nan"),
        (
            steepest_at_a_shifted_place,
            "the place among the finite points is looked up among all points",
        ),
        (
            steepest_between(at=0),
            "each loss is compared with the next one: these are forward differences",
        ),
        (
            steepest_between(at=1),
            "each loss is compared with the one before: these are backward differences",
        ),
        (steepest_by_secants(x=float), "the slope is taken over the rate and not over its logarithm"),
        (steepest_of_smoothed, "the losses are smoothed first"),
        (steepest_with_inf, "inf stays in: only nan is left out"),
        (steepest_place, "the place is returned, not the rate"),
    ],
    "group_rates": [
        (equal_rates, "every group gets the same rate"),
        (
            rates_by(lambda own: own[0]),
            "the ratios are taken to the first group and not to the largest rate",
        ),
        (rates_by(np.sum), "the ratios are taken to the sum of the rates"),
        (rates_by(np.min), "the ratios are taken to the smallest rate"),
        (rates_by(lambda own: 1), "lr is multiplied by the rates themselves"),
        (rates_without_scales, "lr_scale is not looked at"),
        (
            rates_with_ratios_beside_scales,
            "a group without lr_scale gets its ratio of rates, although another has a scale",
        ),
        (rates_with_both, "lr_scale and the ratio of the rates are both applied"),
        (rates_with_scales_if_all, "the scales are used only if every group has one"),
        (rates_with_own_where_no_scale, "a group without lr_scale beside others keeps its own rate"),
        (rates_with_true_scales, "a scale of 0 counts as none, and the group gets lr"),
    ],
}

EQUIVALENT = {
    "sweep_rates": [rates_by_multiplying, rates_by_logarithms, rates_in_float32, rates_one_by_one],
    "smoothed_losses": [
        lr_finder.smooth,
        averages(),
        averages_by_weights,
        averages_as_array,
        averages_in_a_generator,
    ],
    "steepest_rate": [steepest(), steepest_by_the_package, steepest_by_secants()],
    "group_rates": [rates_by_torch, rates_by(np.max), rates_in_a_tuple],
}
