"""Loops with a mistake outside the list: the part is found, and no fault is named for it."""

import pytest

from course_lm.audit import audit

from .loops.outside import OUTSIDE

pytestmark = pytest.mark.usefixtures("one_specification")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_mistake_outside_the_list_is_found_in_its_part(name: str) -> None:
    kind = OUTSIDE[name]
    report = audit(kind.loop, progress=False)
    assert not report.sound, f"{name} passes for right"
    assert not report.faults, f"{name} is none of {report.faults}: {report}"
    assert report.part == kind.part, f"{name} is looked for in {report.part}: {report}"
    assert report.case is not None, f"no run shows {name}"
