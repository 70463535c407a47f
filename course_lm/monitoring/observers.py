"""Who is told what happened in a run: what an observer is, several observers as one, and the file metrics.jsonl."""

import contextlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tqdm.auto import tqdm

from course_lm.checkpoints import atomic_file
from course_lm.monitoring.records import History, Record
from course_lm.run_records import open_regular
from course_lm.validation import named, shown


class Observer(Protocol):
    """What the trainer tells: the step a run starts from, each record, and the end."""

    def start(self, step: int, total_steps: int | None) -> None:
        """A run starts, or goes on, after `step` completed steps of `total_steps` (None: not known)."""

    def log(self, record: Record) -> None:
        """Something was measured."""

    def close(self) -> None:
        """The run is over, or stopped."""


@runtime_checkable
class Display(Protocol):
    """An observer that also shows what is no record; it draws no random numbers there."""

    def show_validation(self, done: int, total: int | None) -> None:
        """A validation has read so many of its batches (None: their number is not known)."""

    def end_validation(self) -> None:
        """It is over, or has failed."""

    def say(self, text: str) -> None:
        """A line for whoever watches the run."""


class Observers:
    """Several observers as one, none of which disturbs the run by an exception.

    One that raises an `Exception` is warned about once, closed and left out; `KeyboardInterrupt` and `SystemExit` end
    the run. What an observer draws at random reaches no step either: each of these seeds the generators by its place.
    Nothing else is guarded: an observer that writes into the model, or leaves it in eval mode, changes the run.

    Raises TypeError for what is no observer.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.active = list(observers)
        for observer in self.active:
            if not all(callable(getattr(observer, name, None)) for name in ("start", "log", "close")):
                raise TypeError(f"an observer must have start, log and close, got {shown(observer)}")

    def start(self, step: int, total_steps: int | None) -> None:
        """Tell every observer that a run starts after `step` completed steps."""
        self._tell("start", lambda observer: observer.start(step, total_steps), self.active)

    def log(self, record: Record) -> None:
        """Give every observer a copy of `record`."""
        self._tell("log", lambda observer: observer.log(dict(record)), self.active)

    def close(self) -> None:
        """Close every observer, the last one first: a progress bar below what others print ends before they do."""
        self._tell("close", lambda observer: observer.close(), self.active[::-1])

    def show_validation(self, done: int, total: int | None) -> None:
        """Show how far a validation is."""
        self._tell("show_validation", lambda display: display.show_validation(done, total), self._displays)

    def end_validation(self) -> None:
        """Show no validation any more."""
        self._tell("end_validation", lambda display: display.end_validation(), self._displays)

    def say(self, text: str) -> None:
        """Show a line of text."""
        self._tell("say", lambda display: display.say(text), self._displays)

    @property
    def _displays(self) -> list[Any]:
        return [observer for observer in self.active if isinstance(observer, Display)]

    def _tell(self, method: str, call: Callable[[Any], None], observers: list[Any]) -> None:
        for observer in observers[:]:  # a copy, since an observer that fails is taken out
            try:
                call(observer)
            except Exception as error:  # not BaseException: Ctrl-C in an observer ends the run
                self._leave_out(observer, method, error)

    def _leave_out(self, observer: Observer, method: str, error: Exception) -> None:
        self.active.remove(observer)
        problem = f"{type(observer).__name__}.{method} failed ({named(error)}); training goes on without it"
        with tqdm.external_write_mode():  # or the warning would stand in the line of a bar
            warnings.warn(problem, stacklevel=4)
        if method != "close":
            with contextlib.suppress(Exception):
                observer.close()


class JSONLLogger:
    """Write each record as one line of JSON, readable while the run goes on.

    A line reaches the system in one piece before `log` returns, so a process that is killed leaves whole lines and one
    torn line at most, and a full disk leaves whole lines. JSON has no NaN and no infinity: both are written as null, so
    that the column stays numeric in any reader. Raises OSError when the file cannot be written.

    history: the run's records, where they are at hand: then lines that the file has lost, as when a disk was full or
    the power failed, come back when the run goes on.
    """

    def __init__(self, path: str | os.PathLike[str], history: History | None = None) -> None:
        self.path, self.history = Path(path), history
        self._file: FileIO | None = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Cut the file back to `step`: drop later, partial and torn lines, which the run writes again."""
        self.close()
        old = b""
        if self.path.exists():
            with open_regular(self.path) as file:
                old = file.read()
        if self.history is not None:
            kept = b"".join(json_line(record) for record in self.history.whole)
        else:
            # A last line that is whole may lack only its line end, where the process was killed.
            kept = b"".join(line.rstrip(b"\r\n") + b"\n" for line in old.split(b"\n") if _belongs(line, step))
        # A file that needs no cut stays untouched; one that does is replaced whole, so that no crash loses its lines.
        if kept != old:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as file:
                file.write(kept)

    def log(self, record: Record) -> None:
        """Append one line; where the file was removed meanwhile, all lines."""
        if self._file is not None and not os.fstat(self._file.fileno()).st_nlink:
            self.start(record["step"], None)
            if self.history is not None and not record.get("partial"):  # it has the record already
                return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a killed process takes no line with it that `log` has returned from.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  # open until close()
        line = json_line(record)
        end = os.fstat(self._file.fileno()).st_size  # where the line begins
        written = self._file.write(line)
        if written != len(line):
            # A disk that fills up takes part of a line; half a line would spoil the one after it.
            self._file.truncate(end)
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written: is the disk full?")

    def close(self) -> None:
        """Close the file; a later `log` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def json_line(record: Record) -> bytes:
    """The record as a line of JSON that any reader takes."""
    plain = {key: _json_value(value) for key, value in record.items()}
    return (json.dumps(plain, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _json_value(value: Any) -> Any:
    if hasattr(value, "item"):  # a 0-d tensor or a NumPy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _belongs(line: bytes, step: int) -> bool:
    try:
        record = json.loads(line)
        return record["step"] <= step and not record.get("partial")
    except (ValueError, TypeError, KeyError):
        return False
