"""Groups of micro-batches that make one optimizer step, and the number of targets they share.

Every token of a step weighs the same when each micro-batch's *sum* of losses is divided by the target count of its
whole window. A mean of micro-batch means gives the tokens of short micro-batches more weight. `step.train_step` takes
a window and does that division.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from course_lm.batching import IGNORE_INDEX, AnyBatch
from course_lm.batching.batch import with_own_memory
from course_lm.loss import count_targets
from course_lm.validation import require_whole

_BatchT = TypeVar("_BatchT")


def windows(loader: Iterable[_BatchT], accumulation_steps: int) -> Iterator[list[_BatchT]]:
    """Lists of `accumulation_steps` batches; a shorter tail is a window of its own.

    A window is read when it is asked for, and nothing beyond it, so a loader's position is exactly what was
    yielded. What the loader raises is passed on, and the batches of the unfinished window are not yielded. Raises
    ValueError at once for `accumulation_steps` that is no whole number of at least 1.
    """
    require_whole("accumulation_steps", accumulation_steps, least=1)
    return _read_windows(iter(loader), accumulation_steps)


def count_window_targets(micro_batches: Sequence[AnyBatch], ignore_index: int = IGNORE_INDEX) -> Int64[Tensor, ""]:
    """Target tokens of all micro-batches, after the shift: a 0-d int64 tensor on the labels' device."""
    counts = (count_targets(batch["labels"], ignore_index) for batch in micro_batches)
    return sum(counts, start=torch.tensor(0))


def _read_windows(batches: Iterator[_BatchT], accumulation_steps: int) -> Iterator[list[_BatchT]]:
    # a generator apart from `windows`, which could otherwise raise only when its first window is read
    # a loader may fill one buffer again and again; a single batch is used before the next one is read
    held = batches if accumulation_steps == 1 else map(with_own_memory, batches)
    while window := list(islice(held, accumulation_steps)):
        yield window
