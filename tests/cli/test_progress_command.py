"""Claims about `course-lm progress`: which exercises are solved, as the reports say that the copies hold."""

import hashlib
import os
import re
import subprocess
import sys
from datetime import datetime

import nbformat
import pytest
from nbformat.v4 import new_output

from course_lm.classroom import workspace
from course_lm.classroom.checks.report import Report
from course_lm.classroom.progress import exercises_in, read_progress
from course_lm.cli import main
from tests.cli.answers import assert_refused, printed
from tests.cli.small_course import ROOT, make_course, report, solve
from tests.lessons.exercises import exercises_of


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The copies of a course of two lessons, in its checkout's workspace."""
    course = make_course(tmp_path / "course")
    monkeypatch.setattr(workspace, "PACKAGE", course / "course_lm")
    monkeypatch.chdir(course)
    workspace.prepare(course / "workspace")
    return course / "workspace" / "notebooks"


def table(capsys):
    return [line.split(maxsplit=3) for line in printed(capsys, ["progress"]).splitlines()]


def test_the_table_counts_what_is_solved_and_names_what_is_open(copies, capsys):
    solve(copies / "00_first.ipynb", 1)
    assert table(capsys) == [
        ["lesson", "exercises", "passed", "open"],
        ["00_first", "2", "1", "not written yet: floor"],
        ["01_second", "1", "0", "not written yet: padding_share"],
        ["total", "3", "1"],
    ]


REPORTS = [
    (Report("f", "passed", "right in all 3 cases"), "passed"),
    (Report("f", "wrong", "this is what you get when …", "case: 1\ncase: 2"), "wrong"),
    (Report("f", "raised", "KeyError: 'x'"), "wrong"),
    (Report("f", "not written yet", "not written yet"), "not written yet"),
]


@pytest.mark.parametrize(("given", "state"), REPORTS, ids=lambda value: getattr(value, "status", ""))
def test_the_report_of_a_check_is_read_as_it_is_stored(copies, given, state):
    solve(copies / "00_first.ipynb", output=report(repr(given)))
    assert exercises_in(copies / "00_first.ipynb")["floor"] == state


def test_every_status_of_a_report_is_known():
    assert {given.status for given, _ in REPORTS} == set(Report.__annotations__["status"].__args__)


@pytest.mark.parametrize(
    ("outputs", "state"),
    [
        ([], "not run"),
        ([new_output("stream", text="✓ floor: printed by hand")], "not run"),
        ([new_output("error", ename="NameError", evalue="x", traceback=[])], "stopped by an error"),
        ([report("…and so on")], "not run"),
        ([new_output("stream", text="shapes"), report("✓ floor: right")], "passed"),
        ([report("✗ floor: first try"), report("✓ floor: second try")], "passed"),
        ([report("✓ floor: first try"), report("✗ floor: second try")], "wrong"),
    ],
    ids=["nothing", "a print", "an error", "a text", "after a print", "the last counts", "the last is wrong"],
)
def test_only_a_report_says_that_an_exercise_is_solved(copies, outputs, state):
    notebook = nbformat.read(copies / "00_first.ipynb", as_version=4)
    notebook.cells[1].outputs = outputs
    nbformat.write(notebook, copies / "00_first.ipynb")
    assert exercises_in(copies / "00_first.ipynb") == {"floor": state, "train_steps": "not written yet"}


def test_an_exercise_or_a_lesson_that_is_not_among_the_copies_stays_open(copies, capsys):
    notebook = nbformat.read(copies / "00_first.ipynb", as_version=4)
    del notebook.cells[2]
    nbformat.write(notebook, copies / "00_first.ipynb")
    (copies / "01_second.ipynb").unlink()
    _, first, second, total = table(capsys)
    assert first[3] == "not written yet: floor; not in your copy: train_steps"
    assert second == ["01_second", "1", "0", "not in your copy: padding_share"]
    assert total == ["total", "3", "0"]


def test_the_page_says_what_is_solved_when_it_was_saved_and_which_file_it_was(copies, capsys, tmp_path):
    content = solve(copies / "00_first.ipynb", 1)
    os.utime(copies / "00_first.ipynb", (0, datetime(2026, 3, 4, 5, 6).timestamp()))
    (copies / "01_second.ipynb").unlink()
    assert main(["progress", "--page", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "1 of 3 exercises solved" in page and "http" not in page
    first, second = re.findall(r"<tr><td>(.*?)</tr>", page)
    assert (
        first == f"00_first<br><small>{hashlib.sha256(content).hexdigest()}</small></td><td>floor: not written yet<br>"
        "<b>✓ train_steps</b></td><td>2026-03-04 05:06</td>"
    )
    assert second == "01_second<br><small></small></td><td>padding_share: not in your copy</td><td>–</td>"


def test_all_exercises_of_the_course_are_counted_and_none_is_solved_at_first(tmp_path):
    workspace.prepare(tmp_path)
    progress = read_progress(tmp_path, workspace.lesson_paths())
    lessons = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert [row.lesson for row in progress] == [path.stem for path in lessons]
    for row, path in zip(progress, lessons, strict=True):
        named = [exercise.check for exercise in exercises_of(nbformat.read(path, as_version=4))]
        assert row.exercises == dict.fromkeys(named, "not written yet"), row.lesson


def test_the_table_changes_no_file_and_loads_no_torch(tmp_path):
    workspace.prepare(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code = "import sys; from course_lm.cli import main; main(['progress']); print('torch' in sys.modules)"
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
    )
    assert told.stdout.endswith("\nFalse\n"), told.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"cells": [1]}', b'{"cells": [{"cell_type": "code"}]}', b"\xff\xfe", b"[" * 100_000],
)
def test_a_notebook_that_cannot_be_read_is_named_and_stays(copies, capsys, content):
    (copies / "01_second.ipynb").write_bytes(content)
    assert_refused(capsys, ["progress"], "01_second.ipynb", "no notebook that can be read")
    assert (copies / "01_second.ipynb").read_bytes() == content
