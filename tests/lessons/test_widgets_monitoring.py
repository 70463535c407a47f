"""The early-stopping explorer: what it draws and says."""

import re

import numpy as np
import pytest

from course_lm.classroom import widgets
from course_lm.classroom.atlas import load_atlas
from course_lm.classroom.widgets.monitoring import RUN
from tests.lessons.explored import parts

pytestmark = pytest.mark.usefixtures("course_figures")

TRUE = load_atlas().runs[RUN][0]["val_loss"]
STEPS = [10 * number for number in range(1, 25)]


def kept_step(words):
    return int(re.findall(r"kept: step (\d+)", words)[0])


def stopped_at(words):
    return int(re.findall(r"at step (\d+)", words)[0])


def test_without_noise_the_best_weights_are_kept():
    words = widgets.draw_early_stopping(patience=3, noise=0.0)[1]
    best = STEPS[int(np.argmin(TRUE))]
    assert kept_step(words) == best and stopped_at(words) == best + 30
    assert "what is kept is 0.000 worse" in words


def test_the_words_count_the_steps_that_are_saved():
    words = widgets.draw_early_stopping(patience=3, noise=0.0)[1]
    assert f"which saves {240 - stopped_at(words)} of 240 steps" in words


def test_with_noise_little_patience_stops_too_early():
    impatient, patient = (widgets.draw_early_stopping(patience=p, noise=0.2)[1] for p in (1, 10))
    assert stopped_at(impatient) < stopped_at(patient)
    assert "is 0.0" not in impatient.rsplit("what is kept", 1)[1]


def test_a_large_min_delta_keeps_earlier_weights():
    small, large = (widgets.draw_early_stopping(min_delta=delta, noise=0.0)[1] for delta in (0.0, 0.5))
    assert kept_step(large) < kept_step(small)


def test_smoothing_stops_later():
    rough, calm = (widgets.draw_early_stopping(smoothing=smoothing, noise=0.0)[1] for smoothing in (0.0, 0.8))
    assert stopped_at(calm) > stopped_at(rough)


def test_a_run_that_patience_outlasts_goes_to_its_end():
    words = widgets.draw_early_stopping(patience=24, noise=0.0)[1]
    assert "runs to its end at step 240, which saves 0 of 240 steps" in words


def test_what_is_not_read_is_drawn_in_grey():
    figure, words = widgets.draw_early_stopping(patience=2, noise=0.0)
    everything, read, judged = figure.axes[0].lines[:3]
    assert np.asarray(everything.get_ydata()).tolist() == TRUE
    assert len(np.asarray(read.get_ydata())) == len(np.asarray(judged.get_ydata())) == stopped_at(words) // 10


def test_the_labels_name_the_kept_and_the_last_step():
    figure, words = widgets.draw_early_stopping(noise=0.0)
    assert [text.get_text() for text in figure.axes[0].texts] == ["stop", "kept"]
    lines = [float(np.asarray(line.get_xdata())[0]) for line in figure.axes[0].lines[3:]]
    assert lines == [stopped_at(words), kept_step(words)]


def test_every_control_of_the_explorer_changes_picture_and_words():
    *controls, picture, words = parts(widgets.monitoring_explorer())
    for control in controls:
        before = picture.value, words.value
        control.value = control.max
        assert picture.value != before[0], control.description
        assert words.value != before[1], control.description
