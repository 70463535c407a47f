"""Claims about the stored runs of several lengths: they are whole, were tuned, and a run repeats."""

from itertools import pairwise, product

import pytest
import training_lengths
from harness import SEEDS, best_rate, is_stored, load, losses_by_rate
from training_lengths import FILE, PASSES, ROWS

RESULTS = load(FILE)
SWEEP, RUNS = RESULTS["sweep"], RESULTS["runs"]


def test_every_run_is_there_and_no_other():
    wanted = list(training_lengths.settings_of_runs(RESULTS))
    assert [run for run in wanted if not is_stored(RESULTS, *run)] == []
    assert len(RUNS) == len(ROWS) * len(PASSES) * len(SEEDS)
    assert RESULTS["settings"] == training_lengths.begin()["settings"]


@pytest.mark.parametrize(("rows", "passes"), list(product(ROWS, PASSES)))
def test_a_rate_on_each_side_of_the_best_was_tried_and_ended_higher(rows, passes):
    tried = list(losses_by_rate(SWEEP, rows=rows, passes=passes))
    assert tried[0] < best_rate(SWEEP, rows=rows, passes=passes) < tried[-1]
    assert all(later == 2 * earlier for earlier, later in pairwise(tried))


def test_a_text_is_read_once_a_pass_in_another_order_each_time():
    batches = training_lengths.batches(rows=24, seed=0)
    text = training_lengths.training_rows()[:24].tolist()
    first, second = ([row for _ in range(3) for row in next(batches)["input_ids"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(text) and first != second


def test_lesson_12_says_what_the_runs_show():
    losses = {length: [] for length in product(ROWS, PASSES)}
    for run in RUNS:
        losses[run["rows"], run["passes"]].append(run["val_loss"])
    small, large = ROWS
    for seed in SEEDS:
        ends = {passes: losses[small, passes][seed] for passes in PASSES}
        assert min(ends, key=ends.__getitem__) == 16 and 0.06 <= round(ends[32] - ends[16], 2) <= 0.14
        assert losses[small, 16][seed] - losses[large, 4][seed] >= 0.5
    once, twice = losses[large, 16], losses[large, 32]
    assert min(twice) < min(once) and max(once) < max(twice)


@pytest.mark.daily(0)
def test_a_run_repeats():
    run = next(run for run in RUNS if (run["rows"], run["passes"]) == (ROWS[0], 4))
    again = training_lengths.measure("runs", {key: run[key] for key in ("rows", "passes", "learning_rate", "seed")})
    assert again["val_loss"] == pytest.approx(run["val_loss"], abs=0.05)
