"""What a check asks, and how results are judged equal: what every judge of an answer needs."""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from course_lm.classroom.checks.comparison import Close, difference
from course_lm.classroom.checks.outcomes import Outcome, Refused, Run, call, outcome, same_random_numbers


@dataclass
class Mistake:
    """A wrong variant of the solution: what it does in each case is asked once, and only where it is wanted.

    Attributes:
        words: finish the sentence "this is what you get when …".
        make: gives the variant.
        hint: the author's sentence to it, or empty.
    """

    words: str
    make: Callable[[], Callable[..., object]]
    hint: str = ""
    _fn: Callable[..., object] | None = None
    _outcomes: dict[str, Outcome] = field(default_factory=dict)

    def outcome(self, question: "Question", case: str) -> Outcome:
        """What it does in a case."""
        if case not in self._outcomes:
            self._fn = self._fn or self.make()
            self._outcomes[case] = question.ask(self._fn, case)
        return self._outcomes[case]


@dataclass(frozen=True)
class Question:
    """What is asked of one answer; `exercise` says what the settings mean."""

    check: str
    reference: Callable[..., object]
    cases: Mapping[str, tuple[Any, ...]]
    mistakes: Sequence[Mistake] = ()
    run: Run = call
    close: Close | None = None
    without: Sequence[str] = ()
    unchanged: str = "it has changed nothing"

    @cached_property
    def expected(self) -> dict[str, Outcome]:
        """What the reference does in each case. Raises the error of a reference that fails."""
        found = {case: outcome(self.run, self.reference, args) for case, args in self.cases.items()}
        for one in found.values():
            if one.error is not None:
                raise one.error
        return found

    def ask(self, fn: Callable[..., object], case: str) -> Outcome:
        """What `fn` does in a case; where there must be a result and is none, it is refused as `unchanged` says."""
        found = outcome(self.run, fn, self.cases[case], self.expected[case])
        nothing = found.value is None or found.value is ...
        if not found.fault and nothing and self.expected[case].value is not None:
            found.refused = self.unchanged
        return found

    def is_equal(self, one: Outcome, other: Outcome) -> bool:
        """Whether two outcomes of one case are the same fault, or values without a difference."""
        if one.fault or other.fault:
            return one.fault == other.fault
        return not self.difference(one.value, other.value)

    def difference(self, expected: object, got: object) -> str:
        """The first difference between two results in words, empty where they are equal."""
        try:
            return difference(expected, got, self.close) or ""
        except (TypeError, RecursionError):  # what no comparison knows, or what lies within itself
            return f"got a {type(got).__name__} that cannot be compared"

    def is_right(self, case: str, got: Outcome) -> bool:
        """Whether an outcome is what was expected."""
        return self.is_equal(self.expected[case], got)

    def mistake_of(self, got: Mapping[str, Outcome]) -> Mistake | None:
        """The mistake that does in every case what an answer does, if there is one."""
        order = sorted(got, key=lambda case: self.is_right(case, got[case]))  # the wrong ones tell mistakes apart
        for one in self.mistakes:
            if all(self.is_equal(one.outcome(self, case), got[case]) for case in order):
                return one
        return None

    def by_size(self, cases: Collection[str]) -> list[str]:
        """Cases, the one with the smallest input first."""
        return sorted(cases, key=lambda case: _size(self.cases[case]))

    def first_args(self, case: str) -> tuple[Any, ...]:
        """The arguments of the first call that the check makes in a case, untouched."""
        caught: list[tuple[Any, ...]] = []

        def catch(*args: object, **_: object) -> object:
            caught.append(args)
            raise Refused

        with same_random_numbers(), suppress(Exception):
            self.run(catch, *copy.deepcopy(self.cases[case]))
        return caught[0]


def _size(value: object) -> float:
    """How much a reader has to look at: numbers count by their digits, tensors by their elements."""
    if isinstance(value, Tensor):
        return 2 * value.numel()
    if isinstance(value, Mapping):
        return 1 + sum(_size(one) for one in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(_size(one) for one in value)
    if isinstance(value, int | float) and math.isfinite(value):
        return 1 + math.log10(1 + abs(value)) / 10
    return 1 + len(value) / 10 if isinstance(value, str | bytes) else 5
