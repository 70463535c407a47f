"""What the audit says of mistakes that public issues and pull requests of 2024 to 2026 report."""

import re

import pytest

from course_lm.audit import audit, spec
from course_lm.audit.locate import PROMISES
from course_lm.audit.runs import PARTS

from .loops.issues import FAULTS_REPORTED, REPORTED

pytestmark = pytest.mark.usefixtures("one_specification")

# Mistakes that the audit takes for sound today, with the settings that it says the loop does not have, and the reason.
MISSED: dict[str, tuple[tuple[str, ...], str]] = {
    "PackedAsOneText": (("document_ids",), "a loop without packed rows leaves the same weights"),
    "AveragesEachMicroBatch": ((), "the audit asks a loop for no averaged weights"),
}
# Mistakes that the audit finds today and puts down to another part, which is given here.
ELSEWHERE = {"MeanOfRows": "data"}
# The first run that shows each mistake that is found.
FIRST_RUN = {
    "ShiftedFlatOnceMore": "one SGD step on one row",
    "SumOfTokens": "one SGD step on one row",
    "SumOverRows": "one SGD step on one row",
    "TrainsInEvalMode": "one SGD step on one row",
    "WeightsInBfloat16": "one SGD step on one row",
    "DividesByOneRow": "rows of equal length",
    "MaskIsNotShifted": "labels of -100 on real tokens",
    "PadsAreDividedBy": "labels of -100 on real tokens",
    "MeanOfRows": "pads on the right",
    "PositionsRunOn": "several documents in a row",
    "MaskOfOnesHidesDocuments": "several documents in a row",
    "NextDocumentIsPredicted": "several documents in a row",
    "StepsAtTheFirstBatch": "two equal micro-batches",
    "StopsByMicroBatches": "two equal micro-batches",
    "TailJoinsAFullWindow": "a tail of one micro-batch",
    "MaskedRowsCount": "a micro-batch without a target",
    "ClipsEachModelPart": "a gradient that is clipped",
    "ClipsAfterTheStep": "a gradient that is clipped",
    "CountsTiedWeightsTwice": "a clipped gradient of tied weights",
    "ClipsBeforeBackward": "a clipped window of three",
    "DecaysNormGains": "SGD with decay",
    "BetasAreNotHandedOn": "Adam",
    "DecaysTheUpdatedWeight": "AdamW with decay",
    "UpdatesWithZeros": "a gradient that is not finite, to be skipped",
}


def test_each_mistake_says_where_it_was_reported_and_what_it_breaks() -> None:
    assert FAULTS_REPORTED.keys() <= spec.FAULTS.keys()  # which tests/audit/test_named.py holds the audit to
    references = [*FAULTS_REPORTED.values(), *(kind.reference for kind in REPORTED.values())]
    assert len(set(references)) == len(references) == 51
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", one) for one in references)
    for name, kind in REPORTED.items():
        assert kind.__doc__ and kind.part in PARTS, f"{name} is described by {kind.__doc__}, in the part {kind.part}"
        assert kind.promise in ("", *PROMISES), name


@pytest.mark.parametrize("name", [name for name in REPORTED if name not in MISSED])
def test_a_reported_mistake_is_located(name: str) -> None:
    kind = REPORTED[name]
    report = audit(kind.loop, progress=False)
    assert not report.sound, f"{name} passes for right"
    assert not report.faults and report.case is not None and report.case.name == FIRST_RUN[name], str(report)
    assert report.part == ELSEWHERE.get(name, kind.part), f"{name} is looked for in {report.part}: {report}"


@pytest.mark.parametrize("name", MISSED)
def test_a_mistake_that_is_said_to_be_missed_still_is(name: str) -> None:
    report = audit(REPORTED[name].loop, progress=False)
    assert report.sound and report.undeclared == MISSED[name][0], f"{name} is found, take it from the list: {report}"
