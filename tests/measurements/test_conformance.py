"""The table of trainers: a cell is what the runs show, and the document is what is stored."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.conformance import decide, here, resume, table
from benchmarks.conformance.__main__ import FOLDER, NAMES
from course_lm.audit import spec
from course_lm.audit.locate import BREAKS
from course_lm.audit.outcome import PRECISIONS, distance
from course_lm.audit.runs import ladder
from course_lm.audit.search import Explanation, Specification
from tests.audit.loops import resumed

SCRIPTS = sorted((FOLDER / "confirm").glob("*_c*.py"))
PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


def test_the_page_holds_the_table_of_the_stored_results():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("<!-- table -->\n")[2].partition("<!-- end of the table -->")[0].strip() == table.text()


@pytest.mark.parametrize("name", table.names())
def test_a_departure_that_has_a_name_is_confirmed_by_a_script_and_a_stored_row_has_an_adapter(name):
    row = json.loads((table.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    cells = [cell for line in row["lines"].values() for cell in line["promises"].values()]
    assert name in NAMES and (FOLDER / "requirements" / f"{name}.txt").exists()
    assert all(cell["confirmed"] for cell in cells if cell["status"] in ("broken", "not guarded", "differs by choice"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_docstring_of_a_script_has_words_for_each_promise_that_it_shows(script):
    promises = [part.upper() for part in script.stem.split("_") if part[0] == "c" and part[1:].isdigit()]
    words = [table.words_of(script.name, promise) for promise in promises]
    assert promises and all(words) and len(set(words)) == len(promises)


@pytest.mark.parametrize(("wrong", "code"), [("0.5", 0), ("1.0", 1), ("float('nan')", 2), ("float('inf')", 2)])
def test_a_script_confirms_a_number_that_differs_and_none_that_is_not_finite(wrong, code):
    shown = f"import tiny; tiny.answer({{'c3': lambda: ('weight', {wrong}, 1.0)}})"
    done = subprocess.run([sys.executable, "-c", shown, "c3", "a line"], cwd=FOLDER / "confirm", capture_output=True)
    assert done.returncode == code


def test_a_departure_has_the_status_the_promise_and_the_words_of_its_own_line(monkeypatch):
    departs = {"status": "departs", "faults": [], "run": "two SGD steps"}
    found = {"C1": departs, "C3": {"status": "kept"}, "C5": departs, "C7": departs}
    monkeypatch.setattr(
        here, "cells", lambda _, settled, __: {key: dict(cell) for key, cell in found.items()} | settled
    )
    monkeypatch.setattr(here, "confirmed", lambda name, label, promise: {"a.py": label} if promise != "C7" else {})
    adapter = SimpleNamespace(
        PACKAGE="torch",
        LOOPS={"first": None, "second": None},
        NOT_OFFERED={"C2": "no targets"},
        NOT_TRIED={"C12": "no files"},
        CALLED={"C5": "not guarded"},
        MEANT={"first": {"C3": "C1"}, "second": {"C1": "C3"}},  # in the first line C3 is kept
    )
    monkeypatch.setattr(here, "import_module", lambda name: adapter)
    lines = here.row("any")["lines"]
    status = {label: {key: cell["status"] for key, cell in line["promises"].items()} for label, line in lines.items()}
    common = {"C2": "not offered", "C5": "not guarded", "C7": "not confirmed", "C12": "not tried", "C13": "not tried"}
    assert status == {
        "first": {"C1": "broken", "C3": "kept", **common},
        "second": {"C1": "kept", "C3": "broken", **common},
    }
    assert lines["second"]["promises"]["C3"]["confirmed"] == {"a.py": "second"}


def specification_with(*faults):
    """The specification as a loop, with faults."""

    def loop(model, epochs, settings):
        result = spec.train(model, epochs, settings, faults)
        model.load_state_dict(result.weights, strict=False)  # a tied weight has one name in it
        return {"validation_losses": result.validation_losses, "best_weights": result.best_weights}

    return loop


def departing(loop):
    cells = decide.cells(loop, {})
    return {promise: cell for promise, cell in cells.items() if cell["status"] != "kept"}


def test_the_specification_keeps_every_promise():
    assert departing(specification_with()) == {}


def test_faults_break_the_promises_they_belong_to_and_no_others():
    found = departing(specification_with("mean_of_means", "steps_on_nonfinite"))
    assert {promise: cell["faults"] for promise, cell in found.items()} == {
        "C3": ["mean_of_means"],
        "C7": ["steps_on_nonfinite"],
    }
    assert found["C3"]["run"] == "micro-batches of unequal tokens"


def test_a_promise_whose_setting_a_loop_lacks_is_not_offered():
    def unclipped(model, epochs, settings):
        result = specification_with()(model, epochs, replace(settings, max_grad_norm=None))
        return {**result, "ignores": {"max_grad_norm"}}

    assert departing(unclipped) == {"C6": {"status": "not offered", "reason": "no max_grad_norm"}}


def test_a_promise_that_is_settled_stays_so_and_the_others_are_decided():
    settled = {"C3": {"status": "not tried", "reason": "it takes long"}}
    found = decide.cells(specification_with("mean_of_means"), settled)
    assert found.pop("C3") == settled["C3"] and {cell["status"] for cell in found.values()} == {"kept"}


def test_a_loop_that_ends_in_an_error_is_not_taken_for_one_with_a_fault():
    def unable_to_clip(model, epochs, settings):
        if settings.max_grad_norm is not None:
            raise TypeError("the adapter's own")
        return specification_with()(model, epochs, settings)

    found = departing(unable_to_clip)
    assert "C6" in found and {(cell["status"], *cell["faults"]) for cell in found.values()} == {("not confirmed",)}
    assert "the adapter's own" in found["C6"]["numbers"]


ELSEWHERE = (*BREAKS["C3"][:3], *BREAKS["C4"], "val_mean_of_means", "val_weighted_by_rows")


def shows(case, fault):
    """Whether the run leaves something else with the fault."""
    specification = Specification()
    right, wrong = (specification.outcome(case, Explanation(faults)) for faults in ((), (fault,)))
    return distance(wrong, right, specification.start(case), PRECISIONS["float32"]) > 1.0


@pytest.mark.parametrize("promise", decide.EVENED)
def test_evened_runs_show_each_fault_against_their_promise_and_none_that_depends_on_how_targets_lie(promise):
    runs = [decide.evened(case) for case in ladder() if case.promise == promise]
    assert [fault for fault in BREAKS[promise] if not any(shows(case, fault) for case in runs)] == []
    assert [(fault, case.name) for fault in ELSEWHERE for case in runs if shows(case, fault)] == []


def by_squares(*faults):
    """A loop whose micro-batches weigh by the square of their targets, which is a fault without a name."""

    def loop(model, epochs, settings):
        optimizer, k = torch.optim.SGD(model.parameters(), lr=1.0), 0
        size = settings.accumulation_steps
        for batches in epochs:
            for window in (batches[start : start + size] for start in range(0, len(batches), size)):
                counts = [int((batch["labels"][:, 1:] != -100).sum()) ** 2 for batch in window]
                for batch, count in zip(window, counts):
                    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])[:, :-1]
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
                    (loss * count / sum(counts)).backward()
                optimizer.param_groups[0]["lr"] = settings.schedule(0 if "schedule_never_moves" in faults else k)
                optimizer.step()
                optimizer.zero_grad()
                k += 1

    return loop


@pytest.mark.parametrize(("faults", "status"), [((), "kept"), (("schedule_never_moves",), "departs")])
def test_a_fault_without_a_name_is_held_against_its_own_promise_alone(monkeypatch, faults, status):
    names = ("one SGD step on one row", "micro-batches of unequal tokens", "rates that move, with accumulation")
    monkeypatch.setattr(decide, "ladder", lambda: [case for case in ladder() if case.name in names])
    found = decide.cells(by_squares(*faults), {})
    assert {promise: found[promise]["status"] for promise in ("C1", "C3", "C8")} == {
        "C1": "kept",
        "C3": "departs",
        "C8": status,
    }
    assert found["C8"].get("faults", []) == list(faults)


def test_an_evened_run_that_shows_only_what_other_promises_name_needs_no_search(monkeypatch):
    names = ("one SGD step on one row", "micro-batches of unequal tokens", "rates that move, with accumulation")
    shown = [case for case in ladder() if case.name in names]
    again = replace(shown[-1], name="the same once more", promise="C10")
    monkeypatch.setattr(decide, "ladder", lambda: [*shown, again])
    smallest = decide.Search.smallest

    def in_vain_about_it(search, start):
        return [] if again.name in [case.name for case in search.cases] else smallest(search, start)

    monkeypatch.setattr(decide.Search, "smallest", in_vain_about_it)
    found = decide.cells(by_squares("schedule_never_moves"), {})
    assert (found["C8"]["faults"], found["C10"]["status"]) == (["schedule_never_moves"], "kept")


@pytest.mark.parametrize(
    ("faults", "status", "named"),
    [
        ((), "kept", None),
        (("moments_lost",), "departs", ["moments_lost"]),
        (("random_state_lost",), "departs", ["random_state_lost"]),
    ],
)
def test_the_cell_of_a_resume_is_what_stopped_runs_show(faults, status, named):
    def train(model, epochs, settings, folder, stop_after):
        return resumed.train(model, epochs, settings, folder, stop_after, faults=faults)

    found = resume.cell(train)
    assert (found["status"], found.get("faults")) == (status, named)


def test_a_loop_that_departs_without_a_stop_is_not_tried_with_one():
    def train(model, epochs, settings, folder, stop_after):
        by_squares("schedule_never_moves")(model, epochs, settings)

    assert resume.cell(train)["status"] == "not tried"
