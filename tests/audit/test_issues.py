"""What the audit says of mistakes that public issues and pull requests of 2024 to 2026 report."""

import re

import pytest

from course_lm.audit import audit, spec
from course_lm.audit.locate import PROMISES
from course_lm.audit.outcome import PRECISIONS, distance
from course_lm.audit.play import Player
from course_lm.audit.runs import PARTS, ladder
from course_lm.audit.search import Explanation, Specification

from .loops.issues import REPORTED, Asking
from .loops.plain import Plain

pytestmark = pytest.mark.usefixtures("one_specification")

# Mistakes that the audit takes for sound today, with the settings that it says the loop does not have, and the reason.
MISSED: dict[str, tuple[tuple[str, ...], str]] = {
    "PackedAsOneText": (("document_ids",), "a loop without packed rows leaves the same weights"),
    "AveragesEachMicroBatch": ((), "the audit asks a loop for no averaged weights"),
}
# Mistakes that the audit finds today and puts down to another part, which is given here.
ELSEWHERE: dict[str, str] = {
    "MeanOfRows": "data",
}
# The first run that shows each mistake; no run shows the one that is left out.
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "one SGD step on one row": (
        "ShiftedTwice",
        "ShiftedFlatOnceMore",
        "SumOfTokens",
        "SumOverRows",
        "CountsBeforeTheShift",
        "TrainsInEvalMode",
        "FirstRateIsZero",
        "WeightsInBfloat16",
        "GradientsInBfloat16",
    ),
    "rows of equal length": ("DividesByOneRow",),
    "labels of -100 on real tokens": ("MaskIsNotShifted", "PadsAreDividedBy"),
    "rows that end with end-of-text": ("EndOfTextIsThePad",),
    "pads on the right": ("PadsAreLearned", "MeanOfRows"),
    "pads on the left": ("NoAttentionMask",),
    "several documents in a row": (
        "PositionsRunOn",
        "MaskOfOnesHidesDocuments",
        "NextDocumentIsPredicted",
        "PackedAsOneText",
    ),
    "two equal micro-batches": (
        "MeansAddedUp",
        "DividedByBoth",
        "ClearedEachMicroBatch",
        "StepsAtTheFirstBatch",
        "StopsByMicroBatches",
    ),
    "micro-batches of unequal tokens": ("MeansOfMicroBatches",),
    "a tail of one micro-batch": ("TailIsCleared", "TailJoinsAFullWindow", "TailDividedByAFullWindow"),
    "a micro-batch without a target": ("MaskedRowsCount",),
    "a gradient that is clipped": ("ClipsEachModelPart", "ClipsAfterTheStep"),
    "a clipped gradient of tied weights": ("CountsTiedWeightsTwice",),
    "a clipped window of three": ("ClipsBeforeBackward", "ClipsEachMicroBatch"),
    "a clipped gradient under a loss scale": ("ClipsScaledGradients",),
    "SGD with decay": ("DecaysNormGains", "DecaysEverything"),
    "one step of Adam": ("NoBiasCorrection",),
    "Adam": ("BetasAreNotHandedOn",),
    "AdamW with decay": ("DecayInTheGradient", "DecaysTheUpdatedWeight"),
    "rates that move": ("SchedulerComesFirst",),
    "rates that move, with accumulation": ("ScheduledEachMicroBatch",),
    "a gradient that is not finite, to be skipped": ("StepsOnNaN", "UpdatesWithZeros"),
    "an overflow under rates that move": ("SchedulerCountsOverflows",),
    "validation after each epoch": ("ValidatesInTrainMode",),
    "validation batches of unequal tokens": ("MeanOfValidationMeans",),
    "an epoch that contradicts the first": ("BestWeightsAreLive",),
}
FIRST_RUN = {name: run for run, names in SHOWN_BY.items() for name in names}
CASES = {case.name: case for case in ladder()}
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


@pytest.mark.parametrize("name", FIRST_RUN)
def test_the_mistake_alone_makes_the_run_another_one(name: str, one_specification: Specification) -> None:
    case = CASES[FIRST_RUN[name]]
    right, start = one_specification.outcome(case, Explanation()), one_specification.start(case)
    for loop, departs in ((REPORTED[name].loop, True), (Plain.loop, False)):
        got = Player(loop, PRECISIONS["float64"], timeout=30.0).play(case).outcome
        assert (distance(got, right, start, PRECISIONS["float64"]) > 1.0) == departs, f"{name}, {case.name}"


@pytest.mark.parametrize("name", FOUND)
def test_a_reported_mistake_is_named_or_located(name: str) -> None:
    kind = REPORTED[name]
    report = audit(kind.loop, progress=False)
    assert not report.sound, f"{name} passes for right"
    assert report.faults == ((kind.fault,) if kind.fault else ()), str(report)
    assert report.case is not None and report.case.name == FIRST_RUN[name], str(report)
    part = ELSEWHERE.get(name, kind.part)
    assert kind.fault or report.part == part, f"{name} is looked for in {report.part}, not in {part}: {report}"


@pytest.mark.parametrize("name", MISSED)
def test_a_mistake_that_is_said_to_be_missed_still_is(name: str) -> None:
    report = audit(REPORTED[name].loop, progress=False)
    assert report.sound and report.undeclared == MISSED[name][0], f"{name} is found, take it from the list: {report}"


def test_a_part_that_is_said_to_be_wrong_is() -> None:
    assert all(REPORTED[name].part != part for name, part in ELSEWHERE.items())
