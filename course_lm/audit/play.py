"""One run of the loop that is audited: watched, timed, and without a trace on the random generators."""

import math
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import SGD

from course_lm.audit import spec
from course_lm.audit.features import FEATURES, NOT_ASKED
from course_lm.audit.outcome import Outcome, Precision, flat, names_of
from course_lm.audit.runs import Case, Epochs
from course_lm.reproducibility import generators_kept, seed_generators
from course_lm.validation import did_you_mean, named, one_line

Loop = Callable[[nn.Module, Epochs, spec.Settings], Mapping[str, Any] | None]

RETURNED = ("validation_losses", "best_weights", "ignores")
ADAPTERS = ("parts", "hugging_face", "lightning_trainer")
# What reads settings to copy, compare or show them, or to hand all of them to a trainer that may not want them.
NO_READERS = ("dataclasses", spec.__name__, *(f"course_lm.audit.adapters.{name}" for name in ADAPTERS))
# Whose lines are not the loop's own: Python, what is installed, and this package. A name in <…> is no file.
_FOLDERS = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))
_LIBRARIES = (*(folder + os.sep for folder in _FOLDERS), "<")
REFUSALS = (ArithmeticError, ValueError, RuntimeError)  # what a loop may raise for a gradient that is not finite


class Trouble(Exception):
    """What keeps a loop from being compared, in one sentence; `of_format`: it is about number formats."""

    def __init__(self, message: str, *, of_format: bool = False) -> None:
        super().__init__(message)
        self.of_format = of_format


class _TimeOut(BaseException):
    """Raised in the loop when its time is up; no Exception, which a loop might catch."""


@dataclass
class Play:
    """What a run of a loop left, and what was seen of it.

    Attributes:
        ignores: the features that the loop says it ignores.
        read: the settings that the loop reads.
        best_is_live: the best weights that it returns are the model's own tensors.
        said: the error of a run that the loop refused.
    """

    outcome: Outcome
    ignores: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    best_is_live: bool = False
    said: str = ""


def _is_refusal(error: BaseException, case: Case) -> bool:
    """Whether the loop may have raised because a loss or a gradient is not finite."""
    poisoned = case.part == "finite" or bool(case.settings.overflow_steps)
    return isinstance(error, FloatingPointError) or (poisoned and isinstance(error, REFUSALS))


def told(error: BaseException) -> str:
    """What was raised, with file and line of the caller's own code: the loop's, or that of another function."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the call of that function
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    own = own or [frame for frame in frames if frame.filename == frames[0].filename]  # a loop that is installed
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{one_line(named(error))}{place}"


def _raised(error: BaseException) -> Trouble:
    text, word = str(error), f"the loop raised {told(error)}"
    if "dtype" in text or ("Double" in text and "Float" in text):
        word += '; the model was in float64: a loop that needs float32 is audited with precision="float32"'
        return Trouble(word, of_format=True)
    return Trouble(word)


def _checked(returned: object) -> Mapping[str, Any]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise Trouble(
            f"the loop returned {type(returned).__name__}; it may return None, or a mapping with {', '.join(RETURNED)}",
        )
    odd = next((name for name in returned if name not in RETURNED), None)
    if odd is not None:
        raise Trouble(
            f"the loop returned the key {odd!r}; {did_you_mean(str(odd), RETURNED)}the keys are {', '.join(RETURNED)}",
        )
    return returned


def _losses(returned: Mapping[str, Any]) -> list[float] | None:
    losses = returned.get("validation_losses")
    if losses is None:
        return None
    try:
        return [float(loss) for loss in losses]
    except (TypeError, ValueError, RuntimeError):
        raise Trouble(f"validation_losses must be a list of numbers, got {one_line(repr(losses))}") from None


def _best(returned: Mapping[str, Any], names: Sequence[str]) -> Tensor | None:
    best = returned.get("best_weights")
    if best is None:
        return None
    if not isinstance(best, Mapping):
        raise Trouble(f"best_weights must be a mapping from names to tensors, got {type(best).__name__}")
    missing = [name for name in names if not isinstance(best.get(name), Tensor)]
    if missing:
        raise Trouble(f"best_weights has no tensor {missing[0]!r}; the model's weights are {', '.join(names)}")
    return flat(best, names)


def _ignores(returned: Mapping[str, Any]) -> frozenset[str]:
    ignores = returned.get("ignores") or ()
    ignores = (ignores,) if isinstance(ignores, str) else tuple(ignores)
    odd = next((name for name in ignores if name not in FEATURES and name != "eos_id"), None)
    if odd is not None:
        hint = did_you_mean(str(odd), FEATURES)
        raise Trouble(f"ignores names {odd!r}; {hint}a loop may ignore {', '.join(FEATURES)}")
    return frozenset(ignores) & frozenset(FEATURES)


def _noting(given: spec.Settings) -> tuple[spec.Settings, set[str]]:
    """The settings once more, and the names of those that a loop reads as they are given, which grow as it does so."""
    values, read = dict(vars(given)), set[str]()

    class Settings(spec.Settings):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if (
                name in values
                and value is values[name]
                and sys._getframe(1).f_globals.get("__name__") not in NO_READERS
            ):
                read.add(name)
            return value

        def __reduce__(self) -> tuple[Any, ...]:  # a worker process gets plain ones
            return spec.Settings, tuple(vars(self).values())

    return Settings(**values), read


def is_asked(case: Case, ignores: frozenset[str]) -> bool:
    """Whether a loop that ignores those features is held to the case."""
    return not any(NOT_ASKED[name](case) for name in ignores if name in NOT_ASKED)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TimeOut` in the body after so many seconds, and again each second until the body has ended."""
    reachable = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not math.isfinite(seconds) or not reachable:  # no signal comes to another thread, and Windows has no timer
        yield
        return

    def ring(*_: object) -> None:
        raise _TimeOut

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def kept_running() -> Iterator[None]:
    """`os._exit` raises SystemExit in the body, as `sys.exit` does: who asks for the exit code could read a verdict."""
    leave, process = os._exit, os.getpid()

    def stay(status: int) -> NoReturn:
        if os.getpid() != process:  # a worker that the loop has forked
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave


class Player:
    """Lets one loop make runs."""

    def __init__(self, loop: Loop, precision: Precision, timeout: float) -> None:
        SGD([torch.zeros(1)])  # the first optimizer of a process imports torch._dynamo: seconds that are not the loop's
        self.loop, self.precision, self.timeout = loop, precision, timeout

    def play(self, case: Case, watch: Callable[[nn.Module], None] | None = None) -> Play:
        """One run, from the same seeds each time.

        Raises:
            Trouble: the loop raises where it should not, takes longer than `timeout` seconds, returns something else
                than a mapping of `RETURNED`, or leaves weights of another number format.
        """
        model = case.model().to(self.precision.dtype)
        names = names_of(model)
        given = {name: weight.dtype for name, weight in model.named_parameters()}
        if watch is not None:
            watch(model)
        epochs, settings = deepcopy((case.epochs, case.settings))  # batches that were one object still are
        settings, read = _noting(settings)
        try:
            with generators_kept(), torch.enable_grad(), _time_limit(self.timeout), kept_running():
                seed_generators(case.seed)
                torch.manual_seed(case.seed)  # also of a device that the loop is the first to use
                returned = self.loop(model, epochs, settings)
        except _TimeOut:
            raise Trouble(f"the loop had not returned after {self.timeout:g} seconds") from None
        except (KeyboardInterrupt, Trouble):
            raise
        except BaseException as error:  # a script may leave by sys.exit, and the audit with it
            trouble = _raised(error)
            if _is_refusal(error, case):
                return Play(Outcome(None, refused=True), said=str(trouble))
            raise trouble from error
        returned = _checked(returned)
        weights = dict(model.named_parameters())
        if set(names) - set(weights):
            raise Trouble(f"the model has lost the weights {', '.join(sorted(set(names) - set(weights)))}")
        odd = next((name for name in names if weights[name].dtype is not given[name]), None)
        if odd is not None:
            now, then = (str(dtype).removeprefix("torch.") for dtype in (weights[odd].dtype, given[odd]))
            raise Trouble(f"the loop turned the model's weights from {then} into {now}", of_format=True)
        best, live = _best(returned, names), returned.get("best_weights") or {}
        is_live = any(live[name].data_ptr() == weights[name].data_ptr() for name in names if name in live)
        outcome = Outcome(flat(weights, names), _losses(returned), best)
        return Play(outcome, _ignores(returned), frozenset(read), is_live)

    def replay(self, case: Case) -> Outcome | None:
        """What the run leaves; None if it cannot be compared."""
        try:
            return self.play(case).outcome
        except Trouble:
            return None
