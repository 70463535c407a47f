"""The clipping explorer: picture and words follow the controls, and show what the package and torch compute."""

import math
import re

import pytest
import torch
from torch import nn

from course_lm.classroom import widgets
from course_lm.clipping import clip_gradients
from tests.lessons.explored import parts

pytestmark = pytest.mark.usefixtures("course_figures")

METHODS = ("global", "per parameter", "value")


def line_of(words: str, name: str) -> tuple[float, float, float]:
    """Norm before, norm after and degrees from the line of A, B or both together."""
    (line,) = [line for line in words.splitlines() if line.startswith(f"{name} ")]
    before, after, degrees = map(float, re.findall(r"\d+\.\d+", line))
    return before, after, degrees


def test_the_global_norm_keeps_every_direction_and_the_share_of_each_parameter():
    words = widgets.draw_clipping("global", threshold=2.0, length=6.0)[1]
    both, a, b = (line_of(words, name) for name in ("both together", "A", "B"))
    assert both == (round(math.hypot(math.sqrt(5), 6), 2), 2.0, 0.0)
    assert a[2] == b[2] == 0.0
    assert b[1] / a[1] == pytest.approx(b[0] / a[0], rel=0.02)


def test_a_bound_for_each_parameter_turns_the_whole_gradient_and_no_single_one():
    words = widgets.draw_clipping("per parameter", threshold=2.0, length=6.0)[1]
    both, a, b = (line_of(words, name) for name in ("both together", "A", "B"))
    assert a[1] == b[1] == 2.0
    assert a[2] == b[2] == 0.0 and both[2] > 10


def test_a_bound_for_each_value_turns_single_gradients():
    words = widgets.draw_clipping("value", threshold=2.0, length=6.0, degrees=70.0)[1]
    gradient = torch.tensor([6 * math.cos(math.radians(70)), 6 * math.sin(math.radians(70))])
    clipped = gradient.clamp(max=2.0)
    _, norm, degrees = line_of(words, "B")
    assert norm == pytest.approx(float(clipped.norm()), abs=0.006)
    turned = math.degrees(math.acos(float(torch.cosine_similarity(gradient, clipped, dim=0))))
    assert degrees == pytest.approx(turned, abs=0.06)


def test_the_norms_are_those_of_clip_gradients():
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for parameter, gradient in zip(parameters, ([2.0, 1.0], [0.0, 6.0])):
        parameter.grad = torch.tensor(gradient)
    norm = clip_gradients(parameters, 3.0)
    words = widgets.draw_clipping("global", threshold=3.0, length=6.0, degrees=90.0)[1]
    assert line_of(words, "both together")[:2] == (round(float(norm), 2), 3.0)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_clipped_within_the_bound(method):
    words = widgets.draw_clipping(method, threshold=8.0, length=1.0)[1]
    assert words.startswith(f"{method}, B at 70 degrees: nothing is clipped")


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_of_zero_can_be_drawn(method):
    words = widgets.draw_clipping(method, threshold=1.0, length=0.0)[1]
    assert line_of(words, "B") == (0.0, 0.0, 0.0)


def test_every_control_of_the_clipping_explorer_changes_picture_and_words():
    *controls, picture, words = parts(widgets.clipping_explorer())
    for control, value in zip(controls, ("value", 1.0, 3.0, 25), strict=True):
        before = picture.value, words.value
        control.value = value
        assert picture.value != before[0], control.description
        assert words.value != before[1], control.description
