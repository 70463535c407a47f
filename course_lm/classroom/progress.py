"""Which exercises a learner has solved, as the reports say that the notebooks hold; nothing of the learner's runs."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from course_lm.display import table
from course_lm.validation import ensure

# How a report begins, by its status; `Report` in checks/report.py writes it.
SIGNS = {"passed": "✓", "wrong": "✗", "raised": "✗", "not written yet": "…"}
_STATES = {SIGNS[state]: state for state in ("passed", "wrong", "not written yet")}


@dataclass(frozen=True)
class LessonProgress:
    """The exercises of a lesson by the names of their checks, each with what became of it when it was last run.

    That is "passed", "wrong", "not written yet", "stopped by an error", "not run", or "not in your copy". Of the copy,
    where there is one, `saved` is when its file was last written, and `sha256` the hash of it.
    """

    lesson: str
    exercises: dict[str, str]
    saved: datetime | None = None
    sha256: str = ""

    @property
    def passed(self) -> int:
        """How many exercises are solved."""
        return list(self.exercises.values()).count("passed")

    @property
    def still_open(self) -> str:
        """The other exercises in words: `wrong: floor; not run: linear_schedule, train_steps`."""
        states = [state for state in dict.fromkeys(self.exercises.values()) if state != "passed"]
        named = {state: [name for name, its in self.exercises.items() if its == state] for state in states}
        return "; ".join(f"{state}: {', '.join(names)}" for state, names in named.items())


def read_progress(workspace: Path, lessons: Sequence[Path]) -> list[LessonProgress]:
    """The progress in each of the course's `lessons`, read from its copy in `workspace`.

    Raises ValueError where there is no workspace, or a notebook that cannot be read.
    """
    copies = workspace / "notebooks"
    ensure(copies.is_dir(), f"there are no copies of the lessons in {workspace} yet: course-lm lab makes them")
    rows = []
    for lesson in lessons:
        copy = copies / lesson.name
        states = dict.fromkeys(exercises_in(lesson), "not in your copy")
        saved, sha256 = None, ""
        if copy.exists():
            mine = exercises_in(copy)
            states = {name: mine.get(name, state) for name, state in states.items()}
            saved, sha256 = datetime.fromtimestamp(copy.stat().st_mtime), digest(copy.read_bytes())
        rows.append(LessonProgress(lesson.stem, states, saved, sha256))
    return rows


class Tried(NamedTuple):
    """An exercise in a notebook: what its stored output says, its cell, and the cells of code `before` it."""

    state: str
    cell: str
    before: list[str]


def exercises_in(notebook: Path) -> dict[str, str]:
    """The exercises of a notebook in order, by the names of their checks, each with its state.

    Raises ValueError for a file that is no notebook.
    """
    try:
        return {name: tried.state for name, tried in tried_in(notebook.read_bytes()).items()}
    except ValueError:
        raise ValueError(f"{notebook} is no notebook that can be read") from None


def tried_in(notebook: bytes) -> dict[str, Tried]:
    """The exercises of a notebook's file by the names of their checks. Raises ValueError for what is no notebook."""
    try:
        code = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in code]
        return {
            name: Tried(_state(cell), sources[place], sources[:place])
            for place, cell in enumerate(code)
            if "exercise" in cell["metadata"].get("tags", [])
            for name in checks_called(sources[place])
        }
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError("no notebook") from error


def digest(content: bytes) -> str:
    """The SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def is_answered(notebook: Path) -> bool:
    """Whether an exercise of a notebook was tried. Raises ValueError for a file that is no notebook."""
    return not set(exercises_in(notebook).values()) <= {"not written yet", "not run"}


def checks_called(source: str) -> list[str]:
    """The names of the checks that a cell calls on an answer."""
    return re.findall(r"^checks\.(\w+)\(", source, re.MULTILINE)


def _state(cell: dict[str, Any]) -> str:
    """What the outputs of an exercise's cell say; where it is run again, they are written anew."""
    shown = ["".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"]]
    states = [_STATES[text[0]] for text in shown if text[:1] in _STATES and text[1:2] == " "]
    if states:
        return states[-1]
    failed = any(output["output_type"] == "error" for output in cell["outputs"])
    return "stopped by an error" if failed else "not run"


def format_table(rows: Sequence[LessonProgress]) -> str:
    """A line for each lesson: its exercises, how many are solved, and the names of the others; then the total."""
    counted = [(row.lesson, str(len(row.exercises)), str(row.passed), row.still_open) for row in rows]
    exercises, passed = sum(len(row.exercises) for row in rows), sum(row.passed for row in rows)
    head, total = ("lesson", "exercises", "passed", "open"), ("total", str(exercises), str(passed), "")
    return table([head, *counted, total], left=(0, 3))
