"""What is recorded at a log point, in which unit, and the records of a whole run."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course_lm.run_records import Record, RunRecords
from course_lm.step import StepResult
from course_lm.validation import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def summarise(results: Sequence[StepResult]) -> dict[str, float]:
    """The steps since the last log point in four numbers. Reading them waits for an accelerator.

    Returns:
        "loss", nats per token: the mean over all target tokens of the completed steps.
        "grad_norm": of the last completed step, before clipping. "grad_norm_max": the largest, since a spike between
        two log points is a spike.
        "tokens": target tokens of the completed steps.
        A skipped step counts in none of them; where no step was completed, all are nan but "tokens".
    """
    columns = [_read(column) for column in zip(*results)] or [[]] * len(StepResult._fields)  # no step: no columns
    losses, tokens, norms, skipped, _ = columns
    done = [index for index, was_skipped in enumerate(skipped) if not was_skipped]
    total = sum(int(tokens[index]) for index in done)
    return {
        # Weighed by tokens: a mean over steps would let a short last window count as much as a whole one.
        "loss": sum(losses[index] * tokens[index] for index in done) / total if total else math.nan,
        "grad_norm": norms[done[-1]] if done else math.nan,
        "grad_norm_max": max(norms[index] for index in done) if done else math.nan,
        "tokens": total,
    }


def _read(column: Sequence[Tensor]) -> list[float]:
    """The values on the host, in one transfer; those of a resumed run may lie on another device than later ones."""
    device = column[-1].device
    return torch.stack([value.to(device) for value in column]).tolist()


def peak_memory(device: torch.device | str = "cpu") -> float:
    """Bytes: the most memory that was in use at once, until now.

    On CUDA: what torch had allocated on `device`. On MPS, which keeps no peak: what the driver has allocated now. Else
    the largest resident size of the whole process, nan where the system does not tell.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        import resource  # not on Windows
    except ImportError:
        return math.nan
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Throughput:
    """Turn a growing token count into tokens per second between log points."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.restart(0)

    def restart(self, tokens: int) -> None:
        """Start a new interval at `tokens` so far."""
        self._tokens, self._time = tokens, self._clock()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time spent inside: it is no training."""
        started = self._clock()
        yield
        # The start of the interval moves on by the time spent inside.
        self._time += self._clock() - started

    def update(self, tokens: int) -> float:
        """Return tokens per second since the last call, given the tokens so far; start a new interval."""
        before_tokens, before_time = self._tokens, self._time
        self.restart(tokens)
        seconds = self._time - before_time
        # Two calls within one tick of the clock have no speed.
        return (tokens - before_tokens) / seconds if seconds > 0 else math.nan


class History(RunRecords):
    """The records of a run, in order; pass those of a checkpoint to go on from them.

    A run that stops between two log points ends with a record of the steps in between, marked "partial": True. A
    record that follows takes its place, for it covers the same steps: so a run that was stopped and one that never
    was have the same history.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = [dict(record) for record in records]

    def append(self, record: Record) -> None:
        """Add a copy of `record`, in place of a partial one."""
        if self.records and self.records[-1].get("partial"):
            self.records.pop()
        self.records.append(dict(record))

    def plot(self, floor: float | None = None) -> "Figure":
        """Draw loss, gradient norm and learning rate against the step; see `draw_run`."""
        from course_lm.monitoring.live import draw_run  # live.py reads histories

        return draw_run(self, floor)

    def to_dataframe(self) -> "DataFrame":
        """A row for each record, a column for each metric; NaN where an event has no such metric.

        Raises ImportError when pandas is not installed.
        """
        pandas = import_extra("pandas", "lab")
        return pandas.DataFrame(self.records)

    def state_dict(self) -> list[Record]:
        """Return the records as a plain list, for a checkpoint. A partial one is left out: see above."""
        return [dict(record) for record in self.records if not record.get("partial")]

    def load_state_dict(self, records: Iterable[Record]) -> None:
        """Hold these records and no others."""
        self.records[:] = [dict(record) for record in records]
