"""What a loop keeps of C13: a cell, decided from runs that stop after each of their steps and go on.

They are the runs of `course_lm.audit.resume`, evened, with epochs of one length: no other fault acts in them. The
order of an epoch's batches is a function of its number, which a sampler with `set_epoch` has, as torch's
`DistributedSampler`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Sampler

from benchmarks.conformance.decide import Cell, evened
from course_lm.audit.examine import report_of
from course_lm.audit.outcome import PRECISIONS
from course_lm.audit.play import Player, Trouble, is_asked
from course_lm.audit.report import AuditReport
from course_lm.audit.resume import ResumePlayer, ResumeSpecification, StoppedCase, runs, stopped, straight
from course_lm.audit.runs import Batch, Case, Rows
from course_lm.audit.search import Explanation, Search, Specification
from course_lm.audit.spec import Batches, Settings
from course_lm.audit.spec_resume import OPEN_AT_AN_END

SEED = 0
# called as `train` of `audit_resume`, with batches for each epoch of one length
Resumed = Callable[[nn.Module, Sequence[Batches], Settings, Path, int | None], Mapping[str, Any] | None]


class InEpoch(Sampler[int]):
    """The places of an epoch's batches in the list of all batches, in their order."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.length, self.epoch = len(epochs[0]), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch * self.length, (self.epoch + 1) * self.length))


def loader_of(epochs: Sequence[Batches], kind: Any = DataLoader) -> Any:
    """A loader that reads the batches of the epoch that was set last on its sampler."""
    items: list[Batch] = [batch for epoch in epochs for batch in epoch]
    return kind(items, batch_size=1, sampler=InEpoch(epochs), collate_fn=itemgetter(0))


def cell(train: Resumed, precision: str = "float64", timeout: float = 60.0) -> Cell:
    """A cell as those of `decide`."""
    scale, cases = PRECISIONS[precision], [_of_one_length(evened(case)) for case in runs(Rows(SEED))]
    try:
        plays = {case.name: Player(straight(train), scale, timeout).play(case) for case in cases}
    except Trouble as trouble:
        return {"status": "not tried", "reason": f"without a stop {trouble}"}
    ignored = tuple(sorted(frozenset[str]().union(*(play.ignores for play in plays.values()))))
    cases = [case for case in cases if is_asked(case, frozenset(ignored))]
    outcomes = {name: play.outcome for name, play in plays.items()}
    apart = Search(cases, outcomes, Specification(), scale).missed(Explanation((), ignored))
    if apart is not None:
        return {"status": "not tried", "reason": f"{apart.name} departs without a stop"}
    stops = [one for case in cases for one in stopped(case, ignored)]
    ends = [one for one in stops if one.stop.at_end]

    def report_on(some: Sequence[Case]) -> AuditReport:
        return report_of(ResumePlayer(train, scale, timeout), some, ResumeSpecification(), False, ignored)

    report = report_on(stops)
    if report.sound:
        return {"status": "kept", "runs": len(stops)}
    if report_on(ends).sound:
        report = report_on([one for one in stops if not one.stop.at_end])
        return _departing(replace(report, notes=("after a stop at an epoch's end it departs in no run", *report.notes)))
    return _departing(report)


def _departing(report: AuditReport) -> Cell:
    assert isinstance(report.case, StoppedCase)
    # at an end each of these leaves anything, so none of them is shown by it
    faults = [one for one in report.faults if not (report.case.stop.at_end and one in OPEN_AT_AN_END)]
    found: Cell = {"faults": faults, "run": report.case.name}
    if not report.compared:
        return {"status": "not confirmed", **found, "numbers": report.problem}
    said, settings = "; ".join(report.notes), report.case.describe()
    return {"status": "departs", **found, "settings": settings, "numbers": list(report.numbers), "said": said}


def _of_one_length(case: Case) -> Case:
    return replace(case, epochs=[epoch[: min(map(len, case.epochs))] for epoch in case.epochs])
