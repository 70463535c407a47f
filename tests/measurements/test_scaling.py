"""Claims about the stored runs of widths and budgets: they are whole, were tuned, and a run repeats."""

from itertools import pairwise, product

import pytest
import scaling
from harness import ROOT, SEEDS, best_rate, is_stored, load, losses_by_rate
from scaling import BUDGETS, FILE, WIDTHS

LESSON_12 = ROOT / "notebooks" / "12_trainer.ipynb"
RESULTS = load(FILE)
SWEEP, RUNS = RESULTS["sweep"], RESULTS["runs"]


def test_every_run_is_there_and_no_other():
    wanted = list(scaling.settings_of_runs(RESULTS))
    assert [run for run in wanted if not is_stored(RESULTS, *run)] == []
    assert len(RUNS) == len(WIDTHS) * len(BUDGETS) * len(SEEDS)


@pytest.mark.parametrize(("width", "budget"), list(product(WIDTHS, BUDGETS)))
def test_a_rate_on_each_side_of_the_best_was_tried_and_ended_higher(width, budget):
    tried = list(losses_by_rate(SWEEP, d_model=width, budget=budget))
    assert tried[0] < best_rate(SWEEP, d_model=width, budget=budget) < tried[-1]
    assert all(later == 2 * earlier for earlier, later in pairwise(tried))


def test_lesson_12_tabulates_the_best_rates():
    runs = sorted(RUNS, key=lambda run: (run["parameters"], run["steps"]))
    for size in {run["parameters"] for run in runs}:
        best = {run["steps"]: run["learning_rate"] for run in runs if run["parameters"] == size}
        row = f"| {size:,} | {', '.join(f'{best[n]:g} after {n:,}' for n in best)} |"
        assert row in LESSON_12.read_text(encoding="utf-8")


def test_every_run_has_spent_its_budget_within_a_step_and_a_half():
    for run in RUNS:
        step = run["flops"] / run["steps"]
        assert abs(run["flops"] - run["budget"]) < 1.5 * step


@pytest.mark.daily(0)
def test_a_run_repeats():
    run = next(run for run in RUNS if (run["d_model"], run["budget"]) == (64, BUDGETS[0]))
    again = scaling.measure("runs", {key: run[key] for key in ("d_model", "budget", "learning_rate", "seed")})
    assert again["val_loss"] == pytest.approx(run["val_loss"], abs=0.05)
