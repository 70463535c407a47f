"""A run from outside: its folder and who may write there, its loggers, its length, and the signals that end it."""

import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import FrameType

import torch
from filelock import FileLock, Timeout
from torch import nn
from torch._guards import CompileContext
from torch.utils._triton import has_triton

from course_lm.batching.data import NEW_RUN, check_holds_batches, length_of, length_of_epoch
from course_lm.checkpoints import check_folder
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.distributed import Group
from course_lm.model import count_parameters
from course_lm.monitoring import History, JSONLLogger, Observer, ProgressBar
from course_lm.monitoring.trackers import TrackerConfig
from course_lm.run_records import METRICS, lock_of
from course_lm.schedules import SCHEDULES, ScheduleConfig
from course_lm.trainer.init_from import Beginning
from course_lm.trainer.made_by import SessionLog
from course_lm.validation import expanded, is_out_of_memory, shown


class Interrupted(BaseException):
    """A signal ends, at once, what may take minutes: a validation, or a compile; a second one whatever hangs."""

    def __init__(self, number: int) -> None:
        super().__init__(stopped_by(number))
        self.exit_code = 128 + number


GO_ON_ANEW = "to train on with its weights, begin a new run whose training.init_from is the folder of this one"
SIGNALS = tuple(one for one in signal.Signals if one.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU"))
STOPPED = 100  # stands for a call of `Trainer.stop` where the number of a signal is kept; no signal has it
# A choice, not a measurement: where a compile takes a minute and wins a quarter of each step, it pays after four
# minutes. GPT-2's smallest size has so many FLOPs in four minutes of an H100 at a quarter of its peak.
PAYS_FLOPS, PAYS_MINUTES = 6e16, 5


def run_folder(config: TrainingConfig) -> Path | None:
    """`<output_dir>/<experiment_name>`, as messages name it, or None for a run that writes nothing.

    `~` is the home folder. A run keeps the absolute path: the working directory may change meanwhile.
    """
    output_dir = config.training.output_dir
    return None if output_dir is None else expanded(output_dir) / config.experiment_name


_training = threading.RLock()


@contextmanager
def sole_trainer() -> Iterator[None]:
    """Let no other thread of this process train until the body ends; BlockingIOError where one does.

    Random numbers, kernels and signal handlers are the process's own: two runs would draw each other's dropout.
    """
    if not _training.acquire(blocking=False):
        raise BlockingIOError("another thread of this process is training: wait until it ends, or take a process each")
    try:
        yield
    finally:
        _training.release()


@contextmanager
def sole_writer(folder: Path | None, group: Group | None = None) -> Iterator[None]:
    """Let no other run train in this folder until the body ends, or rank 0 dies.

    Entered again in the same thread it changes nothing. Raises BlockingIOError where another process or thread is in.
    Warns where the file system has no locks.
    """
    if folder is None:
        yield
        return
    group = group or Group()
    # a singleton counts how often this thread has entered; a second lock object would refuse it
    lock = FileLock(lock_of(folder), is_singleton=True)
    group.leader_does(lambda: _acquire(lock, folder))
    try:
        yield
    finally:
        if group.leads:
            lock.release()


def _acquire(lock: FileLock, folder: Path) -> None:
    check_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=1)  # who lists runs has it for a moment: see `is_locked`
    except Timeout:
        raise BlockingIOError(
            f"another process is training in {folder}: wait until it ends, or choose another experiment_name"
        ) from None
    except OSError as error:
        if error.filename is not None:  # it cannot be opened, which no folder without locks is to blame for
            raise
        nobody = "nothing keeps another process from training in it too"
        _warn_once(f"{folder} cannot be locked ({error.strerror}): {nobody}")


_warn_once = cache(warnings.warn)  # a folder is entered more than once


def default_observers(config: TrainingConfig, history: History, beginning: Beginning | None = None) -> list[Observer]:
    """The progress bar, what writes the files of the run's folder, and the loggers that the configuration asks for.

    Raises ImportError where one of these is not installed.

    history: of the run; where a run goes on, `metrics.jsonl` is made to hold its records.
    """
    folder, settings = run_folder(config), asdict(config)
    files: list[Observer] = []
    if folder is not None:
        folder = folder.absolute()
        files = [JSONLLogger(folder / METRICS, history), SessionLog(folder, beginning)]
    trackers = [
        section.logger(folder or Path(), settings)
        for section in vars(config).values()
        if isinstance(section, TrackerConfig) and section.enabled
    ]
    return [*files, *trackers, ProgressBar()]  # the bar last, below what the others print when they start


def check_functions(config: TrainingConfig, loss_fn: object, clip: object, schedule: object) -> None:
    """Refuse a loss, clip or schedule that is given, not None, beside one that the configuration asks for; ValueError.

    Not the schedule that the configuration itself describes.
    """
    value, rates, default = config.training.max_grad_value, vars(config.lr_scheduler), vars(ScheduleConfig())
    own = getattr(schedule, "func", None) is not SCHEDULES[config.lr_scheduler.type]
    for given, name, asked in (
        (loss_fn, "loss_fn", {f"loss.{key}": part for key, part in vars(config.loss).items() if part}),
        (clip, "clip", {} if value is None else {"training.max_grad_value": value}),
        (schedule if own else None, "schedule", {f"lr_scheduler.{k}": v for k, v in rates.items() if v != default[k]}),
    ):
        if given is not None and asked:
            keys = ", ".join(f"{key} {shown(number)}" for key, number in asked.items())
            raise ValueError(f"{keys} would not be heeded beside a {name} of your own: give one of the two")


def warn_of_unheeded(config: TrainingConfig, train_loader: object, val_loader: object) -> None:
    """Warn of what a configuration asks for and these loaders do not give."""
    if config.curriculum.enabled and not isinstance(train_loader, CurriculumLoader):
        warnings.warn("curriculum.enabled is true, and the training loader is no CurriculumLoader", stacklevel=4)
    if config.training.early_stopping_patience is not None and val_loader is None:
        warnings.warn("training.early_stopping_patience is not heeded without a validation loader", stacklevel=4)


def count_steps(loader: Iterable[object], settings: LoopConfig) -> int:
    """Optimizer steps of the whole run; ValueError where neither a length nor `max_steps` tells."""
    if settings.max_steps is not None:
        return settings.max_steps
    if settings.must_be_timed:
        raise ValueError(
            f"training.time_budget {settings.time_budget:g} has not been turned into steps: call Trainer.train or "
            "Trainer.fit_to_budget, or set training.max_steps"
        )
    check_has_length(loader)
    lengths = (length_of_epoch(loader, epoch) or 0 for epoch in range(settings.num_epochs))
    # rounded up for each epoch: its tail is a step of its own (docs/contract.md, C4)
    return sum(math.ceil(length / settings.gradient_accumulation_steps) for length in lengths)


def compiling_pays(config: TrainingConfig, model: nn.Module, device: torch.device, total_steps: int | None) -> bool:
    """Whether `training.compile` "auto" compiles: on CUDA, where a run is long enough to win back what that takes.

    It follows from the configuration and from the number of steps alone, so that a run that goes on chooses the same.
    """
    settings = config.training
    if settings.compile != "auto" or device.type != "cuda" or not has_triton():
        return False
    if settings.time_budget is not None or total_steps is None:
        return settings.time_budget is not None and settings.time_budget >= PAYS_MINUTES
    rows = settings.batch_size * settings.gradient_accumulation_steps * total_steps
    # two operations for each weight and token in the forward pass, four in the backward pass
    return 6 * count_parameters(model) * rows * config.data.max_length >= PAYS_FLOPS


def check_has_length(loader: Iterable[object]) -> None:
    """Raise ValueError for a training loader that is empty or cannot tell its length."""
    check_holds_batches(loader, "training")
    batches = length_of(loader)
    if not batches:
        problem = "is empty" if batches == 0 else "has no len(): set training.max_steps"
        raise ValueError(f"the training loader {problem}")


def check_can_be_timed(loader: Iterable[object]) -> None:
    """Raise ValueError for a training loader that cannot tell its length, or cannot be read a second time."""
    check_has_length(loader)
    if isinstance(loader, Iterator):
        raise ValueError(
            f"training.time_budget needs a training loader that can be read again, got an iterator "
            f"({type(loader).__name__}), which timing would use up: set training.max_steps"
        )


@contextmanager
def explain_out_of_memory(config: TrainingConfig) -> Iterator[None]:
    """Turn an error for exhausted memory into a MemoryError that says what to lower, in which order."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        settings, data = config.training, config.data
        raise MemoryError(
            f"out of memory with batch_size {settings.batch_size} and max_length {data.max_length}. Lower, in this "
            "order, until it fits: training.batch_size (and raise gradient_accumulation_steps by the same factor: the "
            "step stays the same); set model.gradient_checkpointing to true (slower, same numbers); take "
            "training.precision bf16; then data.max_length, data.vocab_size, and the model itself"
        ) from error


@contextmanager
def on_interrupt(notify: Callable[[int], None], group: Group | None = None) -> Iterator[None]:
    """Call `notify(signal number)` at the first of `SIGNALS`; a second SIGINT or SIGTERM raises `Interrupted`.

    A third one has its usual effect. A second SIGHUP or SIGXCPU has none; nor has a second SIGTERM under torchrun,
    which sends one to each rank as soon as another has ended, while this one may still be saving, and kills what has
    not ended after 30 seconds.

    A signal that this process ignores, as one started in the background may, stays ignored. One whose handler was not
    installed from Python stays with that handler, which could not be given back. Python delivers signals to the main
    thread alone: elsewhere nothing is changed, and a warning says so.
    """
    if threading.current_thread() is not threading.main_thread():
        warnings.warn("training outside the main thread: no signal ends it, Trainer.stop() does", stacklevel=3)
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        # first of all: a second signal ends a run whose step hangs
        ignored = number == signal.SIGTERM and group is not None and group.joined
        ignored |= number not in (signal.SIGINT, signal.SIGTERM)  # others come by themselves, and more than once
        signal.signal(number, signal.SIG_IGN if ignored else end_at_once)
        notify(number)
        if CompileContext.try_get() is not None:
            raise Interrupted(number)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        signal.signal(number, previous[signal.Signals(number)])
        raise Interrupted(number)

    found = {number: signal.getsignal(number) for number in SIGNALS}
    previous = {number: handler for number, handler in found.items() if handler not in (None, signal.SIG_IGN)}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stopped_by(number: int) -> str:
    """What ended a run: a signal, by its number, or a call."""
    return f"stopped by {'Trainer.stop()' if number == STOPPED else signal.Signals(number).name}"


def how_to_go_on(config: TrainingConfig) -> str:
    """What to do with a run that was saved."""
    folder = run_folder(config)
    if folder is None:
        return "nothing was saved"
    again = "run it again with training.resume auto" if config.training.resume == "never" else "run it again"
    return f"{again} to go on from {folder}"


def nothing_left(step: int, config: TrainingConfig) -> str:
    """The line for a run that is over before it begins; what it answers with was trained before."""
    line, folder = f"the run has come to its end after step {step}: nothing is left to train", run_folder(config)
    return line if folder is None else f"{line}, weights and records are those in {folder}; to train anew, {NEW_RUN}"


def warn_of_unnamed(config: TrainingConfig) -> None:
    """Warn where a run goes on with what is in the folder of all runs that nobody has named."""
    folder, default = run_folder(config), run_folder(TrainingConfig())
    if folder == default:
        warnings.warn(
            f"no experiment_name was given, and this run goes on with the one in {folder}, where all unnamed runs are "
            f"kept: to train anew, {NEW_RUN}",
            stacklevel=4,
        )
