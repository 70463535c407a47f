"""Claims about the stored race of schedules: it is whole, every arm was tuned, and a run repeats."""

from itertools import pairwise, product

import pytest
import schedule_race
from harness import SEEDS, best_rate, is_stored, load, losses_by_rate
from schedule_race import ARMS, FILE, STEPS

RESULTS = load(FILE)
SWEEP, RUNS = RESULTS["sweep"], RESULTS["runs"]


def test_every_run_is_there_and_no_other():
    wanted = list(schedule_race.settings_of_runs(RESULTS))
    assert [run for run in wanted if not is_stored(RESULTS, *run)] == []
    assert len(RUNS) == len(ARMS) * len(STEPS) * len(SEEDS) and len(wanted) == len(RUNS)


@pytest.mark.parametrize(("schedule", "steps"), list(product(ARMS, STEPS)))
def test_a_rate_on_each_side_of_the_best_was_tried_and_ended_higher(schedule, steps):
    tried = list(losses_by_rate(SWEEP, schedule=schedule, steps=steps))
    assert tried[0] < best_rate(SWEEP, schedule=schedule, steps=steps) < tried[-1]
    assert all(later == 2 * earlier for earlier, later in pairwise(tried))


def test_lesson_05_says_what_the_runs_show():
    for steps, seed in product(STEPS, SEEDS):
        ends = {run["schedule"]: run["val_loss"] for run in RUNS if (run["steps"], run["seed"]) == (steps, seed)}
        assert ends["WSD"] < ends["linear"] < ends["cosine"]
        assert (ends["constant"] > max(ends["linear"], ends["cosine"])) == (steps == STEPS[-1])
        if steps == STEPS[-1]:
            assert 0.04 <= round(ends["cosine"] - ends["linear"], 2) <= 0.05
            assert round(ends["cosine"] - ends["WSD"], 2) == 0.06


@pytest.mark.daily(0)
def test_a_run_repeats():
    run = next(run for run in RUNS if (run["schedule"], run["steps"]) == ("cosine", STEPS[0]))
    again = schedule_race.measure("runs", {key: value for key, value in run.items() if key != "val_loss"})
    assert again["val_loss"] == pytest.approx(run["val_loss"], abs=0.05)
