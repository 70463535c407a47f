"""What the audit says of mistakes that public issues and pull requests of 2024 to 2026 report."""

import re

import pytest

from course_lm.audit import audit, spec
from course_lm.audit.locate import PROMISES
from course_lm.audit.runs import PARTS

from .loops.issues import REPORTED, Asking

pytestmark = pytest.mark.usefixtures("one_specification")

# Mistakes that the audit takes for sound today, with the settings that it says the loop does not have, and the reason.
MISSED: dict[str, tuple[tuple[str, ...], str]] = {
    "PackedAsOneText": (("document_ids",), "a loop without packed rows leaves the same weights"),
    "ClipsAfterTheStep": (("max_grad_norm",), "a loop that does not clip leaves the same weights"),
    "BetasAreNotHandedOn": (("beta1", "beta2"), "a loop that has no betas to set leaves the same weights"),
    "CountsTiedWeightsTwice": ((), "no two modules of the audit's model share a weight"),
    "AveragesEachMicroBatch": ((), "the audit asks a loop for no averaged weights"),
}
# Mistakes that the audit finds today and puts down to another part, which is given here.
ELSEWHERE: dict[str, str] = {
    "MeanOfRows": "data",
    "TailJoinsAFullWindow": "data",
    "StepsAtTheFirstBatch": "data",
    "StopsByMicroBatches": "data",
    "SchedulerCountsOverflows": "precision",
    "FirstRateIsZero": "loss",
}
FOUND = [name for name in REPORTED if name not in MISSED]


def test_each_mistake_says_where_it_was_reported_and_what_it_breaks() -> None:
    assert len({kind.reference for kind in REPORTED.values()}) == len(REPORTED)
    for name, kind in REPORTED.items():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", kind.reference), f"{name}: {kind.reference}"
        assert kind.__doc__ and kind.part in PARTS, f"{name} is described by {kind.__doc__}, in the part {kind.part}"
        assert kind.promise in ("", *PROMISES) and kind.fault in ("", *spec.FAULTS), name


def test_the_loop_that_asks_when_a_step_is_due_is_right() -> None:
    report = audit(Asking.loop, progress=False)
    assert report.sound and not report.ignored, str(report)


@pytest.mark.parametrize("name", FOUND)
def test_a_reported_mistake_is_named_or_located(name: str) -> None:
    kind = REPORTED[name]
    report = audit(kind.loop, progress=False)
    assert not report.sound, f"{name} passes for right"
    assert report.faults == ((kind.fault,) if kind.fault else ()), str(report)
    part = ELSEWHERE.get(name, kind.part)
    assert kind.fault or report.part == part, f"{name} is looked for in {report.part}, not in {part}: {report}"


@pytest.mark.parametrize("name", MISSED)
def test_a_mistake_that_is_said_to_be_missed_still_is(name: str) -> None:
    report = audit(REPORTED[name].loop, progress=False)
    assert report.sound and report.undeclared == MISSED[name][0], f"{name} is found, take it from the list: {report}"


def test_a_part_that_is_said_to_be_wrong_is() -> None:
    assert all(REPORTED[name].part != part for name, part in ELSEWHERE.items())
