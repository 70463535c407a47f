"""The audit of a resume: a loop stopped after each step of short runs, and what it leaves when it has gone on."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from course_lm.audit import spec, spec_resume
from course_lm.audit.examine import audit, report_of, require_callable
from course_lm.audit.features import without
from course_lm.audit.model import POISONED_GRADIENT
from course_lm.audit.on_ranks import watch_draws
from course_lm.audit.outcome import PRECISIONS, Outcome, Precision, distance, flat, names_of
from course_lm.audit.play import Loop, Play, Player, Trouble, is_asked
from course_lm.audit.report import AuditReport
from course_lm.audit.runs import Case, Epochs, Moving, Rows, adam, contradicting, sgd
from course_lm.audit.search import Noting, Specification
from course_lm.reproducibility import seed_generators

ResumedLoop = Callable[[nn.Module, Epochs, spec.Settings, Path, int | None], Mapping[str, Any] | None]
PARAMETERS = "model, epochs, settings, folder, stop_after"


@dataclass(frozen=True)
class StoppedCase(Case):
    """A run that stops, and goes on with a new model."""

    stop: spec_resume.Stop = field(kw_only=True, repr=False, compare=False)

    def has_empty_batch(self) -> bool:
        """Whether some faults are not compared, as what they leave of this run depends on the loop."""
        return self.stop.at_end


def audit_resume(
    train: ResumedLoop, *, precision: str = "float64", seed: int = 0, progress: bool = True, timeout: float = 30.0
) -> AuditReport:
    """Compare runs that stop after each of their steps, and go on, with the specification's that do not.

    Args:
        train: called as `train(model, epochs, settings, folder, stop_after)`. It trains `model` in place from what
            `folder` holds, or from the start where that is empty. Once the run has completed `stop_after` steps, those
            before a resume among them, it saves what it needs in `folder` and returns; with None it trains to the end,
            and returns what a loop of `audit` does. It gets a new model to go on with, and other random seeds.
        precision, seed, progress, timeout: those of `audit`.

    A run without a stop must be sound first: where it is not, the report is that of `audit`.

    Raises:
        ValueError: as `audit`. TypeError: `train` cannot be called.
    """
    require_callable(train, PARAMETERS)
    base = audit(straight(train), precision=precision, seed=seed, progress=progress, timeout=timeout)
    if not base.sound:
        return replace(base, notes=("this run has no stop; how it resumes is looked at once it is sound", *base.notes))
    asked = [case for case in runs(Rows(seed)) if is_asked(case, frozenset(base.ignored))]
    cases = [one for case in asked for one in stopped(replace(case, seed=seed), base.ignored)]
    player = ResumePlayer(train, PRECISIONS[precision], timeout)
    report = report_of(player, cases, ResumeSpecification(), progress, base.ignored)
    return replace(report, undeclared=base.undeclared, seconds=base.seconds + report.seconds)


def straight(train: ResumedLoop) -> Loop:
    """The loop that trains without a stop."""

    def loop(model: nn.Module, epochs: Epochs, settings: spec.Settings) -> Any:
        with TemporaryDirectory() as folder:
            return train(model, epochs, settings, Path(folder), None)

    return loop


def runs(rows: Rows) -> Sequence[Case]:
    """The runs that are stopped after each of their steps."""

    def epochs(*lengths: int) -> Epochs:
        return [[rows.batch(length) for length in one] for one in (lengths, lengths[::-1])]

    tails, even = epochs(6, 4, 8, 3, 7), epochs(5, 8, 3)
    overflowing = [rows.batch(5), rows.poisoned(POISONED_GRADIENT, 6), rows.batch(4), rows.batch(6), rows.batch(3)]
    scaled = adam(schedule=Moving(0.05), loss_scale=1024.0, overflow_steps=frozenset({1}), on_nonfinite="skip")
    learned = rows.batch(7, 7)
    best = [[learned] * 3, [contradicting(learned)] * 2]
    return [
        Case("a resume of plain SGD", "data", "C13", even, sgd()),
        Case("a resume of windows with tails", "accumulation", "C13", tails, sgd(accumulation_steps=2)),
        Case("a resume under rates that move", "schedule", "C13", even, sgd(schedule=Moving(0.5))),
        Case("a resume of AdamW", "optimizer", "C13", even, adam(weight_decay=0.5)),
        Case("a resume after an overflow", "precision", "C13", [overflowing], scaled),
        Case("a resume after the best epoch", "validation", "C13", best, sgd(1.0, validation=[learned])),
    ]


def stopped(case: Case, ignored: Sequence[str]) -> list[StoppedCase]:
    """The run stopped after each of its steps, as a loop sees it that lacks the features `ignored`."""
    seen = without(case, ignored)
    return [
        StoppedCase(
            f"{seen.name}, after step {stop.steps}", seen.part, "C13", seen.epochs, seen.settings, seen.seed, stop=stop
        )
        for stop in spec_resume.stops(seen.model(), seen.epochs, seen.settings)
    ]


class ResumeSpecification(Specification):
    """What a run should leave that stops and goes on: what it leaves without a stop."""

    steps = tuple((name,) for name in spec_resume.FAULTS)
    seen: Mapping[str, str] = {
        "read_all": "after the stop it makes as many forward passes as the whole run",
        "random_state_lost": "the first random number after the stop is another one than without it",
        "loss_scale_lost": "the first gradient after the stop carries the loss scale of the run's start",
    }

    def _left(self, case: Case, model: nn.Module, names: list[str], faults: Noting) -> Outcome:
        assert isinstance(case, StoppedCase)
        faults.asked.update(spec_resume.FAULTS)
        total = sum(map(len, case.epochs))
        if not faults:
            result, read = spec.train(model, case.epochs, case.settings), total - 1
        elif case.stop.at_end and spec_resume.OPEN_AT_AN_END & faults:
            return Outcome(torch.full_like(self.start(case), math.nan))
        else:
            result, read = spec_resume.train(model, case.epochs, case.settings, case.stop.steps, faults)
        is_scaled = case.stop.scale != case.settings.loss_scale and not spec_resume.ANOTHER_GRADIENT & faults
        lost = {"random_state_lost"} | ({"loss_scale_lost"} if is_scaled else set())
        goes_on = read > 0 and not case.stop.is_last
        seen = {"read_all"} if read >= total else lost & faults if goes_on else set()
        best = None if result.best_weights is None else flat(result.best_weights, names)
        return Outcome(flat(result.weights, names), best=best, seen=frozenset(seen))


@dataclass
class _Seen:
    """Of each forward pass in train mode: a random number that it drew, and the length of the logits' gradient."""

    drawn: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def watch(self, model: nn.Module) -> None:
        watch_draws(model, self.drawn)

        def look_at(module: nn.Module, _: object, logits: Tensor) -> None:
            if module.training and logits.requires_grad:
                logits.register_hook(lambda gradient: self.lengths.append(float(gradient.norm())))

        model.get_submodule("head").register_forward_hook(look_at)


class ResumePlayer(Player):
    """Lets one loop make runs that stop and go on."""

    def __init__(self, train: ResumedLoop, precision: Precision, timeout: float) -> None:
        super().__init__(straight(train), precision, timeout)
        self.train = train
        self.unstopped: dict[str, _Seen] = {}  # what was seen of each run without a stop

    def play(self, case: Case, watch: Callable[[nn.Module], None] | None = None) -> Play:
        """One run with its stop.

        Raises:
            Trouble: as `Player.play`, or the loop does not stop where it should.
        """
        assert isinstance(case, StoppedCase)
        run = case.name.rpartition(", ")[0]
        if run not in self.unstopped:
            self.unstopped[run] = _Seen()
            self.loop = straight(self.train)
            super().play(case, self.unstopped[run].watch)
        seen, before = _Seen(), _Seen()  # all of it, and what was seen before the stop

        def stop_and_go_on(model: nn.Module, epochs: Epochs, settings: spec.Settings) -> Any:
            with TemporaryDirectory() as folder:
                first = deepcopy(model)
                self.train(first, *deepcopy((epochs, settings)), Path(folder), case.stop.steps)
                self._require_stop(case, first)
                before.drawn[:], before.lengths[:] = seen.drawn, seen.lengths
                seed_generators(case.seed + 1)  # as a new process has others
                return self.train(model, epochs, settings, Path(folder), None)

        self.loop = stop_and_go_on
        play = super().play(case, seen.watch)
        if play.outcome.weights is None:
            return play
        names = _compare(self.unstopped[run], before, seen, case.settings.loss_scale / case.stop.scale)
        return replace(play, outcome=replace(play.outcome, validation_losses=[], seen=names))

    def _require_stop(self, case: StoppedCase, model: nn.Module) -> None:
        names = names_of(model)
        left, right = (Outcome(flat(one, names)) for one in (dict(model.named_parameters()), case.stop.weights))
        start = flat(dict(case.model().named_parameters()), names)
        if distance(left, right, start, self.precision) > 1.0:
            steps = f"{case.stop.steps} step{'s' * (case.stop.steps > 1)}"
            raise Trouble(
                f"called with stop_after={case.stop.steps}, the loop leaves other weights than those of {steps}"
            )


def _compare(unstopped: _Seen, before: _Seen, seen: _Seen, factor: float) -> frozenset[str]:
    """What is seen; `factor`: by how much the first gradient after the stop is too long if its loss scale is lost."""
    at, after, due = len(before.drawn), seen.drawn[len(before.drawn) :], unstopped.drawn
    if len(after) >= len(due):
        return frozenset({"read_all"})
    is_another = bool(after) and at < len(due) and after[0] != due[at]
    # numbers that depend on the place in the data are right ones of another place, if that is wrong
    is_misplaced = len(after) != len(due) - at and after[:1] in [[number] for number in due]
    place = len(before.lengths)
    lengths = seen.lengths[place : place + 1] + unstopped.lengths[place : place + 1]
    scale_lost = factor != 1.0 and len(lengths) == 2 and math.isclose(lengths[0], factor * lengths[1], rel_tol=1e-3)
    lost = {"random_state_lost": is_another and not is_misplaced, "loss_scale_lost": scale_lost}
    return frozenset(name for name, is_lost in lost.items() if is_lost)
