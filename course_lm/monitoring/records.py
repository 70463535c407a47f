"""What is recorded at a log point, in which unit, and the records of a whole run."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.run_records import Record, RunRecords
from course_lm.step import StepResult


def summarise(results: Sequence[StepResult]) -> dict[str, float]:
    """The steps since the last log point in four numbers. Reading them waits for an accelerator.

    Returns:
        "loss", nats per token: the mean over all target tokens of the completed steps.
        "grad_norm": of the last completed step, before clipping. "grad_norm_max": the largest, since a spike between
        two log points is a spike.
        "tokens": target tokens of the completed steps.
        A skipped step counts in none of them; where no step was completed, all are nan but "tokens".
    """
    columns = [column_of(column).tolist() for column in zip(*results)] or [[]] * len(StepResult._fields)  # no step
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


def column_of(values: Sequence[Tensor]) -> Tensor:
    """0-d tensors as one on the CPU (N,), in one transfer; those of a resumed run may lie on another device."""
    if len({value.device for value in values}) > 1:
        values = [value.cpu() for value in values]
    return torch.stack(list(values)).cpu()


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
    """Turn a growing token count into tokens per second between log points; `seconds` is the last interval."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self.seconds = clock, 0.0
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
        self.seconds = self._time - before_time
        # Two calls within one tick of the clock have no speed.
        return (tokens - before_tokens) / self.seconds if self.seconds > 0 else math.nan


class History(RunRecords):
    """The records of a run, in order; pass those of a checkpoint to go on from them.

    A run that stops between two log points ends with a record of the steps in between, marked "partial": True. A
    record that follows takes its place, for it covers the same steps: so a run that was stopped and one that never
    was have the same history.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = [dict(record) for record in records]
        self._lines: list[bytes] = []  # of the first records, as a checkpoint has them: each is written out once

    @property
    def whole(self) -> list[Record]:
        """The records without a partial one at their end."""
        return self.records[:-1] if self.records and self.records[-1].get("partial") else self.records

    def append(self, record: Record) -> None:
        """Add a copy of `record`, in place of a partial one."""
        if self.records and self.records[-1].get("partial"):
            self.records.pop()
        self.records.append(dict(record))

    def state_dict(self) -> Tensor:
        """The records, without a partial one, as the bytes of a line of JSON for each (N,).

        A checkpoint keeps them as a tensor, so that its header stays short in a long run. Raises ValueError for a value
        that JSON cannot hold.
        """
        whole = self.whole
        del self._lines[len(whole) :]
        self._lines += [_line_of(record) for record in whole[len(self._lines) :]]
        content = bytearray(b"".join(self._lines))
        return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)

    def load_state_dict(self, state: Tensor) -> None:
        """Hold the records that `state_dict` returned, and no others; ValueError where it is something else."""
        lines = bytes(state.cpu().numpy()).splitlines(keepends=True)
        try:
            records = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"the history must hold a line of JSON for each record: {error}") from None
        if not all(map(_is_record, records)):
            raise ValueError("a record must be a dict with event, step and epoch, and a validation's with val_loss")
        self.records[:], self._lines = records, lines


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict) or not {"event", "step", "epoch"} <= record.keys():
        return False
    return record["event"] != "validation" or isinstance(record.get("val_loss"), int | float)


def _line_of(record: Record) -> bytes:
    def plain(value: Any) -> Any:  # asked for what json does not know
        if hasattr(value, "item"):  # a 0-d tensor or a NumPy scalar
            return value.item()
        raise ValueError(f"a record of the event {record['event']!r} holds a {type(value).__name__}; got {value!r}")

    return json.dumps(record, default=plain).encode() + b"\n"
