"""What lesson 16 says of Trainers that it does not run is what tests see, and its loops to mend have three faults."""

import re
from pathlib import Path

import nbformat
import pytest

from course_lm.audit import spec
from course_lm.classroom import checks
from tests.audit.test_adapters import SEEN
from tests.lessons.exercises import define, exercises_of

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "16_bug_hunt.ipynb"


def section():
    cells = nbformat.read(LESSON, as_version=4).cells
    return next(cell.source for cell in cells if "## The trainers that many use" in cell.source)


def test_the_versions_of_the_lesson_are_those_on_which_the_figures_were_seen():
    said = dict(re.findall(r"(transformers|lightning) (\d+\.\d+\.\d+)", section()))
    assert said == {name: SEEN[name] for name in ("transformers", "lightning")}


def test_each_fault_of_the_lessons_table_has_a_test_of_the_adapters():
    tests = (LESSON.parents[1] / "tests" / "audit" / "test_adapters.py").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`(\w+)`", section()) if name in spec.FAULTS}
    assert named and [name for name in named if f'"{name}"' not in tests] == []


@pytest.mark.parametrize(
    ("place", "right", "wrong", "words"),
    [
        (0, "size = settings.accumulation_steps", "size = 1", "does not heed settings.accumulation_steps"),
        (1, 'return {"validation_losses": losses, "best_weights": best}', "", "a `return` is missing"),
        (1, '"best_weights": best}', '"best_weights": None}', "must return a dict with validation_losses and"),
        (2, "settings.weight_decay)", "0.0)", "does not heed settings.weight_decay"),
        (2, ", eps=settings.epsilon", "", "does not heed settings.epsilon"),
    ],
)
def test_what_an_audit_holds_against_no_loop_is_held_against_an_answer(place, right, wrong, words):
    notebook = nbformat.read(LESSON, as_version=4)
    exercise = exercises_of(notebook)[place]
    assert right in exercise.solution
    report = getattr(checks, exercise.check)(define(notebook, exercise.solution.replace(right, wrong)))
    assert report.status == "wrong" and words in report.message


@pytest.mark.parametrize("place", range(3))
def test_each_loop_to_mend_has_three_faults_that_the_check_names(place):
    notebook = nbformat.read(LESSON, as_version=4)
    exercise = exercises_of(notebook)[place]
    broken = re.findall(r"```python\n(def mended.*?)```", exercise.before, re.DOTALL)[-1]
    message = getattr(checks, exercise.check)(define(notebook, broken)).message
    assert message.startswith("this is what you get when ")
    assert sum(words in message for words in spec.FAULTS.values()) == 3
