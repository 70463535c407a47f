"""Right loops in many guises: none is accused."""

import pytest

from course_lm.audit import audit

from .loops import STYLES
from .loops.right import RIGHT

pytestmark = pytest.mark.usefixtures("one_specification")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_sound(name: str) -> None:
    kind = RIGHT[name]
    report = audit(kind.loop, precision=kind.precision, progress=False)
    assert report.sound, str(report)
    assert report.ignored == ((kind.lacks,) if kind.lacks else ())


@pytest.mark.parametrize("style", STYLES)
def test_the_three_loops_without_a_fault_are_sound(style: str) -> None:
    report = audit(STYLES[style], progress=False)
    assert report.sound, str(report)
