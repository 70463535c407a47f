"""The clipping explorer: picture and words follow the controls, and show what the package and torch compute."""

import math
import re

import pytest
import torch

from course_lm.classroom.widgets.clipping import draw_clipping

pytestmark = pytest.mark.usefixtures("course_figures")

METHODS = ("global", "per parameter", "value")


def line_of(words: str, name: str) -> tuple[float, float, float]:
    """Norm before, norm after and degrees from the line of A, B or both together."""
    (line,) = [line for line in words.splitlines() if line.startswith(f"{name} ")]
    before, after, degrees = map(float, re.findall(r"\d+\.\d+", line))
    return before, after, degrees


def test_the_global_norm_keeps_every_direction_and_the_share_of_each_parameter():
    words = draw_clipping("global", threshold=2.0, length=6.0)[1]
    both, a, b = (line_of(words, name) for name in ("both together", "A", "B"))
    assert both == (round(math.hypot(math.sqrt(5), 6), 2), 2.0, 0.0)
    assert a[2] == b[2] == 0.0
    assert b[1] / a[1] == pytest.approx(b[0] / a[0], rel=0.02)


def test_a_bound_for_each_parameter_turns_the_whole_gradient_and_no_single_one():
    words = draw_clipping("per parameter", threshold=2.0, length=6.0)[1]
    both, a, b = (line_of(words, name) for name in ("both together", "A", "B"))
    assert a[1] == b[1] == 2.0
    assert a[2] == b[2] == 0.0 and both[2] > 10


def test_a_bound_for_each_value_turns_single_gradients():
    words = draw_clipping("value", threshold=2.0, length=6.0, degrees=70.0)[1]
    gradient = torch.tensor([6 * math.cos(math.radians(70)), 6 * math.sin(math.radians(70))])
    clipped = gradient.clamp(max=2.0)
    _, norm, degrees = line_of(words, "B")
    assert norm == pytest.approx(float(clipped.norm()), abs=0.006)
    turned = math.degrees(math.acos(float(torch.cosine_similarity(gradient, clipped, dim=0))))
    assert degrees == pytest.approx(turned, abs=0.06)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_clipped_within_the_bound(method):
    words = draw_clipping(method, threshold=8.0, length=1.0)[1]
    assert words.startswith(f"{method}, B at 70 degrees: nothing is clipped")


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_of_zero_can_be_drawn(method):
    words = draw_clipping(method, threshold=1.0, length=0.0)[1]
    assert line_of(words, "B") == (0.0, 0.0, 0.0)
