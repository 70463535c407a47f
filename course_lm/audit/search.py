"""The search for the smallest set of faults under which the specification does what a loop did, in every run.

A set that misses a run is widened by each fault that changes the specification's result there and spoils no run before
it, which was right without the fault. Only a set that reproduces all runs is an answer, so a fault is never named by
chance.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from types import MappingProxyType

import torch
from torch import Tensor, nn

from course_lm.audit import spec
from course_lm.audit.features import FEATURES, SKIPS, TO_BE_DECLARED, without
from course_lm.audit.outcome import Outcome, Precision, distance, flat, names_of
from course_lm.audit.runs import Case

# What a set is widened by: each fault, and the two that do nothing alone where no window has two micro-batches and no
# loss a scale, but together clip twice. No other two act only together, in any run.
STEPS = (*((name,) for name in spec.FAULTS), ("clip_before_unscale", "clip_per_micro_batch"))
# What a loop may lack: a feature, or both betas, which an optimizer has or has not.
LACKING = (*((name,) for name in FEATURES if name not in TO_BE_DECLARED), (SKIPS,), ("beta1", "beta2"))
TOGETHER = 4  # of these are tried at once: AdamW's decay with its own betas and epsilon, clipped or skipped, lacks four
LARGEST = 6  # faults of a set: the loop of most tutorials has four, and a search in vain takes twice as long with eight


@dataclass(frozen=True, order=True)
class Explanation:
    """Faults that a loop has and features that it lacks, both sorted."""

    faults: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def with_faults(self, names: Collection[str]) -> "Explanation":
        """This one and more faults."""
        return Explanation(tuple(sorted({*self.faults, *names})), self.ignored)

    def without_fault(self, name: str) -> "Explanation":
        """This one and one fault less."""
        return Explanation(tuple(fault for fault in self.faults if fault != name), self.ignored)

    def lacking(self, names: Collection[str]) -> "Explanation":
        """This one and some features less."""
        return Explanation(self.faults, tuple(sorted({*self.ignored, *names})))


class Noting(set[str]):
    """Faults that note which faults they are asked for."""

    def __init__(self, faults: Collection[str]) -> None:
        super().__init__(faults)
        self.asked: set[object] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(name)
        return super().__contains__(name)


class Specification:
    """Runs of the specification, each made once, and none for a fault that the run never asks for.

    Attributes:
        steps: what a set of faults is widened by.
        processes: that a run has, each with weights of its own.
        seen: what may be seen of a run beside its weights: names, and how each is said.
    """

    steps: tuple[tuple[str, ...], ...] = STEPS
    processes: int = 1
    seen: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self._made: dict[tuple[str, Explanation], tuple[Outcome, set[object]]] = {}
        self._starts: dict[tuple[int, bool], tuple[nn.Module, list[str], Tensor]] = {}

    def start(self, case: Case) -> Tensor:
        """The weights before the run, those of all processes in one vector."""
        return self._start(case)[2].repeat(self.processes)

    def _start(self, case: Case) -> tuple[nn.Module, list[str], Tensor]:
        key = (case.seed, case.tied)
        if key not in self._starts:
            model = case.model()
            names = names_of(model)
            self._starts[key] = (model, names, flat(dict(model.named_parameters()), names))
        return self._starts[key]

    def outcome(self, case: Case, explanation: Explanation) -> Outcome:
        """What the specification leaves of the run under an explanation."""
        key = (case.name, explanation)
        if key not in self._made:
            fewer = (
                (fault, self._made.get((case.name, explanation.without_fault(fault)))) for fault in explanation.faults
            )
            same = next((made for fault, made in fewer if made is not None and fault not in made[1]), None)
            self._made[key] = same or self._run(without(case, explanation.ignored), Noting(explanation.faults))
        return self._made[key][0]

    def _run(self, case: Case, faults: Noting) -> tuple[Outcome, set[object]]:
        """What a run leaves, and the faults that it asks for."""
        model, names, _ = self._start(case)
        try:
            return self._left(case, model, names, faults), faults.asked
        except FloatingPointError:
            return Outcome(None, refused=True), faults.asked
        except ZeroDivisionError:  # a fault that divides by a count of 0
            return Outcome(torch.full_like(self.start(case), math.nan)), faults.asked

    def _left(self, case: Case, model: nn.Module, names: list[str], faults: Noting) -> Outcome:
        result = spec.train(model, case.epochs, case.settings, faults)
        best = None if result.best_weights is None else flat(result.best_weights, names)
        return Outcome(flat(result.weights, names), result.validation_losses, best)


@dataclass(frozen=True)
class Candidate:
    """An explanation, the first run that it misses, and what it may be widened by there."""

    explanation: Explanation
    missed: Case | None
    steps: tuple[tuple[str, ...], ...]


class Search:
    """Explanations of what a loop left of each run."""

    seconds = 60.0  # that `smallest` may take: what is not found in them is located instead

    def __init__(
        self,
        cases: Sequence[Case],
        outcomes: Mapping[str, Outcome],
        specification: Specification,
        precision: Precision,
    ) -> None:
        self.cases, self.outcomes = cases, outcomes
        self.specification, self.precision = specification, precision
        self._visited: set[Explanation] = set()
        self.deadline, self.ran_out = math.inf, False
        self.closest: Candidate | None = None  # what `smallest` has found that explains most of the ladder

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

    def missed(self, explanation: Explanation) -> Case | None:
        """The first run of the ladder that the explanation does not explain."""
        return next((case for case in self.cases if not self.explains(case, explanation)), None)

    def furthest(self, start: Explanation) -> tuple[Explanation, Case | None]:
        """What the loop lacks without a fault, and the first run that departs even so."""
        settled = [one for one in self._settle(start, None) if not self._has_what_it_lacks(one.explanation, start)]
        best = max(settled, key=self._progress)
        return best.explanation, best.missed

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
        """The explanations with the fewest faults, and of these the ones that lack the fewest features; [] if none.

        It goes on with what explains most of the ladder, and of that with the fewest faults. To explain one run more by
        chance is next to impossible, so what is behind is looked at only when that leads nowhere. After `seconds` it
        gives up.
        """
        self.deadline = time.monotonic() + self.seconds
        waiting = self._settle(start, None)
        while waiting and not self.ran_out:
            first = max(map(self._progress, waiting))
            ahead = [one for one in waiting if self._progress(one) == first]
            self.closest = max(self.closest or ahead[0], ahead[0], key=self._progress)
            if ahead[0].missed is None:
                return _fewest([one.explanation for one in ahead])
            waiting = [one for one in waiting if self._progress(one) != first]
            for one in ahead:
                waiting += self._widened(one)
        return []

    def _progress(self, one: "Candidate") -> tuple[int, int]:
        place = len(self.cases) if one.missed is None else self._place(one.missed)
        return place, -len(one.explanation.faults)

    def _widened(self, one: "Candidate") -> list["Candidate"]:
        """The candidate with each fault more that changes the run it misses, and spoils none before it."""
        assert one.missed is not None
        before = self.specification.outcome(one.missed, one.explanation)
        wider: list[Candidate] = []
        fit, idle = [], []
        for more in one.steps if len(one.explanation.faults) < LARGEST else ():
            if self.is_over():
                break
            child = one.explanation.with_faults(more)
            if not self._differ(before, self.specification.outcome(one.missed, child), one.missed):
                idle.append(more)
            elif settled := self._settle(child, one.missed):
                fit.append(more)
                wider += settled if child not in self._visited else []
                self._visited.add(child)
        # a run of the ladder has one feature more than those before it: no three faults show in it at once. One may do
        # nothing without the other, as PADs that are counted and a mask that is forgotten.
        again = (*fit, *idle) if one.steps is self.specification.steps else ()
        return [replace(child, steps=again) if child.missed is one.missed else child for child in wider]

    def is_over(self) -> bool:
        """Whether the time of the search is up; that is noted."""
        self.ran_out = self.ran_out or time.monotonic() > self.deadline
        return self.ran_out

    def _settle(self, explanation: Explanation, last: Case | None) -> list["Candidate"]:
        """The explanation and the first run that it misses, once the features are left out that the loop lacks.

        Nothing where that run is one before `last`.
        """
        case = self.missed(explanation)
        if case is None:
            return [Candidate(explanation, None, self.specification.steps)]
        if last is not None and self._place(case) < self._place(last):
            return []
        found: list[Candidate] = []
        for children in self._lacking(explanation, case):
            for child in children:
                if self.explains(case, child):
                    found += self._settle(child, case)
            if any(one.missed is None for one in found):
                return found
        return [*found, Candidate(explanation, case, self.specification.steps)]

    def _lacking(self, explanation: Explanation, case: Case) -> Iterator[list[Explanation]]:
        """The explanation without one more of the features that act in the run, then without two at once, and so on.

        Beside a fault one is left out at a time: each set of features would be tried with each fault.
        """
        seen = without(case, explanation.ignored)
        acting = [
            names
            for names in LACKING
            if not set(names) & set(explanation.ignored) and without(case, explanation.lacking(names).ignored) != seen
        ]
        for size in range(1, 2 if explanation.faults else TOGETHER + 1):
            yield sorted({explanation.lacking(list(chain(*some))) for some in combinations(acting, size)})

    def _differ(self, one: Outcome, other: Outcome, case: Case) -> bool:
        return distance(one, other, self.specification.start(case), self.precision) > 1.0


def _fewest(found: Sequence[Explanation]) -> list[Explanation]:
    least = min(((len(one.faults), len(one.ignored)) for one in found), default=None)
    return sorted({one for one in found if (len(one.faults), len(one.ignored)) == least})
