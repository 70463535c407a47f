"""A run from outside: its folder, its loggers, whether a checkpoint belongs to it, and the signals that end it."""

import itertools
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from course_lm.atomic import atomic_file
from course_lm.checkpoints import latest_checkpoint, library_versions
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.monitoring import JSONLLogger, Observer, ProgressBar, Record, TensorBoardLogger, WandbLogger
from course_lm.monitoring.observers import json_line

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXHAUSTED = ("can't allocate memory", "not enough memory")  # torch's CPU allocator has no error class of its own
_SAME = {
    "data": None,
    "model": ("n_layer", "n_head", "d_model", "dropout"),
    "optimizer": ("type", "beta1", "beta2", "epsilon", "weight_decay", "momentum"),
    "curriculum": None,
    "training": ("batch_size", "gradient_accumulation_steps", "seed"),
}


def run_folder(config: TrainingConfig) -> Path | None:
    """`<output_dir>/<experiment_name>`, or None for a run that writes nothing."""
    output_dir = config.training.output_dir
    return None if output_dir is None else Path(output_dir) / config.experiment_name


def default_observers(config: TrainingConfig) -> list[Observer]:
    """The progress bar, and the loggers that the configuration asks for; ImportError where one is not installed."""
    observers: list[Observer] = []
    folder = run_folder(config)
    if folder is not None:
        observers.append(JSONLLogger(folder / "metrics.jsonl"))
    if config.tensorboard.enabled:
        observers.append(TensorBoardLogger((folder or Path()) / "tensorboard"))
    if config.wandb.enabled:
        wandb = config.wandb
        observers.append(WandbLogger(wandb.project, wandb.name, wandb.mode, folder or Path(), asdict(config)))
    return [*observers, ProgressBar()]  # last, below what the others print when they start


def newest_state(config: TrainingConfig) -> Path | None:
    """The newest intact checkpoint in the run's folder, or None.

    With `training.resume` "never" a folder that is already there is renamed to `<name>.1`, `.2`, … first. ValueError
    where there are checkpoints and none can be read: a new run would write over them.
    """
    folder = run_folder(config)
    if folder is None:
        return None
    if folder.exists() and config.training.resume == "never":
        number = next(n for n in itertools.count(1) if not folder.with_name(f"{folder.name}.{n}").exists())
        folder.rename(folder.with_name(f"{folder.name}.{number}"))
    newest = latest_checkpoint(folder)
    if newest is None and any(folder.glob("checkpoint_*.pt")):
        raise ValueError(f"no checkpoint in {folder} can be read; training.resume never starts anew beside it")
    return newest


def warn_of_versions(saved: Mapping[str, str]) -> None:
    """Warn where a library has another version than when the checkpoint was saved: results may round differently."""
    mine = library_versions()
    changed = [f"{name} {saved.get(name)} (now {mine[name]})" for name in mine if saved.get(name) != mine[name]]
    if changed:
        warnings.warn(f"the checkpoint was saved with {', '.join(changed)}: it may not go on bit for bit", stacklevel=2)


def restore_log(path: Path, records: Iterable[Record]) -> None:
    """Make a log hold the records of a checkpoint and no others.

    A run that died had written more than its checkpoint knows, and less where the disk was full or the power failed.
    """
    wanted = b"".join(json_line(record) for record in records)
    if wanted != (path.read_bytes() if path.exists() else b""):
        with atomic_file(path) as file:
            file.write(wanted)


def length_of(loader: Iterable[object]) -> int | None:
    """Batches in an epoch, or None where the loader cannot tell."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over an iterable dataset has a __len__ that raises
        return None


def count_steps(loader: Iterable[object], settings: LoopConfig) -> int:
    """Optimizer steps of the whole run; ValueError where neither a length nor `max_steps` tells."""
    if settings.max_steps is not None:
        return settings.max_steps
    batches = length_of(loader)
    if not batches:
        problem = "is empty" if batches == 0 else "has no len(): set training.max_steps"
        raise ValueError(f"the training loader {problem}")
    length_of_epoch = getattr(loader, "length_of_epoch", lambda epoch: batches)
    epochs = range(settings.num_epochs)
    return sum(math.ceil(length_of_epoch(epoch) / settings.gradient_accumulation_steps) for epoch in epochs)


def check_same_run(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Compare the settings that a run cannot change half-way.

    Raises:
        ValueError: names the first key that differs, with both values.
    """
    for section, keys in _SAME.items():
        for key in keys or mine[section]:
            if mine[section][key] != saved[section].get(key):
                raise ValueError(
                    f"the checkpoint was saved with {section}.{key} {saved[section].get(key)!r}, this run has "
                    f"{mine[section][key]!r}: change it back, choose another experiment_name, or set training.resume "
                    "to never"
                )


@contextmanager
def explain_out_of_memory(config: TrainingConfig) -> Iterator[None]:
    """Turn torch's error for exhausted memory into a MemoryError that says what to lower, in which order."""
    try:
        yield
    except RuntimeError as error:
        exhausted = isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _EXHAUSTED)
        if not exhausted:
            raise
        settings, data = config.training, config.data
        raise MemoryError(
            f"out of memory with batch_size {settings.batch_size} and max_length {data.max_length}. Lower, in this "
            "order, until it fits: training.batch_size (and raise gradient_accumulation_steps by the same factor: the "
            "step stays the same); set model.gradient_checkpointing to true (slower, same numbers); take "
            "training.precision bf16; then data.max_length, data.vocab_size, and the model itself"
        ) from error


@contextmanager
def on_interrupt(notify: Callable[[int], None]) -> Iterator[None]:
    """Call `notify(signal number)` at the first SIGINT or SIGTERM; a second one has its usual effect.

    Python delivers signals to the main thread alone: elsewhere this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, previous[signal.Signals(number)])
        notify(number)

    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
