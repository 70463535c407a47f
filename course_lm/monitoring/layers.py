"""How large the gradient and the update of each layer are beside its weights.

One layer can starve or burst while the loss and the global gradient norm look healthy.
"""

import math
from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from course_lm.shards import hold_parts, whole

_STATISTICS = ("weight_norm", "grad_mean", "grad_std", "grad_norm", "grad_max_abs")


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights, which later steps do not change, by their names in `state_dict`."""
    return deepcopy(dict(model.state_dict()))  # a module's extra state is no tensor


@torch.no_grad()
def layer_statistics(model: nn.Module) -> dict[str, dict[str, float]]:
    """What each weight matrix looks like, by its name: "weight_norm", and "grad_mean", "grad_std", "grad_norm" and
    "grad_max_abs" over the elements of its gradient.

    The gradient is taken as it is: after `train_step`, as clipping has left it. Without one its numbers are nan.
    Waits once for an accelerator. Of a sharded model every rank makes this call, and one matrix at a time is gathered.
    """
    rows = [_measure(matrix) for matrix in _matrices(model).values()]
    numbers = torch.stack(rows).tolist() if rows else []  # one transfer for all matrices
    return {name: dict(zip(_STATISTICS, row)) for name, row in zip(_matrices(model), numbers)}


@torch.no_grad()
def update_ratios(model: nn.Module, before: Mapping[str, Tensor]) -> dict[str, float]:
    """For each weight matrix, by name: the norm of its change since `before`, over its norm then.

    `before` holds the matrices before the step, as `copy_weights` does. Waits once for an accelerator.
    """
    matrices = _matrices(model)
    ratios = [_ratio(matrix, before[name]) for name, matrix in matrices.items()]
    return dict(zip(matrices, torch.stack(ratios).tolist())) if ratios else {}


def measure_layers(model: nn.Module, before: Mapping[str, Tensor]) -> dict[str, float]:
    """The numbers of a record of the event "layers": one for each "<name of the matrix>/<statistic>".

    The statistics are those of `layer_statistics`, and "update_ratio".
    """
    ratios = update_ratios(model, before)
    measured: dict[str, float] = {}
    for name, statistics in layer_statistics(model).items():
        measured |= {f"{name}/{key}": value for key, value in statistics.items()}
        measured[f"{name}/update_ratio"] = ratios[name]
    return measured


class LayerStatistics:
    """Measures each weight matrix of a run in every n-th step; see `measure_layers`.

    To know the update it copies the matrices before such a step: one more copy of them in memory.

    Args:
        every: optimizer steps between two measurements; None for none.
    """

    def __init__(self, every: int | None) -> None:
        self.every = every
        self._before: dict[str, Tensor] | None = None

    def before_step(self, model: nn.Module, number: int) -> None:
        """Copy the matrices, where step `number` of the run (from 1) is one that is measured."""
        self._before = None
        if self.every is not None and number % self.every == 0:
            hold_parts(model)  # as the step will: its optimizer knows the parts alone
            self._before = {name: matrix.detach().clone() for name, matrix in _matrices(model).items()}

    def after_step(self, model: nn.Module) -> dict[str, float] | None:
        """The numbers of a record, where the step was one to measure."""
        before, self._before = self._before, None
        return None if before is None else measure_layers(model, before)


def _matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    # named_parameters gives a shared matrix once, by its first name.
    return {name: one for name, one in model.named_parameters() if one.ndim >= 2 and one.requires_grad and one.numel()}


def _measure(matrix: nn.Parameter) -> Tensor:
    """The `_STATISTICS` of one matrix, at least in float32."""
    gradient = _wide(whole(torch.full_like(matrix, math.nan) if matrix.grad is None else matrix.grad))
    spread = gradient.std(correction=0)  # of these very elements, not estimated from a sample
    values = [_wide(whole(matrix)).norm(), gradient.mean(), spread, gradient.norm(), gradient.abs().amax()]
    return torch.stack(values)


def _ratio(matrix: Tensor, before: Tensor) -> Tensor:
    old = whole(before)
    return _wide(whole(matrix) - old).norm() / _wide(old).norm()


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():  # as the optimizers see it: its real and imaginary parts
        tensor = torch.view_as_real(tensor)
    # A norm has the dtype of its tensor: fp16 ends at 65,504, bf16 keeps two or three digits.
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
