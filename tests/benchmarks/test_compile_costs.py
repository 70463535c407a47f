"""Claims about the stored runs of `torch.compile` that lesson 15 prints: they are whole, and hold what it tells."""

import json

import compile_costs
from kept_runs import is_stored

from course_lm.corpus.shipped import data_file

STORED = json.loads(data_file(compile_costs.FILE).read_text(encoding="utf-8"))


def test_every_run_is_there_and_no_other():
    wanted = list(compile_costs.settings_of_runs())
    assert [run for run in wanted if not is_stored(STORED, *run)] == []
    assert len(STORED["runs"]) == len(wanted)


def test_compiling_takes_as_long_as_many_steps():
    for run in STORED["runs"]:
        assert run["compile_seconds"] > 10 * run["eager_step_seconds"]
        assert run["other_rows_seconds"] > 0
