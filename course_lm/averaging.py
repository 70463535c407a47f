"""An exponential moving average of a model's weights over the steps of a run.

With decay d and weights w_1 … w_k after the steps 1 … k, the average is the sum of d^(k-i) w_i over the sum of d^(k-i).
So the weights before the first step do not count, as in Adam's moments (Kingma & Ba 2015, section 3), and the last
1 / (1 - d) steps count most. Source: Polyak & Juditsky 1992, "Acceleration of stochastic approximation by averaging".
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from course_lm.checkpoints.state import describe_difference
from course_lm.shards import hold_parts, part_of, shard_like
from course_lm.validation import ensure, is_number, require, require_whole


class WeightAverage:
    """The average of a model's parameters; of sharded ones each rank averages its parts. Buffers are not averaged.

    It holds a copy of all parameters, and while `in_place` lends it to the model a second one. torch's `AveragedModel`
    copies the module, of which the wrappers of several ranks know nothing, and waits for an accelerator at each step;
    its update is used.

    Args:
        model: as it is trained, so after `fully_shard`.
        decay: how much of the average stays from step to step, in (0, 1).

    Raises ValueError for another decay, and where a parameter is not in `model.state_dict()`: nobody could load its
    average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        require(is_number(decay) and 0 < decay < 1, "decay", "in (0, 1)", decay)
        hold_parts(model)
        self.model, self.decay = model, decay
        self._parameters = self._averaged()
        self._averages = [one.detach().clone() for one in self._parameters]
        places = {id(one): place for place, one in enumerate(self._parameters)}
        # tied weights have several names
        saved = {name: id(one) for name, one in model.state_dict(keep_vars=True).items()}
        self._names = {name: places[key] for name, key in saved.items() if key in places}
        if len(set(self._names.values())) != len(places):
            raise ValueError("training.average_weights must be null for a model whose state_dict() lacks parameters")

    def check(self) -> None:
        """ValueError where the model has other parameters by now than those that are averaged."""
        same = [*map(id, self._averaged())] == [*map(id, self._parameters)]
        ensure(same, "the averaged weights must be the model's, got others: it was changed after the average was made")

    def _averaged(self) -> list[nn.Parameter]:
        return [one for one in self.model.parameters() if one.is_floating_point() or one.is_complex()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after the step of this number, counted from 1. Does not wait for an accelerator."""
        require_whole("step", step, least=1)
        kept = self.decay * (1 - self.decay ** (step - 1)) / (1 - self.decay**step)
        averages, parameters = ([part_of(one) for one in part] for part in (self._averages, self._parameters))
        get_ema_multi_avg_fn(kept)(averages, parameters, step)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the average while the body runs; then it has its own weights again, bit for bit."""
        own = [parameter.detach().clone() for parameter in self._parameters]
        try:
            self.settle()
            yield
        finally:
            hold_parts(self.model)
            try:
                _copy(own, self._parameters)
            except BaseException:  # a signal, or a worker's death, comes at any place
                _copy(own, self._parameters)
                raise

    def settle(self) -> None:
        """Give the model the average for good."""
        hold_parts(self.model)
        _copy(self._averages, self._parameters)

    def restart(self) -> None:
        """Make the model's weights the average."""
        hold_parts(self.model)
        _copy(self._parameters, self._averages)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages themselves under the names of the parameters in the model's `state_dict()`."""
        return {name: self._averages[place] for name, place in self._names.items()}

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Take whole tensors, or this rank's parts; ValueError, in one line, where they are another model's."""
        difference = describe_difference(saved, self.state_dict())
        ensure(difference is None, f"the state's average is that of another model: {difference}")
        for name, place in self._names.items():
            self._averages[place].copy_(shard_like(saved[name], self._averages[place]))


@torch.no_grad()
def _copy(sources: list[Any], targets: list[Any]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
