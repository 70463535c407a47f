"""The explorer of a step's memory: what it predicts from shapes is what a step is measured to need."""

import re
from itertools import product

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import Rectangle

from course_lm.classroom import widgets
from course_lm.classroom.widgets.step_memory import MIB
from tests.lessons.explored import parts

pytestmark = pytest.mark.usefixtures("course_figures")

EITHER = list(product(("fp32", "bf16"), (False, True)))
how_often = pytest.mark.parametrize(("precision", "checkpointing"), EITHER)


def drawn(**settings):
    figure, words = widgets.draw_step_memory(**settings)
    plt.close(figure)
    return words


@how_often
@pytest.mark.parametrize(("rows", "length", "width"), [(8, 64, 64), (4, 32, 128), (16, 64, 16)])
def test_the_predicted_peak_is_the_measured_one(rows, length, width, precision, checkpointing):
    settings = rows, length, width, precision, checkpointing
    predicted = sum(widgets.step_memory(*settings).values())
    assert predicted == pytest.approx(widgets.measured_step_memory(*settings).peak_bytes, rel=0.06)


@how_often
def test_weights_moments_and_gradients_at_the_peak_are_those_that_are_measured(precision, checkpointing):
    predicted = widgets.step_memory(8, 64, 64, precision, checkpointing)
    owners = widgets.measured_step_memory(8, 64, 64, precision, checkpointing).owners
    found = {name: owners[name] for name in ("weights", "moments", "gradients")}
    assert found == {name: pytest.approx(predicted[name], rel=0.01) for name in found}


def test_where_the_batch_is_small_the_peak_is_the_end_of_the_backward_pass():
    predicted = widgets.step_memory(1, 16, 128)
    assert predicted["gradients"] == predicted["weights"]
    assert widgets.measured_step_memory(1, 16, 128).owners["gradients"] == predicted["gradients"]


def test_the_bars_are_as_long_as_the_words_say():
    figure, words = widgets.draw_step_memory()
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    ends = [max(bar.get_x() + bar.get_width() for bar in bars if round(bar.get_y() + 0.4) == row) for row in (0, 1)]
    plt.close(figure)
    told = [float(number) for number in re.findall(r"(?:predicted|measured) +(\d+\.\d+) MiB", words)]
    assert ends == pytest.approx(told, rel=0.01)
    assert ends[0] * MIB == pytest.approx(sum(widgets.step_memory(8, 64, 64).values()))


def test_a_measurement_leaves_the_random_generator_alone():
    widgets.measured_step_memory.cache_clear()
    torch.manual_seed(3)
    drawn(rows=1, length=16, width=16)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


def test_every_control_of_the_explorer_changes_picture_and_words():
    *controls, picture, words = parts(widgets.step_memory_explorer())
    for control, value in zip(controls, (2, 16, 32, "bf16", True), strict=True):
        before = picture.value, words.value
        control.value = value
        assert picture.value != before[0] and words.value != before[1]
