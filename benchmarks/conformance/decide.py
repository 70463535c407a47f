"""What a loop keeps of the promises C1 to C12: a cell for each, decided from the audit's ladder of runs.

A cell is "kept" if the loop leaves in every run about the promise what the specification leaves, without the settings
that the loop lacks, and with the faults that it has against other promises. A fault belongs to the promise of the
first run of the ladder that it changes. Where a fault against another promise has no name, the runs about a promise of
`EVENED` are made once more, with batches on which such a fault does not act, and it is judged by them.
"departs" names the faults, or none where no set of known faults does the same, and the smallest run that shows it.
"not confirmed" names a run that ended in an error. A promise whose runs all need a setting that the loop lacks is
"not offered".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from course_lm.audit.features import FEATURES, without
from course_lm.audit.locate import PROMISES, numbers
from course_lm.audit.outcome import PRECISIONS, distance
from course_lm.audit.play import Loop, Play, Player, Trouble, is_asked
from course_lm.audit.runs import Batch, Case, count_targets, ladder
from course_lm.audit.search import Explanation, Search, Specification

Cell = dict[str, Any]
ABOUT = {case.promise for case in ladder()}
ASKED = [promise for promise in PROMISES if promise in ABOUT]  # C13 is about more than one call of a loop
RETURNED = {"C11": "validation_losses", "C12": "best"}  # a promise about what a loop returns beside the weights

EVENED = ("C6", "C8", "C9", "C10", "C12")  # what these are about does not hang on how targets lie in batches


def cells(
    loop: Loop, settled: Mapping[str, Cell], precision: str = "float64", timeout: float = 60.0
) -> dict[str, Cell]:
    """A cell for each promise from C1 to C12: "status" with "runs", "reason", or "faults", "run" and "numbers".

    Those in `settled` are as given: no run decides them.
    """
    decision = _Decision(Player(loop, PRECISIONS[precision], timeout), settled)
    return {promise: decision.cell(promise) for promise in ASKED}


class _Decision:
    def __init__(self, player: Player, settled: Mapping[str, Cell]) -> None:
        self.player, self.precision, self.settled = player, player.precision, settled
        self.specification = Specification()
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
        self.about: dict[str, list[Case]] = {promise: [] for promise in ASKED}
        for case in self.cases:
            self.about[case.promise].append(case)
        self.whole = _clear(self.search(self.cases), self.lacking)
        self.faults: dict[str, tuple[str, ...] | None] = dict.fromkeys(
            ASKED, None if self.whole is None else self.whole.faults
        )
        self.evened = set[str]()  # promises that are judged by evened runs
        if self.whole is None:
            self.explain_apart()
        else:
            self.lacking = Explanation((), self.whole.ignored)

    def explain_apart(self) -> None:
        """Explain a loop promise by promise, in the ladder's order.

        Where no faults explain the runs about a promise, what the first of them switches on is not tried any further.
        """
        blamed: set[str] = set()
        for promise in dict.fromkeys(case.promise for case in self.cases):
            cases = self.about[promise] = [case for case in self.about[promise] if not _switched_on(case) & blamed]
            found = _clear(self.search(cases), self.lacking)
            self.faults[promise] = None if found is None else found.faults
            if found is None and promise not in self.settled:
                first = self.cases.index(self.departing(cases, self.lacking))
                before = set[str]().union(*map(_switched_on, self.cases[:first]))
                blamed |= _switched_on(self.cases[first]) - before
        for promise in (one for one in EVENED if one not in self.settled):
            faults = self.faults[promise]
            if not self.about[promise] or faults is None or self.own(promise, faults):
                self.explain_evenly(promise)

    def search(self, cases: Sequence[Case]) -> Search:
        """The search in those of the runs that ended."""
        outcomes = {name: play.outcome for name, play in self.plays.items()}
        ended = [case for case in cases if case.name in outcomes]
        return Search(ended, outcomes, self.specification, self.precision)

    def cell(self, promise: str) -> Cell:
        """What the runs about one promise show."""
        cases = self.about[promise]
        if promise in self.settled:
            return self.settled[promise]
        asked = [case for case in self.cases if case.promise == promise]
        missing = set(FEATURES).intersection(*map(_switched_on, asked)) & set(self.lacking.ignored)
        if not asked or missing:
            return {"status": "not offered", "reason": f"no {', '.join(sorted(missing)) or 'setting for it'}"}
        if not cases and promise not in self.evened:
            return {"status": "not tried", "reason": "its runs need what departs under another promise"}
        returned = RETURNED.get(promise)
        if returned and all(getattr(play.outcome, returned) is None for play in self.plays.values()):
            return {"status": "not tried", "reason": f"the adapter returns no {returned}"}
        raised = next((case for case in cases if case.name in self.troubles), None)
        if raised is not None and promise not in self.evened:
            # The error may be the adapter's, so no script confirms this.
            return {"status": "not confirmed", "faults": [], "run": raised.name, "numbers": self.troubles[raised.name]}
        faults = self.faults[promise]
        own = self.own(promise, faults or ())
        if faults is not None and not own:
            if promise in self.evened:
                return {"status": "kept", "runs": len(asked), "evened": True}
            return {"status": "kept", "runs": len(cases)}
        excused = self.lacking.with_faults(set(faults or ()) - set(own))
        return {
            "status": "departs",
            "faults": own,
            **self.smallest(self.cases if self.whole else cases or asked, excused),
        }

    def explain_evenly(self, promise: str) -> None:
        """Explain the runs about a promise once more by those that are evened."""
        runs = [evened(case) for case in self.cases if case.promise == promise]
        try:
            outcomes = {case.name: self.player.play(case).outcome for case in runs}
        except Trouble:
            return
        search = Search(runs, outcomes, Specification(), self.precision)
        homes = [(fault, other) for other, faults in self.faults.items() for fault in faults or ()]
        elsewhere = {fault for fault, other in homes if other != promise and self.home(fault) == other}
        named = self.lacking.with_faults(elsewhere)
        # first what is known: a search in vain takes a minute, and on a slow machine it ends before it finds two faults
        found = named if search.reproduces(named) else _clear(search, self.lacking)
        if found is not None and found.ignored == self.lacking.ignored:
            self.faults[promise] = found.faults
            self.evened.add(promise)

    def own(self, promise: str, faults: Iterable[str]) -> list[str]:
        """Those of the faults that belong to the promise, or that are not found where they belong."""
        homes = {fault: self.home(fault) for fault in faults}
        return [fault for fault, home in homes.items() if home == promise or fault not in (self.faults[home] or ())]

    def home(self, fault: str) -> str:
        """The promise of the first run of the ladder that the fault changes."""
        wrong = self.lacking.with_faults([fault])
        for case in self.cases:
            right, with_fault = (self.specification.outcome(case, one) for one in (self.lacking, wrong))
            if distance(with_fault, right, self.specification.start(case), self.precision) > 1.0:
                return case.promise
        raise LookupError(f"no run shows the fault {fault}")

    def departing(self, cases: Sequence[Case], excused: Explanation) -> Case:
        """The first of the runs that the loop gets wrong."""
        search = self.search(cases)
        return next(case for case in cases if case.name in self.troubles or search.apart(case, excused) > 1.0)

    def smallest(self, cases: Sequence[Case], excused: Explanation) -> Cell:
        """The first of the runs that departs, and the loop's numbers beside those of the specification."""
        case = self.departing(cases, excused)
        right, start = self.specification.outcome(case, excused), self.specification.start(case)
        play = self.plays[case.name]
        rows = numbers(case, play.outcome, right, start)
        return {"run": case.name, "settings": case.describe(), "numbers": rows, "said": play.said}


def evened(case: Case) -> Case:
    """The run without tails, each batch one row of the same number of tokens, whose first label is -100."""
    size, validation = case.settings.accumulation_steps, [*filter(count_targets, case.settings.validation)]
    epochs = [list(epoch[: len(epoch) // size * size]) for epoch in case.epochs]
    width = min(int(batch["attention_mask"][0].sum()) for batch in (*chain(*epochs), *validation))

    def cut(batch: Batch) -> Batch:
        row = {name: values[:1, -width:] for name, values in batch.items()}  # a first row has no pads at its end
        return row | {"labels": torch.cat([row["labels"].new_tensor([[-100]]), row["labels"][:, 1:]], dim=1)}

    settings = replace(case.settings, validation=[*map(cut, validation)])
    return replace(case, epochs=[[*map(cut, epoch)] for epoch in epochs], settings=settings)


def _clear(search: Search, start: Explanation) -> Explanation | None:
    return next((one for one in search.smallest(start) if search.reproduces(one)), None)


def _switched_on(case: Case) -> set[str]:
    return {name for name in FEATURES if without(case, [name]) != case}
