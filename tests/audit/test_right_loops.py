"""Right loops in many guises: none is accused."""

from dataclasses import replace
from itertools import combinations

import pytest

from course_lm.audit import audit

from .loops.right import RIGHT
from .loops.styles import STYLES, WITHOUT, lacking

pytestmark = pytest.mark.usefixtures("one_specification")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_sound(name: str) -> None:
    kind = RIGHT[name]
    report = audit(kind.loop, precision=kind.precision, progress=False)
    assert report.sound, str(report)
    assert report.ignored == ((kind.lacks,) if kind.lacks else ())


SUBSETS = [*combinations(WITHOUT, 1), *combinations(WITHOUT, 2), *combinations(WITHOUT, 3)]
SUBSETS = [subset for subset in SUBSETS if not {"raises", "skips"} <= {*subset}]
# Settings that act in one run at once where the runs before it, in which each is alone, are left out.
AT_ONCE = ("betas", "epsilon", "weight_decay", "skips")


@pytest.mark.parametrize("style", STYLES)
def test_each_style_is_sound(style: str) -> None:
    report = audit(STYLES[style], progress=False)
    assert report.sound and not report.ignored, str(report)


@pytest.mark.parametrize("part", ["schedule", "precision", "finite"])
@pytest.mark.parametrize("style", STYLES)
def test_settings_that_are_lacking_in_one_run_are_found_together(style: str, part: str) -> None:
    report = audit(lacking(STYLES[style], AT_ONCE, declared=False), parts=[part], progress=False)
    assert report.sound and {"beta1", "beta2", "epsilon", "weight_decay"} <= {*report.undeclared}, str(report)


@pytest.mark.daily(2)
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("features", SUBSETS, ids="-".join)
def test_no_right_loop_is_accused_of_lacking_settings(features: tuple[str, ...], declared: bool) -> None:
    style = [*STYLES][SUBSETS.index(features) % len(STYLES)]  # each style has an eighth of them
    report = audit(lacking(STYLES[style], features, declared=declared), progress=False)
    assert report.sound, f"{style}: {report}"
    names = {name for one in features for name in WITHOUT[one][1]}
    assert {*report.ignored} <= {*names, *(name.partition("=")[0] for name in names)}


def test_a_loop_without_a_schedule_must_say_so() -> None:
    def loop(model, epochs, settings):
        rate = settings.schedule(0)
        return STYLES["class"](model, epochs, replace(settings, schedule=lambda k: rate))

    assert audit(loop, parts=["schedule"], progress=False).faults == ("schedule_never_moves",)
