"""Claims about the stored runs of batch size against steps: what lesson 12 says of them holds, and a run repeats."""

from statistics import median

import pytest
from batch_sizes import BATCH_SIZES, FILE, TARGET_LOSS, crossing, run_to_target
from harness import load
from story_rows import LENGTH

RESULTS = load(FILE)
RACE = RESULTS["race"]


def steps_of(batch_size):
    return median(run["steps_to_target"] for run in RACE if run["batch_size"] == batch_size)


def test_the_best_rates_are_those_that_lesson_12_names():
    """Of 128 to 512 tokens a step, and of 1,024 to 16,384."""
    for run in RACE:
        assert run["learning_rate"] == (0.002 if run["batch_size"] * LENGTH <= 512 else 0.004)


def test_every_run_of_the_race_came_to_the_target():
    assert all(run["steps_to_target"] for run in RACE)


def test_a_larger_batch_needs_fewer_steps_and_more_tokens():
    sizes = sorted(BATCH_SIZES)
    for small, large in zip(sizes, sizes[2:], strict=False):  # next but one: neighbours may change places
        assert steps_of(large) < steps_of(small)
        assert large * steps_of(large) > small * steps_of(small)


def test_the_crossing_lies_where_the_smoothed_loss_meets_the_target():
    losses = [TARGET_LOSS + gap for gap in (0.4, 0.3, 0.2, 0.1, 0.0, -0.1, -0.2)]
    looks = [10, 20, 40, 80, 160, 320, 640]
    assert crossing(list(zip(looks, losses, strict=True))) == pytest.approx(160)
    assert crossing(list(zip(looks[:5], losses[:5], strict=True))) is None


def test_one_lucky_look_is_no_crossing():
    curve = [(step, TARGET_LOSS + 0.5) for step in range(10, 20)]
    curve[5] = (15, TARGET_LOSS - 0.1)
    assert crossing(curve) is None


@pytest.mark.daily(0)
def test_a_run_repeats():
    run = next(run for run in RACE if run["batch_size"] == 8)
    again, _ = run_to_target(8, run["learning_rate"], run["seed"], most=10_000)
    assert again == pytest.approx(run["steps_to_target"], rel=0.1)
