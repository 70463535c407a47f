"""What the parts of a run take on this machine: steps, validations and saves, timed before the first step.

Batches may differ in size, so windows are taken at even distances from the smallest of an epoch to its largest. The
first pass over each shape is left out: memory is fetched and kernels are chosen in it. A shape counts with the median
of its times, which a short disturbance does not move. What a token takes in these windows makes the mean of the epoch.

`Trainer.fit_to_budget` puts back what a trial changes, as the learning-rate finder does.
"""

import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

from course_lm.accumulation import windows
from course_lm.batching import AnyBatch, Loader
from course_lm.batching.data import length_of, read_from_start
from course_lm.config import LoopConfig
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.distributed import Group
from course_lm.loss import count_targets

_T = TypeVar("_T")
Window = list[AnyBatch]

SHARE, MOST_SECONDS = 0.05, 10.0  # of the budget, and at most, for the whole trial
READING, STEPS, VALIDATION = 0.2, 0.6, 0.9  # of that time, until reading, steps and validation end
SAMPLED, MOST_BATCHES = 8, 64  # windows that are timed; fewer where they hold many micro-batches
MOST_LOOKED_AT = 1000  # windows whose size is looked at
MOST_PASSES = 60
# A machine that computes for minutes slows down: in five runs of 4 minutes on two cores a step took 1.00 to 1.13 times
# what it took in the trial's ten seconds. With this factor they end between 0.95 and 1.08 of their budget.
SUSTAINED = 1.05

clock = time.perf_counter


@dataclass(frozen=True)
class Sample:
    """Windows of an epoch, the smallest first, and what reading them took.

    Attributes:
        size: mean tokens of the epoch's windows, padding included. batches: mean batches of these windows.
        read: seconds from one batch to the next. opened: seconds before the first one of an epoch.
        overlaps: whether worker processes read while a step computes.
    """

    windows: list[Window]
    size: float
    batches: float
    read: float = 0.0
    opened: float = 0.0
    overlaps: bool = False


class Trial:
    """Times the parts of a run in a share of its budget; each part is tried at least twice, whatever it takes.

    Every rank makes the same trial, and rank 0 says how long it goes on. The seconds are those of each rank's own.
    """

    def __init__(self, settings: LoopConfig, group: Group) -> None:
        assert settings.time_budget is not None
        self.settings, self.group, self._begun = settings, group, clock()
        self._seconds = min(SHARE * 60 * settings.time_budget, MOST_SECONDS)

    def time_steps(self, loader: Any, step: Callable[[Window], bool]) -> tuple[float, float]:
        """Seconds of a step with its data, over minutes, and of the start of an epoch; `step` says if it counts."""
        sample = self._sample(loader, self.settings.gradient_accumulation_steps, READING)
        seconds, read = self.mean_seconds(sample, step, self._until(STEPS)), sample.read * sample.batches
        return SUSTAINED * (max(seconds, read) if sample.overlaps else seconds + read), sample.opened

    def time_validation(self, read: tuple[Iterable[AnyBatch], int | None], evaluate: Callable[..., object]) -> float:
        """Seconds of a validation, reckoned from some of its batches; where the loader has no length it is made whole.

        `read` is the loader, and the `max_tokens` that `evaluate` reads of it.
        """
        (loader, max_tokens), world = read, self.group.world
        length = length_of(loader)
        if length is None:
            started = clock()
            evaluate(loader, max_tokens)
            return clock() - started

        def validate(batches: Window) -> bool:
            some = any(int(count_targets(batch["labels"])) for batch in batches)
            if some:  # `evaluate` refuses a loader without a target
                evaluate(batches)
            return some

        sample = self._sample(loader, world, STEPS + (VALIDATION - STEPS) / 2)
        if max_tokens is not None:
            targets = _mean(int(count_targets(batch["labels"])) for window in sample.windows for batch in window)
            length = min(length, math.ceil(max_tokens / max(targets, 1)))
        seconds = self.mean_seconds(sample, validate, self._until(VALIDATION))
        return sample.opened + length * sample.read + math.ceil(length / world) * seconds

    def time_save(self, folder: Path, save: Callable[[Path], object]) -> float:
        """Seconds of a save beside the run's folder, on the same disk: the second of two, since the first one loads."""
        place = self.group.leader_does(lambda: Path(mkdtemp(prefix=f".{folder.name}.timed-", dir=folder.parent)))
        try:
            save(place / "checkpoint_last.safetensors")
            started = clock()
            save(place / "checkpoint_last.safetensors")
            return clock() - started
        finally:
            if self.group.leads:
                shutil.rmtree(place, ignore_errors=True)

    def time_record(self, measure: Callable[[], object]) -> float:
        """Seconds of the numbers of a record: to ask a system for its peak memory may take milliseconds."""
        measure()
        started = clock()
        measure()
        return clock() - started

    def mean_seconds(self, sample: Sample, act: Callable[[Window], bool], deadline: float) -> float:
        """Mean seconds of `act(window)` over an epoch, by what its sample takes until `deadline` on the clock."""
        times: dict[Any, list[float]] = {}
        everything: list[float] = []

        def measure(window: Window) -> None:
            started = clock()
            counts = act(window)
            everything.append(clock() - started)
            known = times.get(_shape(window))
            if known is None:
                times[_shape(window)] = []
            elif counts:
                known.append(everything[-1])

        middle = sample.windows[len(sample.windows) // 2]
        measure(middle)
        measure(middle)
        # each window needs a pass that is left out and one that counts
        affordable = int((deadline - clock()) / (2 * max(everything[-1], 1e-9)))
        count = self.group.tell(max(1, min(affordable, len(sample.windows))))
        chosen = [middle] if count == 1 else _spread(sample.windows, count, _size)
        for window in islice(cycle(chosen), MOST_PASSES):
            if not self.group.tell(clock() < deadline or not any(times.values())):
                break
            measure(window)
        counted = [window for window in (middle, *chosen) if times.get(_shape(window))]
        if not counted:  # every fp16 step has overflowed
            return min(everything)
        seconds = sum(statistics.median(times[_shape(window)]) for window in counted)
        return seconds * sample.size / sum(map(_size, counted))

    def _until(self, share: float) -> float:
        return self._begun + share * self._seconds

    def _sample(self, loader: Any, window: int, share: float) -> Sample:
        # ranks do not agree on the time, and all must read the same
        return sample_windows(loader, window, self._until(share) if self.group.world == 1 else None)


def sample_windows(loader: Any, window: int, deadline: float | None) -> Sample:
    """Windows of `window` batches from the whole of an epoch; the loader, its position and all generators stay.

    Of our own loaders and of lists only these batches are read. Any other loader is read from its start, until
    `deadline` on the clock; where that is None, only its first batches are taken.
    """
    count = max(1, min(SAMPLED, MOST_BATCHES // window))
    if isinstance(loader, CurriculumLoader):
        loader = loader.whole
    if isinstance(loader, Loader):
        return _sample_own(loader, window, count)
    if isinstance(loader, list | tuple):
        epoch = _some(_cut(loader, window))
        return Sample(_spread(epoch, count, _size), _mean(map(_size, epoch)), _mean(map(len, epoch)))
    return _sample_foreign(loader, window, count, deadline)


def _sample_own(loader: Loader, window: int, count: int) -> Sample:
    def size(rows: list[Any]) -> int:
        return sum(len(of_batch) * loader.width_of(of_batch) for of_batch in rows)

    epoch = _some(_cut(loader.order(0), window))
    chosen = _spread(epoch, count, size)
    started = clock()
    reader = iter(loader.read([rows for of_window in chosen for rows in of_window]))
    batches = [next(reader)]
    opened = clock() - started
    batches += reader
    later = len(batches) - 1
    read = (clock() - started - opened) / later if later else opened
    rest = iter(batches)
    found: list[Window] = [list(islice(rest, len(of_window))) for of_window in chosen]
    overlaps, opened = loader.num_workers > 0, max(0.0, opened - read)
    return Sample(found, _mean(map(size, epoch)), _mean(map(len, epoch)), read, opened, overlaps)


def _sample_foreign(loader: Iterable[AnyBatch], window: int, count: int, deadline: float | None) -> Sample:
    length = length_of(loader)
    last = count if deadline is None or length is None else math.ceil(length / window)
    wanted = {0} | {int((index + 0.5) * last / count) for index in range(count)}
    kept: list[Window] = []
    opened, read = 0.0, 0  # seconds of the first window, number of batches
    started = clock()
    with read_from_start(loader) as reader:
        for index, part in enumerate(windows(reader, window)):
            read += len(part)
            if index in wanted:
                kept.append(part)
            if index == 0:
                opened = clock() - started
            # a second window tells reading from opening
            if index == max(wanted) or (index > 0 and deadline is not None and clock() >= deadline):
                break
    if not kept:
        raise ValueError("a loader gave no batch that could be timed for training.time_budget")
    first, later = len(kept[0]), read - len(kept[0])
    seconds = (clock() - started - opened) / later if later else opened / first
    overlaps = getattr(loader, "num_workers", 0) > 0
    size, batches, opened = _mean(map(_size, kept)), _mean(map(len, kept)), max(0.0, opened - first * seconds)
    return Sample(sorted(kept, key=_size), size, batches, seconds, opened, overlaps)


def _cut(batches: Sequence[_T], window: int) -> list[list[_T]]:
    return [list(batches[start : start + window]) for start in range(0, len(batches), window)]


def _some(items: list[_T]) -> list[_T]:
    """At most `MOST_LOOKED_AT` of the items, at even distances."""
    return items[:: max(1, math.ceil(len(items) / MOST_LOOKED_AT))]


def _spread(items: list[_T], count: int, size: Callable[[_T], int]) -> list[_T]:
    """`count` of the items, the smallest first, each in the middle of an equal share of all."""
    ordered, count = sorted(items, key=size), min(count, len(items))
    return [ordered[int((index + 0.5) * len(ordered) / count)] for index in range(count)]


def _mean(numbers: Iterable[int]) -> float:
    return statistics.fmean(numbers)


def _size(window: Sequence[AnyBatch]) -> int:
    return sum(batch["input_ids"].numel() for batch in window)


def _shape(window: Sequence[AnyBatch]) -> tuple[Any, ...]:
    return tuple(tuple(batch["input_ids"].shape) for batch in window)
