"""Feedback for the lessons: predictions before a surprise, and one check for each exercise.

`checks.NAME` is the exercise of that name: the modules of `classroom.exercises` hold them, one a lesson. exercise.py
says what an exercise is, report.py compares an answer with its solution and names the mistake; simulated_ranks.py
stands in for many processes; predict.py asks what stands in predictions/. `checks.last` is the latest report of an
answer that failed.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from course_lm.classroom.checks.exercise import Exercise, exercise, table_of
from course_lm.classroom.checks.outcomes import Refused, at_each, with_gradient
from course_lm.classroom.checks.predict import predict
from course_lm.classroom.checks.report import Report, last_failed
from course_lm.validation import did_you_mean

__all__ = ["Exercise", "Refused", "Report", "at_each", "exercise", "names", "predict", "with_gradient"]

_EXERCISES = Path(__file__).resolve().parents[1] / "exercises"


def names() -> dict[str, str]:
    """The names of all exercises, each with the module of its lesson."""
    return {name: file.stem for file in sorted(_EXERCISES.glob("*.toml")) for name in table_of(file)}


def __getattr__(name: str) -> Any:
    if name == "last":  # the latest report of an answer that failed, with its `args`, `expected` and `got`
        return last_failed()
    lesson = names().get(name)
    if lesson is None:
        raise AttributeError(f"there is no check {name!r}. {did_you_mean(name, names())}".strip())
    return getattr(import_module(f"course_lm.classroom.exercises.{lesson}"), name)
