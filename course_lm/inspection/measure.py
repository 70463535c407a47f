"""Counts over a text: what costs much is counted on a sample of bounded size, and says so."""

import hashlib
import math
import random
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

from course_lm.inspection.near_duplicates import near_duplicates
from course_lm.tokenizer import encode_documents, train_tokenizer

SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 20_000, 8_000_000
LINE_CHARACTERS = 10  # shorter lines, such as a bracket, stand often in any text
LINE_DOCUMENTS = 5  # in so many documents a line is a repeated one
SHOWN_LINES = 5
# All of Cc but tab and line feed; a carriage return is none of a text that was read as one.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Measurements:
    """What was counted in a text.

    Attributes:
        documents, bytes: of the whole text, UTF-8.
        lengths: documents by their bytes: (at least, below, how many).
        median, longest: bytes of a document. longest_share: of all bytes.
        exact_duplicates, duplicate_bytes: documents that equal an earlier one.
        replacements, controls: characters U+FFFD, and control characters; with "_in" the documents that hold them.
        sampled, sampled_bytes: the distinct documents that all of what follows was counted on; a long document may be
            cut there.
        near_duplicates: (document, the earlier one that it nearly is), how both begin.
        near: how many there are.
        lines: (line, documents that hold it) of repeated lines, the most frequent first; `repeated_lines` says how
            many there are, `repeated_share` their share of the characters.
        scripts: share of the letters by script, the largest first. foreign: documents most of whose letters are of
            another script than the text's.
        tokens_per_byte: of a tokenizer trained on the sample, or nan. vocabulary: why there is none.
    """

    documents: int
    bytes: int
    lengths: list[tuple[int, int, int]]
    median: float
    longest: int
    longest_share: float
    exact_duplicates: int
    duplicate_bytes: int
    replacements: int
    replacements_in: int
    controls: int
    controls_in: int
    sampled: int
    sampled_bytes: int
    near: int
    near_duplicates: list[tuple[str, str]]
    lines: list[tuple[str, int]]
    repeated_lines: int
    repeated_share: float
    scripts: dict[str, float]
    foreign: int
    tokens_per_byte: float
    vocabulary: str | None


def measure(documents: Sequence[str], vocab_size: int, tokenizer: Tokenizer | None = None) -> Measurements:
    """Count what a text holds; a tokenizer is trained on its sample unless one is given. ValueError without text."""
    if not documents:
        raise ValueError("the text holds no document")
    sizes = [len(document.encode("utf-8", "surrogatepass")) for document in documents]
    first = _first_of_each(documents)
    replaced = [document.count("\ufffd") for document in documents]
    controls = [len(_CONTROL.findall(document)) for document in documents]
    sample = sample_of([documents[index] for index in first])
    near = near_duplicates(sample)
    lines, repeated_share = _repeated_lines(sample)
    scripts, foreign = _scripts(sample)
    tokens_per_byte, problem = _tokens_per_byte(sample, vocab_size, tokenizer)
    return Measurements(
        documents=len(documents),
        bytes=sum(sizes),
        lengths=_histogram(sizes),
        median=statistics.median(sizes),
        longest=max(sizes),
        longest_share=max(sizes) / sum(sizes) if sum(sizes) else 0.0,
        exact_duplicates=len(documents) - len(first),
        duplicate_bytes=sum(sizes) - sum(sizes[index] for index in first),
        replacements=sum(replaced),
        replacements_in=sum(map(bool, replaced)),
        controls=sum(controls),
        controls_in=sum(map(bool, controls)),
        sampled=len(sample),
        sampled_bytes=sum(len(document.encode("utf-8", "surrogatepass")) for document in sample),
        near=len(near),
        near_duplicates=[(sample[one], sample[other]) for one, other in near[:SHOWN_LINES]],
        lines=lines[:SHOWN_LINES],
        repeated_lines=len(lines),
        repeated_share=repeated_share,
        scripts=scripts,
        foreign=foreign,
        tokens_per_byte=tokens_per_byte,
        vocabulary=problem,
    )


def sample_of(documents: Sequence[str]) -> list[str]:
    """Documents drawn without replacement, in their order, up to the bounds of this module; the last one may be cut."""
    order = list(range(len(documents)))
    random.Random(0).shuffle(order)
    room, taken = SAMPLE_CHARACTERS, {}
    for index in order[:SAMPLE_DOCUMENTS]:
        taken[index] = documents[index][:room]
        room -= len(taken[index])
        if room <= 0:
            break
    return [taken[index] for index in sorted(taken)]


def _first_of_each(documents: Sequence[str]) -> list[int]:
    seen: set[bytes] = set()
    first = []
    for index, document in enumerate(documents):
        digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            first.append(index)
    return first


def _histogram(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Documents between powers of two, empty bins between the others included."""
    bins = Counter(size.bit_length() for size in sizes)
    return [(2**bits // 2, 2**bits, bins[bits]) for bits in range(min(bins), max(bins) + 1)]


def _repeated_lines(documents: Sequence[str]) -> tuple[list[tuple[str, int]], float]:
    holders: Counter[str] = Counter()
    for document in documents:
        lines = {line.strip() for line in document.split("\n")}
        holders.update(line for line in lines if len(line) >= LINE_CHARACTERS)
    # lines of one count by their text: the order of a set differs between processes
    ordered = sorted(holders.items(), key=lambda item: (-item[1], item[0]))
    repeated = [(line, count) for line, count in ordered if count >= LINE_DOCUMENTS]
    characters = sum(map(len, documents))
    return repeated, sum(len(line) * count for line, count in repeated) / characters if characters else 0.0


def _scripts(documents: Sequence[str]) -> tuple[dict[str, float], int]:
    of_each = [_letters_by_script(document) for document in documents]
    total = sum(of_each, Counter())
    letters = total.total()
    if not letters:
        return {}, 0
    own = total.most_common(1)[0][0]
    foreign = sum(bool(one) and one.most_common(1)[0][0] != own for one in of_each)
    return {script: count / letters for script, count in total.most_common()}, foreign


def _letters_by_script(document: str) -> Counter[str]:
    scripts: Counter[str] = Counter()
    for character, count in Counter(document).items():
        script = _script(character)
        if script is not None:
            scripts[script] += count
    return scripts


@lru_cache(maxsize=65_536)
def _script(character: str) -> str | None:
    """The first word of the letter's Unicode name, such as LATIN; None for what is no letter."""
    if not character.isalpha():
        return None
    word = unicodedata.name(character, "OTHER").split()[0]
    return {"HIRAGANA": "CJK", "KATAKANA": "CJK", "FULLWIDTH": "LATIN"}.get(word, word)  # Japanese mixes three


def _tokens_per_byte(documents: Sequence[str], vocab_size: int, given: Tokenizer | None) -> tuple[float, str | None]:
    try:
        tokenizer = given or train_tokenizer(documents, vocab_size)
    except ValueError as error:
        return math.nan, str(error)
    tokens = sum(len(ids) - 2 for ids in encode_documents(tokenizer, documents))  # without <eos> at either end
    num_bytes = sum(len(document.encode()) for document in documents)
    return tokens / num_bytes, None
