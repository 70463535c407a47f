"""The learning-rate range test: train while the learning rate grows, see what the loss says, and undo it all.

The test goes back to Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3, which raises the
rate linearly and reads the accuracy; to raise it by a factor and read the training loss is fastai's form. Each step is
one of `train_step`, so a sweep clips, accumulates and rounds as the run that follows it. Afterwards model, optimizer,
data and random generators are what they were.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.accumulation import windows
from course_lm.batching.batch import with_own_memory
from course_lm.batching.data import check_holds_batches, read_from_start, set_next_epoch
from course_lm.clipping import clip_gradients
from course_lm.forward import AnyBatch
from course_lm.guard import check_batch, checked_options
from course_lm.loss import count_targets, next_token_loss
from course_lm.lr_finder.curve import LEAST_POINTS, SKIP_END, SKIP_START, SMOOTHING, LRFinderResult, check_reading
from course_lm.lr_finder.trial import restored
from course_lm.monitoring import Observers, ProgressBar, evaluate
from course_lm.monitoring.evaluation import check_validation_loader
from course_lm.precision import Precision
from course_lm.step import take_step
from course_lm.validation import is_number, require, require_whole


def find_lr(
    model: nn.Module,
    loader: Iterable[AnyBatch],
    optimizer: Optimizer,
    *,
    start_lr: float = 1e-6,
    end_lr: float = 1.0,
    num_iter: int = 100,
    val_loader: Iterable[AnyBatch] | None = None,
    val_batches: int = 8,
    accumulation_steps: int = 1,
    loss_fn: Callable[..., Tensor] = next_token_loss,
    max_grad_norm: float | None = 1.0,
    clip: Callable[..., object] = clip_gradients,
    precision: Precision | None = None,
    diverge_threshold: float = 3.0,
    smoothing: float = SMOOTHING,
    skip_start: int = SKIP_START,
    skip_end: int = SKIP_END,
    progress: bool = False,
) -> LRFinderResult:
    """Take `num_iter` steps with a learning rate that grows by the same factor each time; then undo them all.

    Args:
        model, loss_fn, max_grad_norm, clip, precision: as for `train_step`.
        loader: of batches; read again where it is too short, so no iterator. Batches without a target are passed over.
        optimizer: as for `train_step`. The sweep starts from its state. Groups keep their ratios, see `optim`.
        start_lr, end_lr: first and last learning rate.
        val_loader: of batches that are not trained on. With it a point is not the loss of its step, which is measured
            before the update, but what `evaluate` gives after it: only that shows over-fitting. It costs a forward
            pass over these batches for each step.
        val_batches: read at most so many of its first batches; each of their target tokens weighs the same.
        accumulation_steps: micro-batches of a step; each token of the step weighs the same.
        diverge_threshold: stop after a loss of this many times the lowest so far: one that has risen from it by this
            number less one, in units of the lowest's size or of the fall before it, whichever is larger.
        smoothing, skip_start, skip_end: see `suggest`.
        progress: show a bar.

    A loss or a gradient that is not finite ends the sweep, but for an fp16 overflow, which is skipped as in a run.

    Raises:
        ValueError: a setting out of its range, or a loader without a target token.
        TypeError, ValueError: an argument that `train_step` would refuse.
    """
    check_sweep(start_lr, end_lr, num_iter)
    require_whole("accumulation_steps", accumulation_steps, least=1)
    above_one = is_number(diverge_threshold) and diverge_threshold > 1
    require(above_one, "diverge_threshold", "a number above 1", diverge_threshold)
    check_reading(smoothing, skip_start, skip_end)
    check_holds_batches(loader, "training")
    if isinstance(loader, Iterator):
        raise ValueError("loader must be one that can be read again, got an iterator, which the test would use up")
    held_out = _first_batches(val_loader, val_batches)
    options = checked_options(
        model,
        optimizer,
        loss_fn=loss_fn,
        max_grad_norm=max_grad_norm,
        clip=clip,
        precision=deepcopy(precision),  # the given one keeps its loss scale
        on_nonfinite="skip",  # here divergence is a result, not an error
    )
    precision = options.precision
    lrs = np.geomspace(float(start_lr), float(end_lr), num_iter).tolist()
    losses, stopped = [], None
    observers = Observers([ProgressBar()] if progress else [])
    with restored(model, optimizer, loader, loss_fn, clip) as reader, closing(observers):
        if not model.training:  # else modules that their owner put in eval mode stay in it
            model.train()
        observers.start(0, num_iter)
        # zip asks for a rate first, so that after the last one no window is read in vain.
        for lr, window in zip(lrs, windows(_endless(model, reader), accumulation_steps)):
            step = take_step(model, window, optimizer, options, lr=lr)
            loss = float(step.loss)
            # An fp16 overflow: the loss is finite, its scaled gradient is not. The scale shrinks and the sweep goes on.
            overflowed = precision.scales and math.isfinite(loss)
            if step.skipped and not overflowed:
                stopped = "not finite"
                break
            if held_out is not None:
                loss = evaluate(model, held_out, precision)["val_loss"]
                # The update itself may have led out of the numbers.
                if not math.isfinite(loss):
                    stopped = "not finite"
                    break
            losses.append(loss)
            observers.log({"step": len(losses)})
            if _has_diverged(losses, diverge_threshold):
                stopped = "diverged"
                break
    return LRFinderResult(lrs[: len(losses)], losses, stopped, smoothing, skip_start, skip_end)


def _has_diverged(losses: Sequence[float], threshold: float) -> bool:
    """Whether the last loss is too far above the lowest; a loss of one's own may be negative, or begin at 0."""
    *before, last = losses
    if len(before) < LEAST_POINTS:
        return False  # too few to read, and to tell noise around 0 from a rise
    lowest = min(before)
    fall = max(before[:LEAST_POINTS]) - lowest
    return last - lowest > (threshold - 1) * max(abs(lowest), fall)


def _endless(model: nn.Module, reader: Any) -> Iterator[AnyBatch]:
    """Epoch after epoch, without the batches that hold no target token."""
    while True:
        empty = True
        for number, batch in enumerate(reader):
            check_batch(model, batch, first=number == 0)
            if count_targets(batch["labels"]):
                empty = False
                yield batch
        if empty:
            raise ValueError("the loader holds no batch with a target token")
        # Else a loader whose order follows from the epoch would repeat it.
        set_next_epoch(reader)


def _first_batches(val_loader: Iterable[AnyBatch] | None, count: int) -> list[AnyBatch] | None:
    """What each point is measured on: read once, so that all points are measured on the same batches."""
    require_whole("val_batches", count, least=1)
    if val_loader is None:
        return None
    check_validation_loader(val_loader)
    with read_from_start(val_loader) as batches:
        return list(map(with_own_memory, islice(batches, count)))


def check_sweep(start_lr: float, end_lr: float, num_iter: int) -> None:
    """Raise ValueError for a sweep that cannot be: before a text is read for it."""
    require(is_number(start_lr) and 0 < start_lr < math.inf, "start_lr", "a positive number", start_lr)
    above = is_number(end_lr) and start_lr < end_lr < math.inf
    require(above, "end_lr", f"a number above start_lr ({start_lr:g})", end_lr)
    require_whole("num_iter", num_iter, least=2)
