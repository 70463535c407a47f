"""The answers to a lesson's exercises on which its checks are tried, and what is said of each: `answers/LESSON.md`.

    # log_sum_exp
    ## wrong: this is what you get when the maximum is not added back
        def log_sum_exp(logits):
            ...

A heading holds what the report says: its status and its message; of an error only its type. `right` alone is an answer
that passes. `python -m tests.lessons.answers 03_loss` writes the headings of wrong answers as the checks speak now.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from course_lm.classroom import checks
from course_lm.classroom.checks import Report
from tests.lessons.exercises import define

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "lessons" / "answers").glob("[0-9][0-9]_*.md"))
PART = re.compile(r"^# (\w+)$|^## (.+)\n((?:(?:    .*)?\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """One answer: the check that it is for, what must be said of it, and its code."""

    check: str
    said: str
    code: str


def answers_in(file: Path) -> Iterator[Answer]:
    """The answers of a file in order."""
    check = ""
    for name, said, code in PART.findall(file.read_text(encoding="utf-8")):
        check = name or check
        if said:
            yield Answer(check, said, textwrap.dedent(code).strip())


def said_of(report: Report) -> str:
    """What a heading says of a report."""
    if report.passed:
        return "right"
    message = report.message
    if report.status == "raised":  # the words after its type are those of Python and torch, which other versions change
        named = re.findall(r"this is what you get when .*", message)
        message = ": ".join([message.partition(":")[0], *named])
    return f"{report.status}: {message}"


def reports_of(file: Path) -> list[tuple[Answer, Report]]:
    """Each answer of a lesson with the report that its check gives."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{file.stem}.ipynb", as_version=4)
    return [(one, getattr(checks, one.check)(define(notebook, one.code))) for one in answers_in(file)]


def main(lessons: list[str]) -> None:
    """Write the headings of lessons anew and print those that change, for a person to judge."""
    for file in FILES:
        if file.stem in lessons:
            text = file.read_text(encoding="utf-8")
            for answer, report in reports_of(file):
                if report.passed and answer.said != "right":
                    print(f"{answer.check}\n! passes, and is said to be {answer.said}\n{answer.code}")
                elif said_of(report) != answer.said:
                    print(f"{answer.check}\n- {answer.said}\n+ {said_of(report)}")
                    code = textwrap.indent(answer.code, "    ")
                    text = text.replace(f"## {answer.said}\n{code}", f"## {said_of(report)}\n{code}")
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
