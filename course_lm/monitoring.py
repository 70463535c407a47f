"""Watch a run: what is recorded, where it is shown, and when to stop early.

An observer is told what happened and cannot change it. A record is a flat dict with "event" ("train" or
"validation"), "step" (completed optimizer steps), "epoch" and metrics. Every observer gets its own copy, and
one that fails is left out while training goes on: a log that cannot be written is no reason to lose a run.
"""

import contextlib
import importlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from tqdm.auto import tqdm

Record = dict[str, Any]

WANDB_MODES = ("offline", "online", "disabled")
_POSTFIX = {
    "loss": ("loss", "{:.4f}"),
    "lr": ("lr", "{:.2e}"),
    "grad_norm": ("norm", "{:.3f}"),
    "tokens_per_second": ("tok/s", "{:,.0f}"),
    "val_loss": ("val", "{:.4f}"),
}


@dataclass(frozen=True)
class TensorBoardConfig:
    """The `tensorboard` section of a run's configuration."""

    enabled: bool = False


@dataclass(frozen=True)
class WandbConfig:
    """The `wandb` section of a run's configuration; `name` None lets Weights & Biases choose one."""

    enabled: bool = False
    project: str = "my-lm"
    name: str | None = None
    mode: str = "offline"

    def __post_init__(self) -> None:
        _check_mode(self.mode, "mode")


class Observer(Protocol):
    """What the trainer tells: the step a run starts from, each record, and the end."""

    def start(self, step: int, total_steps: int | None) -> None:
        """A run starts, or goes on, after `step` completed steps of `total_steps` (None: not known)."""

    def log(self, record: Record) -> None:
        """Something was measured."""

    def close(self) -> None:
        """The run is over, or stopped."""


class Observers:
    """Several observers as one. An observer that raises is warned about once, closed and left out."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.active = list(observers)

    def start(self, step: int, total_steps: int | None) -> None:
        """Tell every observer that a run starts after `step` completed steps."""
        self._tell("start", lambda observer: observer.start(step, total_steps))

    def log(self, record: Record) -> None:
        """Give every observer a copy of `record`."""
        self._tell("log", lambda observer: observer.log(dict(record)))

    def close(self) -> None:
        """Close every observer."""
        self._tell("close", lambda observer: observer.close())

    def _tell(self, method: str, call: Callable[[Observer], None]) -> None:
        for observer in list(self.active):
            try:
                call(observer)
            except Exception as error:
                self.active.remove(observer)
                name = type(observer).__name__
                reason = f"{type(error).__name__}: {error}"
                warnings.warn(f"{name}.{method} failed ({reason}); training goes on without it", stacklevel=3)
                if method != "close":
                    with contextlib.suppress(Exception):
                        observer.close()


class History:
    """The records of a run, in order; pass those of a checkpoint to go on from them."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = [dict(record) for record in records]

    def append(self, record: Record) -> None:
        """Add a copy of `record`."""
        self.records.append(dict(record))

    @property
    def train(self) -> list[Record]:
        """The records of training steps."""
        return [record for record in self.records if record["event"] == "train"]

    @property
    def validation(self) -> list[Record]:
        """The records of validations."""
        return [record for record in self.records if record["event"] == "validation"]

    @property
    def best(self) -> Record | None:
        """The first validation record with the lowest val_loss (never a NaN), or None."""
        measured = (record for record in self.validation if not math.isnan(record["val_loss"]))
        return min(measured, key=lambda record: record["val_loss"], default=None)

    def state_dict(self) -> list[Record]:
        """Return the records as a plain list, for a checkpoint."""
        return [dict(record) for record in self.records]


class JSONLLogger:
    """Write each record as one line of JSON, readable while the run goes on.

    JSON has no NaN and no infinity: both are written as null, so that the column stays numeric in any reader.
    Raises OSError when the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Cut the file back to `step`: later records and torn lines go, for the run writes them again."""
        self.close()
        if not self.path.exists():
            return
        old = self.path.read_bytes()
        kept = b"".join(line.rstrip(b"\r\n") + b"\n" for line in old.split(b"\n") if _belongs(line, step))
        if kept != old:
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_bytes(kept)
            os.replace(temporary, self.path)

    def log(self, record: Record) -> None:
        """Append one line and flush it."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  # open until close()
        plain = {key: _json_value(value) for key, value in record.items()}
        self._file.write(json.dumps(plain, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a later `log` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProgressBar:
    """A tqdm bar over optimizer steps with loss, learning rate, gradient norm and tokens/s beside it.

    In a terminal or a notebook it moves with every record; where standard error is a file or a pipe it is
    printed every `quiet_seconds` at most.
    """

    def __init__(self, quiet_seconds: float = 10.0) -> None:
        self.quiet_seconds = quiet_seconds
        self._bar: Any = None
        self._shown: dict[str, str] = {}

    def start(self, step: int, total_steps: int | None) -> None:
        """Open a bar that stands at `step`."""
        self.close()
        self._open(step, total_steps)

    def _open(self, step: int, total_steps: int | None) -> Any:
        in_notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
        interval = 0.1 if in_notebook or sys.stderr.isatty() else self.quiet_seconds
        self._bar = tqdm(total=total_steps, initial=step, unit="step", dynamic_ncols=True, mininterval=interval)
        self._shown = {}
        return self._bar

    def log(self, record: Record) -> None:
        """Move to the record's step and show its metrics; a validation loss stays in view."""
        bar = self._open(0, None) if self._bar is None else self._bar
        for key, (label, form) in _POSTFIX.items():
            if record.get(key) is not None:
                self._shown[label] = form.format(record[key])
        bar.set_postfix(self._shown, refresh=False)
        bar.update(record["step"] - bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class TensorBoardLogger:
    """Write each metric as a TensorBoard scalar, named "train/loss", "validation/val_loss" and so on.

    Raises ImportError when TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _import_extra("tensorboard")
        self.folder = Path(folder)
        self._writer: Any = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Open an event file; what an earlier run logged after `step` is hidden."""
        self.close()
        self._open(step)

    def _open(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=step + 1, flush_secs=10)
        return self._writer

    def log(self, record: Record) -> None:
        """Write the record's metrics at its step."""
        writer = self._writer or self._open(0)
        for tag, value in _tagged(record).items():
            writer.add_scalar(tag, value, global_step=record["step"])

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbLogger:
    """Log to Weights & Biases; offline (the default), everything stays in `folder`/wandb.

    Raises ImportError when wandb is not installed, ValueError for an unknown mode.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        mode: str = "offline",
        folder: str | os.PathLike[str] = ".",
        settings: dict[str, Any] | None = None,
    ) -> None:
        _check_mode(mode, "mode")
        self._wandb = _import_extra("wandb")
        self.project, self.name, self.mode = project, name, mode
        self.folder, self.settings = Path(folder), settings
        self._run: Any = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Open a run that carries `settings` as its configuration."""
        self.close()
        self._open()

    def _open(self) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=self.project,
            name=self.name,
            mode=self.mode,
            dir=str(self.folder),
            config=self.settings,
            settings=self._wandb.Settings(console="off"),  # capturing the terminal garbles a progress bar
        )
        return self._run

    def log(self, record: Record) -> None:
        """Log the record's metrics at its step."""
        run = self._run or self._open()
        run.log(_tagged(record), step=record["step"])

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


class EarlyStopping:
    """Stop after `patience` values in a row that do not improve on the best by more than `min_delta`.

    patience: a number of validations, at least 1. min_delta: in the units of the value, at least 0. Lower is
    better. NaN is no improvement. Raises ValueError for numbers outside these ranges.
    """

    def __init__(self, patience: int, min_delta: float = 0.0) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1 validation, got {patience}")
        if not 0.0 <= min_delta < math.inf:
            raise ValueError(f"min_delta must be in [0, inf), got {min_delta}")
        self.patience, self.min_delta = patience, min_delta
        self.best = math.inf
        self.bad_values = 0

    def update(self, value: float) -> bool:
        """Take the next value and return whether it is an improvement."""
        improved = value < self.best - self.min_delta
        if improved:
            self.best, self.bad_values = value, 0
        else:
            self.bad_values += 1
        return improved

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out."""
        return self.bad_values >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the number of values since."""
        return {"best": self.best, "bad_values": self.bad_values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.best, self.bad_values = state["best"], state["bad_values"]


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
        self._time += self._clock() - started

    def update(self, tokens: int) -> float:
        """Return tokens per second since the last call, given the tokens so far; start a new interval."""
        before_tokens, before_time = self._tokens, self._time
        self.restart(tokens)
        seconds = self._time - before_time
        return (tokens - before_tokens) / seconds if seconds > 0 else math.nan


def _belongs(line: bytes, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, TypeError, KeyError):
        return False


def _json_value(value: Any) -> Any:
    if hasattr(value, "item"):  # a 0-d tensor or a NumPy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tagged(record: Record) -> dict[str, float]:
    metrics = ((key, value) for key, value in record.items() if key not in ("event", "step"))
    return {f"{record['event']}/{key}": float(value) for key, value in metrics if not isinstance(value, str | None)}


def _check_mode(mode: str, name: str) -> None:
    if mode not in WANDB_MODES:
        raise ValueError(f"{name} must be one of {', '.join(WANDB_MODES)}, got {mode!r}")


def _import_extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is not installed: pip install "course-lm[track]"') from error
