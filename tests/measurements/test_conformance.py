"""The table of trainers: a cell is what the runs show, and the document is what is stored."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.conformance import decide, table
from benchmarks.conformance.__main__ import FOLDER, NAMES
from course_lm.audit import spec

SCRIPTS = sorted((FOLDER / "confirm").glob("*_c*.py"))
PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


def test_the_page_holds_the_table_of_the_stored_results():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("<!-- table -->\n")[2].partition("<!-- end of the table -->")[0].strip() == table.text()


@pytest.mark.parametrize("name", table.names())
def test_a_broken_cell_is_confirmed_by_a_script_and_a_stored_row_has_an_adapter(name):
    row = json.loads((table.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    cells = [cell for line in row["lines"].values() for cell in line["promises"].values()]
    assert name in NAMES and (FOLDER / "requirements" / f"{name}.txt").exists()
    assert all(cell["confirmed"] for cell in cells if cell["status"] == "broken")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_docstring_of_a_script_has_words_for_each_promise_that_it_shows(script):
    promises = [part.upper() for part in script.stem.split("_") if part[0] == "c" and part[1:].isdigit()]
    words = [table.words_of(script.name, promise) for promise in promises]
    assert promises and all(words) and len(set(words)) == len(promises)


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
