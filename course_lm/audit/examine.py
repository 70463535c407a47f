"""The audit itself: the ladder of runs, the search for what explains them, and the report."""

import inspect
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from course_lm.audit.features import FEATURES, without
from course_lm.audit.locate import locate
from course_lm.audit.on_ranks import RankPlayer, RankSpecification, ladder_of_ranks
from course_lm.audit.outcome import PRECISIONS, distance
from course_lm.audit.play import Loop, Play, Player, Trouble, is_asked
from course_lm.audit.report import AuditReport
from course_lm.audit.runs import Case, ladder
from course_lm.audit.search import Explanation, Search, Specification
from course_lm.display import Bar
from course_lm.validation import did_you_mean, ensure, require

AGAIN = ("one SGD step on one row", "AdamW with decay")  # runs made once more at the end: the same weights must come
NO_LOSSES = "the loop returns no validation losses: they were not compared"
UNSTEADY = (
    "the same run, made again, leaves other weights: the loop keeps something from one call to the next, or draws "
    "random numbers that no seed fixes"
)


def audit(
    loop: Loop,
    *,
    ranks: int = 1,
    precision: str = "float64",
    parts: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool = True,
    timeout: float = 30.0,
) -> AuditReport:
    """Compare `loop` with the specification on crafted runs, and say what it does otherwise.

    Args:
        loop: called as `loop(model, epochs, settings)`; it trains `model` in place as `spec.train` would. It may return
            a mapping with "validation_losses", "best_weights", and "ignores": names of settings that it does not have.
        ranks: processes that the loop runs in. From 2 on it is called in each of them, where `torch.distributed`'s
            default group (gloo) is joined already, with the same weights and with all batches of each epoch, of which
            rank r of W is to take r, r + W, …; `settings.accumulation_steps` of a rank's own make its part of a step.
            Other runs are made then, about what ranks do together; audit the loop on one process too.
        precision: that of the model, "float64" or "float32", or "bf16" for a loop that computes under autocast on a
            float32 model. In float64 equal means equal to ten digits; what is finer than a precision is not seen
            in it, such as the fault `bf16_gradients` in bf16.
        parts: the parts of a loop to look at, of `PARTS`; all by default. With ranks, all are looked at.
        seed: of the tokens and the weights.
        progress: a bar on standard error.
        timeout: seconds that one run may take; nothing stops a run on Windows, or outside the main thread.

    Raises:
        ValueError: a precision or a part that is unknown, a timeout of 0 or less, `ranks` below 1, parts with ranks, or
            a `loop` that does not take three arguments or, with ranks, cannot be sent to another process.
        TypeError: `loop` cannot be called.
        ImportError: ranks without the package cloudpickle.
    """
    require(precision in PRECISIONS, "precision", f"one of {', '.join(PRECISIONS)}", precision)
    require(timeout > 0, "timeout", "above 0", timeout)
    require(ranks >= 1, "ranks", "at least 1", ranks)
    require_callable(loop, "model, epochs, settings")
    if ranks == 1:
        return report_of(Player(loop, PRECISIONS[precision], timeout), ladder(seed, parts), Specification(), progress)
    require(parts is None, "parts", "left out with ranks", parts)
    began = time.perf_counter()
    with RankPlayer(loop, PRECISIONS[precision], timeout, ranks) as player:
        report = report_of(player, ladder_of_ranks(seed, ranks), RankSpecification(ranks), progress)
    return replace(report, seconds=time.perf_counter() - began)  # with those in which the processes start


def report_of(
    player: Player, cases: Sequence[Case], specification: Specification, progress: bool, ignored: Collection[str] = ()
) -> AuditReport:
    """Let a player make the runs and say what they show, with the seconds that it took.

    `ignored`: features that the loop is known to lack.
    """
    began = time.perf_counter()
    with Bar(total=len(cases), desc="audit", unit="run", disable=not progress, leave=False) as bar:
        report = _Audit(player, cases, bar, specification, ignored).report()
    return replace(report, seconds=time.perf_counter() - began)


def require_callable(loop: Callable[..., Any], parameters: str) -> None:
    """Raise TypeError for what cannot be called, ValueError for what does not take the named parameters."""
    if not callable(loop):
        raise TypeError(f"loop must be callable as loop({parameters}), got {type(loop).__name__}")
    try:
        signature = inspect.signature(loop)
    except (TypeError, ValueError):
        return  # not every callable has one
    try:
        signature.bind(*parameters.split(", "))
    except TypeError:
        name = getattr(loop, "__name__", type(loop).__name__)
        takes = f"({', '.join(signature.parameters)})"
        raise ValueError(f"{name} must be callable as {name}({parameters}), it takes {takes}") from None


def assert_sound(
    loop: Loop,
    *,
    needs: Collection[str] = (),
    precision: str = "float64",
    parts: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool = False,
    timeout: float = 30.0,
) -> None:
    """Raise AssertionError with the report unless the audit finds the loop sound, with all settings that it `needs`.

    Args:
        needs: names of settings, or "document_ids", that the loop must have: one that it lacks is an error.
        precision, parts, seed, progress, timeout: those of `audit`.

    Raises:
        AssertionError: the loop is unsound, could not be compared, or lacks what it needs.
        ValueError: what `audit` refuses, or a need that is no setting, or that no run of the `parts` is about.
    """
    cases = ladder(seed, parts)
    require(not isinstance(needs, str), "needs", "a collection of names", needs)
    for name in needs:
        ensure(
            name in FEATURES,
            f"needs must be some of {', '.join(FEATURES)}, got {name!r}; {did_you_mean(name, FEATURES)}".rstrip("; "),
        )
        is_seen = any(without(case, {name}) != case for case in cases)
        ensure(is_seen, f"needs has {name}, which no run of the parts {', '.join(parts or ())} is about")
    report = audit(loop, precision=precision, parts=parts, seed=seed, progress=progress, timeout=timeout)
    lacking = {name.partition("=")[0] for name in report.ignored}
    if NO_LOSSES in report.notes:
        lacking.add("validation")
    missing = [name for name in needs if name in lacking]
    if missing and report.sound:
        raise AssertionError(f"the loop needs {' and '.join(missing)}, and does not have it\n{report}")
    if not report.sound:
        raise AssertionError(str(report))


class _Audit:
    """The runs that a player makes, compared with those of a specification."""

    def __init__(
        self, player: Player, cases: Sequence[Case], bar: Bar, specification: Specification, ignored: Collection[str]
    ) -> None:
        self.player, self.cases, self.bar = player, cases, bar
        self.precision, self.specification = player.precision, specification
        self.plays: dict[str, Play] = {}
        self.declared = frozenset(ignored)
        self.trouble: tuple[Case, Trouble] | None = None

    def report(self) -> AuditReport:
        """Play all runs, then say what they show."""
        self.play_all()
        asked = [case for case in self.cases if case.name in self.plays and is_asked(case, self.declared)]
        outcomes = {name: one.outcome for name, one in self.plays.items()}
        search = Search(asked, outcomes, self.specification, self.precision)
        start = Explanation((), tuple(sorted(self.declared)))
        base = AuditReport(self.precision.name, runs=len(asked), notes=self.not_compared(), ignored=start.ignored)
        if self.trouble is not None:
            return self.troubled(base, search, start)
        unsteady = self.unsteady(search, start)
        if unsteady is not None:
            return self.located(replace(base, problem=UNSTEADY), unsteady, start)
        if search.reproduces(start):
            return replace(base, sound=True)
        coarse = Search(asked, outcomes, self.specification, PRECISIONS["float32"])
        if self.precision.exact and coarse.reproduces(start):  # it departs in every run by no more than float32 rounds
            case = self.first_apart(search, start)
            word = 'the loop computes in float32 somewhere; audit it with precision="float32"'
            return replace(self.located(replace(base, problem=word), case, start), part="precision")
        self.bar.set_description("audit: it departs; looking for the fault")
        return self.explained(base, search, start)

    def explained(self, base: AuditReport, search: Search, start: Explanation) -> AuditReport:
        """The report of a loop that departs: sound but for features that it lacks, named or located."""
        found = search.smallest(start)
        clear = [one for one in found if search.reproduces(one)]
        if not clear:
            lacking, case = search.furthest(start)
            over = [f"the search for faults was ended after {search.seconds:g} s"] if search.ran_out else []
            notes = (*over, *self.explained_in_part(search), *base.notes)
            base = replace(base, ignored=lacking.ignored, notes=notes)
            return self.located(base, case or self.first_apart(search, start), lacking)
        first = min(clear, key=lambda one: len(self.idle(one, start)))
        idle = self.idle(first, start)
        lacking = Explanation((), tuple(name for name in first.ignored if name not in idle))
        undeclared = tuple(name for name in lacking.ignored if name not in start.ignored)
        base = replace(base, ignored=lacking.ignored, undeclared=undeclared)
        said = [f"the loop reads {name.partition('=')[0]}, and it changes nothing" for name in idle]
        if first.faults:
            others = tuple(one.faults for one in found if one.faults != first.faults)
            base = replace(base, faults=first.faults, alternatives=others, notes=(*said, *base.notes))
        elif idle:
            base = replace(base, problem="; ".join(said))
        else:
            return replace(base, sound=True)
        return self.located(base, self.first_apart(search, lacking), lacking)

    def idle(self, explanation: Explanation, start: Explanation) -> list[str]:
        """Settings that the loop would lack in silence, but that it reads in a run that is another one without them."""
        return [
            name
            for name in explanation.ignored
            if name not in start.ignored
            and any(
                name.partition("=")[0] in self.plays[case.name].read and without(case, {name}) != case
                for case in self.cases
            )
        ]

    def explained_in_part(self, search: Search) -> list[str]:
        """Which faults explain the runs up to one that none explains; in a coarse precision a few do so by chance."""
        best = search.closest
        if best is None or best.missed is None or not best.explanation.faults or not self.precision.exact:
            return []
        faults, name = " and ".join(best.explanation.faults), best.missed.name
        return [f"up to the run “{name}” it does what the specification with {faults} does: mend that, and audit again"]

    def first_apart(self, search: Search, explanation: Explanation) -> Case:
        """The first run that is not the specification's."""
        return next(case for case in search.cases if search.apart(case, explanation) > 1.0)

    def play_all(self) -> None:
        """Let the loop make every run, until one cannot be compared."""
        for case in self.cases:
            try:
                self.plays[case.name] = self.player.play(case)
            except Trouble as trouble:
                self.trouble = (case, trouble)
                return
            self.declared |= self.plays[case.name].ignores
            self.bar.update()

    def unsteady(self, search: Search, start: Explanation) -> Case | None:
        """A run that leaves other weights when it is made again."""
        departing = search.missed(start)
        for case in self.cases:
            if case.name in AGAIN or case is departing or case is self.cases[0]:
                again = self.player.replay(case)
                weights = self.specification.start(case)
                before = self.plays[case.name].outcome
                if again is None or distance(again, before, weights, self.precision) > 1.0:
                    return case
        return None

    def not_compared(self) -> tuple[str, ...]:
        validated = [self.plays.get(case.name) for case in self.cases if case.settings.validation]
        losses = [play.outcome.validation_losses for play in validated if play is not None]
        return (NO_LOSSES,) if losses and all(one is None for one in losses) else ()

    def troubled(self, base: AuditReport, search: Search, start: Explanation) -> AuditReport:
        """The report of a loop of which a run cannot be compared; one before it may depart."""
        assert self.trouble is not None
        case, trouble = self.trouble
        _, departing = search.furthest(start)
        before = [] if departing is None else [f"before that, it departs in the run “{departing.name}”"]
        part = "precision" if trouble.of_format else case.part
        notes = (*before, *base.notes)
        return replace(base, part=part, case=case, problem=str(trouble), compared=False, notes=notes)

    def located(self, base: AuditReport, case: Case, explanation: Explanation) -> AuditReport:
        """The report with the run that departs: see `locate`."""
        return locate(base, self.player, self.specification, case, self.plays[case.name], explanation)
