"""Answers to the exercises of lesson 06: wrong ones, each with the mistake that must be named, and right ones."""

import math

import numpy as np
import torch

from course_lm import lr_finder

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("lr_finder",)
SABOTAGE = (
    "batching/reading.py",
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
    return torch.logspace(math.log10(start_lr), math.log10(end_lr), num_iter + 1, dtype=torch.float64).tolist()


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
    ],
}

EQUIVALENT = {
    "sweep_rates": [np.geomspace, rates_by_multiplying, rates_by_logarithms],
    "smoothed_losses": [lr_finder.smooth, averages(), averages_by_weights],
    "steepest_rate": [steepest(), steepest_by_the_package],
    "group_rates": [rates_by_torch, rates_by(np.max)],
}
