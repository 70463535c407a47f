"""Exercises of lesson 02: what padding costs, what a label is, an order that can be resumed, who may look at whom."""

import builtins
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from course_lm.batching import IGNORE_INDEX
from course_lm.classroom.checks import Refused, exercise
from course_lm.classroom.checks.comparison import as_tensor, short


@exercise(
    cases={
        "two batches and a smaller last one": ([9, 4, 7, 2, 5, 3, 8], 3),
        "a last batch of one long row": ([3, 5, 4, 6, 40], 2),
        "rows of one length": ([5, 5, 5, 5], 2),
        "one row in each batch": ([3, 9, 4], 1),
        "a hundred rows": ([3 + 37 * row % 88 for row in range(100)], 16),
    },
)
def padding_share(lengths, batch_size):
    """The share of an epoch's positions that is padding: `fn(lengths, batch_size)`."""
    positions = 0
    for start in range(0, len(lengths), batch_size):
        batch = lengths[start : start + batch_size]
        positions += len(batch) * max(batch)
    return 1 - sum(lengths) / positions


_IDS = torch.tensor([[1, 5, 6, 7, 1, 0], [1, 8, 1, 0, 0, 0]])
_MASK = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
_PACKED = torch.tensor([[1, 5, 6, 1, 1, 7, 1, 0], [1, 8, 1, 9, 9, 5, 1, 0]])
_DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 0, 1, 1, 1, 1, -1]])


def _labels_that_count(fn: Callable[..., object], *args: Tensor | None) -> object:
    """The labels with −100 at position 0, which the shift drops."""
    labels = fn(*args)
    made = as_tensor(labels)
    if made is None or args[0] is None or made.shape != args[0].shape:
        return labels
    if isinstance(labels, Tensor) and labels.dtype in (torch.int8, torch.int16, torch.int32):
        raise Refused(f"the labels are {labels.dtype}: a loss takes them as torch.int64 alone")
    after_shift = made.clone()
    after_shift[:, 0] = IGNORE_INDEX if made.dtype != torch.bool else False
    return after_shift


@exercise(
    cases={
        "padding on the left": (torch.tensor([[0, 1, 5, 1]]), torch.tensor([[0, 1, 1, 1]]), None),
        "padding on the right": (_IDS, _MASK, None),
        "PAD and EOS share an id": (_IDS.masked_fill(_IDS == 0, 1).flip(1), _MASK.flip(1), None),
        "packed rows": (_PACKED, (_DOCUMENTS >= 0).long(), _DOCUMENTS),
        "packed rows, padding on the left": (_PACKED.flip(1), (_DOCUMENTS >= 0).long().flip(1), _DOCUMENTS.flip(1)),
        "packed pieces of long documents": (
            torch.tensor([[5, 1, 7, 8, 6, 9], [1, 1, 5, 1, 6, 1]]),
            torch.ones(2, 6, dtype=torch.long),
            torch.tensor([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]]),
        ),
    },
    run=_labels_that_count,
)
def labels_of(input_ids, attention_mask, document_ids=None):
    """Labels (B, T), from ids, a mask and perhaps document_ids, each (B, T)."""
    segments = attention_mask if document_ids is None else document_ids
    ignored = attention_mask == 0
    ignored[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    return input_ids.masked_fill(ignored, -100)


_NEAR_PAIRS = [(seed, epoch) for seed in (0, 1, 2, 3, 11) for epoch in (0, 1, 2, 3, 11)]
_FACTORS = [
    *(2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 16, 17, 19, 20, 23, 29, 31, 32, 37, 41, 42, 50, 64, 97, 99, 100, 101),
    *(127, 128, 131, 200, 255, 256, 257, 500, 512, 997, 999, 1000, 1001, 1009, 1024, 1337, 4096, 9973, 10_000),
]
_FAR_PAIRS = [(0, 0), (1, 0), (0, 1), *(pair for number in _FACTORS for pair in ((0, number), (number, 0)))]


def _traits_of_order(fn: Any, count: int, pairs: Sequence[tuple[int, int]]) -> dict[str, object]:
    """What makes an order right, whichever order it is. Raises Refused where `fn` gives no row numbers."""
    unseen = getattr(fn, "__wrapped__", fn)  # the first call alone is shown: there is no order to expect of a call
    with _global_generators_kept(), _clock_at(0):
        before = _states()
        first = _row_numbers(fn(count, *pairs[0]))
        touched = [name for name, state in _states().items() if state != before[name]]
        for draw in (torch.rand, np.random.rand):
            draw(1)
        random.random()
        again = _row_numbers(unseen(count, *pairs[0]))
        with _other_hashes():
            elsewhere = _row_numbers(unseen(count, *pairs[0]))
        with _clock_at(12_345):
            later = _row_numbers(unseen(count, *pairs[0]))
        orders = {pair: tuple(_row_numbers(unseen(count, *pair))) for pair in pairs}
        backwards = {pair: tuple(_row_numbers(unseen(count, *pair))) for pair in reversed(pairs)}
    seen: dict[tuple[int, ...], str] = {}
    repeated = []
    for (seed, epoch), order in orders.items():
        name = f"seed {seed}, epoch {epoch}"
        if seen.setdefault(order, name) != name:
            repeated.append(f"{seen[order]} = {name}")
    kinds = [_kind_of_rows(list(order), count) for order in (first, *orders.values())]
    steps = Counter((after - row) % count for row, after in pairwise(first))
    return {
        "row numbers": next((kind for kind in kinds if kind != kinds[0]), kinds[0]),
        "the rows are shuffled": steps.most_common(1)[0][1] < len(first) / 2 if steps else False,
        "a second call gives the same order": first == again,
        "the order does not depend on the calls before": first != again or orders == backwards,
        "another process gives the same order": first != again or again == elsewhere,
        "the same order comes an hour later": first != again or again == later,
        "global generators that are touched": touched,
        "orders that come twice": repeated,
    }


def _row_numbers(order: object) -> list[int]:
    made = as_tensor(order)
    if made is None or made.ndim != 1:
        raise Refused(f"expected row numbers as a list or a tensor of one dimension, got {short(order)}")
    return made.tolist()


def _kind_of_rows(rows: list[int], count: int) -> str:
    if sorted(rows) == list(range(count)):
        return f"0 to {count - 1}, each once"
    if len(rows) != count:
        return f"{len(rows)} instead of {count}"
    return "some come twice" if len(set(rows)) < count else f"{min(rows)} to {max(rows)}"


def _states() -> dict[str, str]:
    """The states of the generators that everybody shares, as texts that can be compared."""
    name, keys, *rest = np.random.get_state()
    return {
        "torch": str(hash(torch.get_rng_state().numpy().tobytes())),
        "Python": str(hash(random.getstate())),
        "NumPy": str((name, hash(np.asarray(keys).tobytes()), rest)),
    }


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """torch's are kept around every call of an answer."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    random.seed("the program that draws an order")
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextmanager
def _clock_at(second: int) -> Iterator[None]:
    """The clock stands still."""
    nanoseconds = (10**9 + second) * 10**9
    with patch.object(time, "time", lambda: nanoseconds / 1e9), patch.object(time, "time_ns", lambda: nanoseconds):
        yield


@contextmanager
def _other_hashes() -> Iterator[None]:
    """In another process texts have other hashes, numbers the same."""
    own = hash
    with patch.object(builtins, "hash", lambda value: own(("salt", value) if "'" in repr(value) else value)):
        yield


@exercise(
    cases={
        "small seeds and epochs": (20, _NEAR_PAIRS),
        "large epochs, and large seeds": (25, _FAR_PAIRS),
    },
    run=_traits_of_order,
    without=("epoch_generator",),
)
def epoch_order(count, seed, epoch):
    """The order of `count` rows as a pure function of (seed, epoch)."""
    one_seed = random.Random(f"{seed} {epoch}").getrandbits(63)
    generator = torch.Generator().manual_seed(one_seed)
    return torch.randperm(count, generator=generator)


def _of_sum(count: int, seed: int, epoch: int, *, of_seed: int = 1, of_epoch: int = 1) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(of_seed * seed + of_epoch * epoch))


epoch_order.also(
    "the seed is multiplied by a number and the epoch added: an epoch as large as the number is the next seed's "
    "epoch 0",
    *(partial(_of_sum, of_seed=number) for number in _FACTORS),
)
epoch_order.also(
    "the epoch is multiplied by a number and the seed added: a seed as large as the number is the next epoch of seed 0",
    *(partial(_of_sum, of_epoch=number) for number in _FACTORS),
)


@exercise(
    cases={
        "two documents and padding": (torch.tensor([[0, 0, 0, 1, 1, -1, -1]]),),
        "rows of different documents": (torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, -1, -1]]),),
        "one document, no padding": (torch.zeros(1, 4, dtype=torch.int64),),
        "padding on the left": (torch.tensor([[-1, -1, 0, 0, 1]]),),
        "three rows of three": (torch.tensor([[0, 0, -1], [0, 1, 1], [0, 0, 0]]),),
    },
)
def allowed_attention(document_ids):
    """Which position of a packed row may look at which, (B, T, T), from document_ids (B, T)."""
    same = document_ids[:, :, None] == document_ids[:, None, :]  # (B, T, T)
    real = (document_ids >= 0)[:, None, :]  # (B, 1, T), of the key
    itself = torch.eye(document_ids.size(1), dtype=torch.bool)  # (T, T)
    return (same & real).tril() | itself
