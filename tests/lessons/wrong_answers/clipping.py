"""Answers to the exercises of lesson 09: wrong ones, each with the mistake that must be named, and right ones."""

import math
from fractions import Fraction

import numpy as np
import torch

from course_lm.clipping import clip_gradients

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("clipping",)
SABOTAGE = (
    "clipping.py",
    "torch.where(norm.isfinite(), norm, 0.0)",
    "torch.where(norm.isfinite(), norm + 0.1, 0.0)",
)


def flat(gradients):
    """All numbers of all gradients as one NumPy vector."""
    parts = [gradient.numpy().ravel() for gradient in gradients if gradient is not None]
    return np.concatenate(parts) if parts else np.zeros(1)


def norm_of_flat_vector(gradients):
    return float(np.linalg.norm(flat(gradients)))


def norm_of_norms(gradients):
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients if gradient is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)


def sum_of_norms(gradients):
    total = 0.0
    for gradient in gradients:
        if gradient is not None:
            total += math.sqrt((gradient**2).sum().item())
    return total


def largest_norm(gradients):
    largest = 0.0
    for gradient in gradients:
        if gradient is not None and gradient.norm() > largest:
            largest = gradient.norm().item()
    return largest


def squared_norm(gradients):
    return norm_of_flat_vector(gradients) ** 2


def one_norm(gradients):
    return float(np.abs(flat(gradients)).sum())


def rms_of_weights(gradients):
    vector = flat(gradients)
    return norm_of_flat_vector(gradients) / math.sqrt(vector.size)


def rms_of_norms(gradients):
    norms = [np.linalg.norm(gradient.numpy()) for gradient in gradients if gradient is not None] or [0.0]
    return float(np.sqrt(np.mean(np.square(norms))))


def coefficient(*, stretch=False, turn=False, inf=1.0, nan=1.0, default=math.inf, whole=False):
    """The clip coefficient case by case, right unless told otherwise."""

    def clip_coefficient(norm, max_norm):
        if norm == math.inf:
            return inf
        if norm != norm:
            return nan
        limit = default if max_norm is None else max_norm
        if limit == math.inf or norm == 0 or (norm <= limit and not stretch):
            return 1.0
        return limit if whole else norm / limit if turn else limit / norm

    return clip_coefficient


def coefficient_as_torch(norm, max_norm):
    if max_norm is None or not torch.isfinite(torch.tensor(norm)):
        return 1.0
    return torch.tensor(max_norm / (norm + 1e-6)).clamp(max=1.0)


def coefficient_by_min(norm, max_norm):
    return min(1.0, max_norm / norm) if max_norm and norm and np.isfinite(norm) else 1


def first_where(bad, *, backwards=False, without="skip"):
    """The first name whose gradient is bad, by a loop that remembers it."""

    def first_bad_parameter(gradients):
        found = ""
        for name in gradients if not backwards else list(gradients)[::-1]:
            gradient = gradients[name]
            is_bad = without == "name" if gradient is None else bad(gradient.numpy())
            if is_bad and not found:
                found = name
        return found

    return first_bad_parameter


def holds_nonfinite(values):
    return not np.isfinite(values).all()


def bad_by_largest(gradients):
    for name, gradient in gradients.items():
        if gradient is not None and not gradient.abs().max() < math.inf:
            return name
    return ""


def finish(*steps):
    """Apply the steps one after the other to the gradients."""

    def unscaled_and_clipped(gradients, scale, max_norm):
        for step in steps:
            gradients = step(gradients, scale, max_norm)
        return gradients

    return unscaled_and_clipped


def unscale(gradients, scale, max_norm):
    return [gradient * (1 / scale) for gradient in gradients]


def clip(gradients, scale, max_norm):
    length = norm_of_flat_vector(gradients)
    return [gradient * (max_norm / length if length > max_norm else 1.0) for gradient in gradients]


def clip_at_scaled_limit(gradients, scale, max_norm):
    return clip(gradients, scale, max_norm * scale)


def clip_each(gradients, scale, max_norm):
    return [clip([gradient], scale, max_norm)[0] for gradient in gradients]


def clip_values(gradients, scale, max_norm):
    return [torch.where(gradient.abs() > max_norm, gradient.sign() * max_norm, gradient) for gradient in gradients]


def normalise(gradients, scale, max_norm):
    length = norm_of_flat_vector(gradients)
    return [gradient / length * max_norm for gradient in gradients]


def clip_with_the_package(gradients, scale, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient / scale
    clip_gradients(parameters, max_norm)
    return [parameter.grad for parameter in parameters]


def norm_up_to_none(gradients):
    total = 0.0
    for gradient in gradients:
        if gradient is None:
            break
        total += float((gradient * gradient).sum())
    return total**0.5


def infinity_norm(gradients):
    return np.abs(flat(gradients)).max()


def norm_of_rows(gradients):
    return sum(gradient.norm(dim=-1).sum() for gradient in gradients if gradient is not None)


def spectral_norms(gradients):
    norms = [
        np.linalg.norm(gradient.numpy(), 2 if gradient.ndim == 2 else None) if gradient.ndim else abs(float(gradient))
        for gradient in gradients
        if gradient is not None
    ]
    return math.hypot(*norms)


def norm_in_float32(gradients):
    return np.float32(norm_of_flat_vector(gradients))


def clipped_norm(norm, max_norm):
    if max_norm is None or not np.isfinite(norm):
        return norm
    return min(norm, max_norm)


def coefficient_as_fraction(norm, max_norm):
    if max_norm is None or not math.isfinite(norm):
        return 1
    return min(Fraction(1), Fraction(max_norm) / Fraction(norm)) if norm else Fraction(1)


def coefficient_of_share(norm, max_norm):
    factor = coefficient()(norm, max_norm)
    return 1 - factor if factor < 1 else 1.0


def bad_nan_first(gradients):
    for test in (torch.isnan, torch.isinf):
        for name, gradient in gradients.items():
            if gradient is not None and test(gradient).any():
                return name
    return ""


def bad_in_alphabetical_order(gradients):
    bad = [name for name, part in gradients.items() if part is not None and holds_nonfinite(part.numpy())]
    return sorted(bad)[0] if bad else ""


def all_bad(gradients):
    return [name for name, part in gradients.items() if part is not None and holds_nonfinite(part.numpy())]


def bad_until_none(gradients):
    for name, gradient in gradients.items():
        if gradient is None:
            return ""
        if holds_nonfinite(gradient.numpy()):
            return name
    return ""


def clip_by_scaled_norm(gradients, scale, max_norm):
    return [one / scale for one in clip(gradients, scale, max_norm)]


def clip_with_sum_of_norms(gradients, scale, max_norm):
    length = sum(gradient.norm() for gradient in gradients)
    return [gradient * min(1.0, max_norm / length) for gradient in gradients]


def multiply_by_scale(gradients, scale, max_norm):
    return [gradient * scale for gradient in gradients]


def unscaled_and_clipped_with_numpy(gradients, scale, max_norm):
    true = [gradient.numpy() / scale for gradient in gradients]
    length = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in true))
    return tuple(part * min(1.0, max_norm / (length + 1e-6)) for part in true)


WRONG_ANSWERS = {
    "global_norm": [
        (sum_of_norms, "the norms of the parameters are added"),
        (largest_norm, "only the largest norm of a parameter counts"),
        (squared_norm, "the root is missing"),
        (one_norm, "absolute values are added instead of squares"),
        (rms_of_weights, "the squares are averaged over the weights"),
        (norm_up_to_none, "the parameters after the first None are left out"),
        (infinity_norm, "the largest absolute value is taken: the norm for p = ∞"),
        (norm_of_rows, "the norms of all rows are added"),
        (spectral_norms, "a matrix counts by its spectral norm, its largest singular value"),
        (rms_of_norms, "the squares of the norms are averaged over the parameters"),
    ],
    "clip_coefficient": [
        (coefficient(stretch=True), "a norm below max_norm is raised to max_norm"),
        (coefficient(turn=True), "the norm is divided by max_norm"),
        (coefficient(inf=0.0), "a norm of inf gives 0, and inf × 0 is nan"),
        (coefficient(inf=0.0, nan=math.nan), "a norm of inf gives 0 and a norm of nan gives nan"),
        (coefficient(inf=0.0, nan=0.0), "gradients that are not finite are multiplied by 0"),
        (coefficient(default=1.0), "None counts as a max_norm of 1"),
        (clipped_norm, "the clipped norm is returned, not the factor"),
        (coefficient_of_share, "the share that is too much is returned: 1 − max_norm / norm"),
        (coefficient(nan=math.nan), "a norm of nan gives nan"),
        (coefficient(whole=True), "max_norm itself is returned as the factor"),
    ],
    "first_bad_parameter": [
        (first_where(lambda values: np.isnan(values).any()), "only nan is looked for"),
        (first_where(lambda values: np.isinf(values).any()), "only infinities are looked for"),
        (
            first_where(lambda values: (values == math.inf).any() or (values != values).any()),
            "minus inf is overlooked",
        ),
        (first_where(holds_nonfinite, backwards=True), "the last bad parameter is named"),
        (
            first_where(lambda values: (~np.isfinite(values)).all()),
            "a parameter counts as bad only where all its values are",
        ),
        (
            first_where(lambda values: not torch.from_numpy(values).sum().isfinite()),
            "the norm or the sum is tested, which overflows for large finite gradients",
        ),
        (bad_nan_first, "nan is looked for in all parameters first, and infinities after that"),
        (bad_in_alphabetical_order, "the names are sorted: the first in the alphabet is named"),
        (all_bad, "all bad parameters are named, not the first one"),
        (bad_until_none, "the search ends at the first parameter without gradient"),
        (first_where(holds_nonfinite, without="name"), "a parameter without gradient is named"),
    ],
    "unscaled_and_clipped": [
        (finish(clip, unscale), "the gradients are clipped first and unscaled then"),
        (finish(clip), "the scale stays in"),
        (finish(unscale), "they are unscaled and not clipped"),
        (finish(unscale, unscale, clip), "the scale is taken out twice"),
        (finish(unscale, clip_each), "each gradient is clipped by its own norm"),
        (finish(unscale, clip_values), "each value is clipped instead of the norm"),
        (clip_by_scaled_norm, "the gradients are clipped first and unscaled then"),
        (finish(unscale, clip_with_sum_of_norms), "the norms of the tensors are added"),
        (finish(multiply_by_scale, clip), "the gradients are multiplied by the scale"),
        (finish(unscale, normalise), "small gradients are stretched to max_norm"),
    ],
}

EQUIVALENT = {
    "global_norm": [norm_of_flat_vector, norm_of_norms, norm_in_float32],
    "clip_coefficient": [coefficient(), coefficient_as_torch, coefficient_by_min, coefficient_as_fraction],
    "first_bad_parameter": [first_where(holds_nonfinite), bad_by_largest],
    "unscaled_and_clipped": [
        finish(unscale, clip),
        finish(clip_at_scaled_limit, unscale),
        clip_with_the_package,
        unscaled_and_clipped_with_numpy,
    ],
}
