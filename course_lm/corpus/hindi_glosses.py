"""Sentences of the corpus `hindi` for those who do not read Hindi: in Latin letters, and glossed word by word.

No free translation is tried: a gloss shows just words and forms (Leipzig glossing rules: `read.PFV.F` is the feminine
perfective of "read"). `data/hindi.glosses` holds both for every word that the grammar of the corpus knows; it is
written by `tools/corpora/hindi_lexicon.py`, which says which letters these are.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

from course_lm.corpus.shipped import data_file


class GlossedWord(NamedTuple):
    """A word as written, in Latin letters, and what it means: कहानियाँ, kahāniyā̃, story.PL."""

    word: str
    latin: str
    gloss: str


def interlinear(text: str, width: int = 92) -> str:
    """The text, then its words in Latin letters and under each its gloss, in blocks of at most `width` columns.

    Raises ValueError for a word that the grammar of the corpus does not know.
    """
    blocks, used = [["", ""]], 0
    for _, latin, gloss in gloss_words(text):
        columns = max(_width(latin), _width(gloss))
        if used and used + columns > width:
            blocks.append(["", ""])
            used = 0
        blocks[-1] = [line + _pad(word, columns + 1) for line, word in zip(blocks[-1], (latin, gloss), strict=True)]
        used += columns + 1
    return "\n".join([text, *(line.rstrip() for block in blocks for line in block)])


def gloss_words(text: str) -> list[GlossedWord]:
    """Each word of a sentence of the corpus with its transliteration and its gloss, punctuation left out.

    Raises ValueError for a word that the grammar of the corpus does not know.
    """
    tokens = re.findall(r"[^\s,।]+|[,।]", unicodedata.normalize("NFC", text))
    return [_glossed(tokens, at) for at, word in enumerate(tokens) if word not in ",।"]


def _width(text: str) -> int:
    return sum(not unicodedata.combining(letter) for letter in text)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


_POSTPOSITIONS = frozenset(["ने", "को", "से", "में", "पर", "का", "के", "की"])
_AFTER_INFINITIVE = re.compile("है|हैं|था|थे|थी|थीं|पड़.+")
_AFTER_STEM = re.compile("रह[ाेी]|सक.+|[लद]ि(?:या|ए)|[लद]ीं?|[लद](?:ूँ|ें|े)ग[ाेी]")


@functools.cache
def _lexicon() -> dict[str, tuple[str, dict[str, str]]]:
    """Form → its Latin letters and its readings: kind → gloss, in the order in which they are to be tried."""
    rows = map(str.split, data_file("hindi.glosses").read_text(encoding="utf-8").splitlines())
    return {form: (latin, dict(reading.split(":") for reading in readings)) for form, latin, *readings in rows}


def _glossed(tokens: list[str], at: int) -> GlossedWord:
    word = tokens[at]
    if word not in _lexicon():
        raise ValueError(f"no gloss for {word!r}, word {at + 1} of {' '.join(tokens)!r}: not in the grammar of hindi")
    latin, readings = _lexicon()[word]
    gloss = _gloss(tokens, at, readings) if len(readings) > 1 else next(iter(readings.values()))
    return GlossedWord(word, latin, gloss)


def _gloss(tokens: list[str], at: int, readings: dict[str, str]) -> str:
    word = tokens[at]
    before, after = tokens[max(0, at - 1)], tokens[at + 1] if at + 1 < len(tokens) else ""
    # Of readings that hold here the first is taken; what else a form may be is settled by where it stands.
    holds = {
        "oblique": after in _POSTPOSITIONS,
        "infinitive": word.endswith("ने") or bool(_AFTER_INFINITIVE.fullmatch(after)),
        "subjunctive": any(token.startswith("चाह") for token in tokens[:at]),
        "stem": bool(_AFTER_STEM.fullmatch(after)),
        "word": {"की": before not in {"बात", "मदद", "नहीं"}, "लिए": before == "के"}.get(word, True),
    }
    return next(gloss for kind, gloss in readings.items() if holds.get(kind, True))
