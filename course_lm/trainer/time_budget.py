"""How many optimizer steps fit into `training.time_budget`.

`timing` says what the parts of a run take on this machine. What a run of N steps takes follows from these, with its
validations and saves, and N is the largest number that fits. Nobody times what the loop does around a step, some tenths
of a millisecond: a run of steps that take a few milliseconds ends later than its budget says.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course_lm.batching.data import length_of_epoch
from course_lm.config import LoopConfig
from course_lm.trainer.run import check_has_length

RESERVE = 0.02  # of the budget, for what nobody times: observers, ends of epochs, files that are removed


@dataclass(frozen=True)
class Costs:
    """Seconds of an optimizer step with its data, the start of an epoch, a validation, a save, a record and a record
    of the layers."""

    step: float
    epoch: float = 0.0
    validation: float = 0.0
    save: float = 0.0
    record: float = 0.0
    layers: float = 0.0


@dataclass(frozen=True)
class Counts:
    """How often a run does what takes time; `epochs` are those that it begins."""

    steps: int
    epochs: int
    validations: int
    saves: int
    records: int
    layers: int = 0

    def seconds(self, costs: Costs) -> float:
        """What all of it takes."""
        return (
            self.steps * costs.step
            + self.epochs * costs.epoch
            + self.validations * costs.validation
            + self.saves * costs.save
            + self.records * costs.record
            + self.layers * costs.layers
        )


class Plan:
    """What a run of so many steps does, over this training loader.

    Args:
        validates, saves: whether there is a validation loader, and a folder.

    Raises:
        ValueError: the loader is an iterator, is empty, or cannot tell its length.
    """

    def __init__(self, loader: Any, settings: LoopConfig, *, validates: bool, saves: bool) -> None:
        check_has_length(loader)
        if isinstance(loader, Iterator):
            raise ValueError(
                f"training.time_budget needs a training loader that can be read again, got an iterator "
                f"({type(loader).__name__}), which timing would use up: set training.max_steps"
            )
        self.loader, self.settings, self.validates, self.saves = loader, settings, validates, saves
        self._ends = [0]  # the steps after which epochs end, as far as they were asked for

    def counts(self, steps: int) -> Counts:
        """What a run of `steps` does. Each validation is taken for a new best, whose weights are saved."""
        settings = self.settings
        ended = self._epochs_before(steps)
        validations = math.ceil(steps / settings.eval_steps) if settings.eval_steps else ended + 1
        validations *= self.validates
        saves = (steps // settings.save_steps + ended + validations + 1) * self.saves
        layers = steps // settings.layer_statistics if settings.layer_statistics else 0
        return Counts(steps, ended + 1, validations, saves, math.ceil(steps / settings.logging_steps), layers)

    def most_steps(self, seconds: float, costs: Costs) -> int:
        """The largest number of steps that take no more than `seconds` with all that belongs to them; 0 for none."""
        high = max(0, int(seconds / max(costs.step, 1e-9)))
        return bisect_right(range(1, high + 1), seconds, key=lambda steps: self.counts(steps).seconds(costs))

    def epochs(self, steps: int) -> float:
        """Passes over the text that so many steps make."""
        ended = self._epochs_before(steps)
        before = ended * self._steps_of(0) if self._all_alike else self._ends[ended]
        return ended + (steps - before) / self._steps_of(ended)

    @property
    def _all_alike(self) -> bool:
        return not hasattr(self.loader, "length_of_epoch")

    def _steps_of(self, epoch: int) -> int:
        batches = length_of_epoch(self.loader, epoch) or 0
        return max(1, math.ceil(batches / self.settings.gradient_accumulation_steps))

    def _epochs_before(self, steps: int) -> int:
        """Epochs that end before the last step: a run whose last step ends one is over before that epoch is closed."""
        if self._all_alike:
            return (steps - 1) // self._steps_of(0)
        while self._ends[-1] < steps:
            self._ends.append(self._ends[-1] + self._steps_of(len(self._ends) - 1))
        return bisect_left(self._ends, steps) - 1


def fit(plan: Plan, costs: Costs, spent: float) -> tuple[int, str]:
    """The steps that fit into the budget of `plan.settings`, of which `spent` seconds are over, and why, in one line.

    Raises:
        ValueError: there is no time for one step and what follows it; says which budget would do.
    """
    minutes = plan.settings.time_budget
    assert minutes is not None
    steps = plan.most_steps((1 - RESERVE) * 60 * minutes - spent, costs)
    counts = plan.counts(max(1, steps))
    parts = [
        f"{costs.step:.3g} s a step",
        *([f"{_of(counts.validations, 'validation')} of {costs.validation:.2g} s"] if plan.validates else []),
        *([f"{_of(counts.saves, 'save')} of {costs.save:.2g} s"] if plan.saves else []),
        f"{spent:.2g} s before the first step",
    ]
    if not steps:
        needed = math.ceil((spent + counts.seconds(costs)) / (1 - RESERVE) / 60 * 100) / 100
        raise ValueError(
            f"training.time_budget must be at least {needed:g} (minutes) for one step of this run on this machine, got "
            f"{minutes:g}: {', '.join(parts)}"
        )
    return steps, f"{minutes:g} min make {steps:,} steps, {plan.epochs(steps):,.1f} epochs: {', '.join(parts)}"


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
