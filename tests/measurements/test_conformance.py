"""The table of trainers: a cell is what the runs show, and the document is what is stored."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.conformance import decide, here, table
from benchmarks.conformance.__main__ import FOLDER, NAMES
from course_lm.audit import spec

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
    common = {"C2": "not offered", "C5": "not guarded", "C7": "not confirmed", "C12": "not tried"}
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
