"""Claims about the stored runs that lessons 02, 05, 06 and 12 show: they are whole, and a run repeats."""

import lr_test_lengths
import packed_rows
import pytest
import schedule_runs
import trainer_tables
from harness import best_rate, is_stored, load, loop_of

PACKED, SCHEDULES = load(packed_rows.FILE), load(schedule_runs.FILE)
TESTS, TABLES = load(lr_test_lengths.FILE), load(trainer_tables.FILE)


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        (PACKED, list(packed_rows.settings_of_runs(PACKED))),
        (SCHEDULES, list(schedule_runs.settings_of_runs(SCHEDULES))),
        (TESTS, list(lr_test_lengths.settings_of_all())),
        (TABLES, list(trainer_tables.settings_of_runs())),
    ],
    ids=["packed_rows", "schedule_runs", "lr_test_lengths", "trainer_tables"],
)
def test_every_run_is_there_and_no_other(results, wanted):
    assert [run for run in wanted if not is_stored(results, *run)] == []
    assert sum(len(runs) for runs in results.values() if isinstance(runs, list)) == len(wanted)


@pytest.mark.parametrize("kind", packed_rows.KINDS)
def test_no_kind_of_rows_had_its_best_rate_at_the_end_of_the_sweep(kind):
    assert packed_rows.RATES[0] < best_rate(PACKED["sweep"], rows=kind) < packed_rows.RATES[-1]


def test_no_schedule_had_its_best_peak_at_the_end_of_the_sweep():
    for arm in schedule_runs.ARMS:
        best = schedule_runs.best_peak(SCHEDULES["sweep"], arm)
        assert schedule_runs.PEAKS[0] < best < schedule_runs.PEAKS[-1]


@pytest.mark.daily(0)
def test_a_run_of_each_table_repeats():
    """On other kernels too, so within what rounding does to so short a run."""
    run = SCHEDULES["count"][0]
    settings = {key: run[key] for key in ("k_per_step", "seed")}
    again = schedule_runs.measure(loop_of(schedule_runs.LESSON), "count", settings)
    assert again["val_loss"] == pytest.approx(run["val_loss"], abs=0.05)

    run = next(run for run in TESTS["tests"] if run["num_iter"] == 50)
    settings = {key: run[key] for key in ("num_iter", "seed")}
    again = lr_test_lengths.measure(loop_of(lr_test_lengths.LESSON), "tests", settings)
    assert again["suggestion"] == pytest.approx(run["suggestion"], rel=0.3)

    run = next(run for run in TABLES["warm_up"] if run["steps"] == 40)
    settings = {key: run[key] for key in ("steps", "warmup_ratio", "seed")}
    assert trainer_tables.measure("warm_up", settings)["val_loss"] == pytest.approx(run["val_loss"], abs=0.05)
