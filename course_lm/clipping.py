"""Clipping by the global gradient norm (Pascanu et al. 2013, section 3.2), and by value (Mikolov 2012, cited there).

Where both bounds are given, values come first. A few numbers that are far too large are cut, and the norm of what is
left decides; the other way round they would set the norm, and all numbers would shrink with them. Either order keeps
both bounds, for neither clip makes a number larger. Keras, Lightning and most training loops take one of the two.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lm.shards import part_of, whole
from course_lm.validation import is_number, require


@torch.no_grad()
def clip_gradients(parameters: Tensor | Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale all gradients together to a global L2 norm of at most `max_norm`; return the norm before.

    The norm runs over every parameter that has a gradient, as if the gradients were one vector: a 0-d tensor, 0 where
    there is none. Of sharded gradients it is that of the whole, on every rank. `max_norm` None or inf only measures. A
    non-finite norm leaves the gradients as they are, so that the caller can find the parameter at fault. The host never
    waits for an accelerator. Gradients must be unscaled and complete: call it once per step, after the last backward
    pass.

    Raises ValueError for a `max_norm` that is not positive, TypeError for one that is no number.
    """
    check_max_norm(max_norm, "max_norm")
    if isinstance(parameters, Tensor):
        parameters = [parameters]  # iterating over it would give rows, which have no gradient
    each = {id(parameter): parameter for parameter in parameters}.values()  # tied weights may be given twice
    with_gradient = [parameter for parameter in each if parameter.grad is not None]
    gradients = [parameter.grad for parameter in with_gradient if parameter.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    if max_norm is not None:
        # inf would become a factor of 0, and nan spread to every gradient; a norm of 0 gives a factor of 1.
        finite_norm = torch.where(norm.isfinite(), norm, 0.0)
        torch.nn.utils.clip_grads_with_norm_(with_gradient, max_norm, finite_norm)
    return norm


@torch.no_grad()
def clip_values(parameters: Iterable[Tensor], max_norm: float | None, *, max_value: float) -> Tensor:
    """Bring each number of the gradients into [-max_value, max_value], then their norm under `max_norm`.

    Returns the global norm before either. A non-finite norm leaves the gradients as they are: an infinity must not
    become `max_value` before the step has seen it. Of sharded gradients each rank clips its part. The host never waits
    for an accelerator. Otherwise as `clip_gradients`.
    """
    check_max_norm(max_value, "max_value")
    parameters = list(parameters)
    norm = clip_gradients(parameters, None)
    bound = torch.where(norm.isfinite(), norm.new_full((), max_value), math.inf)
    for gradient in (parameter.grad for parameter in parameters):
        if gradient is not None:
            limit = bound.to(gradient.device)
            part_of(gradient).clamp_(-limit, limit)
    clip_gradients(parameters, max_norm)
    return norm


def build_clip(max_value: float | None) -> Callable[..., Tensor]:
    """What a step clips with: `clip_gradients`, or where a bound on the values is given, `clip_values` with it."""
    return clip_gradients if max_value is None else partial(clip_values, max_value=max_value)


def check_max_norm(max_norm: Any, name: str) -> None:
    """Raise ValueError for a bound that is not positive, TypeError for one that is neither a number nor None."""
    if max_norm is not None:
        if not is_number(max_norm):
            raise TypeError(f"{name} must be a positive number or None, got {max_norm!r}")
        require(float(max_norm) > 0, name, "a positive number or None", max_norm)
