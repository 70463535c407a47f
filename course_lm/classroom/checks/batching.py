"""Checks of lesson 02: what padding costs, what a label is, an order that can be resumed, who may look at whom."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from course_lm import batching, model
from course_lm.batching.packing import Rows
from course_lm.classroom.checks.report import Report, compare


def padding_share(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: the share of an epoch's positions that is padding, from lengths and a batch size."""
    draw = random.Random(0)
    return compare(
        fn,
        reference=_padding_share,
        cases={
            "two batches and a smaller last one": ([9, 4, 7, 2, 5, 3, 8], 3),
            "a last batch of one long row": ([3, 5, 4, 6, 40], 2),
            "rows of one length": ([5, 5, 5, 5], 2),
            "one row in each batch": ([3, 9, 4], 1),
            "a hundred rows": ([draw.randint(3, 90) for _ in range(100)], 16),
        },
        mistakes={
            "the batches' shares are averaged: a small last batch then weighs as much as a full one": _mean_of_shares,
            "every batch is as wide as the longest row of all (fixed, not dynamic)": lambda lengths, size: (
                1 - sum(lengths) / (len(lengths) * max(lengths))
            ),
            "the share of the real tokens is returned instead of the padding's": lambda lengths, size: (
                sum(lengths) / _positions(lengths, size)
            ),
            "padding is divided by the real tokens instead of by all positions": lambda lengths, size: (
                _positions(lengths, size) / sum(lengths) - 1
            ),
            "a smaller last batch is dropped": lambda lengths, size: _padding_share(
                lengths[: len(lengths) // size * size], size
            ),
            "a smaller last batch is counted as if it had all its rows": lambda lengths, size: (
                1 - sum(lengths) / sum(size * max(batch) for batch in _batches(lengths, size))
            ),
            "the rows are sorted by length first (bucketed, not dynamic)": lambda lengths, size: _padding_share(
                sorted(lengths), size
            ),
        },
    )


def labels_of(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: labels (B, T), from ids, a mask and perhaps document_ids, each (B, T)."""
    ids = torch.tensor([[1, 5, 6, 7, 1, 0], [1, 8, 1, 0, 0, 0]])
    right = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    packed = torch.tensor([[1, 5, 6, 1, 1, 7, 1, 0], [1, 8, 1, 1, 9, 5, 1, 0]])
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 0, 1, 1, 1, 1, -1]])
    return compare(
        fn,
        reference=batching.labels_of,
        run=_labels_that_count,
        cases={
            "padding on the right": (ids, right, None),
            "PAD and EOS share an id": (ids.masked_fill(ids == 0, 1), right, None),
            "padding on the left": (ids.flip(1), right.flip(1), None),
            "packed rows": (packed, (documents >= 0).long(), documents),
            "packed rows without padding": (packed[:, :7], torch.ones_like(packed[:, :7]), documents[:, :7]),
        },
        mistakes={
            "padding is a target": lambda ids, mask, documents: batching.labels_of(
                ids, torch.ones_like(mask), documents
            ),
            "every token with the id 0 is ignored, and the mask is not looked at": lambda ids, mask, documents: (
                ids.masked_fill(ids == 0, batching.IGNORE_INDEX)
            ),
            "only PAD is ignored, and no first token after PAD or another document": lambda ids, mask, documents: (
                ids.masked_fill(mask == 0, batching.IGNORE_INDEX)
            ),
            "every token with PAD's id is ignored: a real EOS too, where they share it": _by_ids,
            "the first token of a document inside a packed row is a target": lambda ids, mask, documents: (
                batching.labels_of(ids, mask)
            ),
            "the first real token after left padding is a target": lambda ids, mask, documents: batching.labels_of(
                ids, mask, documents
            ).where(_left_starts(mask) == 0, ids),
            "the last token of each document is ignored, not the first": _ends_ignored,
            "the labels are already shifted, and the loss shifts them again": lambda ids, mask, documents: (
                torch.nn.functional.pad(batching.labels_of(ids, mask, documents)[:, 1:], (0, 1), value=-100)
            ),
            "what is no target gets label 0, which is a token like any other": lambda ids, mask, documents: (
                batching.labels_of(ids, mask, documents).clamp(min=0)
            ),
            "the answer writes into input_ids: the model then reads -100 as a token": _in_place,
        },
    )


def epoch_order(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: the order of `count` rows as a pure function of (seed, epoch)."""
    return compare(
        fn,
        reference=_epoch_order,
        run=_traits_of_order,
        cases={
            "seed 0, epoch 0, beside epoch 1": (100, (0, 0), (0, 1)),
            "seed 0, epoch 0, beside seed 1": (100, (0, 0), (1, 0)),
            "seed 0, epoch 1, beside seed 1, epoch 0": (100, (0, 1), (1, 0)),
            "seed 3, epoch 8, beside seed 8, epoch 3": (100, (3, 8), (8, 3)),
        },
        mistakes={
            "the numbers come from the global generator: the next call gives another order": (
                lambda count, seed, epoch: torch.randperm(count)
            ),
            "the global generator is seeded: dropout and all other random numbers are disturbed": _global_seed,
            "the global generator is seeded with seed + epoch: other random numbers are disturbed, and seed 0 in "
            "epoch 1 has the order of seed 1 in epoch 0": lambda count, seed, epoch: _global_seed(
                count, 0, seed + epoch
            ),
            "seed and epoch are added: seed 0 in epoch 1 has the order of seed 1 in epoch 0": (
                lambda count, seed, epoch: _epoch_order(count, 0, seed + epoch)
            ),
            "the epoch is not used: every epoch has the same order": lambda count, seed, epoch: _epoch_order(
                count, seed, 0
            ),
            "the seed is not used: every run has the same orders": lambda count, seed, epoch: _epoch_order(
                count, 0, epoch
            ),
            "rows are drawn with replacement: some come twice and some never": lambda count, seed, epoch: torch.randint(
                count, (count,), generator=batching.epoch_generator(seed, epoch)
            ),
            "nothing is shuffled": lambda count, seed, epoch: torch.arange(count),
        },
    )


def allowed_attention(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: which position of a packed row may look at which, (B, T, T), from document_ids (B, T)."""
    return compare(
        fn,
        reference=_allowed,
        cases={
            "two documents and padding": (torch.tensor([[0, 0, 0, 1, 1, -1, -1]]),),
            "rows of different documents": (torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, -1, -1]]),),
            "one document, no padding": (torch.zeros(1, 4, dtype=torch.int64),),
        },
        mistakes={
            "the future is visible: a document's tokens see those after them": lambda documents: (
                _allowed(documents) | _allowed(documents).transpose(1, 2)
            ),
            "time runs backwards: queries and keys are exchanged": lambda documents: _allowed(documents).transpose(
                1, 2
            ),
            "documents are not kept apart": lambda documents: model.allowed_attention((documents >= 0).long(), None),
            "only the future is hidden: neither documents nor padding are kept apart": lambda documents: torch.ones(
                *documents.shape, documents.size(1), dtype=torch.bool
            ).tril(),
            "only documents are kept apart: a token sees the future, and PAD sees PAD": lambda documents: (
                documents[:, :, None] == documents[:, None, :]
            ),
            "PAD sees the PAD before it": lambda documents: (documents[:, :, None] == documents[:, None, :]).tril(),
            "PAD sees nothing, not even itself: its softmax gives NaN": lambda documents: (
                _allowed(documents) & (documents >= 0)[:, :, None]
            ),
            "a token does not see itself": lambda documents: _allowed(documents).tril(diagonal=-1),
        },
    )


def _batches(lengths: list[int], batch_size: int) -> list[list[int]]:
    return [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]


def _positions(lengths: list[int], batch_size: int) -> int:
    return sum(len(batch) * max(batch) for batch in _batches(lengths, batch_size))


def _padding_share(lengths: list[int], batch_size: int) -> float:
    of_row = torch.tensor(lengths)
    numbers = torch.arange(len(of_row))
    rows = Rows(torch.empty(0), numbers, of_row, of_row, numbers, torch.arange(len(of_row) + 1))
    loader = batching.Loader(
        rows,
        [(numbers, batch_size)],
        pad_id=0,
        packed=False,
        width=None,
        seed=0,
        shuffle=False,
        num_workers=0,
        pin_memory=False,
    )
    return batching.padding_share(loader)


def _mean_of_shares(lengths: list[int], batch_size: int) -> float:
    shares = [1 - sum(batch) / (len(batch) * max(batch)) for batch in _batches(lengths, batch_size)]
    return sum(shares) / len(shares)


def _labels_that_count(
    fn: Callable[..., object], ids: Tensor, mask: Tensor, documents: Tensor | None
) -> dict[str, object] | None:
    """All but position 0, which the shift drops, and whether `fn` left its input alone; None: not written yet."""
    before = ids.clone()
    labels = fn(ids, mask, documents)
    if labels is None or labels is ...:
        return None
    after_shift = labels[:, 1:] if isinstance(labels, Tensor) and labels.ndim == 2 else labels
    return {"labels from position 1 on": after_shift, "input_ids are unchanged": torch.equal(ids, before)}


def _in_place(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    return ids.copy_(batching.labels_of(ids, mask, documents))


def _left_starts(mask: Tensor) -> Tensor:
    """1 where real tokens begin after PAD, (B, T)."""
    return torch.nn.functional.pad((mask[:, 1:] > mask[:, :-1]).long(), (1, 0))


def _by_ids(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    labels = batching.labels_of(ids, mask, documents)
    return labels.masked_fill(torch.isin(ids, ids[mask == 0]), batching.IGNORE_INDEX)


def _ends_ignored(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    segments = mask if documents is None else documents
    ends = torch.ones_like(mask, dtype=torch.bool)
    ends[:, :-1] = segments[:, 1:] != segments[:, :-1]
    return ids.masked_fill((mask == 0) | ends, batching.IGNORE_INDEX)


def _epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=batching.epoch_generator(seed, epoch))


def _global_seed(count: int, seed: int, epoch: int) -> Tensor:
    torch.manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(count)


def _traits_of_order(
    fn: Callable[..., object], count: int, one: tuple[int, int], other: tuple[int, int]
) -> dict[str, bool] | None:
    """What makes an order right, whichever order it is; None where `fn` is not written yet."""
    held = random.getstate()
    random.seed("the program that draws an order")
    before = torch.get_rng_state(), random.getstate()
    try:
        first = fn(count, *one)
        if first is None or first is ...:
            return None
        untouched = torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
        torch.rand(1)
        drawn = (first, fn(count, *one), fn(count, *other))
    finally:
        random.setstate(held)
    order, again, beside = (torch.as_tensor(order).flatten().tolist() for order in drawn)
    return {
        "each row comes once": sorted(order) == list(range(count)),
        "a second call gives the same order": order == again,
        "the other seed and epoch give the same order": order == beside,
        "the global generator is left alone": untouched,
    }


def _allowed(documents: Tensor) -> Tensor:
    allowed = model.allowed_attention((documents >= 0).long(), documents)
    assert allowed is not None  # it is for plain causal attention only
    return allowed
