"""The learning rate as a pure function of the number of completed optimizer steps.

Every function takes the completed steps k = 0, 1, 2, … and returns the rate of the next step. All rise
linearly from 0 at k = 0 to `peak_lr` at k = `warmup_steps`, and keep their last value from k =
`total_steps` on. There is no state, so nothing can be lost or counted twice when a run is resumed.

Warm-up, linear, cosine and inverse square root follow the formulas of transformers' schedules, value for
value up to the last step; beyond it transformers' cosine rises again.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from course_lm.guard import check_schedule
from course_lm.optim import checked_rate, group_rates, set_learning_rate
from course_lm.validation import Count, NotNegative, Positive, Section, Within, require, require_whole


def constant(step: int, *, peak_lr: float, total_steps: int, warmup_steps: int = 0) -> float:
    """`peak_lr` after the warm-up."""
    step = min(step, total_steps)
    return _warm_up(step, peak_lr, warmup_steps) if step < warmup_steps else peak_lr


def linear(step: int, *, peak_lr: float, total_steps: int, warmup_steps: int = 0, min_lr: float = 0.0) -> float:
    """A straight line from `peak_lr` after the warm-up down to `min_lr` at `total_steps`."""
    step = min(step, total_steps)
    if step < warmup_steps:
        return _warm_up(step, peak_lr, warmup_steps)
    # max: a run that is all warm-up has no decay to divide by
    return min_lr + (peak_lr - min_lr) * (total_steps - step) / max(1, total_steps - warmup_steps)


def cosine(
    step: int,
    *,
    peak_lr: float,
    total_steps: int,
    warmup_steps: int = 0,
    num_cycles: float = 0.5,
    min_lr: float = 0.0,
) -> float:
    """`num_cycles` waves of a cosine between `peak_lr` and `min_lr`; half a wave ends at `min_lr`.

    Source: Loshchilov & Hutter 2017 (SGDR), equation 5.
    """
    step = min(step, total_steps)
    if step < warmup_steps:
        return _warm_up(step, peak_lr, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return min_lr + (peak_lr - min_lr) * 0.5 * (1 + math.cos(2 * math.pi * num_cycles * progress))


def step_decay(
    step: int,
    *,
    peak_lr: float,
    total_steps: int,
    warmup_steps: int = 0,
    milestones: Sequence[int] | None = None,
    step_size: int | None = None,
    gamma: float = 0.1,
    min_lr: float = 0.0,
) -> float:
    """`peak_lr` times `gamma` for each of `milestones` that is reached, never below `min_lr`.

    Milestones are completed steps of the run. Without them the rate drops every `step_size` steps after the
    warm-up; where that is None too, it has three plateaus of equal length.
    """
    step = min(step, total_steps)
    if step < warmup_steps:
        return _warm_up(step, peak_lr, warmup_steps)
    if milestones is not None:
        drops = sum(step >= milestone for milestone in milestones)
    else:
        step_size = step_size or max(1, math.ceil((total_steps - warmup_steps) / 3))
        drops = (step - warmup_steps) // step_size
    return max(min_lr, peak_lr * gamma**drops)


def inverse_sqrt(
    step: int,
    *,
    peak_lr: float,
    total_steps: int,
    warmup_steps: int = 0,
    timescale: int | None = None,
    min_lr: float = 0.0,
) -> float:
    """`peak_lr` / sqrt(1 + s / timescale), s steps after the warm-up, never below `min_lr`.

    `timescale` None means `warmup_steps`, or 10,000 without warm-up. Source: Vaswani et al. 2017, section
    5.3.
    """
    step = min(step, total_steps)
    if step < warmup_steps:
        return _warm_up(step, peak_lr, warmup_steps)
    timescale = timescale or warmup_steps or 10_000  # transformers' default
    return max(min_lr, peak_lr / math.sqrt((step - warmup_steps + timescale) / timescale))


def warmup_stable_decay(
    step: int,
    *,
    peak_lr: float,
    total_steps: int,
    warmup_steps: int = 0,
    decay_ratio: float = 0.1,
    min_lr: float = 0.0,
) -> float:
    """`peak_lr` until the last `decay_ratio` of all steps, then a straight line to `min_lr` at `total_steps`.

    The decay has round(decay_ratio * total_steps) steps, or what the warm-up leaves. Source: Hu et al. 2024
    (MiniCPM), section 4.
    """
    step = min(step, total_steps)
    if step < warmup_steps:
        return _warm_up(step, peak_lr, warmup_steps)
    decay_steps = min(round(decay_ratio * total_steps), total_steps - warmup_steps)
    # the ratio is above 1 until the decay begins
    remaining = min(1.0, (total_steps - step) / max(1, decay_steps))
    return min_lr + (peak_lr - min_lr) * remaining


# Every name that a configuration may give, in the order in which error messages and `--help` list them.
SCHEDULES: dict[str, Callable[..., float]] = {
    "cosine_with_warmup": cosine,
    "cosine": cosine,
    "linear": linear,
    "linear_with_warmup": linear,
    "constant": constant,
    "constant_with_warmup": constant,
    "step": step_decay,
    "inverse_sqrt": inverse_sqrt,
    "warmup_stable_decay": warmup_stable_decay,
}

if TYPE_CHECKING:
    ScheduleType = str  # a type checker cannot read a dict's keys
else:
    ScheduleType = Literal[tuple(SCHEDULES)]


@dataclass(frozen=True)
class ScheduleConfig(Section):
    """Which schedule, and its numbers. A key that the chosen type does not read is refused.

    Args:
        type: the schedule's name; with and without "_with_warmup" it is the same one.
        warmup_ratio: share of the run's steps in the warm-up, rounded to the nearest step and at least one step short
            of the run; `warmup_steps` wins where it is given.
        warmup_steps: optimizer steps in the warm-up, or null.
        num_cycles: waves of "cosine".
        min_lr: the last value of "linear" and "warmup_stable_decay", the lowest of "cosine", a floor under "step" and
            "inverse_sqrt".
        milestones: for "step": completed steps at which the rate drops, or null.
        step_size: for "step": the rate drops every so many steps; null means a third of what follows the warm-up.
        gamma: for "step": the factor of a drop.
        timescale: of "inverse_sqrt", in steps; null means the warm-up's length.
        decay_ratio: share of the run's steps in the decay of "warmup_stable_decay".

    Raises ValueError naming key, value and what is accepted: plain numbers, of which True is none.
    """

    type: ScheduleType = "cosine_with_warmup"
    warmup_ratio: Annotated[float, Within(0, 1, "[)")] = 0.1
    warmup_steps: Annotated[int, Within(0)] | None = None
    num_cycles: Positive = 0.5
    min_lr: NotNegative = 0.0
    milestones: list[Count] | None = None
    step_size: Count | None = None
    gamma: Annotated[float, Within(0, 1, "(]")] = 0.1
    timescale: Count | None = None
    decay_ratio: Annotated[float, Within(0, 1)] = 0.1

    def unread(self) -> dict[str, str]:
        """The numbers that the function of this type does not look at."""
        read = {"type", "warmup_ratio", *inspect.signature(SCHEDULES[self.type]).parameters}
        unread = {part.name: f"type {self.type}" for part in fields(self) if part.name not in read}
        return unread if self.milestones is None else {**unread, "step_size": "milestones"}


def build_schedule(config: ScheduleConfig, *, peak_lr: float, total_steps: int) -> Callable[[int], float]:
    """The configured schedule as a function from completed steps to the learning rate of the next step.

    Raises ValueError for a run without steps, a warm-up longer than the run, a `peak_lr` that is no finite number of at
    least 0, and a `min_lr` above it; TypeError for a `peak_lr` that is no number.
    """
    require_whole("total_steps", total_steps, least=1)
    peak_lr, total_steps = checked_rate(peak_lr, "peak_lr"), int(total_steps)
    require(config.min_lr <= peak_lr, "min_lr", f"at most the peak learning rate {peak_lr}", config.min_lr)
    function = SCHEDULES[config.type]
    taken = inspect.signature(function).parameters
    # a function gets only those settings that stand in its signature
    numbers = {part.name: getattr(config, part.name) for part in fields(config) if part.name in taken}
    numbers["warmup_steps"] = _warmup_steps(config, total_steps)
    return partial(function, peak_lr=peak_lr, total_steps=total_steps, **numbers)


class ScheduleLR(LRScheduler):
    """A schedule as one of torch's, for a loop of your own: call `step()` once after each optimizer step.

    Sets the rate of each parameter group to `schedule(k)` times the group's `lr_scale`: 1 where only other groups have
    one; where none has one, the groups keep the ratios of their rates. k counts the calls of `step()`. Its state is k
    alone, so it loads with `weights_only=True`.
    """

    def __init__(self, optimizer: Optimizer, schedule: Callable[[int], float]) -> None:
        check_schedule(schedule)
        self.schedule = schedule
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each parameter group for the next optimizer step."""
        return [*group_rates(self.optimizer, self.schedule(self.last_epoch))]

    def state_dict(self) -> dict[str, int]:
        """The number of completed steps."""
        return {"completed_steps": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on after `completed_steps`, and set the rates that belong there."""
        self.last_epoch = state_dict["completed_steps"]
        self._step_count = self.last_epoch + 1  # torch counts the call that its constructor makes
        set_learning_rate(self.optimizer, self.schedule(self.last_epoch))
        self._last_lr = self.get_lr()


def _warm_up(step: int, peak_lr: float, warmup_steps: int) -> float:
    # With a warm-up the first step has the rate 0: it changes the optimizer's moments and no weight. Callers ask only
    # for step < warmup_steps, so the divisor is never 0.
    return peak_lr * step / warmup_steps


def _warmup_steps(config: ScheduleConfig, total_steps: int) -> int:
    if config.warmup_steps is None:
        return min(round(config.warmup_ratio * total_steps), total_steps - 1)
    accepted = f"at most the run's {total_steps} steps"
    require(config.warmup_steps <= total_steps, "warmup_steps", accepted, config.warmup_steps)
    return config.warmup_steps
