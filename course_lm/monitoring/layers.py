"""How large the gradient and the update of each layer are beside its weights.

One layer can starve or burst while the loss and the global gradient norm look healthy.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_lm.monitoring.observers import Observer
from course_lm.monitoring.records import Record
from course_lm.shards import whole

_STATISTICS = ("weight_norm", "grad_mean", "grad_std", "grad_norm", "grad_max_abs")


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights, which later steps do not change, by their names in `state_dict`."""
    return {name: part.detach().clone() for name, part in model.state_dict().items()}


def copy_matrices(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weight matrices alone, by name; of sharded ones each rank copies its part."""
    return {name: matrix.detach().clone() for name, matrix in _matrices(model).items()}


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

    `before` is what `copy_weights` or `copy_matrices` returned before the step. Waits once for an accelerator.
    """
    matrices = _matrices(model)
    ratios = [_ratio(matrix, before[name]) for name, matrix in matrices.items()]
    return dict(zip(matrices, torch.stack(ratios).tolist())) if ratios else {}


def measure_layers(model: nn.Module, before: Mapping[str, Tensor]) -> dict[str, float]:
    """The numbers of a record of the event "layers": one for each "<name of the matrix>/<statistic>".

    The statistics are those of `layer_statistics`, and "update_ratio"; this one is nan where `before` is empty.
    """
    ratios = update_ratios(model, before) if before else {}
    measured: dict[str, float] = {}
    for name, statistics in layer_statistics(model).items():
        measured |= {f"{name}/{key}": value for key, value in statistics.items()}
        measured[f"{name}/update_ratio"] = ratios.get(name, math.nan)
    return measured


class LayerStatistics:
    """An observer that measures each layer at every training record, in the step before it.

    Its own records have the event "layers" and the numbers of `measure_layers`. They stay in `records`; `observer`,
    such as a `WandbLogger`, is told of them too, and of all that this one is told: so one W&B run holds both. Where
    they may stand in the run's own log, `training.layer_statistics` makes them, and copies weights less often.

    To know the update it copies the matrices before each step of whatever optimizer moves them: one more copy of the
    weights in memory, and no wait between log points.
    """

    def __init__(self, model: nn.Module, observer: Observer | None = None) -> None:
        self.model, self.observer = model, observer
        self.records: list[Record] = []
        self._before: dict[str, Tensor] = {}
        self._error: Exception | None = None
        self._hook: Any = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Watch the optimizer from now on; records after `step` are dropped."""
        self.records = [record for record in self.records if record["step"] <= step]
        self._watch()
        if self.observer is not None:
            self.observer.start(step, total_steps)

    def log(self, record: Record) -> None:
        """Pass `record` on, and measure where it is one of training."""
        if self.observer is not None:
            self.observer.log(dict(record))
        if record["event"] != "train" or record.get("partial"):
            return
        # Raised here, `Observers` warns of it and training goes on without this observer.
        if self._error is not None:
            raise self._error
        # There is no copy where no step was watched: the first record of a loop that did not call `start`.
        numbers = measure_layers(self.model, self._before)
        self._watch()
        measured: Record = {"event": "layers", "step": record["step"], "epoch": record["epoch"], **numbers}
        self.records.append(measured)
        if self.observer is not None:
            self.observer.log(dict(measured))

    def close(self) -> None:
        """Leave the optimizer alone again."""
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._before, self._error = None, {}, None
        if self.observer is not None:
            self.observer.close()

    def _watch(self) -> None:
        if self._hook is None:
            # A hook of every optimizer, since an observer is not told which one moves the model.
            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Copy the matrices if this optimizer moves them. An error waits for `log`: here it would end the run."""
        try:
            mine = {id(matrix) for matrix in _matrices(self.model).values()}
            if any(id(part) in mine for group in optimizer.param_groups for part in group["params"]):
                self._before = copy_matrices(self.model)
        except Exception as error:
            self._error, self._before = error, {}


def _matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    # named_parameters gives a shared matrix once, by its first name.
    return {name: part for name, part in model.named_parameters() if part.ndim >= 2 and part.requires_grad}


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
    # A norm has the dtype of its tensor: fp16 ends at 65,504, bf16 keeps two or three digits.
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
