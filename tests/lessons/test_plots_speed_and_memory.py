"""The figures of lesson 15: what they draw is what they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from course_lm.classroom import plots
from course_lm.profiling import Machine, Part

pytestmark = pytest.mark.usefixtures("course_figures")

MACHINE = Machine({"fp32": 100e9}, bytes_per_second=10e9, threads=1)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def points_of(figure):
    """Places of all single markers, in the order in which they were drawn."""
    return [tuple(places(line)[0].tolist()) for line in figure.axes[0].lines if len(places(line)) == 1]


def places(line):
    """Places of a line's points, (N, 2)."""
    return np.asarray(line.get_xydata(), dtype=float)


def texts(figure):
    return [text.get_text().strip() for text in figure.axes[0].texts]


def test_the_steps_of_the_second_arm_stand_after_those_of_the_first():
    first, second = plots.step_seconds({"old": [0.5, 0.1, 0.1], "new": [0.2, 0.3]}).axes[0].lines
    assert places(first).tolist() == [[1, 500], [2, 100], [3, 100]]
    assert places(second)[:, 0].tolist() == [4, 5]


def test_the_median_of_the_reported_ratios_is_written_beside_their_bar():
    figure = plots.reported_speedups({"mean": [1.5, 1.25, 2.0], "turns": [1.0, 1.0, 1.0]})
    assert texts(figure) == ["1.50", "1.00"]
    assert points_of(figure) == [(1.5, 0), (1.0, 1)]


def test_a_part_stands_at_its_intensity_and_its_rate_and_the_roof_is_the_machines():
    parts = [
        Part("attention", 0.1, 4 * 10**9, 2 * 10**8, "fp32", 0.04),
        Part("clipping", 0.1, 0, 2 * 10**8, None, 0.02),  # without products: no place
    ]
    figure = plots.roofline(MACHINE, parts)
    (roof, *_), (place,) = figure.axes[0].lines, points_of(figure)
    assert place == pytest.approx((20.0, 40.0))
    intensities, rates = places(roof).T
    assert max(rates) == pytest.approx(100.0)
    assert rates[0] == pytest.approx(10.0 * intensities[0])


def test_a_stacked_bar_is_as_long_as_the_bytes_of_its_owners():
    ways = {"one": {"weights": 2**20, "moments": 3 * 2**20}, "other": {"weights": 2**20, "moments": 2**20}}
    assert texts(plots.memory_by_owner(ways, ("weights", "moments"))) == ["4.0", "2.0"]


def test_the_critical_batch_stands_at_twice_the_fewest_of_both():
    critical, *measured = points_of(plots.steps_and_rows({2: (1000, 2000), 50: (60, 3000)}, least=(40.0, 1900.0)))
    assert critical == (80.0, 3800.0)
    assert measured == [(1000.0, 2000.0), (60.0, 3000.0)]


def test_the_curve_of_steps_and_rows_is_that_of_the_equation():
    curve = plots.steps_and_rows({2: (1000, 2000)}, least=(40.0, 1900.0)).axes[0].lines[0]
    steps, rows = places(curve).T
    assert (steps / 40 - 1) * (rows / 1900 - 1) == pytest.approx(1.0)


def test_the_loss_over_flops_is_the_mean_over_seeds_in_the_order_of_the_budgets():
    figure = plots.loss_over_flops({"width 16": {1e12: [2.0, 3.0], 1e11: [4.0]}})
    (line,) = figure.axes[0].lines
    assert places(line).tolist() == [[1e11, 4.0], [1e12, 2.5]]
    assert texts(figure) == ["width 16"]
