"""`training.time_budget` in a closed loop: how many steps fit into the minutes is decided again while they pass.

The first decision follows from a few steps that are timed and undone, later ones from what steps, validations and saves
take. So a machine that becomes slower or faster changes how long the run is in steps, and hardly when it ends. The
learning rate is a function of the run's progress: at the last step it has reached its end, whatever was decided.

The decisions are `training.lengths`: [[0, 1000], [431, 1204]] says that the run was to have 1,000 steps and, after 431
completed ones, 1,204. With them the run goes on, and is repeated, to the bit.
"""

import math
import statistics
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from course_lm.forward import AnyBatch
from course_lm.schedules import ScheduleConfig, build_schedule

RESERVE = 0.02  # of the budget, for what nobody times: the end of an epoch, observers, files that are removed
TRIAL, LONGEST_TRIAL = 0.02, 5.0  # of the budget, and seconds at most, for the steps that are timed before the first
TRIED = 8  # windows that are tried before the first step, as often as there is time
LOOKS = 50  # in a run whose length is never decided again
RECENT = 5  # paces whose median counts: a hiccup does not move it, and a change is followed at the third look
OFF, LEAST_OFF = 0.1, 0.02  # of the seconds that are left, and of the budget: an end off by more is decided again

clock = time.perf_counter


def progress_of(lengths: Sequence[Sequence[int]], step: int) -> float:
    """Where a schedule over the first of `lengths` stands after `step` completed steps.

    From a decision on, the rest of that schedule is spread evenly over the steps that are left. So it moves on without
    a jump, and the last step stands where the last step of the first length stood.
    """
    (_, first), *later = lengths
    since, at, pace = 0, 0.0, 1.0  # from the step `since` on, which stands at `at`, each step moves on by `pace`
    for decided, total in later:
        if step < decided:
            break
        at, since = at + pace * (decided - 1 - since), decided - 1
        pace = (first - 1 - at) / (total - decided)
    return at + pace * (step - since)


def schedule_over(
    lengths: list[list[int]] | None, config: ScheduleConfig, *, peak_lr: float, total_steps: int
) -> Callable[[int], float]:
    """The schedule that `build_schedule` makes, for a run of `total_steps`, or of these lengths."""
    if lengths is None:
        return build_schedule(config, peak_lr=peak_lr, total_steps=total_steps)
    schedule = build_schedule(config, peak_lr=peak_lr, total_steps=lengths[0][1])
    # a schedule has a value between two steps as well
    return lambda step: schedule(progress_of(lengths, step))  # pyrefly: ignore[bad-argument-type]


class Budget:
    """What is left of the minutes of a run, and how many steps fit into it. Ranks keep one each; rank 0 decides.

    Args:
        minutes: of the whole run, whatever the number of its sessions.
        eval_steps: optimizer steps between validations; None for one after each epoch. save_steps: between saves.
        started: when the first session began, on `clock`; by default when `start` is called.

    Attributes:
        epoch_steps: optimizer steps of the epoch at hand.
        takes: seconds of the last "validation" and the last "save"; 0 where there was none.
    """

    def __init__(self, minutes: float, eval_steps: int | None, save_steps: int, started: float | None = None) -> None:
        self.minutes, self.eval_steps, self.save_steps, self.epoch_steps = minutes, eval_steps, save_steps, 1
        self.takes = {"validation": 0.0, "save": 0.0}
        self._paces: deque[float] = deque(maxlen=RECENT)
        self._earlier = 0.0  # seconds of earlier sessions
        self._started = started  # the clock when this session began
        self._others = 0.0  # seconds of validations and saves
        self._looked: tuple[int, float] | None = None  # the step of the last look, and the seconds without others

    @property
    def pace(self) -> float:
        """Seconds of a step with its data and records, lately."""
        return statistics.median(self._paces or [0.0])

    @property
    def spent(self) -> float:
        """Seconds of the run until now, those of earlier sessions included."""
        return self._earlier + (0.0 if self._started is None else clock() - self._started)

    @property
    def left(self) -> float:
        """Seconds for what is still to be done."""
        return (1 - RESERVE) * 60 * self.minutes - self.spent

    def start(self) -> None:
        """Count the minutes of a session from now, unless they are counted already."""
        if self._started is None:
            self._started = clock()

    def stop(self) -> None:
        """End a session: what passes until the next one does not count."""
        self._earlier, self._started, self._looked = self.spent, None, None

    def try_steps(
        self, windows: Iterable[list[AnyBatch]], act: Callable[[list[AnyBatch]], object], tell: Callable[[bool], bool]
    ) -> None:
        """Learn the first pace from `act(window)`, over the first windows; `tell` gives all ranks rank 0's answer.

        The first pass over each shape is left out: memory is fetched and kernels are chosen or compiled in it.
        """
        deadline = clock() + min(TRIAL * 60 * self.minutes, LONGEST_TRIAL)
        known, times = set(), list[float]()
        for window in cycle(list(islice(windows, TRIED))):
            if not tell(not times or clock() < deadline):
                break
            shape = tuple(batch["input_ids"].shape for batch in window)
            if shape not in known:
                act(window)
            known.add(shape)
            started = clock()
            act(window)
            times.append(clock() - started)
        self._paces.append(statistics.median(times))

    def begin_epoch(self, step: int, epoch_steps: int) -> None:
        """Time the steps from here on, where an earlier epoch of the session has not begun to."""
        self.epoch_steps = epoch_steps
        if self._looked is None:
            self._looked = step, self.spent - self._others

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Time a "validation" or a "save", which is no part of a step."""
        before = self.spent
        yield
        self.takes[part] = self.spent - before
        self._others += self.takes[part]

    def is_due(self, step: int, decided: int, total: int) -> bool:
        """Whether to `look` after so many steps of `total`, which were decided after `decided` of them."""
        return step < total and (step - decided) % max(1, total // LOOKS) == 0

    def look(self, step: int, total: int) -> int | None:
        """How many steps the run is to have; None where `total` of them still end in time. Asked where it `is_due`.

        A run whose minutes are over has one more step, which ends the schedule.
        """
        assert self._looked is not None
        (before, then), now = self._looked, self.spent - self._others
        if step > before:
            self._paces.append((now - then) / (step - before))
        self._looked = step, now
        left = self.left
        # by how much the pace may be wrong, where steps differ: the standard error of its mean
        doubt = statistics.stdev(self._paces) / math.sqrt(len(self._paces)) if len(self._paces) > 1 else 0.0
        late = abs(self.seconds_to(total, step) - left)
        if late <= max(OFF * left, LEAST_OFF * 60 * self.minutes, doubt * (total - step)):
            return None
        fitting = max(step + 1, self.most_steps(step))
        return None if fitting == total else fitting

    def first_length(self) -> tuple[int, str]:
        """The number of steps of a new run, and one line that says so; ValueError where there is no time for one."""
        steps, spent = self.most_steps(), self.spent
        validation = f"about {self.takes['validation']:.2g} s a validation, " if self.takes["validation"] else ""
        why = f"{self.pace:.3g} s a step, {validation}{spent:.2g} s before the first step"
        if steps:
            epochs = steps / self.epoch_steps
            return steps, f"{self.minutes:g} min make about {steps:,} steps, {epochs:,.1f} epochs: {why}"
        needed = math.ceil((spent + self.seconds_to(1)) / (1 - RESERVE) / 60 * 100) / 100
        raise ValueError(
            f"training.time_budget must be at least {needed:g} (minutes) for one step of this run on this machine, got "
            f"{self.minutes:g}: {why}"
        )

    def most_steps(self, step: int = 0) -> int:
        """The largest number of steps of a run that has taken `step`, and whose rest fits into the seconds left."""
        left = self.left
        high = step + max(0, int(left / max(self.pace, 1e-9)))
        return step + bisect_right(range(step + 1, high + 1), left, key=lambda total: self.seconds_to(total, step))

    def seconds_to(self, total: int, step: int = 0) -> float:
        """What is left of a run of `total` steps takes after `step` of them; each validation saves a new best."""
        before = max(0, step - 1)  # what this step is followed by comes after the look
        epochs = (total - 1) // self.epoch_steps - before // self.epoch_steps
        every = self.eval_steps or self.epoch_steps
        validations = math.ceil(total / every) - before // every
        saves = total // self.save_steps - before // self.save_steps + epochs + validations + 1
        return (total - step) * self.pace + validations * self.takes["validation"] + saves * self.takes["save"]

    def state_dict(self) -> dict[str, float]:
        """What a later session goes on from, in seconds."""
        return {"spent": self.spent, "pace": self.pace, **self.takes}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on with the minutes that were left when `state_dict` was called."""
        self._earlier, self.takes = state["spent"], {part: state[part] for part in self.takes}
        self._paces = deque([state["pace"]], maxlen=RECENT)
