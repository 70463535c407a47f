"""Lesson 16: what it says of trainers that it does not run is stored, and its exercises are what they say."""

import json
import math
import re
from pathlib import Path

import nbformat
import pytest

from course_lm import audit
from course_lm.audit import spec
from course_lm.audit.locate import proportion
from course_lm.audit.outcome import Outcome, flat, names_of
from course_lm.audit.runs import Case, Constant, Rows
from course_lm.classroom import checks
from course_lm.classroom.exercises.bug_hunt import mystery
from tests.lessons.exercises import define, exercises_of

ROOT = Path(__file__).resolve().parents[2]
LESSON, RESULTS = ROOT / "notebooks" / "16_bug_hunt.ipynb", "benchmarks/conformance/results"
NOTEBOOK = nbformat.read(LESSON, as_version=4)
MENDED = exercises_of(NOTEBOOK)[-1]


STORIES = next(
    fold.partition("</details>")[0]
    for cell in NOTEBOOK.cells
    if (fold := cell.source.partition("two stories from the table of trainers")[2])
)
STORED = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / RESULTS).glob("*.json")]


def test_the_lessons_stories_have_versions_faults_and_numbers_of_the_table_of_trainers():
    versions = set(re.findall(r"\d+\.\d+\.\d+", STORIES))
    assert len(versions) == 3 and versions <= {row["version"] for row in STORED}
    cells = [cell for row in STORED for line in row["lines"].values() for cell in line["promises"].values()]
    found = {fault for cell in cells if cell["status"] == "broken" for fault in cell["faults"]}
    named = {name for name in re.findall(r"`(\w+)`", STORIES) if name in spec.FAULTS}
    assert len(named) == 3 and named <= found
    numbers = set(re.findall(r"\d\.\d{4,}", STORIES))
    assert len(numbers) == 4
    table = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    assert [number for number in numbers if number not in table] == []


@pytest.mark.parametrize("targets", [[4, 4], [2, 6], [6, 2], [1, 5, 2]])
def test_the_formula_of_exercise_2_is_what_its_loop_does(targets):
    rows = Rows(seed=0)
    settings = spec.Settings(optimizer="sgd", schedule=Constant(0.3), accumulation_steps=len(targets))
    case = Case("a window", "accumulation", "C3", [[rows.batch(count + 1) for count in targets]], settings)
    model, names = case.model(), names_of(case.model())
    start, right = flat(dict(model.named_parameters()), names), spec.train(model, case.epochs, settings).weights
    mystery(model, case.epochs, settings)
    made = Outcome(flat(dict(model.named_parameters()), names))
    far = proportion(made, Outcome(flat(right, names)), start)
    assert far is not None and math.isclose(far, checks.times_as_far.solution(targets), rel_tol=1e-9)


def test_the_audit_has_no_name_for_the_fault_of_exercise_2_and_a_clue():
    report = audit.audit(mystery, parts=["accumulation"], progress=False)
    assert not report.sound and not report.faults and "times as far" in report.notes[0]


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ('return {"validation_losses": losses, "best_weights": best}', "", "a `return` is missing"),
        ('"best_weights": best}', '"best_weights": None}', "must return a dict with validation_losses and"),
    ],
)
def test_what_an_audit_holds_against_no_loop_is_held_against_an_answer(right, wrong, words):
    assert right in MENDED.solution
    report = checks.mended_validation(define(NOTEBOOK, MENDED.solution.replace(right, wrong)))
    assert report.status == "wrong" and words in report.message


def test_the_loop_to_mend_has_three_faults_that_the_check_names():
    broken = re.findall(r"```python\n(def mended.*?)```", MENDED.before, re.DOTALL)[-1]
    message = checks.mended_validation(define(NOTEBOOK, broken)).message
    assert message.startswith("this is what you get when ")
    assert sum(words in message for words in spec.FAULTS.values()) == 3
