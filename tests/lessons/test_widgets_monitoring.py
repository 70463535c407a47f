"""The early-stopping explorer: what it draws and says."""

import re

import numpy as np
import pytest

from course_lm.classroom.atlas import load_atlas
from course_lm.classroom.widgets.monitoring import RUN, draw_early_stopping

pytestmark = pytest.mark.usefixtures("course_figures")

TRUE = load_atlas().runs[RUN][0]["val_loss"]
STEPS = [10 * number for number in range(1, 25)]


def kept_step(words):
    return int(re.findall(r"kept: step (\d+)", words)[0])


def stopped_at(words):
    return int(re.findall(r"at step (\d+)", words)[0])


def test_without_noise_the_best_weights_are_kept():
    words = draw_early_stopping(patience=3, noise=0.0)[1]
    best = STEPS[int(np.argmin(TRUE))]
    assert kept_step(words) == best and stopped_at(words) == best + 30
    assert "what is kept is 0.000 worse" in words
    assert f"which saves {240 - stopped_at(words)} of 240 steps" in words


@pytest.mark.parametrize(
    ("earlier", "later", "read"),
    [
        ({"patience": 1, "noise": 0.2}, {"patience": 10, "noise": 0.2}, stopped_at),
        ({"min_delta": 0.5}, {"min_delta": 0.0}, kept_step),
        ({"smoothing": 0.0}, {"smoothing": 0.8}, stopped_at),
    ],
    ids=["little patience stops sooner", "a large min_delta keeps earlier weights", "smoothing stops later"],
)
def test_each_setting_reaches_the_stopper(earlier, later, read):
    one, other = (read(draw_early_stopping(**{"noise": 0.0} | how)[1]) for how in (earlier, later))
    assert one < other


def test_a_run_that_patience_outlasts_goes_to_its_end():
    words = draw_early_stopping(patience=24, noise=0.0)[1]
    assert "runs to its end at step 240, which saves 0 of 240 steps" in words


def test_what_is_not_read_is_drawn_in_grey():
    figure, words = draw_early_stopping(patience=2, noise=0.0)
    everything, read, judged = figure.axes[0].lines[:3]
    assert np.asarray(everything.get_ydata()).tolist() == TRUE
    assert len(np.asarray(read.get_ydata())) == len(np.asarray(judged.get_ydata())) == stopped_at(words) // 10


def test_the_labels_name_the_kept_and_the_last_step():
    figure, words = draw_early_stopping(noise=0.0)
    assert [text.get_text() for text in figure.axes[0].texts] == ["stop", "kept"]
    lines = [float(np.asarray(line.get_xdata())[0]) for line in figure.axes[0].lines[3:]]
    assert lines == [stopped_at(words), kept_step(words)]
