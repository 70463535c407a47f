"""Loops with a mistake outside the list: the part is found, and no fault is named for it."""

import pytest

from course_lm.audit import audit

from .loops.outside import OUTSIDE

pytestmark = pytest.mark.usefixtures("one_specification")
# Found fast: what `make test` looks at.
FEW = ("Temperature", "DividesByRoot", "ClipsByLargestNumber")
# One of each part, and one that was taken for a known fault, for `make test-slow`; `make test-audit` looks at the rest.
SOME = (
    "DropsLastRow",
    "CountsOneTokenTooMany",
    "WeighsByRows",
    "WindowsOfWhatHasTargets",
    "ClipsMatricesAlone",
    "AMSGrad",
    "HalfSpeed",
    "HalfLogits",
    "ValidatesInBits",
    "KeepsWhatBeatsTheLast",
    "NeverRefuses",
    "ClosureWithNesterov",
)
REST = [pytest.param(name, marks=[] if name in SOME else [pytest.mark.audit]) for name in OUTSIDE if name not in FEW]


def assert_located(name: str) -> None:
    kind = OUTSIDE[name]
    report = audit(kind.loop, progress=False)
    assert not report.sound, f"{name} passes for right"
    assert not report.faults, f"{name} is none of {report.faults}: {report}"
    assert report.part == kind.part, f"{name} is looked for in {report.part}: {report}"
    assert report.case is not None, f"no run shows {name}"


@pytest.mark.long
@pytest.mark.parametrize("name", FEW)
def test_a_mistake_outside_the_list_is_found_in_its_part(name: str) -> None:
    assert_located(name)


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("name", REST)
def test_each_mistake_outside_the_list_is_found_in_its_part(name: str) -> None:
    assert_located(name)
