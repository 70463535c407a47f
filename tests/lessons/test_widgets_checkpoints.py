"""The checkpoint explorer: its shares are those of simulated runs and of Daly's published optima."""

import re

import numpy as np
import pytest

from course_lm.classroom.widgets.checkpoints import _shares, draw_checkpoint_interval

pytestmark = pytest.mark.usefixtures("course_figures")


def simulated(interval, save, mtbf, restart, segments, seed=0):
    """Shares of the time that go to saving, and to work done again and restarts, in a run with random failures."""
    generator = np.random.default_rng(seed)
    total = 0.0
    for _ in range(segments):
        need = interval + save
        while (failure := generator.exponential(mtbf)) < need:
            total += failure
            need = restart + interval + save
        total += need
    return save * segments / total, 1 - (interval + save) * segments / total


@pytest.mark.parametrize("numbers", [(600.0, 30.0, 7200.0, 300.0), (3600.0, 10.0, 3600.0, 60.0)])
def test_the_shares_are_those_of_a_simulated_run(numbers):
    assert _shares(*numbers) == pytest.approx(simulated(*numbers, segments=40_000), rel=0.04)


@pytest.mark.parametrize(("mtbf", "published"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_best_interval_is_that_of_daly(mtbf, published):
    intervals = np.linspace(1, 200, 20_000)
    lost = [sum(_shares(60 * each, 300.0, 60 * mtbf, 600.0)) for each in intervals]
    assert intervals[int(np.argmin(lost))] == pytest.approx(published, abs=0.5)


def test_the_shares_add_up_to_less_than_one_and_survive_hopeless_numbers():
    assert _shares(1e7, 1.0, 100.0, 0.0) == (0.0, 1.0)
    saving, lost = _shares(60.0, 0.0, 1e9, 0.0)
    assert saving == 0 and lost == pytest.approx(0.0, abs=1e-6)


def test_the_words_hold_the_shares_and_both_rules():
    words = draw_checkpoint_interval(save_seconds=60.0, mtbf_hours=24.0, interval_minutes=60.0, restart_minutes=0.0)[1]
    lost, saving, failures = (float(share) for share in re.findall(r"([\d.]+)%", words)[:3])
    assert lost == pytest.approx(saving + failures, abs=0.11) and saving == pytest.approx(1.6, abs=0.1)
    assert "Young's rule says 54 min" in words


def test_the_best_interval_is_on_the_drawn_axis_and_near_young_where_failures_are_rare():
    words = draw_checkpoint_interval(save_seconds=1.0, mtbf_hours=100.0)[1]
    best, young = (float(minutes) for minutes in re.findall(r"(?:best|says) ([\d.]+) min", words))
    assert best == pytest.approx(young, rel=0.1)
