"""Checks of lesson 01: what truncation throws away, bits per byte, and a split that near copies cannot leak through."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from course_lm.classroom.checks.report import Report, compare

_Documents = Sequence[str]
_Ids = Sequence[Sequence[int]]
_Fraction = Callable[[str], float]
_Split = tuple[list[str], list[str]]


def lost_to_truncation(fn: Callable[..., object]) -> Report:
    """Share of the targets beyond `max_length`: `fn(lengths, max_length)`, the ids of each document, both <eos> in."""

    def reference(lengths: Sequence[int], max_length: int) -> float:
        lost = sum(max(0, length - max_length) for length in lengths)
        return lost / sum(length - 1 for length in lengths)

    return compare(
        fn,
        reference=reference,
        cases={
            "a short and a long document": ([5, 41], 16),
            "a document of exactly max_length": ([16, 20, 3], 16),
            "nothing is cut": ([5, 9, 12], 16),
            "all are cut": ([30, 100, 17, 55], 8),
            "max_length 2": ([2, 4, 9], 2),
        },
        mistakes={
            "documents are counted instead of targets": lambda lengths, max_length: (
                sum(length > max_length for length in lengths) / len(lengths)
            ),
            "each document's share weighs the same, however long it is": lambda lengths, max_length: (
                sum(max(0, length - max_length) / (length - 1) for length in lengths) / len(lengths)
            ),
            "the first <eos> of a document, which nothing predicts, counts as a target": lambda lengths, max_length: (
                sum(max(0, length - max_length) for length in lengths) / sum(lengths)
            ),
            "max_length ids are taken for max_length targets, but the first id is no target": (
                lambda lengths, max_length: (
                    sum(max(0, length - 1 - max_length) for length in lengths) / sum(length - 1 for length in lengths)
                )
            ),
            "the share that is kept is returned": lambda lengths, max_length: 1 - reference(lengths, max_length),
            "the lost targets are divided by those that are kept": lambda lengths, max_length: (
                reference(lengths, max_length) / (1 - reference(lengths, max_length))
            ),
            "the number of lost targets is returned, not their share": lambda lengths, max_length: sum(
                max(0, length - max_length) for length in lengths
            ),
        },
    )


def bits_per_byte(fn: Callable[..., object]) -> Report:
    """Bits per byte: `fn(loss, ids, documents)`, nats per target, the ids and the text of each document."""

    def targets(ids: _Ids) -> int:
        return sum(len(document) - 1 for document in ids)

    def num_bytes(documents: _Documents) -> int:
        return sum(len(document.encode()) for document in documents)

    def from_nats(nats: float, documents: _Documents) -> float:
        return nats / num_bytes(documents) / math.log(2)

    return compare(
        fn,
        reference=lambda loss, ids, documents: from_nats(loss * targets(ids), documents),
        cases={
            "English": (3.0, [[1, 300, 301, 1], [1, 302, 1]], ["the cat", " sat"]),
            "more bytes than characters": (2.5, [[1, 40, 41, 42, 43, 1]], ["Fähre ✓"]),
            "documents of different lengths": (
                1.75,
                [[1, 300, 1], [1, *range(300, 330), 1], [1, 301, 302, 1]],
                ["a", "once there was a ferry that did not wait " * 3, "हिन्दी"],
            ),
        },
        mistakes={
            "the division by log 2 is forgotten: nats per byte": lambda loss, ids, documents: (
                loss * targets(ids) / num_bytes(documents)
            ),
            "nats are turned into bits the wrong way: multiplied by log 2": lambda loss, ids, documents: (
                loss * targets(ids) / num_bytes(documents) * math.log(2)
            ),
            "characters are counted instead of bytes": lambda loss, ids, documents: (
                loss * targets(ids) / sum(len(document) for document in documents) / math.log(2)
            ),
            "the loss is multiplied by bytes per token instead of divided by it": lambda loss, ids, documents: (
                loss * num_bytes(documents) / targets(ids) / math.log(2)
            ),
            "the first <eos> of a document, which nothing predicts, counts as a target": lambda loss, ids, documents: (
                from_nats(loss * sum(len(document) for document in ids), documents)
            ),
            "neither <eos> counts as a target, although the model pays for the last one": lambda loss, ids, documents: (
                from_nats(loss * sum(len(document) - 2 for document in ids), documents)
            ),
            "each document weighs the same, however long it is": lambda loss, ids, documents: (
                sum(from_nats(loss * (len(i) - 1), [document]) for i, document in zip(ids, documents)) / len(documents)
            ),
            "the loss is only turned into bits: bits per token": lambda loss, ids, documents: loss / math.log(2),
        },
    )


def split_near_copies(fn: Callable[..., object]) -> Report:
    """Split without near copies on both sides: `fn(documents, val_fraction, hash_fraction)` gives two lists.

    Several forms of a text may be hashed, so what is compared is how the split behaves and not the split itself.
    """
    ferries = [f"The ferry {verb} at {hour}." for verb in ("waits", "leaves", "lands") for hour in range(8)]
    copies = [text for ferry in ferries for text in (ferry, ferry.upper(), f" {ferry}\n".replace(" ", "  "), ferry)]
    look_alikes = ["a bc", "ab c", "abc"] * 8
    return compare(
        fn,
        reference=_split_by(_plain),
        cases={"near copies": (copies + look_alikes, 0.3), "few documents are held out": (copies + look_alikes, 0.1)},
        mistakes={
            "the text is hashed as it is written, so that near copies part": _split_by(lambda text: text),
            "only upper and lower case are made equal, not white space": _split_by(str.lower),
            "only white space is made equal, not upper and lower case": _split_by(lambda text: " ".join(text.split())),
            "white space is removed, so that different texts count as copies": _split_by(
                lambda text: "".join(text.lower().split())
            ),
            "the position decides instead of the text": _split_by_position,
            "training and validation are exchanged": lambda *args: _split_by(_plain)(*args)[::-1],
            "the documents are returned in another form than they were written in": lambda documents, *args: _split_by(
                _plain
            )([_plain(document) for document in documents], *args),
            "near copies are thrown away instead of kept together": lambda documents, *args: _split_by(_plain)(
                list({_plain(document): document for document in documents}.values()), *args
            ),
            "hash_fraction does not decide (and Python's own hash() changes from process to process)": (
                lambda documents, val_fraction, _: _split_by(_plain)(documents, val_fraction, _fraction_with_key("own"))
            ),
        },
        run=_behaviour,
    )


def _behaviour(fn: Callable[..., Any], documents: list[str], val_fraction: float) -> dict[str, bool] | None:
    """What is true of the splits that `fn` makes, under many hash functions."""
    splits = []
    for key in range(40):
        split = fn(list(documents), val_fraction, _fraction_with_key(str(key)))
        if split is None or split is ...:
            return None
        splits.append(split)
    held_out = [set(validation) for _, validation in splits]
    backwards = fn(documents[::-1], val_fraction, _fraction_with_key("0"))
    decides = len(set(map(frozenset, held_out))) > 1
    # Where hash_fraction changes nothing there is one split only, and what else is true of it is chance.
    true = _statements(splits, held_out, documents, val_fraction) if decides else dict.fromkeys(_STATEMENTS, True)
    return true | {
        "the order of the documents does not matter": set(backwards[1]) == held_out[0],
        "hash_fraction decides": decides,
    }


_STATEMENTS = (
    "every document is in one of the two lists",
    "documents are as they were written",
    "they are in their order",
    "about val_fraction of them are held out",
    "copies that differ in upper and lower case stay together",
    "copies that differ in white space stay together",
    "different texts can part",
)


def _statements(
    splits: list[_Split], held_out: list[set[str]], documents: _Documents, val_fraction: float
) -> dict[str, bool]:
    share = sum(len(validation) for _, validation in splits) / len(splits) / len(documents)
    found = (
        all(len(train) + len(validation) == len(documents) for train, validation in splits),
        all({*train, *validation} <= set(documents) for train, validation in splits),
        all(_in_order(part, documents) for split in splits for part in split),
        abs(share - val_fraction) < 0.1,
        _same_side(held_out, documents, str.upper),
        _same_side(held_out, documents, lambda text: f" {text}\n".replace(" ", "  ")),
        any(len(held & {"a bc", "ab c", "abc"}) in (1, 2) for held in held_out),
    )
    return dict(zip(_STATEMENTS, found, strict=True))


def _in_order(part: Sequence[str], documents: Sequence[str]) -> bool:
    rest = iter(documents)
    return all(document in rest for document in part)


def _same_side(held_out: list[set[str]], documents: Sequence[str], change: Callable[[str], str]) -> bool:
    pairs = [(text, change(text)) for text in documents if change(text) in documents]
    return all((text in held) == (copy in held) for held in held_out for text, copy in pairs)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _fraction_with_key(key: str) -> _Fraction:
    def fraction(text: str) -> float:
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=key.encode()).digest()
        return int.from_bytes(digest, "big") / 2**64

    return fraction


def _split_by(form: Callable[[str], str]) -> Callable[[_Documents, float, _Fraction], _Split]:
    """A split where the hash of each document's form decides."""

    def split(documents: _Documents, val_fraction: float, hash_fraction: _Fraction) -> _Split:
        held_out = [hash_fraction(form(document)) < val_fraction for document in documents]
        train = [document for document, held in zip(documents, held_out) if not held]
        return train, [document for document, held in zip(documents, held_out) if held]

    return split


def _split_by_position(documents: _Documents, val_fraction: float, _: _Fraction) -> _Split:
    count = round(val_fraction * len(documents))
    return list(documents[count:]), list(documents[:count])
