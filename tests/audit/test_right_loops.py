"""Right loops in many guises: none is accused."""

import pytest

from course_lm.audit import audit

from .loops.right import RIGHT
from .loops.textbook import train

pytestmark = pytest.mark.usefixtures("one_specification")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_sound(name: str) -> None:
    kind = RIGHT[name]
    report = audit(kind.loop, precision=kind.precision, progress=False)
    assert report.sound, str(report)
    assert report.ignored == ((kind.lacks,) if kind.lacks else ())


def test_the_textbook_loop_without_a_fault_is_sound() -> None:
    report = audit(train, progress=False)
    assert report.sound, str(report)
