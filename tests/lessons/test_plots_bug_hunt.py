"""The figures of lesson 16: what they draw is what they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from course_lm.classroom import plots

pytestmark = pytest.mark.usefixtures("course_figures")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts(figure):
    return [text.get_text().strip() for text in figure.axes[0].texts]


def places(line):
    return np.asarray(line.get_xydata(), dtype=float).tolist()


def test_each_reported_curve_starts_at_step_0_and_the_untrained_loss_is_named():
    figure = plots.reported_losses({"a": [6.0, 5.0], "b": [4.0, 3.0]}, untrained=6.24)
    first, second, *_ = figure.axes[0].lines
    assert (places(first), places(second)) == ([[0, 6], [1, 5]], [[0, 4], [1, 3]])
    assert set(texts(figure)) == {"a", "b", "untrained 6.24"}


def test_the_word_fails_stands_where_a_loop_fails_a_test():
    figure = plots.failed_tests({"right": {"one": False, "two": False}, "wrong": {"one": False, "two": True}})
    assert texts(figure) == ["·", "·", "·", "fails"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["right", "wrong"]


def test_faults_stand_in_the_order_of_their_distance_and_a_distance_of_0_has_a_place():
    figure = plots.distances_by_fault({"near": 0.0, "far": 0.5}, chosen="near")
    far, near, *_ = figure.axes[0].lines
    assert (places(far), places(near)) == ([[0.5, 0]], [[1e-17, 1]])
    assert near.get_color() == plots.RED != far.get_color()


def test_the_points_stand_over_their_targets_beside_each_guess():
    figure = plots.cornered({1: 0.5, 2: 0.66}, {"guess": [0.5, 0.6]})
    guess, points = figure.axes[0].lines
    assert (places(guess), places(points)) == ([[1, 0.5], [2, 0.6]], [[1, 0.5], [2, 0.66]])
    assert texts(figure) == ["guess"]
