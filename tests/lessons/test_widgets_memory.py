"""The explorers of memory: their words, bars and rows are those of the prediction and of the measurement."""

import re
from functools import partial

import pytest
import torch
from matplotlib.patches import Rectangle

from course_lm.classroom.widgets.memory import (
    GIB,
    MIB,
    draw_step_memory,
    draw_training_memory,
    measured_step,
    rows_that_fit,
    small_step,
    training_memory,
)

pytestmark = pytest.mark.usefixtures("course_figures")

GPT2 = (12, 768, 1024, 50_257)


@pytest.mark.parametrize("how", [{}, {"checkpointing": True}, {"precision": "bf16"}])
def test_the_rows_that_fit_do_fit_and_one_more_does_not(how):
    memory = partial(training_memory, *GPT2, **how)
    rows = rows_that_fit(24, memory)
    within, beyond = (sum(memory(count).values()) for count in (rows, rows + 1))
    assert within <= 24 * GIB < beyond


def test_no_row_fits_where_the_weights_alone_are_too_large():
    assert rows_that_fit(8, partial(training_memory, 48, 2048, 4096, 128_000)) == 0


def test_the_words_hold_the_owners_and_what_fits():
    words = draw_training_memory()[1]
    total, *owners = (float(number) for number in re.findall(r"[\d.]+", words.splitlines()[1].split(": ")[1]))
    assert total == pytest.approx(sum(owners), rel=0.02)
    assert "124.4M parameters" in words
    assert f"24 GiB hold {rows_that_fit(24, partial(training_memory, *GPT2))} rows" in words


def test_the_bars_are_as_long_as_the_words_say():
    figure, words = draw_step_memory()
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    ends = [max(bar.get_x() + bar.get_width() for bar in bars if round(bar.get_y() + 0.4) == row) for row in (0, 1)]
    told = [float(number) for number in re.findall(r"(?:predicted|measured) +(\d+\.\d+) MiB", words)]
    assert ends == pytest.approx(told, rel=0.01)
    assert ends[0] * MIB == pytest.approx(sum(small_step(8, 64, 64).values()))


def test_a_measurement_leaves_the_random_generator_alone():
    measured_step.cache_clear()
    torch.manual_seed(3)
    measured_step(1, 16, 16)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
