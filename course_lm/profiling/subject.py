"""The steps that are profiled: what they train, on which batches, and how they are undone."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.accumulation import count_window_targets, windows
from course_lm.batching.data import set_next_epoch
from course_lm.clipping import clip_gradients
from course_lm.forward import AnyBatch, device_of, inside_compiled
from course_lm.guard import check_optimizer, check_window, checked_precision
from course_lm.lr_finder.trial import restored
from course_lm.precision import Precision
from course_lm.profiling.marks import DATA, OTHER, MarkedScaler, Marks, Observer
from course_lm.profiling.parts import Names, names_of
from course_lm.step import StepResult, all_parameters, train_step
from course_lm.validation import ensure, require, require_whole

DEVICES = ("cpu", "cuda")
MOST_OVERFLOWS = 30  # in a row, while fp16 looks for its scale


@dataclass
class Subject:
    """Steps of one model. Their learning rate is 0, so that all of them start from the same weights.

    Attributes:
        source: the next step's micro-batches, again and again.
        reads: whether these come from a loader, so that making them is part of the step.
        take: `train_step` with all but a step's `micro_batches`.
        result: of the last step.
    """

    model: nn.Module
    optimizer: Optimizer
    source: Iterator[list[AnyBatch]]
    reads: bool
    take: Callable[..., StepResult]
    scaler: MarkedScaler
    names: Names
    result: StepResult | None = None

    def parameters(self) -> list[Tensor]:
        """All that a step may change."""
        return all_parameters(self.model, self.optimizer)

    def step(self, marks: Marks | None = None) -> None:
        """Read the batches and take a step; `marks` are told where they begin."""
        if marks is not None and self.reads:
            marks.switch(DATA)
        batches = next(self.source)
        if marks is not None:
            marks.switch(OTHER)
        self.result = self.take(micro_batches=batches)

    def marked_step(self, marks: Marks) -> None:
        """A step whose parts are marked, from its first to its last moment."""
        with Observer(self.model, self.optimizer, self.scaler, self.names, marks).watching():
            self.step(marks)
            marks.switch(OTHER)

    def warm_up(self, steps: int) -> None:
        """Take steps that are not measured; in fp16 as many more as its loss scale needs to settle."""
        for _ in range(steps):
            self.step()
        for _ in range(MOST_OVERFLOWS):
            if self.result is not None and not self.result.skipped:
                return
            self.step()
        raise ValueError(f"each of {MOST_OVERFLOWS} steps was skipped for a gradient that is not finite")


@contextmanager
def subject_of(
    model: nn.Module,
    micro_batches: Iterable[AnyBatch],
    optimizer: Optimizer,
    accumulation_steps: int | None,
    precision: Precision | None,
    max_grad_norm: float | None,
    loss_fn: Callable[..., Tensor],
    clip: Callable[..., object] = clip_gradients,
) -> Iterator[Subject]:
    """Steps that may be taken until the body ends, which undoes them all; see `lr_finder.trial.restored`."""
    given = _check_batches(model, micro_batches, accumulation_steps)
    if inside_compiled(model) is not None:
        raise ValueError(
            "model must not be compiled, which leaves no modules to tell parts apart: give the model itself"
        )
    device = device_of(model)
    require(device.type in DEVICES, "the model's device", f"one of {', '.join(DEVICES)}", device.type)
    precision = deepcopy(checked_precision(precision, device))  # the given one keeps its loss scale
    check_optimizer(optimizer, model)
    precision.scaler = scaler = MarkedScaler(precision.scaler)
    take = partial(
        train_step,
        model,
        optimizer=optimizer,
        lr=0.0,
        loss_fn=loss_fn,
        max_grad_norm=max_grad_norm,
        clip=clip,
        precision=precision,
    )
    with restored(model, optimizer, [] if given is not None else micro_batches, loss_fn, clip) as reader:
        if not model.training:  # else modules that their owner put in eval mode stay in it
            model.train()
        source = repeat(given) if given is not None else _read(reader, accumulation_steps or 1)
        yield Subject(model, optimizer, source, given is None, take, scaler, names_of(model))


def _check_batches(model: nn.Module, micro_batches: object, accumulation_steps: object) -> list[Any] | None:
    """The micro-batches of one step, where they are given as a list; None for a loader."""
    # neither a single batch nor an iterator, which would be used up
    if not isinstance(micro_batches, Iterable) or isinstance(micro_batches, Mapping | Iterator):
        raise TypeError(f"micro_batches must be a list of batches or a loader, got {type(micro_batches).__name__}")
    if isinstance(micro_batches, list | tuple):
        if accumulation_steps is not None:
            raise ValueError(
                f"accumulation_steps is for a loader, got {accumulation_steps!r} with a list, all of which is one step"
            )
        require(len(micro_batches) > 0, "micro_batches", "at least one batch", micro_batches)
        check_window(model, micro_batches, None)
        ensure(bool(count_window_targets(micro_batches)), "micro_batches must hold a target token, got none")
        return list(micro_batches)
    if accumulation_steps is not None:
        require_whole("accumulation_steps", accumulation_steps, least=1)
    return None


def _read(reader: Any, accumulation_steps: int) -> Iterator[list[AnyBatch]]:
    """Windows of a loader, epoch after epoch; a shorter tail and windows without a target are passed over."""
    while True:
        found = False
        for window in windows(reader, accumulation_steps):
            if len(window) == accumulation_steps and count_window_targets(window):
                found = True
                yield window
        if not found:
            raise ValueError(f"the loader holds no {accumulation_steps} batches in a row with a target token")
        set_next_epoch(reader)
