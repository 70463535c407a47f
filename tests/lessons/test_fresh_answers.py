"""The checks, tried on answers by people who had read the lesson and neither its checks nor its tests.

`fresh_answers/first` was written before the checks knew mutants, the others after. Each was looked at when it had been
measured once, so they show that nothing gets worse; how good the checks are on new answers is for a new set to show.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from course_lm.classroom import checks
from course_lm.classroom.checks.report import Report
from tests.lessons.exercises import define

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "lessons" / "fresh_answers").glob("*/[0-9][0-9]_*.md"))
# The words of a report that names the mistake; one that only shows a number, a run or an error has none of them. Where
# the audit is the check, it also names what an answer does not heed or return, and then more of them must be named.
NAMES, SHARE = re.compile("this is what you get when"), 0.6
AUDIT_NAMES = re.compile(
    NAMES.pattern + r"|a `return` is missing|does not heed settings\.\w+|the loop must return a dict with"
)
AUDITED, AUDIT_SHARE = "16_bug_hunt", 0.75
PART = re.compile(r"^# (\w+)$|^## (wrong|right): (.*?)\n+```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

# Written as wrong, and right by what the exercise says.
RIGHT_AFTER_ALL = {
    "it returns a NumPy array and not a list": "an array of the right numbers is as good as a list",
    "An array is returned where a list is asked for": "an array of the right numbers is as good as a list",
    "without any target it returns nan but leaves gradients of zeros in the model": "zeros are no gradient either",
    "clears the gradients only after each step, so gradients that the model brings along enter the first step": (
        "none are left from before"
    ),
    "Gradients are cleared only after a step, so what stood in them before the call joins the first window": (
        "none are left from before"
    ),
    "gradients are cleared only after a step, so what was there before the call joins the first one": (
        "none are left from before"
    ),
    "the search begins at step 0 with a strict comparison, so a checkpoint of step 0 is never found": "there is none",
    "single precision": "the exercise asks for no whole number, and this one is right to one part in ten million",
    "the search for the highest step begins at 0, so a checkpoint of step 0 is never found": "there is none",
}


@dataclass(frozen=True)
class Answer:
    """One answer: the check that it is for, what its writer says of it, and its code."""

    check: str
    is_right: bool
    said: str
    code: str


def answers_in(file: Path) -> Iterator[Answer]:
    check = ""
    for name, kind, said, code in PART.findall(file.read_text(encoding="utf-8")):
        check = name or check
        if kind:
            yield Answer(check, kind == "right" or said in RIGHT_AFTER_ALL, said, code)


def reports_of(file: Path) -> list[tuple[Answer, Report]]:
    notebook = nbformat.read(ROOT / "notebooks" / f"{file.stem}.ipynb", as_version=4)
    return [(one, getattr(checks, one.check)(define(notebook, one.code))) for one in answers_in(file)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_right_answers_pass_wrong_ones_do_not_and_most_mistakes_are_named(file):
    reports = reports_of(file)
    assert len(reports) >= 24
    misjudged = [one for one, report in reports if report.passed != one.is_right]
    judged_wrong = [f"{one.check}: {one.said}" for one in misjudged]
    assert judged_wrong == []
    assert [one.said for one, report in reports if report.status == "not written yet"] == []
    wrong = [report for one, report in reports if not one.is_right]
    names, share = (AUDIT_NAMES, AUDIT_SHARE) if file.stem == AUDITED else (NAMES, SHARE)
    named = [report for report in wrong if names.search(report.message)]
    assert len(named) >= share * len(wrong)
