"""Right loops in many guises: none is accused."""

import pytest

from course_lm.audit import audit

from .loops import STYLES
from .loops.right import RIGHT

pytestmark = pytest.mark.usefixtures("one_specification")


# One of each kind, which `make test` looks at.
FEW = ("SumThenDivide", "OneBigBatch", "AutogradGrad", "Fused", "WithLambdaLR", "Closure", "InFloat32", "Autocast")


def assert_sound(name: str) -> None:
    kind = RIGHT[name]
    report = audit(kind.loop, precision=kind.precision, progress=False)
    assert report.sound, str(report)
    assert report.ignored == ((kind.lacks,) if kind.lacks else ())


@pytest.mark.long
@pytest.mark.parametrize("name", FEW)
def test_a_right_loop_is_sound(name: str) -> None:
    assert_sound(name)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", sorted(RIGHT.keys() - set(FEW)))
def test_each_right_loop_is_sound(name: str) -> None:
    assert_sound(name)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("style", STYLES)
def test_the_three_loops_without_a_fault_are_sound(style: str) -> None:
    report = audit(STYLES[style], progress=False)
    assert report.sound, str(report)
