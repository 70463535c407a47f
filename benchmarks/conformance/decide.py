"""What a loop keeps of the promises C1 to C12: a cell for each, decided from the audit's ladder of runs.

A cell is "kept" if the loop leaves in every run about the promise what the specification leaves, without the settings
that the loop lacks, and with the faults that it has against other promises. A fault belongs to the promise of the
first run of the ladder that it changes. "departs" names the faults, or none where no set of known faults does the same,
and the smallest run that shows it. A promise whose runs all need a setting that the loop lacks is "not offered".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from course_lm.audit.features import FEATURES, without
from course_lm.audit.locate import PROMISES, numbers
from course_lm.audit.outcome import PRECISIONS
from course_lm.audit.play import Loop, Play, Player, Trouble, is_asked
from course_lm.audit.runs import Case, ladder
from course_lm.audit.search import Explanation, Search, Specification

Cell = dict[str, Any]
RETURNED = {"C11": "validation_losses", "C12": "best"}  # a promise about what a loop returns beside the weights


def cells(loop: Loop, not_offered: Mapping[str, str], precision: str = "float64", timeout: float = 60.0) -> Cell:
    """A cell for each promise from C1 to C12: "status" with "runs", "reason", or "faults", "run" and "numbers"."""
    return _Decision(Player(loop, PRECISIONS[precision], timeout), not_offered).cells()


class _Decision:
    def __init__(self, player: Player, not_offered: Mapping[str, str]) -> None:
        self.precision, self.not_offered, self.specification = player.precision, not_offered, Specification()
        self.plays: dict[str, Play] = {}
        self.troubles: dict[str, str] = {}
        cases = ladder()
        for case in cases:
            try:
                self.plays[case.name] = player.play(case)
            except Trouble as trouble:
                self.troubles[case.name] = str(trouble)
        declared = frozenset[str]().union(*(play.ignores for play in self.plays.values()))
        self.cases = [case for case in cases if is_asked(case, declared)]
        self.lacking = Explanation((), tuple(sorted(declared)))
        self.faults: dict[str, tuple[str, ...] | None] = {}
        self.explain()

    def explain(self) -> None:
        """Find what the loop lacks, and for each promise the faults that explain the runs about it, or None.

        A loop of which no set of faults explains all runs is explained promise by promise.
        """
        whole = self.search(self.cases)
        found = _clear(whole, self.lacking)
        if found is not None:
            self.lacking = Explanation((), found.ignored)
        for promise in PROMISES:
            one = found or _clear(self.search(self.about(promise)), self.lacking)
            self.faults[promise] = None if one is None else one.faults

    def about(self, promise: str) -> list[Case]:
        return [case for case in self.cases if case.promise == promise]

    def search(self, cases: Sequence[Case]) -> Search:
        """The search in those of the runs that ended."""
        outcomes = {name: play.outcome for name, play in self.plays.items()}
        ended = [case for case in cases if case.name in outcomes]
        return Search(ended, outcomes, self.specification, self.precision)

    def cells(self) -> dict[str, Cell]:
        return {promise: self.cell(promise) for promise in PROMISES}

    def cell(self, promise: str) -> Cell:
        """What the runs about one promise show."""
        cases, lacking = self.about(promise), set(self.lacking.ignored)
        if promise in self.not_offered:
            return {"status": "not offered", "reason": self.not_offered[promise]}
        common = set(FEATURES).intersection(*map(_switched_on, cases)) & lacking if cases else lacking
        if not cases or common:
            return {"status": "not offered", "reason": f"it has no {', '.join(sorted(common))}"}
        returned = RETURNED.get(promise)
        if returned and not any(getattr(self.plays[case.name].outcome, returned, None) is not None for case in cases):
            return {"status": "not tried", "reason": f"the adapter returns no {returned}"}
        raised = next((case for case in cases if case.name in self.troubles), None)
        if raised is not None:
            return {"status": "departs", "faults": [], "run": raised.name, "numbers": self.troubles[raised.name]}
        faults = self.faults[promise]
        own = self.own(promise, faults)
        if faults is not None and not own:
            return {"status": "kept", "runs": len(cases)}
        excused = self.lacking.with_faults(set(faults or ()) - set(own))
        return {"status": "departs", "faults": own, **self.smallest(self.cases if own else cases, excused)}

    def own(self, promise: str, faults: Iterable[str] | None) -> list[str]:
        """Those of the faults that belong to the promise, or that excuse it but are not found where they belong."""
        homes = {fault: self.home(fault) for fault in faults or ()}
        return [fault for fault, home in homes.items() if home == promise or fault not in (self.faults[home] or ())]

    def home(self, fault: str) -> str:
        """The promise of the first run of the ladder that the fault changes."""
        search, with_fault = self.search(self.cases), self.lacking.with_faults([fault])
        for case in search.cases:
            right, wrong = (self.specification.outcome(case, one) for one in (self.lacking, with_fault))
            if search._differ(right, wrong, case):
                return case.promise
        raise LookupError(f"no run shows the fault {fault}")

    def smallest(self, cases: Sequence[Case], excused: Explanation) -> Cell:
        """The first of the runs that departs, and the loop's numbers beside those of the specification."""
        search = self.search(cases)
        case = next(case for case in search.cases if search.apart(case, excused) > 1.0)
        right = self.specification.outcome(case, excused)
        rows = numbers(case, self.plays[case.name].outcome, right, self.specification.start(case))
        return {"run": case.name, "settings": case.describe(), "numbers": rows, "said": self.plays[case.name].said}


def _clear(search: Search, start: Explanation) -> Explanation | None:
    return next((one for one in search.smallest(start) if search.reproduces(one)), None)


def _switched_on(case: Case) -> set[str]:
    return {name for name in FEATURES if without(case, [name]) != case}
