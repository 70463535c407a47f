"""Claims about what paired runs say: Student's test and Holm's correction against tables, a change by hand."""

import math
from statistics import fmean, stdev

import pytest
import torch

from course_lm.classroom.comparison import T_95, changes_in_perplexity, holm, interval, p_value


def test_a_change_is_the_ratio_of_two_perplexities():
    changes = changes_in_perplexity([math.log(90.0), math.log(110.0)], [math.log(100.0), math.log(100.0)])
    assert changes == pytest.approx([-10.0, 10.0])


@pytest.mark.parametrize("pairs", T_95)
def test_the_interval_ends_where_the_p_value_is_five_per_cent(pairs):
    changes = torch.randn(pairs, generator=torch.Generator().manual_seed(pairs), dtype=torch.float64)
    at_the_edge = changes - changes.mean() + T_95[pairs] * changes.std() / math.sqrt(pairs)
    assert p_value(at_the_edge.tolist()) == pytest.approx(0.05, rel=1e-3)
    mean, half = interval(at_the_edge.tolist())
    assert mean == pytest.approx(half)


@pytest.mark.parametrize(
    ("pairs", "t", "p"), [(2, 12.706, 0.05), (5, 4.604, 0.01), (10, 3.250, 0.01), (10, 0.703, 0.5)]
)
def test_p_values_are_those_of_students_table(pairs, t, p):
    changes = [float(i) for i in range(pairs)]
    shift = t * stdev(changes) / math.sqrt(pairs) - fmean(changes)
    assert p_value([change + shift for change in changes]) == pytest.approx(p, rel=2e-3)


def test_holm_by_hand():
    # 4 × 0.005, 3 × 0.01, 2 × 0.03, then 1 × 0.04, which may not fall below the one before it
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
