"""The learning rate of each parameter group: one rule for `train_step`, `ScheduleLR` and `find_lr`.

The ratios between the groups' rates are kept, whatever drives them: each group gets `lr` times its own `lr_scale`.
Where no group has one, it is computed once, from the rates that the groups were built with. Later the ratios could be
gone: a warm-up sets every rate to 0, and a sweep or a checkpoint puts other rates in their place.
"""

import math
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from course_lm.validation import shown


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Give each parameter group `lr` times its `lr_scale`; a rate that is a tensor stays the same tensor.

    Raises TypeError and ValueError as `group_rates` does, before any group has changed.
    """
    groups, rates = optimizer.param_groups, group_rates(optimizer, lr)
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # a captured CUDA graph reads this very tensor
        else:
            group["lr"] = rate


def group_rates(optimizer: Optimizer, lr: float) -> list[float]:
    """The rate of each parameter group where the run's rate is `lr`: `lr` times the group's `lr_scale`.

    Raises:
        TypeError: `lr` is not a number.
        ValueError: `lr` or a group's rate is NaN, infinite or negative; or see `fix_lr_scales`.
    """
    lr = checked_rate(lr, "lr")
    fix_lr_scales(optimizer)
    scales = [group.get("lr_scale", 1.0) for group in optimizer.param_groups]
    return [checked_rate(lr * scale, f"lr {lr:g} times the lr_scale {scale:g} of a group") for scale in scales]


def fix_lr_scales(optimizer: Optimizer) -> None:
    """Write an `lr_scale` into every group where the groups' rates differ and some group has none yet.

    Where no group has one, it is the group's rate over the largest (the rate is "initial_lr" where a scheduler left
    that). Where some have one, the others get 1; then the rates must be equal, or in proportion to the scales.

    Raises TypeError and ValueError for an `lr_scale` that is no finite number of at least 0, and ValueError where
    rates and scales contradict each other.
    """
    groups = optimizer.param_groups
    _separate_tensors(groups)
    given = [group["lr_scale"] for group in groups if "lr_scale" in group]
    for group in groups:
        if "lr_scale" in group:
            group["lr_scale"] = checked_rate(group["lr_scale"], "lr_scale")
    if len(given) == len(groups):
        return
    rates = [checked_rate(group.get("initial_lr", group["lr"]), "the rate of a parameter group") for group in groups]
    if given:
        scales = [group.get("lr_scale", 1.0) for group in groups]
        # equal: the scales were not applied yet; in proportion: an earlier step or a scheduler has applied them
        if not _proportional(rates, [1.0] * len(rates)) and not _proportional(rates, scales):
            raise ValueError(
                f"some parameter groups have an lr_scale, and the groups' rates {rates} are neither equal nor in "
                f"proportion to the scales {scales}: give every group an lr_scale, or none"
            )
    else:
        largest = max(rates)
        scales = [rate / largest if largest > 0 else 1.0 for rate in rates]  # rates that are all 0 have no ratios
    # Equal rates stay equal without a mark; a tensor gets one all the same, so that it is read from its device once.
    if set(scales) != {1.0} or any(isinstance(group["lr"], Tensor) for group in groups):
        for group, scale in zip(groups, scales, strict=True):
            group["lr_scale"] = scale


def check_rates(optimizer: Optimizer, lr: float | None) -> None:
    """Raise as `group_rates` would for `lr`, or where that is None for the rates that the groups have.

    A rate that is a tensor on an accelerator is not read: the host would have to wait for it.
    """
    if lr is not None:
        group_rates(optimizer, lr)
        return
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor) or group["lr"].device.type == "cpu":
            checked_rate(group["lr"], "the rate of a parameter group")


def checked_rate(value: Any, what: str) -> float:
    """The number as a plain float; NumPy numbers and 0-d tensors are numbers, a bool is none.

    Raises TypeError for what is no number, ValueError for one that is NaN, infinite or negative.
    """
    scalar = isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0
    number = value.item() if scalar else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{what} must be a finite number of at least 0, got {shown(value)}")
    if not 0 <= float(number) < math.inf:  # true of NaN as well
        raise ValueError(f"{what} must be a finite number of at least 0, got {shown(value)}")
    return float(number)


def _separate_tensors(groups: list[dict[str, Any]]) -> None:
    """Give each group a tensor of its own: torch lets groups share one, and filling it would change all their rates."""
    seen: set[int] = set()
    for group in groups:
        if isinstance(group["lr"], Tensor):
            if id(group["lr"]) in seen:
                group["lr"] = group["lr"].clone()
            seen.add(id(group["lr"]))


def _proportional(rates: list[float], scales: list[float]) -> bool:
    """Whether every rate is the same multiple of its scale."""
    factor = max(rates) / max(scales) if max(scales) > 0 else 0.0
    # not closer than 1e-6: a rate may stand in a float32 tensor, which has 7 digits
    return all(math.isclose(rate, factor * scale, rel_tol=1e-6) for rate, scale in zip(rates, scales, strict=True))
