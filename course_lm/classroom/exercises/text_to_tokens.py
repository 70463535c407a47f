"""Exercises of lesson 01: bits per byte, equal losses under two tokenizers, a split that keeps near copies together."""

import builtins
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

from course_lm.classroom.checks import Refused, exercise
from course_lm.classroom.checks.comparison import short

_Split = tuple[list[str], list[str]]


@exercise(
    cases={
        "English": (3.0, [[1, 300, 301, 1], [1, 302, 1]], ["the cat", " sat"]),
        "more bytes than characters": (2.5, [[1, 40, 41, 42, 43, 1]], ["Fähre ✓"]),
        "documents of different lengths": (
            1.75,
            [[1, 300, 1], [1, *range(300, 330), 1], [1, 301, 302, 1]],
            ["a", "once there was a ferry that did not wait " * 3, "हिन्दी"],
        ),
    },
)
def to_bits_per_byte(loss, ids, documents):
    """Bits per byte: `fn(loss, ids, documents)`, nats per target, the ids and the text of each document."""
    targets = sum(len(document) - 1 for document in ids)
    num_bytes = sum(len(document.encode()) for document in documents)
    return loss * targets / num_bytes / math.log(2)


@exercise(
    cases={
        "a larger vocabulary": (1.5, [[1, 40, 41, 42, 43, 44, 45, 1]], [[1, 300, 301, 1]]),
        "a smaller vocabulary": (2.25, [[1, 300, 301, 1], [1, 302, 1]], [[1, *range(2, 12), 1], [1, 2, 3, 4, 1]]),
        "documents of different lengths": (
            3.0,
            [[1, *range(300, 330), 1], [1, 300, 1], [1, 301, 302, 1]],
            [[1, *range(2, 50), 1], [1, 2, 3, 4, 5, 1], [1, 1]],
        ),
    },
)
def loss_to_beat(loss, ids, my_ids):
    """The equal loss under another tokenizer: `fn(loss, ids, my_ids)`, the ids of the same documents under both."""
    targets = sum(len(document) - 1 for document in ids)
    my_targets = sum(len(document) - 1 for document in my_ids)
    return loss * targets / my_targets


_HOURS = range(7)
_FERRIES = [f"The ferry {verb} at {hour}." for verb in ("waits", "leaves", "lands") for hour in _HOURS]
_COPIES: dict[str, Callable[[str], str]] = {
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
_LONG = "the ferry waits for the last car of the evening, and then it lands at {}"
_STRANGERS = {
    "texts with other words can part": ("at {}", "a t {}"),
    "texts with other punctuation can part": ("at {}", "at {}!"),
    "texts with other accents can part": ("at {}", "åt {}"),
    "texts with the same words in another order can part": ("at {}", "{} at"),
    "texts that have a word twice can part from others": ("at {}", "at at {}"),
    "texts that begin alike can part": ("at {}", "at {} and later"),
    "texts that part from each other late can part": (_LONG, f"{_LONG} and a half"),
}
_COPIED = [change(ferry) for change in (str, *_COPIES.values(), str) for ferry in _FERRIES]
_OTHERS = [form.format(hour) for hour in _HOURS for form in dict.fromkeys(sum(_STRANGERS.values(), ()))]
_DOCUMENTS = _COPIED[:80] + _OTHERS + _COPIED[80:]
_SALTS = [str(salt) for salt in range(24)]


@lru_cache(maxsize=100_000)
def _number(salt: str, text: bytes) -> float:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=salt.encode()).digest(), "big") / 2**64


def _hash_fraction(salt: str) -> Callable[[str], float]:
    return lambda text: _number(salt, text.encode())


def _behaviour(fn: Callable[..., Any], documents: list[str], val_fraction: float) -> dict[str, bool]:
    """What is true of the splits that `fn` makes, under many hash functions and four that know one number only."""
    split = partial(_two_lists, fn, documents, val_fraction)
    splits = [split(_hash_fraction(salt)) for salt in _SALTS]
    hash_of = builtins.hash
    with patch.object(builtins, "hash", lambda value: hash_of((value, "another process"))):
        elsewhere = split(_hash_fraction(_SALTS[0]))
    numbers = (0.0, val_fraction, val_fraction + 0.02, 0.999)
    lowest, equal, above, highest = (split(lambda _, number=number: number)[1] for number in numbers)
    sides = [(set(train), set(validation)) for train, validation in splits]
    share = sum(len(validation) for _, validation in splits) / len(splits) / len(documents)
    decides = len({frozenset(validation) for _, validation in sides}) > 1
    drawn = {
        "about val_fraction of them are held out": abs(share - val_fraction) < 0.06,
        "documents with the number 0 are held out": len(lowest) > 0,
        "documents with the number val_fraction stay in training": not equal,
        "documents with a number just above val_fraction stay in training": not above,
        "documents with the number 0.999 stay in training": not highest,
        **{words: _can_part([validation for _, validation in sides], *pair) for words, pair in _STRANGERS.items()},
    }
    return {
        "every document is in one of the two lists": all(sum(map(len, one)) == len(documents) for one in splits),
        "documents are as they were written": all(train | validation <= set(documents) for train, validation in sides),
        "they are in their order": all(_in_order(part, documents) for one in splits for part in one),
        "no document is in both lists": all(train.isdisjoint(validation) for train, validation in sides),
        **{words: all(_together(part, change) for one in sides for part in one) for words, change in _COPIES.items()},
        "another process makes the same split": elsewhere == splits[0],
        "hash_fraction decides": decides,
        # Where hash_fraction changes nothing there is one split only, and what is drawn there is chance.
        **(drawn if decides else dict.fromkeys(drawn, True)),
    }


def _two_lists(fn: Callable[..., Any], documents: list[str], val_fraction: float, hash_fraction: object) -> _Split:
    """The split that `fn` makes. Raises Refused for what is not two lists."""
    split = fn(list(documents), val_fraction, hash_fraction)
    parts = None if isinstance(split, str | dict) or not isinstance(split, Iterable) else list(split)
    if parts is None or len(parts) != 2:
        many = f"{len(parts)} things" if parts is not None else short(split)
        raise Refused(f"gives {many}; return two lists, the training and the validation documents")
    if any(isinstance(part, str) or not isinstance(part, Iterable) for part in parts):
        raise Refused("gives two things that are not lists; return the training and the validation documents")
    train, validation = map(list, parts)
    return train, validation


def _in_order(part: Sequence[str], documents: Sequence[str]) -> bool:
    rest = iter(documents)
    return all(document in rest for document in part)


def _together(part: set[str], change: Callable[[str], str]) -> bool:
    return all((ferry in part) == (change(ferry) in part) for ferry in _FERRIES)


def _can_part(held_out: Sequence[set[str]], one: str, other: str) -> bool:
    pairs = [(one.format(hour), other.format(hour)) for hour in _HOURS]
    return any((first in validation) != (second in validation) for validation in held_out for first, second in pairs)


@exercise(
    cases={"near copies": (_DOCUMENTS, 0.3), "few documents are held out": (_DOCUMENTS, 0.12)},
    run=_behaviour,
)
def split_near_copies(documents, val_fraction, hash_fraction):
    """Split without near copies on both sides: `fn(documents, val_fraction, hash_fraction)` gives two lists.

    Several forms of a text may be hashed, so what is compared is how the split behaves and not the split itself.
    """
    train, validation = [], []
    for document in documents:
        form = " ".join(document.lower().split())
        (validation if hash_fraction(form) < val_fraction else train).append(document)
    return train, validation
