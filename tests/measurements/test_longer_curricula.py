"""Claims about the recommended curriculum on longer runs: all runs are there, were tuned, and its page shows them."""

import platform
from itertools import pairwise

import longer_curricula
import pytest
from curriculum_experiment import admitting, tokens_of
from harness import ROOT, best_rate, is_stored, load, losses_by_rate
from longer_curricula import ARMS, CORPORA, FILE, PACING, SEEDS, SWEEP_SEED, WARM_UP

from course_lm.curriculum import CurriculumLoader

PAGE = ROOT / "docs" / "measurements.md"
RESULTS = load(FILE)
SWEEP, RUNS = RESULTS["sweep"], RESULTS["runs"]


def test_every_run_is_there_and_no_other():
    wanted = list(longer_curricula.settings_of_runs(RESULTS))
    assert [run for run in wanted if not is_stored(RESULTS, *run)] == []
    assert len(RUNS) == len(SEEDS) * sum(map(len, CORPORA.values()))


@pytest.mark.parametrize(("corpus", "arm"), [(corpus, arm) for corpus, arms in CORPORA.items() for arm in arms])
def test_a_rate_on_each_side_of_the_best_was_tried_and_ended_higher(corpus, arm):
    same = {"corpus": corpus, "arm": arm, "warm_up": WARM_UP, "seed": SWEEP_SEED}
    tried = list(losses_by_rate(SWEEP, **same))
    assert tried[0] < best_rate(SWEEP, **same) < tried[-1]
    assert all(later == 2 * earlier for earlier, later in pairwise(tried))


def test_the_first_epoch_admits_a_fifth_of_the_tokens_and_the_pace_is_linear():
    of = tokens_of("stories")
    loader = admitting("stories", ARMS["frequency"], 0, PACING)
    assert isinstance(loader, CurriculumLoader)
    hard = loader.difficulty.tolist()
    first = sum(tokens for tokens, place in zip(of.values(), hard, strict=True) if place <= 0.2)
    assert first == pytest.approx(0.2 * sum(of.values()), rel=0.005)
    assert loader.manager.threshold(PACING["num_steps"] // 2) == pytest.approx(0.6)


@pytest.mark.daily(0)
def test_a_stored_run_repeats():
    """On other kernels too, so within what rounding does to it; another Python has another documentation."""
    if RESULTS["settings"]["python"] != platform.python_version():
        pytest.skip(f"the runs read the documentation of Python {RESULTS['settings']['python']}")
    run = next(run for run in RUNS if run["arm"] == "length")
    again = longer_curricula.measure("runs", {key: value for key, value in run.items() if key != "val_loss"})
    assert again["val_loss"] == pytest.approx(run["val_loss"], abs=0.05)


def test_the_page_of_measurements_shows_the_table_of_these_results():
    assert longer_curricula.table(RESULTS) in PAGE.read_text(encoding="utf-8")
