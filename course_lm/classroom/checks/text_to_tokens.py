"""Checks of lesson 01: what truncation throws away, bits per byte, and a split that near copies cannot leak through."""

import builtins
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any
from unittest.mock import patch

from course_lm.classroom.checks.comparison import short
from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare

_Documents = Sequence[str]
_Ids = Sequence[Sequence[int]]
_Fraction = Callable[[str], float]
_Split = tuple[list[str], list[str]]
_Sides = tuple[set[str], set[str]]
_Splitter = Callable[[_Documents, float, _Fraction], _Split]


def lost_to_truncation(fn: Callable[..., object]) -> Report:
    """Share of the targets beyond `max_length`: `fn(lengths, max_length)`, the ids of each document, both <eos> in."""
    left, all_targets = "min(length, max_length) - 1", "sum(length - 1 for length in lengths)"

    def reference(lengths: Sequence[int], max_length: int) -> float:
        lost = sum(max(0, length - max_length) for length in lengths)
        return lost / sum(length - 1 for length in lengths)

    def each_alone(lengths: Sequence[int], max_length: int) -> float:
        return fmean(reference([length], max_length) for length in lengths)

    return compare(
        fn,
        reference=reference,
        cases={
            "a short and a long document": ([5, 41], 16),
            "a document of exactly max_length": ([16, 20, 15], 16),
            "nothing is cut": ([5, 9, 12], 16),
            "all are cut": ([30, 100, 17, 55], 8),
            "max_length 2": ([2, 4, 9], 2),
        },
        shown=["a short and a long document", "nothing is cut", "max_length 2"],
        mistakes={
            "documents are counted instead of targets": lambda lengths, max_length: (
                sum(length > max_length for length in lengths) / len(lengths)
            ),
            "each document's share weighs the same, however long it is": each_alone,
            "the first <eos> of a document, which nothing predicts, counts as a target": (
                Edit("sum(length - 1 for", "sum(length for"),
                Edit(left, "min(length, max_length)"),
            ),
            "max_length ids are taken for max_length targets, but the first id is no target": Edit(
                left, "min(length - 1, max_length)"
            ),
            "all is counted in ids, and what is kept in targets": Edit("sum(length - 1 for", "sum(length for"),
            "all is counted in targets, and what is kept in ids": Edit(left, "min(length, max_length)"),
            "neither <eos> of a document counts as a target": lambda lengths, max_length: (
                sum(max(0, length - max_length) for length in lengths) / max(1, sum(length - 2 for length in lengths))
            ),
            "the share that is kept is returned": Edit("1 - kept / targets", "kept / targets"),
            "the lost targets are divided by those that are kept": Edit(
                "1 - kept / targets", "(targets - kept) / kept"
            ),
            "the number of lost targets is returned, not their share": Edit("1 - kept / targets", "targets - kept"),
            "the number of targets that are kept is returned": Edit("1 - kept / targets", "kept"),
            "percent are returned, not a number from 0 to 1": Edit("1 - kept / targets", "100 * (1 - kept / targets)"),
            "one of max_length ids is kept free, for an <eos>": Edit(left, "min(length, max_length - 1) - 1"),
            "a document that is too long is thrown away whole": Edit(
                f"{left} for length in lengths", "length - 1 for length in lengths if length <= max_length"
            ),
            "a document that is too short is filled up to max_length: a loss below zero": Edit(
                "min(length, max_length)", "max_length"
            ),
            "what is lost and what is kept are exchanged: `max` for `min`": Edit("min(length", "max(length"),
            "only the targets of documents that are cut are counted, not all": lambda lengths, max_length: reference(
                [length for length in lengths if length > max_length] or [2], max_length
            ),
            "all documents are cut as if they were one text": lambda lengths, max_length: reference(
                [sum(length - 1 for length in lengths) + 1], max_length
            ),
            "the two <eos> are added to each length, which holds them already": lambda lengths, max_length: reference(
                [length + 2 for length in lengths], max_length
            ),
            "the shares of the documents are added up, not averaged": lambda lengths, max_length: (
                each_alone(lengths, max_length) * len(lengths)
            ),
            "only the longest document is looked at": lambda lengths, max_length: reference([max(lengths)], max_length),
            "only the first document is looked at": lambda lengths, max_length: reference(lengths[:1], max_length),
            "only the last document is looked at": lambda lengths, max_length: reference(lengths[-1:], max_length),
            "every window of max_length ids is kept, and only what is left over counts as lost": (
                lambda lengths, max_length: (
                    sum(length % max_length for length in lengths if length > max_length)
                    / sum(length - 1 for length in lengths)
                )
            ),
        },
        hints={
            "min(length, max_length)": "`min(length, max_length)` ids are left of a document, one fewer are targets.",
            all_targets: "A document of n ids has n − 1 targets.",
            "1 - kept": "Add up over all documents first, then divide once by all targets.",
        },
    )


def bits_per_byte(fn: Callable[..., object]) -> Report:
    """Bits per byte: `fn(loss, ids, documents)`, nats per target, the ids and the text of each document."""
    count, size = "sum(len(document) - 1 for document in ids)", "sum(len(document.encode()) for document in documents)"

    def right(loss: float, ids: _Ids, documents: _Documents) -> float:
        targets = sum(len(document) - 1 for document in ids)
        return loss * targets / sum(len(document.encode()) for document in documents) / math.log(2)

    def each_alone(loss: float, ids: _Ids, documents: _Documents) -> list[float]:
        return [right(loss, [row], [document]) for row, document in zip(ids, documents)]

    return compare(
        fn,
        reference=right,
        cases={
            "English": (3.0, [[1, 300, 301, 1], [1, 302, 1]], ["the cat", " sat"]),
            "more bytes than characters": (2.5, [[1, 40, 41, 42, 43, 1]], ["Fähre ✓"]),
            "documents of different lengths": (
                1.75,
                [[1, 300, 1], [1, *range(300, 330), 1], [1, 301, 302, 1]],
                ["a", "once there was a ferry that did not wait " * 3, "हिन्दी"],
            ),
        },
        shown=["English", "more bytes than characters"],
        mistakes={
            "the division by log 2 is forgotten: nats per byte": Edit(" / math.log(2)", ""),
            "nats are turned into bits the wrong way: multiplied by log 2": Edit("/ math.log(2)", "* math.log(2)"),
            "characters are counted instead of bytes": Edit("document.encode()", "document"),
            "the loss is multiplied by bytes per token instead of divided by it": Edit(
                "targets / num_bytes", "num_bytes / targets"
            ),
            "the first <eos> of a document, which nothing predicts, counts as a target": Edit(
                "len(document) - 1", "len(document)"
            ),
            "neither <eos> counts as a target, although the model pays for the last one": Edit(
                "len(document) - 1", "len(document) - 2"
            ),
            "each document weighs the same, however long it is": lambda *args: fmean(each_alone(*args)),
            "the documents' bits per byte are added up": lambda *args: sum(each_alone(*args)),
            "the loss is only turned into bits: bits per token": Edit(" * targets / num_bytes", ""),
            "the loss is only divided by bytes: it is a mean, and not yet multiplied by the targets": Edit(
                " * targets", ""
            ),
            "the bits of the whole text are returned, not divided by its bytes": Edit(" / num_bytes", ""),
            "the division by log 2 is made twice": Edit("/ math.log(2)", "/ math.log(2) / math.log(2)"),
            "the result is divided by 8, the bits in a byte": Edit("/ math.log(2)", "/ math.log(2) / 8"),
            "the division by log 2 is replaced by a division by 8, the bits in a byte": Edit("math.log(2)", "8"),
            "the division by log 2 is replaced by one by 2": Edit("math.log(2)", "2"),
            "the division is by the logarithm of 10, not of 2": Edit("math.log(2)", "math.log(10)"),
            "the division is by the logarithm of 2 to base 10": Edit("math.log(2)", "math.log10(2)"),
            "a logarithm is taken of the loss, which is one already": Edit("return loss", "return math.log(loss)"),
            "the perplexity stands for the loss": Edit("return loss", "return math.exp(loss)"),
            "one <eos> is left out for all documents together, not one for each": Edit(
                count, "sum(len(document) for document in ids) - 1"
            ),
            "documents are counted instead of tokens": Edit(count, "len(ids)"),
            "words are counted instead of bytes": Edit("document.encode()", "document.split()"),
            "the bytes of line ends between the documents are counted, which are in no document": Edit(
                size, '(len("\\n".join(documents).encode()))'
            ),
            "each document counts one byte more than its text has": Edit(
                "document.encode())", "document.encode()) + 1"
            ),
            "bytes are counted in another encoding than UTF-8": AnyOf(
                Edit(".encode()", '.encode("utf-16")'),
                Edit(".encode()", '.encode("utf-16-le")'),
                Edit(".encode()", '.encode("utf-32")'),
                Edit(".encode()", '.encode("ascii", errors="ignore")'),
            ),
            "`sys.getsizeof` counts what Python stores beside the text": AnyOf(
                Edit("len(document.encode())", "document.__sizeof__()"),
                Edit("len(document.encode())", "document.encode().__sizeof__()"),
            ),
            "only the first document is looked at": lambda *args: each_alone(*args)[0],
            "only the last document is looked at": lambda *args: each_alone(*args)[-1],
            "white space is cut off the texts before their bytes are counted": Edit(
                "document.encode()", "document.strip().encode()"
            ),
        },
        hints={
            "len(document) - 1": "All ids but the first of each document are targets.",
            "document.encode": "The bytes of a text are those of its UTF-8: `len(text.encode())`.",
            "math.log(2)": "Undo the mean (times the targets), divide by all bytes, then 1 nat is 1 / log 2 bits.",
        },
    )


def split_near_copies(fn: Callable[..., object]) -> Report:
    """Split without near copies on both sides: `fn(documents, val_fraction, hash_fraction)` gives two lists.

    Several forms of a text may be hashed, so what is compared is how the split behaves and not the split itself.
    """
    ferries = [f"The ferry {verb} at {hour}." for verb in ("waits", "leaves", "lands") for hour in range(7)]
    forms = [str, *_CHANGES.values()]
    copies = [change(ferry) for change in [*forms, str] for ferry in ferries]
    strangers = [text for hour in range(7) for text in (f"at {hour}", f"at {hour}!", f"a t {hour}", f"{hour} at")]
    strangers += [f"at at {hour}" for hour in range(7)]
    documents = copies[:80] + strangers + copies[80:]
    form = " ".join
    return compare(
        fn,
        reference=_split_by(_plain),
        cases={"near copies": (documents, 0.3), "few documents are held out": (documents, 0.12)},
        shown=["near copies", "few documents are held out"],
        run=_behaviour,
        mistakes={
            "the text is hashed as it is written, so that near copies part": _split_by(lambda text: text),
            "only upper and lower case are made equal, not white space": _split_by(str.lower),
            "only white space is made equal, not upper and lower case": _split_by(lambda text: form(text.split())),
            "of white space, only that around the text is made equal": _split_by(lambda text: text.strip().lower()),
            "of white space, only that around the text and doubled spaces are made equal": _split_by(
                lambda text: text.strip().lower().replace("  ", " ")
            ),
            "only the white space around the text is made equal, and not upper and lower case": _split_by(str.strip),
            "of white space, only spaces are made equal, not tabs and line ends": AnyOf(
                _split_by(lambda text: re.sub(" +", " ", text.lower()).strip(" ")),
                _split_by(lambda text: re.sub(" +", " ", text.lower()).strip()),
            ),
            "white space between words is made equal, but not that around the text": _split_by(
                lambda text: re.sub(r"\s+", " ", text.lower())
            ),
            "only the first letter of the text is made small": _split_by(
                lambda text: form(text[:1].lower() + text[1:] for text in [form(text.split())])
            ),
            "white space is removed, so that different texts count as copies": _split_by(
                lambda text: "".join(text.lower().split())
            ),
            "punctuation is removed, so that different texts count as copies": _split_by(
                lambda text: form(re.findall(r"\w+", text.lower()))
            ),
            "white space and punctuation are removed, so that different texts count as copies": _split_by(
                lambda text: "".join(re.findall(r"\w+", text.lower()))
            ),
            "the words are sorted, so that different texts count as copies": _split_by(
                lambda text: form(sorted(text.lower().split()))
            ),
            "each word is counted once, so that different texts count as copies": _split_by(
                lambda text: form(dict.fromkeys(text.lower().split()))
            ),
            "the words are taken as a set, so that different texts count as copies": _split_by(
                lambda text: form(sorted(set(text.lower().split())))
            ),
            "the position is hashed instead of the text": lambda documents, share, hashed: _sides(
                documents, [hashed(str(i)) < share for i in range(len(documents))]
            ),
            "the length of the text is hashed instead of its words": _split_by(
                lambda text: str(len(form(text.split())))
            ),
            "training and validation are exchanged": _exchanged(_plain),
            "training and validation are exchanged; and the text is hashed as it is written": _exchanged(str),
            "training and validation are exchanged; and white space is not made equal": AnyOf(
                _exchanged(str.lower), _exchanged(lambda text: text.strip().lower())
            ),
            "training and validation are exchanged; and upper and lower case are not made equal": _exchanged(
                lambda text: form(text.split())
            ),
            "training and validation are exchanged; and white space is removed": _exchanged(
                lambda text: "".join(text.lower().split())
            ),
            "the largest numbers are held out, not the smallest: numbers above 1 − val_fraction": (
                lambda documents, share, hashed: _sides(
                    documents, [hashed(_plain(one)) >= 1 - share for one in documents]
                )
            ),
            "a number equal to val_fraction is held out, but it is not below": lambda documents, share, hashed: _sides(
                documents, [hashed(_plain(one)) <= share for one in documents]
            ),
            "a fixed number of documents with the smallest numbers is held out": AnyOf(
                _split_by_rank,
                lambda *args: _split_by_rank(*args, of_forms=True),
                lambda documents, share, hashed: _cut(
                    sorted(documents, key=lambda one: hashed(_plain(one))), round(share * len(documents))
                ),
            ),
            "the number is compared with a fixed 0.1 or 0.5, not with val_fraction": AnyOf(
                lambda documents, _, hashed: _split_by(_plain)(documents, 0.5, hashed),
                lambda documents, _, hashed: _split_by(_plain)(documents, 0.1, hashed),
            ),
            "the documents are returned in another form than they were written in": AnyOf(
                lambda documents, *args: _split_by(_plain)([_plain(one) for one in documents], *args),
                lambda documents, *args: _split_by(_plain)([one.lower() for one in documents], *args),
                lambda documents, *args: _split_by(_plain)([one.strip() for one in documents], *args),
                lambda documents, *args: _split_by(_plain)([form(one.split()) for one in documents], *args),
            ),
            "positions are returned instead of documents": lambda documents, share, hashed: _sides(
                list(range(len(documents))), [hashed(_plain(one)) < share for one in documents]
            ),
            "near copies are thrown away instead of kept together": lambda documents, *args: _split_by(_plain)(
                list({_plain(document): document for document in documents}.values()), *args
            ),
            "equal documents are thrown away: each stays as often as it was there": AnyOf(
                lambda documents, *args: _split_by(_plain)(list(dict.fromkeys(documents)), *args),
                lambda documents, *args: tuple(sorted(set(one)) for one in _split_by(_plain)(documents, *args)),
            ),
            "the documents are sorted, and lose their order": (
                lambda documents, *args: _split_by(_plain)(sorted(documents), *args)
            ),
            "each copy is hashed as it is written, and one that is held out takes its near copies with it": (
                lambda documents, share, hashed: _by_any_copy(documents, share, hashed, moved=True)
            ),
            "near copies of a held-out document are thrown away, instead of held out with it": (
                lambda documents, share, hashed: _by_any_copy(documents, share, hashed, moved=False)
            ),
            "hash_fraction does not decide (and Python's own hash() changes from process to process)": (
                lambda documents, share, _: _split_by(_plain)(documents, share, _fraction_with_key("own"))
            ),
            "hash_fraction does not decide, and near copies part": _split_by_position,
            "hash_fraction does not decide, and near copies part while equal documents stay together": (
                lambda documents, share, _: _split_by(str)(documents, share, _fraction_with_key("own"))
            ),
            "Python's own hash() has a part in it, which changes from process to process": (
                lambda documents, share, _: _sides(
                    documents, [hash(_plain(one)) % 997 < share * 997 for one in documents]
                )
            ),
        },
        hints={
            "hash_fraction(": "Near copies must have the same hash: hash a form that they have in common.",
            "return train": "A document goes into its list as it was written; the form that is hashed only decides.",
        },
    )


_CHANGES: dict[str, Callable[[str], str]] = {
    "copies in upper case stay together": str.upper,
    "copies that begin with a small letter stay together": lambda text: text[:1].lower() + text[1:],
    "copies with a doubled space stay together": lambda text: text.replace(" ", "  ", 1),
    "copies with more spaces between words stay together": lambda text: text.replace(" ", "   "),
    "copies with tabs and line ends between words stay together": lambda text: text.replace(" ", "\t", 1).replace(
        " ", "\n"
    ),
    "copies with spaces around them stay together": lambda text: f"  {text} ",
    "copies with a line end after them stay together": lambda text: f"{text}\n",
}
_KEYS = [str(key) for key in range(24)]
_SALTED = "Python's own `hash()` of a text changes from process to process: let `hash_fraction` alone decide"


def _behaviour(fn: Callable[..., Any], documents: list[str], val_fraction: float) -> dict[str, bool]:
    """What is true of the splits that `fn` makes, under many hash functions and three that know one number only."""
    splits = [_two_lists(fn(list(documents), val_fraction, _fraction_with_key(key))) for key in _KEYS]
    _refuse_salt(fn, documents, val_fraction, splits[0])
    constant = {
        number: _two_lists(fn(list(documents), val_fraction, lambda _, number=number: number))
        for number in (0.0, val_fraction, 0.999)
    }
    sides = [(set(train), set(validation)) for train, validation in splits]
    decides = len({frozenset(validation) for _, validation in sides}) > 1
    kept = _what_is_kept(splits, sides, documents) | {"hash_fraction decides": decides}
    drawn = _what_is_drawn(splits, sides, constant, documents, val_fraction)
    # Where hash_fraction changes nothing there is one split only, and what is drawn there is chance.
    return kept | (drawn if decides else dict.fromkeys(drawn, True))


def _two_lists(split: Any) -> _Split:
    """Raises Refused for what is not two lists."""
    parts = None if isinstance(split, str | dict) or not isinstance(split, Iterable) else list(split)
    if parts is None or len(parts) != 2:
        many = f"{len(parts)} things" if parts is not None else short(split)
        raise Refused(f"gives {many}; return two lists, the training and the validation documents")
    if any(isinstance(part, str) or not isinstance(part, Iterable) for part in parts):
        raise Refused("gives two things that are not lists; return the training and the validation documents")
    train, validation = map(list, parts)
    return train, validation


def _refuse_salt(fn: Callable[..., Any], documents: list[str], val_fraction: float, split: _Split) -> None:
    """Raise Refused where another salt of Python's hash() leads to another split."""
    hash_of = builtins.hash
    with patch.object(builtins, "hash", lambda value: hash_of((value, "another process"))):
        again = fn(list(documents), val_fraction, _fraction_with_key(_KEYS[0]))
    if _two_lists(again) != split:
        raise Refused(_SALTED)


def _what_is_kept(splits: list[_Split], sides: list[_Sides], documents: _Documents) -> dict[str, bool]:
    return {
        "every document is in one of the two lists": all(sum(map(len, split)) == len(documents) for split in splits),
        "documents are as they were written": all(train | validation <= set(documents) for train, validation in sides),
        "they are in their order": all(_in_order(part, documents) for split in splits for part in split),
        "no document is in both lists": all(train.isdisjoint(validation) for train, validation in sides),
        **{words: _same_side(sides, documents, change) for words, change in _CHANGES.items()},
    }


def _what_is_drawn(
    splits: list[_Split],
    sides: list[_Sides],
    constant: dict[float, _Split],
    documents: _Documents,
    val_fraction: float,
) -> dict[str, bool]:
    share = sum(len(validation) for _, validation in splits) / len(splits) / len(documents)
    return {
        "about val_fraction of them are held out": abs(share - val_fraction) < 0.06,
        "documents with the number 0 are held out": len(constant[0.0][1]) > 0,
        "documents with the number val_fraction stay in training": not constant[val_fraction][1],
        "documents with the number 0.999 stay in training": not constant[0.999][1],
        "texts with other words can part": _can_part(sides, "at 1", "a t 1"),
        "texts with other punctuation can part": _can_part(sides, "at 1", "at 1!"),
        "texts with the same words in another order can part": _can_part(sides, "at 1", "1 at"),
        "texts that have a word twice can part from others": _can_part(sides, "at 1", "at at 1"),
        "texts of the same length can part": _can_part(sides, "at 1", "at 2"),
        "texts that begin alike can part": _can_part(sides, "The ferry waits at 1.", "The ferry waits at 2."),
    }


def _in_order(part: Sequence[str], documents: Sequence[str]) -> bool:
    rest = iter(documents)
    return all(document in rest for document in part)


def _same_side(sides: list[_Sides], documents: _Documents, change: Callable[[str], str]) -> bool:
    known = set(documents)
    pairs = [(text, change(text)) for text in known if change(text) in known]
    return all((text in part) == (copy in part) for side in sides for part in side for text, copy in pairs)


def _can_part(sides: list[_Sides], one: str, other: str) -> bool:
    return any((one in validation) != (other in validation) for _, validation in sides)


@lru_cache(maxsize=10_000)
def _plain(text: str) -> str:
    return " ".join(text.lower().split())


@lru_cache
def _fraction_with_key(key: str) -> _Fraction:
    @lru_cache(maxsize=10_000)
    def fraction(text: str) -> float:
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=key.encode()).digest()
        return int.from_bytes(digest, "big") / 2**64

    return fraction


def _sides(documents: Sequence[Any], held_out: Sequence[bool]) -> _Split:
    train = [document for document, held in zip(documents, held_out) if not held]
    return train, [document for document, held in zip(documents, held_out) if held]


def _split_by(form: Callable[[str], str]) -> _Splitter:
    """A split where the hash of each document's form decides."""

    def split(documents: _Documents, val_fraction: float, hash_fraction: _Fraction) -> _Split:
        return _sides(documents, [hash_fraction(form(document)) < val_fraction for document in documents])

    return split


def _exchanged(form: Callable[[str], str]) -> _Splitter:
    def split(documents: _Documents, val_fraction: float, hash_fraction: _Fraction) -> _Split:
        train, validation = _split_by(form)(documents, val_fraction, hash_fraction)
        return validation, train

    return split


def _split_by_position(documents: _Documents, val_fraction: float, _: _Fraction) -> _Split:
    return _cut(documents, round(val_fraction * len(documents)))


def _cut(documents: _Documents, count: int) -> _Split:
    return list(documents[count:]), list(documents[:count])


def _split_by_rank(
    documents: _Documents, val_fraction: float, hash_fraction: _Fraction, *, of_forms: bool = False
) -> _Split:
    names = [_plain(document) if of_forms else str(i) for i, document in enumerate(documents)]
    numbers = {name: hash_fraction(_plain(document)) for name, document in zip(names, documents)}
    held_out = set(sorted(numbers, key=numbers.__getitem__)[: round(val_fraction * len(numbers))])
    return _sides(documents, [name in held_out for name in names])


def _by_any_copy(documents: _Documents, val_fraction: float, hash_fraction: _Fraction, *, moved: bool) -> _Split:
    below = [hash_fraction(document) < val_fraction for document in documents]
    forms = {_plain(document) for document, held in zip(documents, below) if held}
    train, group = _sides(documents, [_plain(document) in forms for document in documents])
    return train, group if moved else _sides(documents, below)[1]
