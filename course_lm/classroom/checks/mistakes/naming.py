"""Which mistake an answer makes: the one whose results it has."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from course_lm.classroom.checks.comparison import plain
from course_lm.classroom.checks.mistakes.edits import Change, Source, changes_of, is_apart
from course_lm.classroom.checks.mistakes.outcomes import Outcome
from course_lm.classroom.checks.mistakes.question import AnyOf, Question, Variant
from course_lm.classroom.checks.mistakes.store import Mutants

MOST_PAIRS = 600
PAIR_SECONDS = 1.2  # of the processor, for all pairs: a learner waits for them
_MANY_BITS = 64
_BITS_OF_CHANCE = 8  # a match that chance brings about in fewer than one of 2⁸ searches is believed


class Named(NamedTuple):
    """A sentence that names a mistake, and the author's hint to it, empty where there is none."""

    sentence: str
    hint: str = ""


@dataclass
class Candidate:
    """A wrong variant of the solution: what it does in each case is asked once, and only where it is wanted."""

    words: str
    by_hand: bool
    make: Callable[[], Callable[..., object]]
    hint: str = ""
    changes: tuple[Change, ...] = ()
    _fn: Callable[..., object] | None = None
    _outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def named(self) -> Named:
        """Its sentence."""
        return Named(f"this is what {'you get' if self.by_hand else 'the solution gives'} when {self.words}", self.hint)

    def outcome(self, question: Question, case: str) -> Outcome:
        """What it does in a case."""
        if case not in self._outcomes:
            self._fn = self._fn or self.make()
            self._outcomes[case] = question.ask(self._fn, case)
        return self._outcomes[case]

    def is_like(self, question: Question, got: Mapping[str, Outcome], cases: Sequence[str]) -> bool:
        """Whether it does the same as an answer in all of these cases."""
        return all(question.is_equal(self.outcome(question, case), got[case]) for case in cases)


def candidates(question: Question) -> list[Candidate]:
    """All single mistakes: those by hand, in their order, then the stored ones, the nearest first.

    Raises ValueError where an edit by hand does not fit the stored solution, or there is none.
    """
    by_hand = by_hand_candidates(question)
    if question.mutants is None:
        return by_hand
    mutants, source = question.mutants, Source(question.mutants.solution)
    return by_hand + [_stored(question, mutants, source, (change,)) for change in mutants.told_apart]


def by_hand_candidates(question: Question) -> list[Candidate]:
    """The mistakes that the check's author wrote down, as functions or as edits of the solution."""
    found = []
    for words, mistake in question.mistakes.items():
        variants = mistake.variants if isinstance(mistake, AnyOf) else (mistake,)
        found += [_by_hand(question, words, variant) for variant in variants]
    return found


def _by_hand(question: Question, words: str, mistake: Variant) -> Candidate:
    hint = question.hints.get(words, "")
    if callable(mistake):
        return Candidate(words, True, lambda: mistake, hint)
    if question.mutants is None:
        raise ValueError(f"no solution of {question.check!r} is stored, which {words!r} could edit: run `make mutants`")
    mutants = question.mutants
    changes = changes_of(mutants.solution, mistake, words)
    hint = hint or _hint_of(question, Source(mutants.solution), changes)
    return Candidate(words, True, lambda: mutants.function(changes), hint, changes)


def _stored(question: Question, mutants: Mutants, source: Source, changes: tuple[Change, ...]) -> Candidate:
    words = "; and ".join(change.words for change in changes)
    hint = _hint_of(question, source, changes)
    return Candidate(words, False, lambda: mutants.function(changes), hint, changes)


def _hint_of(question: Question, source: Source, changes: Sequence[Change]) -> str:
    """The author's sentence to the part that is changed, or to its line where the line has only one."""
    for change in changes:
        line = source.line_at(change.start)
        parts = [part for part in question.hints if part in line]
        places = {part: source.text.find(part, source.text.rfind("\n", 0, change.start) + 1) for part in parts}
        touched = [part for part, at in places.items() if at <= change.end and change.start <= at + len(part)]
        if touched or len(parts) == 1:
            return question.hints[(touched or parts)[0]]
    return ""


def name_mistake(
    question: Question, got: Mapping[str, Outcome], found: Sequence[Candidate] | None = None
) -> Named | None:
    """The mistake whose results an answer has: in every case, as two mistakes together, or wherever it is wrong.

    `found` are the question's candidates, where they are at hand.
    """
    failing = question.by_size([case for case in got if not question.is_right(case, got[case])])
    order = [*failing, *(case for case in got if case not in failing)]
    found = candidates(question) if found is None else found
    for one in found:
        if one.is_like(question, got, order):
            return one.named
    bits = _bits((question.expected[case], got[case]) for case in failing)
    pair = _named_by_pair(question, got, order, found, bits)
    if pair is not None:
        return pair
    return _named_where_wrong(question, got, failing, found, bits)


def name_fault(question: Question, got: Mapping[str, Outcome]) -> Named | None:
    """The one mistake by hand that raises, is refused or gives None in the same cases, if there is exactly one.

    A stored one says nothing here: a TypeError has too many causes.
    """
    order = question.by_size(list(got))
    like = {one.words: one for one in by_hand_candidates(question) if one.is_like(question, got, order)}
    return next(iter(like.values())).named if len(like) == 1 else None


def _named_by_pair(
    question: Question, got: Mapping[str, Outcome], order: Sequence[str], found: Sequence[Candidate], bits: float
) -> Named | None:
    """Two mistakes at once; where whole numbers tell little, only if no other two give the same."""
    if bits < _BITS_OF_CHANCE + math.log2(MOST_PAIRS):
        return None
    like = (pair.named for pair in _pairs(question, found) if pair.is_like(question, got, order))
    first = next(like, None)
    return None if bits < _MANY_BITS and next(like, None) is not None else first


def _pairs(question: Question, found: Sequence[Candidate]) -> Iterator[Candidate]:
    """Two edits at once, the nearest first, not more than `MOST_PAIRS` and for not longer than `PAIR_SECONDS`."""
    mutants, edits = question.mutants, [one for one in found if one.changes]
    if mutants is None:
        return
    tried, end = 0, time.process_time() + PAIR_SECONDS
    for total in range(1, 2 * len(edits)):
        for first in range(max(0, total - len(edits) + 1), (total + 1) // 2):
            one, other = edits[first], edits[total - first]
            changes = (*one.changes, *other.changes)
            if not is_apart(changes):
                continue
            tried += 1
            if tried > MOST_PAIRS or time.process_time() > end:
                return
            words = f"{one.words}; and {other.words}"
            yield Candidate(
                words,
                one.by_hand and other.by_hand,
                lambda changes=changes: _function(mutants, changes),
                one.hint or other.hint,
                changes,
            )


def _function(mutants: Mutants, changes: Sequence[Change]) -> Callable[..., object]:
    try:
        return mutants.function(changes)
    except SyntaxError:  # two edits may not fit together
        return _no_program


def _no_program(*_: object) -> object:
    raise SyntaxError


def _named_where_wrong(
    question: Question, got: Mapping[str, Outcome], failing: Sequence[str], found: Sequence[Candidate], bits: float
) -> Named | None:
    """The mistake by hand that agrees wherever the answer is wrong, and mostly elsewhere.

    A stored one that agrees in some of the cases is no cause: many roads lead to the same number in one place.
    """
    found = [one for one in found if one.by_hand]
    like = [one for one in found if one.is_like(question, got, failing)]
    if like and bits > math.log2(len(found)) + _BITS_OF_CHANCE / 2:
        best = max(like, key=lambda one: sum(one.is_like(question, got, [case]) for case in got))
        return Named(f"where it is wrong, {best.named.sentence}", best.hint)
    return None


def _bits(outcomes: Iterator[tuple[Outcome, Outcome]]) -> float:
    """How much wrong results tell: a fraction says much, a small whole number little, a repeated or right one least."""
    numbers, bits = set[object](), 0.0
    for expected, got in outcomes:
        right = list(_leaves(expected.value))
        for place, leaf in enumerate(_leaves(got.value)):
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
    return 20 if isinstance(leaf, float) and leaf == leaf else min(20, 2 * len(str(leaf)))


def _leaves(value: object) -> Iterator[object]:
    value = plain(value)
    if isinstance(value, Tensor):
        yield from value.detach().flatten().tolist()
    elif isinstance(value, Mapping):
        yield from (leaf for one in value.values() for leaf in _leaves(one))
    elif isinstance(value, list | tuple):
        yield from (leaf for one in value for leaf in _leaves(one))
    elif isinstance(value, int | float | str):
        yield value
