"""Which mistake an answer makes: the one whose results it has."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from course_lm.classroom.checks.comparison import leaves
from course_lm.classroom.checks.outcomes import Outcome
from course_lm.classroom.checks.question import Mistake, Question

_MANY_BITS = 64
_BITS_OF_CHANCE = 4  # a match that chance brings about in fewer than one of 2⁴ searches is believed


class Named(NamedTuple):
    """A sentence that names a mistake, and the author's hint to it, empty where there is none."""

    sentence: str
    hint: str = ""


def name_mistake(question: Question, got: Mapping[str, Outcome]) -> Named | None:
    """The mistake whose results an answer has, in every case or wherever it is wrong."""
    failing = question.by_size([case for case in got if not question.is_right(case, got[case])])
    order = [*failing, *(case for case in got if case not in failing)]
    for one in question.mistakes:
        if one.is_like(question, got, order):
            return _named(one)
    return _named_where_wrong(question, got, failing)


def name_fault(question: Question, got: Mapping[str, Outcome]) -> Named | None:
    """The one mistake that raises, is refused or gives None in the same cases, if there is exactly one."""
    order = question.by_size(list(got))
    like = {one.words: one for one in question.mistakes if one.is_like(question, got, order)}
    return _named(next(iter(like.values()))) if len(like) == 1 else None


def _named(mistake: Mistake) -> Named:
    return Named(f"this is what you get when {mistake.words}", mistake.hint)


def _named_where_wrong(question: Question, got: Mapping[str, Outcome], failing: Sequence[str]) -> Named | None:
    """The mistake that agrees wherever the answer is wrong, and mostly elsewhere; not where that may be chance."""
    like = [one for one in question.mistakes if one.is_like(question, got, failing)]
    bits = _bits((question.expected[case], got[case]) for case in failing)
    if like and bits > math.log2(len(question.mistakes)) + _BITS_OF_CHANCE:
        best = max(like, key=lambda one: sum(one.is_like(question, got, [case]) for case in got))
        return Named(f"where it is wrong, {_named(best).sentence}", best.hint)
    return None


def _bits(outcomes: Iterator[tuple[Outcome, Outcome]]) -> float:
    """How much wrong results tell: a fraction says much, a small whole number little, a repeated or right one least."""
    numbers, bits = set[object](), 0.0
    for expected, got in outcomes:
        right = list(leaves(expected.value))
        for place, leaf in enumerate(leaves(got.value)):
            is_right = place < len(right) and leaf == right[place]
            bits += 1 if leaf in numbers or is_right else _bits_of(leaf)
            numbers.add(leaf)
            if bits >= _MANY_BITS:
                return bits
    return bits


def _bits_of(leaf: object) -> float:
    if isinstance(leaf, bool) or (isinstance(leaf, float) and not math.isfinite(leaf)):
        return 1
    if isinstance(leaf, int) or (isinstance(leaf, float) and leaf.is_integer()):
        return 1 + abs(int(leaf)).bit_length()
    return 20 if isinstance(leaf, float) else min(20, 2 * len(str(leaf)))
