"""Claims about thresholds: they follow their closed forms, never fall, and keep to their bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lm.curriculum import CurriculumConfig, FeedbackThreshold, build_pacing
from course_lm.curriculum.pacing import step

SCHEDULES = ("linear", "root", "exponential", "geom", "step", "none")
CLOSED = {
    "linear": lambda p, a, b: (1 - p) * a + p * b,
    "root": lambda p, a, b: math.hypot(a * math.sqrt(1 - p), b * math.sqrt(p)),
    "exponential": lambda p, a, b: math.exp((1 - p) * math.log(a) + p * math.log(b)),
    "geom": lambda p, a, b: a ** (1 - p) * b**p,
    "none": lambda p, a, b: 1.0,
}
bounds = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted)
losses = st.lists(st.floats(0, 20) | st.just(math.nan) | st.just(math.inf), max_size=40)


@pytest.mark.parametrize("unit", ["epochs", "steps"])
@pytest.mark.parametrize("schedule", CLOSED)
@given(bounds, st.integers(1, 12), st.data())
def test_a_schedule_equals_its_closed_form(schedule, unit, limits, total, data):
    warmup = data.draw(st.integers(0, total - 1))
    start, end = limits
    times = {f"num_{unit}": total, f"warmup_{unit}": warmup}
    config = CurriculumConfig(schedule=schedule, start_threshold=start, end_threshold=end, **times)
    for time in range(total + 3):
        done = 0.0 if time <= warmup else min(1.0, (time - warmup) / (total - warmup))
        assert build_pacing(config)(time) == pytest.approx(CLOSED[schedule](done, start, end), rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(bounds, st.integers(1, 12), st.data())
def test_no_threshold_falls_or_leaves_its_bounds(schedule, limits, total, data):
    start, end = limits
    times = sorted(data.draw(st.lists(st.floats(0, 2 * total), min_size=2, max_size=20)))
    config = CurriculumConfig(
        schedule=schedule, start_threshold=start, end_threshold=end, num_epochs=total, warmup_epochs=total // 3
    )
    thresholds = [build_pacing(config)(time) for time in times]
    assert thresholds == sorted(thresholds)
    assert schedule == "none" or all(start <= threshold <= end for threshold in thresholds)


@pytest.mark.parametrize("schedule", set(SCHEDULES) - {"none"})
def test_a_schedule_begins_and_ends_exactly_where_it_is_told_to(schedule):
    config = CurriculumConfig(schedule=schedule, start_threshold=0.3, end_threshold=0.7, num_epochs=7, warmup_epochs=3)
    pacing = build_pacing(config)
    assert [pacing(epoch) for epoch in (0, 1, 2, 3)] == [0.3] * 4
    assert [pacing(epoch) for epoch in (7, 8, 100)] == [0.7] * 3


def test_steps_jump_at_the_times_given():
    thresholds = [step(time, start=0.1, times=[2, 5], thresholds=[0.5, 0.9]) for time in range(7)]
    assert thresholds == [0.1, 0.1, 0.5, 0.5, 0.5, 0.9, 0.9]


def test_steps_that_are_not_given_are_thirds_of_the_way():
    config = CurriculumConfig(
        schedule="step", start_threshold=0.1, end_threshold=1.0, num_epochs=11, warmup_epochs=2, threshold_on="quantile"
    )
    assert config.jumps[0] == [5.0, 8.0, 11.0]
    assert config.jumps[1] == pytest.approx([0.4, 0.7, 1.0])


@given(losses, st.floats(0.01, 1), st.integers(1, 5))
def test_feedback_stays_between_its_bounds_and_is_restored_exactly(reports, rate, window):
    def feedback():
        return FeedbackThreshold(low=0.2, high=0.9, rate=rate, window=window)

    straight, stopped = feedback(), feedback()
    for report in reports:
        straight.report(report)
        stopped.report(report)
        assert 0.2 <= straight.threshold <= 0.9
        fresh = feedback()
        fresh.load_state_dict(stopped.state_dict())
        stopped = fresh
    assert stopped.state_dict() == straight.state_dict()


def test_a_better_loss_raises_the_threshold_and_a_worse_one_lowers_it():
    feedback = FeedbackThreshold(low=0.2, high=1.0, rate=0.25, window=2)
    seen = []
    for loss in (4.0, 3.0, 3.0, 3.6, math.nan, 2.0):
        feedback.report(loss)
        seen.append(feedback.threshold)
    # against the means -, 4.0, 3.5, 3.0, 3.3, 3.3 of the last two finite losses
    assert seen == pytest.approx([0.2, 0.45, 0.7, 0.45, 0.2, 0.45])


def test_jumps_that_another_schedule_does_not_read_leave_its_time_to_the_run():
    assert CurriculumConfig(schedule="linear", step_epochs=[1, 2]).for_run(10, None).num_epochs == 5
    jumping = CurriculumConfig(schedule="step", step_epochs=[1, 2])
    assert jumping.for_run(10, None) is jumping
