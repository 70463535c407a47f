"""Claims about the stored runs of `torch.compile` that lesson 15 prints: they are whole, and hold what it tells."""

import compile_costs
from harness import is_stored, load

STORED = load(compile_costs.FILE)


def test_every_run_is_there_and_no_other():
    wanted = list(compile_costs.settings_of_runs())
    assert [run for run in wanted if not is_stored(STORED, *run)] == []
    assert len(STORED["runs"]) == len(wanted)


def test_compiling_takes_as_long_as_many_steps():
    for run in STORED["runs"]:
        assert run["compile_seconds"] > 10 * run["eager_step_seconds"]
        assert run["other_rows_seconds"] > 0
