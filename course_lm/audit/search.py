"""The search for the smallest set of faults under which the specification does what a loop did, in every run.

A set that misses a run is widened by each fault that changes the specification's result there. Two faults may change it
only together, as clipping twice does: where no set is found, all such pairs are tried. Larger sets that hold such a
pair are not found. Only a set that reproduces all runs is an answer, so a fault is never named by chance.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn

from course_lm.audit import spec
from course_lm.audit.features import TO_BE_DECLARED, WITHOUT, without
from course_lm.audit.outcome import Outcome, Precision, distance, flat, names_of
from course_lm.audit.runs import Case

LARGEST = 4  # faults of a set: the loop of most tutorials has four
EFFORT = 3_500  # micro-batches that the specification trains on in one search: ten to fifteen seconds of a slow core


@dataclass(frozen=True, order=True)
class Explanation:
    """Faults that a loop has and features that it lacks, both sorted."""

    faults: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def with_fault(self, name: str) -> "Explanation":
        """This one and one fault more."""
        return Explanation(tuple(sorted({*self.faults, name})), self.ignored)

    def lacking(self, name: str) -> "Explanation":
        """This one and one feature less."""
        return Explanation(self.faults, tuple(sorted({*self.ignored, name})))


class Specification:
    """Runs of the specification, each made once."""

    def __init__(self, seen: Callable[[int], None] = lambda micro_batches: None) -> None:
        self.seen, self.effort = seen, 0
        self._made: dict[tuple[str, Explanation], Outcome] = {}
        self._starts: dict[int, tuple[nn.Module, list[str], Tensor]] = {}

    def start(self, case: Case) -> Tensor:
        """The weights before the run, in one vector."""
        return self._start(case)[2]

    def _start(self, case: Case) -> tuple[nn.Module, list[str], Tensor]:
        if case.seed not in self._starts:
            model = case.model()
            names = names_of(model)
            self._starts[case.seed] = (model, names, flat(dict(model.named_parameters()), names))
        return self._starts[case.seed]

    def outcome(self, case: Case, explanation: Explanation) -> Outcome:
        """What the specification leaves of the run under an explanation."""
        key = (case.name, explanation)
        if key not in self._made:
            self._made[key] = self._run(without(case, explanation.ignored), explanation.faults)
        return self._made[key]

    def _run(self, case: Case, faults: Collection[str]) -> Outcome:
        model, names, _ = self._start(case)
        self.effort += case.micro_batches()
        self.seen(case.micro_batches())
        try:
            result = spec.train(model, case.epochs, case.settings, frozenset(faults))
        except FloatingPointError:
            return Outcome(None, refused=True)
        except ZeroDivisionError:  # a fault that divides by a count of 0
            return Outcome(torch.full_like(self.start(case), math.nan))
        best = None if result.best_weights is None else flat(result.best_weights, names)
        return Outcome(flat(result.weights, names), result.validation_losses, best)


class Search:
    """Explanations of what a loop left of each run.

    Attributes:
        exhausted: whether the search came to its end; False where `EFFORT` was spent before.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        outcomes: Mapping[str, Outcome],
        specification: Specification,
        precision: Precision,
    ) -> None:
        self.cases, self.outcomes = cases, outcomes
        self.specification, self.precision = specification, precision
        self._may_lack = [name for name in WITHOUT if name not in TO_BE_DECLARED]
        self.exhausted = True
        self._limit = specification.effort + EFFORT
        self._visited: set[Explanation] = set()

    def apart(self, case: Case, explanation: Explanation) -> float:
        """How far the loop is from the specification with the faults, in units of what the precision allows."""
        expected = self.specification.outcome(case, explanation)
        got = self.outcomes[case.name]
        if explanation.faults and case.has_empty_batch() and not expected.is_finite():
            return 0.0  # a mean over nothing, of which each loop makes something else: 0, NaN or an error
        if explanation.faults and expected.is_finite() and any(map(math.isnan, expected.validation_losses or ())):
            got = replace(got, validation_losses=None, best=None)  # the same of a validation batch
        return distance(got, expected, self.specification.start(case), self.precision)

    def reproduces(self, explanation: Explanation) -> bool:
        """Whether the specification with the faults leaves what the loop left of every run."""
        return all(self.apart(case, explanation) <= 1.0 for case in self.cases)

    def explains(self, case: Case, explanation: Explanation) -> bool:
        """Whether a run may be one with the faults, clearly or not."""
        return self.apart(case, explanation) <= self.precision.clear

    def missed(self, explanation: Explanation, first: Case | None = None) -> Case | None:
        """The first run of the ladder that the explanation does not reproduce; `first` is looked at before the rest."""
        if first is not None and not self.explains(first, explanation):
            return first
        return next((case for case in self.cases if not self.explains(case, explanation)), None)

    def furthest(self, start: Explanation) -> tuple[Explanation, Case | None]:
        """What the loop lacks without a fault, and the first run that departs even so."""
        settled = [pair for pair in self._settle(start, None) if not self._has_what_it_lacks(pair[0], start)]
        return max(settled, key=lambda pair: len(self.cases) if pair[1] is None else self._place(pair[1]))

    def _has_what_it_lacks(self, explanation: Explanation, start: Explanation) -> bool:
        """Whether a run is right with a feature that the explanation leaves out, and not without it."""
        for name in set(explanation.ignored) - set(start.ignored):
            with_it = Explanation(explanation.faults, tuple(one for one in explanation.ignored if one != name))
            if any(self.explains(case, with_it) and not self.explains(case, explanation) for case in self.cases):
                return True
        return False

    def _place(self, case: Case) -> int:
        return next(place for place, one in enumerate(self.cases) if one is case)

    def smallest(self, start: Explanation) -> list[Explanation]:
        """All explanations with the fewest faults, and of these the ones that lack the fewest features; [] if none."""
        level = beginning = self._settle(start, None)
        for size in range(LARGEST + 1):
            if solved := _solved(level):
                return _fewest(solved)
            level = self._widened(level) if size < LARGEST else []
        return _fewest(_solved(self._together(beginning)))

    def _widened(self, level: "Level") -> "Level":
        """Each explanation with each fault more that changes what the specification leaves of the run it misses."""
        wider: Level = []
        for explanation, case in level:
            assert case is not None
            before = self.specification.outcome(case, explanation)
            for fault in spec.FAULTS:
                child = explanation.with_fault(fault)
                if fault in explanation.faults or child in self._visited:
                    continue
                if self.specification.effort > self._limit:
                    self.exhausted = False
                    return wider
                after = self.specification.outcome(case, child)
                if self._differ(before, after, case):
                    self._visited.add(child)
                    wider += self._settle(child, case)
        # what explains more of the ladder is widened first
        wider.sort(key=lambda pair: -len(self.cases) if pair[1] is None else -self._place(pair[1]))
        return wider

    def _together(self, level: "Level") -> "Level":
        """Each explanation with two faults more, neither of which changes the run that it misses without the other."""
        wider: Level = []
        for explanation, case in level:
            assert case is not None
            before = self.specification.outcome(case, explanation)
            alone = [explanation.with_fault(fault) for fault in spec.FAULTS if fault not in explanation.faults]
            idle = [one for one in alone if not self._differ(before, self.specification.outcome(case, one), case)]
            for one, other in combinations(idle, 2):
                child = Explanation(tuple(sorted({*one.faults, *other.faults})), explanation.ignored)
                if self._differ(before, self.specification.outcome(case, child), case) and child not in self._visited:
                    self._visited.add(child)
                    wider += self._settle(child, case)
        return wider

    def _settle(self, explanation: Explanation, first: Case | None) -> "Level":
        """The explanation and the first run that it misses, once the features are left out that the loop lacks."""
        case = self.missed(explanation, first)
        if case is None:
            return [(explanation, None)]
        lacking = [explanation.lacking(name) for name in self._may_lack if name not in explanation.ignored]
        found: Level = []
        for child in lacking:
            if without(case, child.ignored) != without(case, explanation.ignored) and self.explains(case, child):
                found += self._settle(child, case)
        return [*found, (explanation, case)] if all(case is not None for _, case in found) else found

    def _differ(self, one: Outcome, other: Outcome, case: Case) -> bool:
        return distance(one, other, self.specification.start(case), self.precision) > 1.0


Level = list[tuple[Explanation, Case | None]]


def _solved(level: Level) -> list[Explanation]:
    return [explanation for explanation, missed in level if missed is None]


def _fewest(found: Sequence[Explanation]) -> list[Explanation]:
    least = min(((len(one.faults), len(one.ignored)) for one in found), default=None)
    return sorted({one for one in found if (len(one.faults), len(one.ignored)) == least})
