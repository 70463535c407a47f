"""The learning-rate range test: train while the learning rate grows, see what the loss says, and undo it all.

`torch-lr-finder` runs the sweep (Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3). This
module feeds it the batches and logits of a language model, takes each step as `train_step` does, stops at a loss that
is not finite, and leaves model, optimizer, data and random generators as they were.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.accumulation import count_window_targets
from course_lm.batch_checks import check_batch
from course_lm.batching.reading import set_next_epoch
from course_lm.clipping import check_max_norm, clip_gradients
from course_lm.forward import AnyBatch, device_of, forward_logits
from course_lm.loss import adapt_loss, count_targets, loss_sum, next_token_loss
from course_lm.lr_finder.curve import (
    SKIP_END,
    SKIP_START,
    SMOOTHING,
    LRFinderResult,
    check_reading,
)
from course_lm.lr_finder.trial import restored
from course_lm.monitoring import ProgressBar
from course_lm.optim import check_gradients, check_optimizer
from course_lm.precision import Precision
from course_lm.rates import fix_lr_scales, set_learning_rate
from course_lm.step import trained_parameters
from course_lm.validation import require

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import warns, and the text holds a path of this machine
    from torch_lr_finder import LRFinder, TrainDataLoaderIter
    from torch_lr_finder import lr_finder as library

_AUTOCAST = {"fp32": {"enabled": False}, "bf16": {"dtype": torch.bfloat16}, "fp16": {"dtype": torch.float16}}


def find_lr(
    model: nn.Module,
    loader: Iterable[AnyBatch],
    optimizer: Optimizer,
    *,
    start_lr: float = 1e-6,
    end_lr: float = 1.0,
    num_iter: int = 100,
    accumulation_steps: int = 1,
    loss_fn: Callable[..., Tensor] = next_token_loss,
    max_grad_norm: float | None = 1.0,
    precision: Precision | None = None,
    diverge_threshold: float = 3.0,
    smoothing: float = SMOOTHING,
    skip_start: int = SKIP_START,
    skip_end: int = SKIP_END,
    progress: bool = False,
) -> LRFinderResult:
    """Take `num_iter` steps with a learning rate that grows by the same factor each time; then undo them all.

    Args:
        model, loss_fn, max_grad_norm, precision: as for `train_step`.
        loader: batches that can be read again: one that is too short is. Those without a target token are passed over.
        optimizer: as for `train_step`. The sweep starts from its state. Groups keep their ratios, see `rates`.
        start_lr, end_lr: first and last learning rate.
        accumulation_steps: micro-batches of a step; each token of the step weighs the same.
        diverge_threshold: stop after a loss of this many times the lowest so far.
        smoothing, skip_start, skip_end: see `suggest`.
        progress: show a bar.

    Raises:
        ValueError: a setting out of its range, or a loader without a target token.
        TypeError, ValueError: an argument that `train_step` would refuse.
    """
    _check_sweep(start_lr, end_lr, num_iter, accumulation_steps, diverge_threshold)
    check_reading(smoothing, skip_start, skip_end)
    _check_loader(loader)
    check_max_norm(max_grad_norm, "max_grad_norm")
    check_optimizer(optimizer, model)
    loss_fn = adapt_loss(loss_fn)
    with restored(model, optimizer, loader) as reader, _quiet(progress):
        if not model.training:
            model.train()
        steps = _Steps(model, optimizer, _precision_like(precision, model), max_grad_norm)
        finder = _library_finder(model, optimizer, steps, _criterion(loss_fn, accumulation_steps))
        lrs = {"start_lr": start_lr, "end_lr": end_lr, "num_iter": num_iter}
        ends = {"smooth_f": 0, "diverge_th": diverge_threshold, "accumulation_steps": accumulation_steps}
        try:
            finder.range_test(_Batches(model, reader, accumulation_steps), **lrs, **ends)
            stopped = "diverged" if len(finder.history["loss"]) < num_iter else None
        except _NonFiniteLoss:
            stopped = "not finite"
    return LRFinderResult(finder.history["lr"], finder.history["loss"], stopped, smoothing, skip_start, skip_end)


class _NonFiniteLoss(Exception):
    """Ends the sweep: the library would go on."""


class _Network(nn.Module):
    """The model as the library calls it: with one argument, and in the modes that it is in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: AnyBatch) -> Tensor:
        return forward_logits(self.model, batch)

    def train(self, mode: bool = True) -> "_Network":
        return self  # the library would also wake the modules that their owner put in eval mode


class _Batches(TrainDataLoaderIter):
    """Batches without end, each with its labels and the number of target tokens in its whole step."""

    def __init__(self, model: nn.Module, reader: Iterable[AnyBatch], accumulation_steps: int) -> None:
        super().__init__(_endless(model, reader))
        self.accumulation_steps = accumulation_steps
        self.window: list[AnyBatch] = []

    def __next__(self) -> tuple[AnyBatch, tuple[Tensor, Tensor]]:
        if not self.window:
            self.window = list(islice(self._iterator, self.accumulation_steps))
            self.tokens = count_window_targets(self.window)
        batch = self.window.pop(0)
        return batch, (batch["labels"], self.tokens)


class _Steps:
    """Stands where the library expects a gradient scaler, and takes the step as `train_step` does."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, precision: Precision, max_grad_norm: float | None
    ) -> None:
        self.model, self.precision, self.max_grad_norm = model, precision, max_grad_norm
        fix_lr_scales(optimizer)  # before the library gives all groups the same rate

    def scale(self, loss: Tensor) -> Tensor:
        return self.precision.scaler.scale(loss)

    def step(self, optimizer: Optimizer) -> None:
        parameters = trained_parameters(optimizer)
        check_gradients(parameters, self.model)
        self.precision.scaler.unscale_(optimizer)
        if self.max_grad_norm is not None:
            clip_gradients(parameters, self.max_grad_norm)
        set_learning_rate(optimizer, optimizer.param_groups[0]["lr"])  # the library set all groups to this rate
        self.precision.scaler.step(optimizer)

    def update(self) -> None:
        self.precision.update_scale()


def _library_finder(
    model: nn.Module, optimizer: Optimizer, steps: _Steps, criterion: Callable[..., Tensor]
) -> LRFinder:
    for group in optimizer.param_groups:
        group.pop("initial_lr", None)  # the mark of a scheduler, which the library refuses
    autocast = {"device_type": device_of(model).type, **_AUTOCAST[steps.precision.name]}
    amp = {"amp_backend": "torch", "amp_config": autocast, "grad_scaler": steps}
    finder = LRFinder(_Network(model), optimizer, criterion, **amp)
    finder.state_cacher.cached.clear()  # a second copy of weights and moments, which `restored` does not need
    return finder


def _criterion(loss_fn: Callable[..., Tensor], accumulation_steps: int) -> Callable[..., Tensor]:
    def criterion(logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        labels, tokens = targets
        loss = loss_sum(loss_fn, logits, labels) / tokens
        if not torch.isfinite(loss):
            raise _NonFiniteLoss
        return loss * accumulation_steps  # the library divides by it

    return criterion


def _endless(model: nn.Module, reader: Any) -> Iterator[AnyBatch]:
    """Epoch after epoch, without the batches that hold no target token."""
    while True:
        empty = True
        for batch in reader:
            check_batch(model, batch)
            if count_targets(batch["labels"]):
                empty = False
                yield batch
        if empty:
            raise ValueError("the loader holds no batch with a target token")
        set_next_epoch(reader)


def _precision_like(precision: Precision | None, model: nn.Module) -> Precision:
    """One of the sweep's own, so that the given one keeps its loss scale."""
    own = Precision("fp32" if precision is None else precision.name, device_of(model))
    if precision is not None:
        own.load_state_dict(precision.state_dict())
    return own


@contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Silence the library alone: its messages, its bar unless it is wanted, and a warning that its steps can cause."""
    bar = library.tqdm
    library.tqdm = _bar if progress else iter
    library.print = lambda *values: None  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")  # fp16 skips its first steps
            yield
    finally:
        library.tqdm = bar
        del library.print  # type: ignore[attr-defined]


def _bar(steps: range) -> Iterator[int]:
    bar = ProgressBar()
    bar.start(0, len(steps))
    try:
        for step in steps:
            yield step
            bar.log({"step": step + 1})
    finally:
        bar.close()


def _check_sweep(start_lr: float, end_lr: float, num_iter: int, accumulation_steps: int, threshold: float) -> None:
    require(_is_number(start_lr) and 0 < start_lr < math.inf, "start_lr", "a positive number", start_lr)
    above = _is_number(end_lr) and start_lr < end_lr < math.inf
    require(above, "end_lr", f"a number above start_lr ({start_lr:g})", end_lr)
    for name, value, least in (("num_iter", num_iter, 2), ("accumulation_steps", accumulation_steps, 1)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value >= least, name, f"a whole number of at least {least}", value)
    require(_is_number(threshold) and threshold > 1, "diverge_threshold", "a number above 1", threshold)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_loader(loader: Iterable[AnyBatch]) -> None:
    if isinstance(loader, Mapping):
        raise ValueError("loader must be an iterable of batches, got a single batch: put it in a list")
    if isinstance(loader, Iterator):
        raise ValueError("loader must be one that can be read again, got an iterator, which the test would use up")
