"""Checks of lesson 02: what padding costs, what a label is, an order that can be resumed, who may look at whom."""

import builtins
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from course_lm import batching, model
from course_lm.batching import loader
from course_lm.batching.packing import Rows
from course_lm.classroom.checks.comparison import as_tensor, short
from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare

Pair = tuple[int, int]


def padding_share(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: the share of an epoch's positions that is padding, from lengths and a batch size."""
    draw = random.Random(0)
    start, full, batches = (
        "    positions = 0\n",
        "len(lengths) // batch_size * batch_size",
        "range(0, len(lengths), batch_size)",
    )
    rows, width, share = "len(batch) *", "max(batch)", "1 - sum(lengths) / positions"
    batch = "lengths[start : start + batch_size]"
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
        shown=[
            "two batches and a smaller last one",
            "a last batch of one long row",
            "rows of one length",
            "one row in each batch",
        ],
        mistakes={
            "the batches' shares are averaged: a small last batch then weighs as much as a full one": (
                lambda lengths, size: _mean(1 - sum(one) / (len(one) * max(one)) for one in _batches(lengths, size))
            ),
            "every batch is as wide as the longest row of all (fixed, not dynamic)": Edit(width, "max(lengths)"),
            "the share of the real tokens is returned instead of the padding's": Edit("1 - sum", "sum"),
            "padding is divided by the real tokens instead of by all positions": Edit(
                share, "positions / sum(lengths) - 1"
            ),
            "the number of PADs is returned, not their share of the positions": Edit(share, "positions - sum(lengths)"),
            "the share is given in percent, not between 0 and 1": Edit(share, f"100 * ({share})"),
            "a smaller last batch is dropped": Edit(start, f"{start}    lengths = lengths[:{full}]\n"),
            "the positions of a smaller last batch are left out, but its tokens are counted": Edit(
                batches, f"range(0, {full}, batch_size)"
            ),
            "a smaller last batch is counted as if it had all its rows": Edit(rows, "batch_size *"),
            "the rows are sorted by length first (bucketed, not dynamic)": AnyOf(
                Edit(start, f"{start}    lengths = sorted(lengths)\n"),
                Edit(start, f"{start}    lengths = sorted(lengths, reverse=True)\n"),
            ),
            "every row's own share is averaged: a row of a narrow batch weighs as much as one of a wide batch": (
                lambda lengths, size: _mean(1 - row / max(one) for one in _batches(lengths, size) for row in one)
            ),
            "only the last batch is looked at": lambda lengths, size: _padding_share(_batches(lengths, size)[-1], size),
            "only the first batch is looked at": lambda lengths, size: _padding_share(lengths[:size], size),
            "the longest row is never forgotten: a batch is as wide as the longest row until then": Edit(
                width, "max(lengths[: start + batch_size])"
            ),
            "a batch is as wide as its first row": Edit(width, "batch[0]"),
            "a batch is as wide as its last row": Edit(width, "batch[-1]"),
            "every batch is as wide as the mean row is long": Edit(width, "sum(lengths) / len(lengths)"),
            "each batch counts as one row: its width is not multiplied by its rows": Edit(rows, ""),
            "the PADs are divided by the number of rows, not of positions": Edit(
                share, "(positions - sum(lengths)) / len(lengths)"
            ),
            "the rows are dealt out to the batches in turn, not batch by batch": Edit(
                batch, "lengths[start // batch_size :: -(-len(lengths) // batch_size)]"
            ),
            "batch_size is taken as the number of batches": (
                Edit(start, f"{start}    batch_size = -(-len(lengths) // batch_size)\n"),
            ),
            "the shares of the batches are added up": lambda lengths, size: sum(
                1 - sum(one) / (len(one) * max(one)) for one in _batches(lengths, size)
            ),
        },
        hints={
            "positions += ": "A batch has as many positions as it has rows, times its longest row.",
            share: "Count tokens and positions of the whole epoch, and divide once, at the end.",
            "range(0, len(lengths), batch_size)": "The last batch may have fewer rows than `batch_size`, and counts.",
        },
    )


def _mean(numbers: Iterator[float]) -> float:
    listed = list(numbers)
    return sum(listed) / len(listed)


def _batches(lengths: list[int], batch_size: int) -> list[list[int]]:
    return [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]


def _padding_share(lengths: list[int], batch_size: int) -> float:
    of_row = torch.tensor(lengths)
    numbers = torch.arange(len(of_row))
    rows = Rows(torch.empty(0), numbers, of_row, of_row, numbers, torch.arange(len(of_row) + 1))
    epoch = batching.Loader(
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
    return batching.padding_share(epoch)


def labels_of(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: labels (B, T), from ids, a mask and perhaps document_ids, each (B, T)."""
    ids = torch.tensor([[1, 5, 6, 7, 1, 0], [1, 8, 1, 0, 0, 0]])
    right = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    packed = torch.tensor([[1, 5, 6, 1, 1, 7, 1, 0], [1, 8, 1, 1, 9, 5, 1, 0]])
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 0, 1, 1, 1, 1, -1]])
    first = "    segments = attention_mask if document_ids is None else document_ids\n"
    segments = "attention_mask if document_ids is None else document_ids"
    pads, begins = "attention_mask == 0", "    ignored[:, 1:] |= segments[:, 1:] != segments[:, :-1]\n"
    made, shifted = "input_ids.masked_fill(ignored, -100)", "input_ids.masked_fill(ignored, -100)[:, 1:]"
    no_begins = Edit(begins, "")
    return compare(
        fn,
        reference=batching.labels_of,
        run=_labels_that_count,
        cases={
            "padding on the left": (torch.tensor([[0, 1, 5, 1]]), torch.tensor([[0, 1, 1, 1]]), None),
            "padding on the right": (ids, right, None),
            "PAD and EOS share an id": (ids.masked_fill(ids == 0, 1).flip(1), right.flip(1), None),
            "packed rows": (packed, (documents >= 0).long(), documents),
            "packed rows, padding on the left": (
                packed.flip(1),
                (documents >= 0).long().flip(1),
                documents.flip(1),
            ),
            "packed pieces of long documents": (
                torch.tensor([[5, 1, 7, 8, 6, 9], [1, 1, 5, 1, 6, 1]]),
                torch.ones(2, 6, dtype=torch.long),
                torch.tensor([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]]),
            ),
        },
        shown=["padding on the left", "packed rows"],
        mistakes={
            "padding is a target": AnyOf(
                Edit(first, f"    attention_mask = attention_mask**0\n{first}"),
                Edit(pads, "attention_mask == 2"),
            ),
            "nothing is ignored: the labels are the ids": Edit(made, "input_ids.clone()"),
            "only PAD is ignored, and no first token after PAD or another document": no_begins,
            "every token with the id 0 is ignored, and the mask is not looked at": (
                Edit(pads, "input_ids == 0"),
                no_begins,
            ),
            "id 0 decides what is PAD, not the mask": Edit(pads, "input_ids == 0"),
            "every token with PAD's id is ignored: a real EOS too, where they share it": _by_ids,
            "every token with PAD's id is ignored, and no first token after PAD or another document": (
                lambda ids, mask, documents: ids.masked_fill(torch.isin(ids, ids[mask == 0]), -100)
            ),
            "every EOS is ignored": Edit(pads, "(attention_mask == 0) | (input_ids == 1)"),
            "the first token of a document inside a packed row is a target": Edit(segments, "attention_mask"),
            "the first real token after left padding is a target": Edit(
                segments, "attention_mask**0 if document_ids is None else document_ids"
            ),
            "the last token of each document is ignored, not the first": AnyOf(
                Edit("ignored[:, 1:] |=", "ignored[:, :-1] |="),
                _ends_ignored,
            ),
            "the last token of each document is ignored too, beside the first": (
                lambda ids, mask, documents: _ends_ignored(ids, mask, documents).minimum(
                    batching.labels_of(ids, mask, documents)
                )
            ),
            "the first two tokens of each document are ignored": Edit(
                begins,
                f"{begins}    ignored[:, 2:] |= (segments[:, 1:] != segments[:, :-1])[:, :-1]\n",
            ),
            "the second token of each document is ignored, not the first": Edit(
                begins, "    ignored[:, 2:] |= (segments[:, 1:] != segments[:, :-1])[:, :-1]\n"
            ),
            "the labels are already shifted, and the loss shifts them again": AnyOf(
                lambda ids, mask, documents: torch.nn.functional.pad(
                    batching.labels_of(ids, mask, documents)[:, 1:], (0, 1), value=-100
                ),
                Edit(made, f"{made}.roll(-1, 1)"),
                lambda ids, mask, documents: torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100).masked_fill(
                    batching.labels_of(ids, mask, documents) == -100, -100
                ),
            ),
            "the labels are one position shorter: they are cut as if the loss did not shift": AnyOf(
                Edit(made, shifted), Edit(made, f"{made}[:, :-1]")
            ),
            "the ids are shifted the wrong way: label t is token t − 1": Edit(made, f"{made}.roll(1, 1)"),
            "what is no target gets label 0, which is a token like any other": Edit("-100", "0"),
            "what is no target gets label −1: the loss ignores −100 alone": Edit("-100", "-1"),
            "what is no target gets label 100 instead of −100": Edit("-100", "100"),
            "everything but the targets keeps its id: what is ignored is turned around": Edit(
                "(ignored, -100)", "(~ignored, -100)"
            ),
            "the mask is turned around: real tokens are ignored and PAD is not": Edit(pads, "attention_mask == 1"),
            "a boolean mask of what is ignored is returned, not labels": Edit(made, "ignored"),
            "a mask of the targets is returned, not labels": AnyOf(Edit(made, "~ignored")),
            "the ignored tokens are taken out, and what is left is one row": Edit(made, "input_ids[~ignored]"),
            "the answer writes into input_ids: the model then reads -100 as a token": _in_place,
            "the answer writes into attention_mask: the model then does not see these tokens": _in_mask,
            "the answer writes into document_ids: the model then mixes the documents": _in_documents,
        },
        hints={
            "attention_mask == 0": "Only `attention_mask` knows what is PAD: ids may be shared.",
            "segments[:, 1:] != segments[:, :-1]": "A token begins a segment where its number is not that of the "
            "token before it.",
            "segments = ": "Where `document_ids` is given a segment is a document; else it is what the mask has.",
        },
    )


def _labels_that_count(fn: Callable[..., object], ids: Tensor, mask: Tensor, documents: Tensor | None) -> object:
    """The labels with −100 at position 0, which the shift drops. Raises Refused where `fn` writes into its input."""
    named = {
        "input_ids: the model then reads -100 as a token": ids,
        "attention_mask: the model then does not see these tokens": mask,
        "document_ids: the model then mixes the documents": documents,
    }
    before = {words: (tensor, tensor.clone()) for words, tensor in named.items() if tensor is not None}
    labels = fn(ids, mask, documents)
    for words, (tensor, kept) in before.items():
        if not torch.equal(kept, tensor):
            raise Refused(f"the answer writes into {words}")
    made = as_tensor(labels)
    if made is None or made.shape != ids.shape:
        return labels
    if isinstance(labels, Tensor) and labels.dtype in (torch.int8, torch.int16, torch.int32):
        raise Refused(f"the labels are {labels.dtype}: a loss takes them as torch.int64 alone")
    after_shift = made.clone()
    after_shift[:, 0] = batching.IGNORE_INDEX if made.dtype != torch.bool else False
    return after_shift


def _in_place(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    return ids.fill_(batching.IGNORE_INDEX)


def _in_mask(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    mask.fill_(2)
    return ids


def _in_documents(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    labels = batching.labels_of(ids, mask, documents)
    if documents is not None:
        documents.fill_(-2)
    return labels


def _by_ids(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    labels = batching.labels_of(ids, mask, documents)
    return labels.masked_fill(torch.isin(ids, ids[mask == 0]), batching.IGNORE_INDEX)


def _ends_ignored(ids: Tensor, mask: Tensor, documents: Tensor | None) -> Tensor:
    segments = mask if documents is None else documents
    ends = torch.ones_like(mask, dtype=torch.bool)
    ends[:, :-1] = segments[:, 1:] != segments[:, :-1]
    return ids.masked_fill((mask == 0) | ends, batching.IGNORE_INDEX)


_NEAR_PAIRS = [(seed, epoch) for seed in (0, 1, 2, 3, 11) for epoch in (0, 1, 2, 3, 11)]
_FACTORS = [
    *(2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 16, 17, 19, 20, 23, 29, 31, 32, 37, 41, 42, 50, 64, 97, 99, 100, 101),
    *(127, 128, 131, 200, 255, 256, 257, 500, 512, 997, 999, 1000, 1001, 1009, 1024, 1337, 4096, 9973, 10_000),
]
_FAR_PAIRS = [(0, 0), (1, 0), (0, 1), *(pair for number in _FACTORS for pair in ((0, number), (number, 0)))]


def epoch_order(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: the order of `count` rows as a pure function of (seed, epoch)."""
    mixed, drawn = 'random.Random(f"{seed} {epoch}").getrandbits(63)', "torch.randperm(count, generator=generator)"
    made = "torch.Generator().manual_seed(one_seed)"
    return compare(
        fn,
        reference=lambda count, seed, epoch: random.Random(f"{seed}, {epoch}").sample(range(count), count),
        run=_traits_of_order,
        cases={
            "small seeds and epochs": (20, _NEAR_PAIRS),
            "large epochs, and large seeds": (25, _FAR_PAIRS),
        },
        mistakes={
            "the numbers come from the global generator: the next call gives another order": AnyOf(
                Edit(drawn, "torch.randperm(count)"),
                Edit(drawn, "random.sample(range(count), count)"),
                lambda count, seed, epoch: np.random.permutation(count),
            ),
            "a generator is kept from call to call: an order depends on which ones were asked for before": (
                _from_kept_generators()
            ),
            "the global generator is seeded: dropout and all other random numbers are disturbed": AnyOf(
                Edit("torch.Generator().manual", "torch.manual"),
                (Edit(made, "random.seed(one_seed)"), Edit(drawn, "random.sample(range(count), count)")),
                lambda count, seed, epoch: _seeded_numpy(count, random.Random(f"{seed} {epoch}").getrandbits(32)),
            ),
            "seed and epoch are added: seed 0 in epoch 1 has the order of seed 1 in epoch 0": Edit(
                mixed, "seed + epoch"
            ),
            "the global generator is seeded with seed + epoch: other random numbers are disturbed, and seed 0 in "
            "epoch 1 has the order of seed 1 in epoch 0": AnyOf(
                (Edit(mixed, "seed + epoch"), Edit("torch.Generator().manual", "torch.manual")),
                lambda count, seed, epoch: _seeded_python(count, seed + epoch),
                lambda count, seed, epoch: _seeded_numpy(count, seed + epoch),
            ),
            "the epoch is not used: every epoch has the same order": Edit(mixed, "seed"),
            "the seed is not used, or lies above the 32 bits that torch looks at: every run has the same orders": Edit(
                mixed, "epoch"
            ),
            "the global generator is seeded with the seed alone: every epoch has the same order": AnyOf(
                (Edit(mixed, "seed"), Edit("torch.Generator().manual", "torch.manual")),
                lambda count, seed, epoch: _seeded_python(count, seed),
                lambda count, seed, epoch: _seeded_numpy(count, seed),
            ),
            "the order is always the same: neither seed nor epoch is used": Edit(mixed, "0"),
            "nothing is shuffled": Edit(drawn, "torch.arange(count)"),
            "rows are drawn with replacement: some come twice and some never": Edit(
                "torch.randperm(count, ", "torch.randint(count, (count,), "
            ),
            "the seed is multiplied by a number and the epoch added: an epoch as large as the number is the next seed's"
            " epoch 0": AnyOf(*(Edit(mixed, f"{number} * seed + epoch") for number in _FACTORS)),
            "the epoch is multiplied by a number and the seed added: a seed as large as the number is the next epoch of"
            " seed 0": AnyOf(*(Edit(mixed, f"seed + {number} * epoch") for number in _FACTORS)),
            "seed and epoch are multiplied: seed 0 has one order in all epochs": Edit(mixed, "seed * epoch"),
            "one more than the seed and one more than the epoch are multiplied: different pairs have one product": Edit(
                mixed, "(seed + 1) * (epoch + 1)"
            ),
            "seed and one more than the epoch are multiplied: seed 0 has one order in all epochs": Edit(
                mixed, "seed * (epoch + 1)"
            ),
            "the epoch is subtracted from the seed: seed 0 in epoch 0 has the order of seed 1 in epoch 1": AnyOf(
                Edit(mixed, "seed - epoch"), Edit(mixed, "abs(seed - epoch)")
            ),
            "seed and epoch are joined by ^ (exclusive or): seed 0 in epoch 1 has the order of seed 1 in epoch 0": Edit(
                mixed, "seed ^ epoch"
            ),
            "seed and epoch are joined by | (or): different pairs have one number": Edit(mixed, "seed | epoch"),
            "seed and epoch can change places: seed 0 in epoch 1 has the order of seed 1 in epoch 0": Edit(
                'f"{seed} {epoch}"', 'f"{min(seed, epoch)} {max(seed, epoch)}"'
            ),
            "the seed is raised to the power of the epoch: different pairs have one number": Edit(
                mixed, "pow(seed, epoch, 2**61 - 1)"
            ),
            "the two numbers are written without a sign between them: seed 1 in epoch 11 has the order of seed 11 in "
            "epoch 1": AnyOf(Edit("{seed} {epoch}", "{seed}{epoch}"), Edit(mixed, 'int(f"{seed}{epoch}")')),
            "the order depends on `hash` of a text, which every process salts anew: a resumed run has other orders": (
                Edit(mixed, 'hash(f"{seed} {epoch}")')
            ),
            "the clock is in the seed: started again, a run has another order": lambda count, seed, epoch: _order_of(
                count, 1_000_003 * seed + epoch + time.time_ns()
            ),
            "the generator gets no seed from the arguments, or goes on from call to call: the next call gives another "
            "order": Edit('random.Random(f"{seed} {epoch}")', "random.Random()"),
            "rows are counted from 1": Edit(drawn, f"1 + {drawn}"),
            "one row is missing": Edit("torch.randperm(count, ", "torch.randperm(count - 1, "),
            "the order of the seed is only turned by the epoch: after `count` epochs it comes again": (
                lambda count, seed, epoch: _order_of(count, seed).roll(epoch)
            ),
            "the order of the epoch is only turned by the seed: after `count` seeds it comes again": (
                lambda count, seed, epoch: _order_of(count, epoch).roll(seed)
            ),
        },
        hints={
            "one_seed = ": "One number must hold both: a text of seed and epoch, with a sign between them, can.",
            "generator = ": "A generator of its own, seeded in the call, disturbs nobody and needs no memory.",
        },
    )


def _order_of(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _from_kept_generators() -> Callable[[int, int, int], Tensor]:
    kept: dict[int, torch.Generator] = {}

    def order(count: int, seed: int, epoch: int) -> Tensor:
        if epoch == 0 or seed not in kept:
            kept[seed] = torch.Generator().manual_seed(seed)
        return torch.randperm(count, generator=kept[seed])

    return order


def _seeded_python(count: int, seed: int) -> list[int]:
    random.seed(seed)
    return random.sample(range(count), count)


def _seeded_numpy(count: int, seed: int) -> object:
    np.random.seed(seed)
    return np.random.permutation(count)


def _traits_of_order(fn: Callable[..., object], count: int, pairs: Sequence[Pair]) -> dict[str, object]:
    """What makes an order right, whichever order it is.

    Raises Refused where `fn` uses `epoch_generator`, or gives no row numbers.
    """
    unseen = getattr(fn, "__wrapped__", fn)  # the first call alone is shown: there is no order to expect of a call
    with _global_generators_kept(), _clock_at(0), patch.object(loader, "hashlib", _Forbidden()):
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
    seen: dict[tuple[int, ...], Pair] = {}
    repeated = []
    for pair, order in orders.items():
        if order in seen:
            repeated.append(f"{_name(seen[order])} = {_name(pair)}")
        seen.setdefault(order, pair)
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


def _name(pair: Pair) -> str:
    return f"seed {pair[0]}, epoch {pair[1]}"


def _row_numbers(order: object) -> list[int]:
    if order is None or order is ...:
        raise Refused("gives None for some seeds and epochs: a `return` is missing there")
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


class _Forbidden:
    """Stands for `hashlib` where `epoch_generator` looks for it."""

    def __getattr__(self, name: str) -> object:
        raise Refused("uses `epoch_generator`, which is not to be used here: make one seed of two numbers yourself")


@contextmanager
def _clock_at(second: int) -> Iterator[None]:
    """The clock stands still."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(time, "time", lambda: 1e9 + second))
        stack.enter_context(patch.object(time, "time_ns", lambda: 10**18 + second * 10**9))
        yield


@contextmanager
def _other_hashes() -> Iterator[None]:
    """In another process texts have other hashes."""
    own = hash
    with patch.object(builtins, "hash", lambda value: own(_salted(value))):
        yield


def _salted(value: object) -> object:
    """A value whose texts have a salt: the hash of numbers is the same in every process."""
    if isinstance(value, tuple):
        return tuple(map(_salted, value))
    if isinstance(value, frozenset):
        return frozenset(map(_salted, value))
    return ("salt", value) if isinstance(value, str | bytes) else value


def allowed_attention(fn: Callable[..., object]) -> Report:
    """Exercise of lesson 02: which position of a packed row may look at which, (B, T, T), from document_ids (B, T)."""
    same, real, itself = "document_ids[:, :, None] == document_ids[:, None, :]", " & real", " | itself"
    result = "(same & real).tril() | itself"
    return compare(
        fn,
        reference=_allowed,
        cases={
            "two documents and padding": (torch.tensor([[0, 0, 0, 1, 1, -1, -1]]),),
            "rows of different documents": (torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, -1, -1]]),),
            "one document, no padding": (torch.zeros(1, 4, dtype=torch.int64),),
            "padding on the left": (torch.tensor([[-1, -1, 0, 0, 1]]),),
            "three rows of three": (torch.tensor([[0, 0, -1], [0, 1, 1], [0, 0, 0]]),),
        },
        shown=[
            "two documents and padding",
            "one document, no padding",
            "three rows of three",
            "rows of different documents",
        ],
        mistakes={
            "the future is visible: a document's tokens see those after them": Edit(".tril()", ""),
            "time runs backwards: queries and keys are exchanged": Edit("tril", "triu"),
            "numbers are given where truth values are asked for": Edit(result, f"({result}).long()"),
            "documents are not kept apart": AnyOf(
                Edit("same & real", "real.expand(-1, document_ids.size(1), -1)"),
                Edit(same, "(document_ids[:, :, None] >= 0) & (document_ids[:, None, :] >= 0)"),
            ),
            "only the future is hidden: neither documents nor padding are kept apart": Edit(
                "same & real", "torch.ones_like(same)"
            ),
            "only padding is kept apart: neither the future nor other documents are hidden": AnyOf(
                Edit("(same & real).tril()", "real"),
                Edit("(same & real).tril()", "(real & real.transpose(1, 2))"),
            ),
            "only documents are kept apart: a token sees the future, and PAD sees PAD": Edit(result, "same"),
            "PAD sees the PAD before it": Edit(real, ""),
            "PAD sees nothing, not even itself: its softmax gives NaN": Edit(itself, ""),
            "a token does not see itself": (Edit("tril()", "tril(-1)"), Edit(itself, "")),
            "a token does not see itself, only PAD does": (
                Edit("tril()", "tril(-1)"),
                Edit(itself, " | (itself & (document_ids < 0)[:, None, :])"),
            ),
            "PAD sees every position": Edit(itself, " | (document_ids < 0)[:, :, None]"),
            "PAD sees every position up to itself": Edit(
                result, f"({result}) | (document_ids < 0)[:, :, None].expand(-1, -1, document_ids.size(1)).tril()"
            ),
            "every token sees PAD too": AnyOf(
                Edit(result, f"{result} | (document_ids < 0)[:, None, :]"),
                Edit(result, f"{result} | (document_ids < 0)[:, None, :].expand_as(same).tril()"),
            ),
            "every position sees position 0 too": Edit(
                result, f"{result} | (torch.arange(document_ids.size(1)) == 0)[None, None, :]"
            ),
            "a token sees only itself and the one before it": Edit("tril()", "tril().triu(-1)"),
            "it is turned around: true where a position may not look": Edit(result, f"~({result})"),
            "an additive mask is returned, 0 and −∞, where a boolean one is asked for": Edit(
                result, f"torch.zeros(()).where({result}, -torch.inf)"
            ),
            "there is one axis more, for the heads: (B, 1, T, T)": Edit(result, f"({result}).unsqueeze(1)"),
            "only the first row's mask is returned, (T, T)": Edit(result, f"({result})[0]"),
            "document 0 is taken for padding": Edit("document_ids >= 0", "document_ids > 0"),
            "only the key's number is compared with the first document's": Edit(
                same, "(document_ids[:, None, :] == document_ids[:, :1, None]).expand(-1, document_ids.size(1), -1)"
            ),
        },
        hints={
            "tril": "`tril()` keeps keys that are not later than the query, which is the row.",
            "real = ": "No position may look at a PAD other than itself: the key decides.",
            "same = ": "Query before key: `[:, :, None]` is the query's document, `[:, None, :]` the key's.",
        },
    )


def _allowed(documents: Tensor) -> Tensor:
    allowed = model.allowed_attention((documents >= 0).long(), documents)
    assert allowed is not None  # it is for plain causal attention only
    return allowed
