"""Optimizers and the parameter groups that decide what weight decay touches.

The update rules are torch's own. What is decided here is which weights decay (matrices only), that the fused kernels
are used, which update all weights in one pass and can skip a step without asking the host, and the rate of each group.

The ratios between the groups' rates are kept, whatever drives them, be it `train_step`, `ScheduleLR` or `find_lr`: each
group gets `lr` times its own `lr_scale`. Where no group has one, it is computed once, from the rates that the groups
were built with. Later the ratios could be gone: a warm-up sets every rate to 0, and a sweep or a checkpoint puts other
rates in their place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from course_lm.muon import MuonWithAdamW, hidden_matrices
from course_lm.shards import is_sharded, part_of
from course_lm.validation import NotNegative, Positive, Section, Within, is_number, require, shown

Groups = list[dict[str, Any]]
_DRIVEN = "_rates_set_by_course_lm"  # an attribute of optimizers
Decay = Annotated[float, Within(0, 1, "[)")]  # of a moving average: what stays from step to step
FUSED_DEVICES = ("cpu", "cuda")


def _adamw(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    betas = (config.beta1, config.beta2)
    # no weight_decay here or below: each group brings its own
    return AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=fused)


def _adam(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Adam (Kingma & Ba 2015). Its decay is an L2 term in the gradient, rescaled by the second moment."""
    betas = (config.beta1, config.beta2)
    return Adam(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=fused)


def _sgd(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    fused = fused and not any(is_sharded(parameter) for group in groups for parameter in group["params"])
    return SGD(groups, lr=config.learning_rate, momentum=config.momentum, fused=fused)


def _adafactor(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Adafactor (Shazeer & Stern 2018) with torch's defaults for all else; torch has no fused kernel for it."""
    # torch's divides by the number of a weight's elements
    groups = [{**group, "params": [one for one in group["params"] if one.numel()]} for group in groups]
    return Adafactor(groups, lr=config.learning_rate)


def _muon(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Muon for hidden matrices, AdamW for the rest (Jordan et al. 2024; one rate for both: Liu et al. 2025)."""
    betas = (config.beta1, config.beta2)
    return MuonWithAdamW(
        groups, lr=config.learning_rate, momentum=config.momentum, betas=betas, eps=config.epsilon, fused=fused
    )


# Every name that a configuration may give, and what builds it; `fused` says whether torch's fused kernels can be used.
OPTIMIZERS: dict[str, Callable[[Groups, "OptimizerConfig", bool], Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "muon": _muon,
}

if TYPE_CHECKING:
    OptimizerType = str  # a type checker cannot read a dict's keys
else:
    OptimizerType = Literal[tuple(OPTIMIZERS)]


@dataclass(frozen=True)
class OptimizerConfig(Section):
    """Which optimizer, and its numbers. A key that the chosen type does not read is refused.

    Args:
        type: the optimizer's name; `OPTIMIZERS` has them.
        learning_rate: the peak that a schedule scales; for "adafactor" relative to each tensor's RMS, and at most
            1/sqrt(step).
        beta1: for "adamw", "adam" and the AdamW in "muon": how much of the mean gradient stays from step to step.
        beta2: for the same: how much of the mean squared gradient stays.
        epsilon: for the same: added to the root of the mean square.
        weight_decay: of matrices: decoupled for "adamw", "adafactor" and "muon", coupled for "adam" and "sgd".
        momentum: for "sgd": how much of the last update stays; for "muon": of the mean gradient (often 0.95).

    Raises ValueError naming key, value and what is accepted: plain numbers, of which True is none.
    """

    type: OptimizerType = "adamw"
    learning_rate: Positive = 3e-4
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.01
    momentum: Decay = 0.9

    def unread(self) -> dict[str, str]:
        """The numbers that what builds this type does not look at."""
        read = {"type", "weight_decay", *OPTIMIZERS[self.type].__code__.co_names}
        return {part.name: f"type {self.type}" for part in fields(self) if part.name not in read}


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices with `weight_decay`, the rest with none.

    A matrix has two dimensions or more (linear and embedding weights); biases and norm gains have one. A
    tied weight appears once, a frozen one not at all, and an empty group is left out. Raises ValueError
    where nothing is trainable.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(f"the model ({type(model).__name__}) has no trainable parameter")
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def muon_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The groups of `parameter_groups`, the hidden matrices in one of their own; "use_muon" marks it."""
    hidden = {id(parameter) for parameter in hidden_matrices(model)}
    groups = [
        {**group, "params": [one for one in group["params"] if (id(one) in hidden) is uses_muon], "use_muon": uses_muon}
        for group in parameter_groups(model, weight_decay)
        for uses_muon in (True, False)
    ]
    return [group for group in groups if group["params"]]


# How the types that treat some weights otherwise group them.
GROUPINGS: dict[str, Callable[[nn.Module, float], Groups]] = {"muon": muon_groups}


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The configured torch optimizer over `parameter_groups`, fused on a CPU and on CUDA.

    Adam, AdamW and SGD are fused where every trainable parameter is a floating-point tensor on a CPU or a
    CUDA device, and one block of memory; of sharded parameters torch has no fused SGD. Raises ValueError where nothing
    is trainable.
    """
    groups = GROUPINGS.get(config.type, parameter_groups)(model, config.weight_decay)
    fused = all(
        parameter.device.type in FUSED_DEVICES and parameter.is_floating_point() and fills_a_block(parameter)
        for group in groups
        for parameter in group["params"]
    )
    return OPTIMIZERS[config.type](groups, config, fused)


def fills_a_block(parameter: torch.Tensor) -> bool:
    """Whether the numbers of a parameter lie side by side, in whatever order: a fused kernel takes them so."""
    part, size = part_of(parameter.detach()), 1
    for stride, length in sorted(zip(part.stride(), part.shape)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of the tensors that the optimizer keeps from step to step, step counters included.

    The first step makes them; before it there are none. Per fp32 weight SGD with momentum keeps 4 bytes and Adam 8;
    Adafactor keeps a row and a column of each matrix, and Muon 4 bytes for each weight of a hidden one.
    """
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in kept)


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Give each parameter group `lr` times its `lr_scale`; a rate that is a tensor stays the same tensor.

    Raises TypeError and ValueError as `group_rates` does, before any group has changed.
    """
    groups, rates = optimizer.param_groups, group_rates(optimizer, lr)
    vars(optimizer)[_DRIVEN] = True
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
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
    rates and scales contradict each other, or where equal rates have been changed since they were set here.
    """
    groups = optimizer.param_groups
    seen: set[int] = set()
    for group in groups:
        if isinstance(group["lr"], torch.Tensor):
            if id(group["lr"]) in seen:  # torch lets groups share a tensor, and filling it would change all their rates
                group["lr"] = group["lr"].clone()
            seen.add(id(group["lr"]))
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
        if _DRIVEN in vars(optimizer) and len(set(rates)) > 1:
            raise ValueError(
                f"the parameter groups had one rate, and have the rates {rates} now: what sets it at each step would "
                "take these for their ratios; give the groups an lr_scale instead"
            )
        largest = max(rates)
        scales = [rate / largest if largest > 0 else 1.0 for rate in rates]  # rates that are all 0 have no ratios
    # Equal rates stay equal without a mark; a tensor gets one all the same, so that it is read from its device once.
    if set(scales) != {1.0} or any(isinstance(group["lr"], torch.Tensor) for group in groups):
        for group, scale in zip(groups, scales, strict=True):
            group["lr_scale"] = scale


def checked_rate(value: Any, what: str) -> float:
    """The number as a plain float; NumPy numbers and 0-d tensors are numbers, a bool is none.

    Raises TypeError for what is no number, ValueError for one that is NaN, infinite or negative.
    """
    scalar = isinstance(value, torch.Tensor | np.ndarray | np.generic) and value.ndim == 0
    number = value.item() if scalar else value
    if not is_number(number):
        raise TypeError(f"{what} must be a finite number of at least 0, got {shown(value)}")
    require(0 <= float(number) < math.inf, what, "a finite number of at least 0", value)  # NaN is not either
    return float(number)


def _proportional(rates: list[float], scales: list[float]) -> bool:
    """Whether every rate is the same multiple of its scale."""
    factor = max(rates) / max(scales) if max(scales) > 0 else 0.0
    # not closer than 1e-6: a rate may stand in a float32 tensor, which has 7 digits
    return all(math.isclose(rate, factor * scale, rel_tol=1e-6) for rate, scale in zip(rates, scales, strict=True))
