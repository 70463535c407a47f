"""Claims about a class: `release` hands out no solution, and `progress --csv` marks what is handed in.

The answers of the hostile learner are what people have tried elsewhere: none gets a mark, and none stops the others.
"""

import csv
import io
import json
import re
from pathlib import Path

import nbformat
import pytest

from course_lm.classroom import checks, handed_in, workspace
from course_lm.classroom.handed_in import NOT_RUN, as_csv, judge, read_handed_in, rerun
from course_lm.classroom.progress import Tried, digest, tried_in
from course_lm.cli import main
from tests.cli.answers import assert_refused, printed
from tests.cli.small_course import report
from tests.lessons.exercises import SOLUTION, exercises_of

LESSONS = workspace.lesson_paths()
LESSON = workspace.lesson_paths([3])[0]
EXERCISES = {name: tried for lesson in LESSONS for name, tried in tried_in(lesson.read_bytes()).items()}
FORGED = report("✓ log_sum_exp: right in all 3 cases")
WRONG = "def log_sum_exp(logits):\n    return logits.exp().sum(-1).log()\n\n\n"
CALL = "checks.log_sum_exp(log_sum_exp)"
CHANGED = "the check was changed: it takes any answer"
HOSTILE = {
    "an endless loop": ("while True:\n    pass\n", "no end within 10 s"),
    "an endless answer": ("def log_sum_exp(logits):\n    while True:\n        pass\n", "no end within 10 s"),
    "the end of the process": ("import os\nos._exit(0)\n", "the process ended without a verdict (exit code 0)"),
    "an answer that ends it": (
        "def log_sum_exp(logits):\n    raise SystemExit\n",
        "the process ended without a verdict",
    ),
    "another check by this name": (
        "checks.log_sum_exp = lambda fn: checks.Report('f', 'passed', 'right')\n" + WRONG,
        "",
    ),
    "a report that always passes": ("checks.Report.passed = True\n" + WRONG, CHANGED),
    "a comparison that always passes": (
        "from course_lm.classroom.checks.question import Question\nQuestion.is_right = lambda *_: True\n" + WRONG,
        CHANGED,
    ),
    "a verdict that is printed": (
        WRONG + "import os\nos.write(1, b'[\"passed\", \"right\"]')\nprint('✓ passed')\n",
        "",
    ),
    "an answer that deletes its folder": ("import os, shutil\nshutil.rmtree(os.getcwd())\n" + WRONG, ""),
    "a process that is left behind": (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n" + WRONG,
        "",
    ),
}


@pytest.fixture
def few_seconds(monkeypatch):
    monkeypatch.setattr(rerun, "__defaults__", (40,))


def hand_in(folder, learner, sources, output=FORGED):
    """Write a learner's copy of lesson 03, whose first exercises have these sources and this stored output."""
    notebook = nbformat.read(LESSON, as_version=4)
    cells = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])]
    for cell, source in zip(cells, sources):
        cell.source, cell.outputs = source, [output]
    path = folder / learner / "notebooks" / LESSON.name
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return path


def marks(capsys, *arguments):
    """The rows that the command prints."""
    return list(csv.DictReader(io.StringIO(printed(capsys, ["progress", "--csv", *map(str, arguments)]))))


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "lessons"
    assert main(["release", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_released_lesson_holds_no_line_of_a_solution_that_the_lesson_does_not_teach(released, lesson):
    original, copy = (nbformat.read(path, as_version=4) for path in (lesson, released / "notebooks" / lesson.name))
    sources = [cell.outputs[-1:] for cell in original.cells if "\nshow_source(" in f"\n{cell.source}"]
    shown = [output.get("data", {}).get("text/plain", "") for outputs in sources for output in outputs]
    taught = "\n".join([SOLUTION.sub("", cell.source) for cell in original.cells] + shown)
    left = (released / "notebooks" / lesson.name).read_text(encoding="utf-8")
    for exercise in exercises_of(original):
        lines = {line.strip() for line in exercise.solution.splitlines()[1:] if line.strip()}
        own = [line for line in lines if line not in taught]
        assert own, exercise.check
        assert [line for line in own if json.dumps(line, ensure_ascii=False)[1:-1] in left] == []
    assert [cell.id for cell in copy.cells] == [cell.id for cell in original.cells]
    assert re.search(r"Hint 1(?s:.)*Hint 2", left) and "Solution</summary>" not in left


def test_a_release_has_the_checks_of_every_exercise_and_the_pages_but_not_the_file_of_the_solutions(released):
    for lesson in LESSONS:
        copy = tried_in((released / "notebooks" / lesson.name).read_bytes())
        assert copy == tried_in(lesson.read_bytes())
    assert (released / "docs" / "contract.md").is_file() and (released / "course_lm" / "loss.py").is_file()
    assert not (released / "course_lm" / "classroom" / "exercises").exists()


def test_a_released_lesson_stays_without_solutions_when_it_is_copied_anew(tmp_path):
    workspace.release(tmp_path / "lessons")
    copy = tmp_path / "lessons" / "notebooks" / LESSON.name
    first = copy.read_bytes()
    assert workspace.prepare(tmp_path / "lessons") == workspace.Changes()
    copy.write_bytes(first.replace(b"# 03", b"# mine: 03"))
    assert workspace.prepare(tmp_path / "lessons", ["03"]).kept == {copy.name: "03_loss (2).ipynb"}
    assert copy.read_bytes() == first


def test_an_interrupted_release_leaves_nothing_and_the_next_one_is_whole(tmp_path, released, monkeypatch):
    write, folder, written = workspace._write, tmp_path / "lessons", []

    def interrupted(path, content, *, read_only=False):
        write(path, content, read_only=read_only)
        written.append(path)
        if path.suffix == ".py":  # after the lessons and the pages
            raise KeyboardInterrupt

    monkeypatch.setattr(workspace, "_write", interrupted)
    assert main(["release", str(folder)]) == 130
    assert len(written) > len(LESSONS) and list(folder.iterdir()) == []
    monkeypatch.setattr(workspace, "_write", write)
    assert main(["release", str(folder)]) == 0
    names = [{path.relative_to(one) for path in one.rglob("*")} for one in (folder, released)]
    assert names[0] == names[1]


def test_a_release_to_where_a_link_leads_nowhere_is_refused(tmp_path, capsys):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert_refused(capsys, ["release", str(tmp_path / "link")], "must be a folder, got the dangling link")
    assert not (tmp_path / "gone").exists()


def test_a_stored_output_is_read_and_nothing_runs_unless_it_is_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(handed_in.subprocess, "Popen", None)
    path = hand_in(tmp_path, "ana", [WRONG + CALL])
    first, *others = marks(capsys, tmp_path)
    assert first == {
        "learner": "ana",
        "lesson": LESSON.stem,
        "exercise": "log_sum_exp",
        "stored": "passed",
        "rerun": "not run",
        "said": "",
        "sha256": digest(path.read_bytes()),
    }
    assert {(row["stored"], row["rerun"]) for row in others} == {("not written yet", "not run")}


def test_the_right_the_wrong_and_the_hostile_folder_get_what_they_deserve(tmp_path, capsys, few_seconds):
    right = [f"{checks.log_sum_exp.text}\n\n\n{CALL}"]
    deletes = f"import os, shutil\nshutil.rmtree({str(tmp_path / 'right')!r})\nos._exit(0)\n{CALL}"
    hand_in(tmp_path, "a_hostile", [deletes, "while True:\n    pass\nchecks.prompt_masked(1)"])
    hand_in(tmp_path, "right", right, report("… log_sum_exp: not written yet"))
    hand_in(tmp_path, "wrong", [WRONG + CALL])
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / LESSON.name).write_text("{")
    rows = {(row["learner"], row["exercise"]): row for row in marks(capsys, tmp_path, "--rerun")}
    assert not (tmp_path / "right").exists()  # deleted by the first answer, when all had been read
    assert [key for key, row in rows.items() if row["rerun"] == "passed"] == [("right", "log_sum_exp")]
    assert rows["right", "prompt_masked"]["rerun"] == "not written yet"
    assert rows["wrong", "log_sum_exp"]["said"].startswith("this is what you get when nothing is subtracted")
    assert rows["a_hostile", "log_sum_exp"]["said"] == "the process ended without a verdict (exit code 0)"
    assert rows["a_hostile", "prompt_masked"]["said"] == "no end within 40 s"
    assert rows["torn", "log_sum_exp"]["stored"] == "no notebook that can be read"


@pytest.mark.parametrize(("source", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_gets_no_mark_and_ends(source, said):
    seconds = 10 if "no end" in said else 120
    state, words = rerun(
        "log_sum_exp", Tried("passed", source + CALL, ["from course_lm.classroom import checks"]), seconds
    )
    assert state == "wrong" and said in words


def test_an_answer_may_use_what_the_cells_before_it_define():
    helper = "def total(logits):\n    return logits.exp().sum(-1)\n\n\nraise SystemExit('a training')"
    answer = "m = logits.amax(-1, keepdim=True)\n    return total(logits - m).log() + m[..., 0]"
    cell = f"%time\ndef log_sum_exp(logits):\n    {answer}\n\n\n{CALL}"
    assert judge("log_sum_exp", cell, [helper]) == ("passed", "right in all 3 cases")
    assert judge("log_sum_exp", cell, [])[1].startswith("NameError: name 'total' is not defined")


@pytest.mark.parametrize("name", EXERCISES)
def test_each_solution_passes_when_it_runs_again_and_a_stub_does_not(name):
    tried = EXERCISES[name]
    solved = f"{getattr(checks, name).text}\n\n\nchecks.{name}({name})"
    assert judge(name, solved, tried.before)[0] == "passed"
    assert judge(name, tried.cell, tried.before)[0] == "not written yet"


def test_of_a_lesson_that_another_learner_has_handed_in_the_row_says_so(tmp_path):
    hand_in(tmp_path, "ana", [])
    (tmp_path / "bo").mkdir()
    rows = [row for row in read_handed_in(tmp_path, LESSONS) if row.learner == "bo"]
    assert [(row.exercise, row.stored, row.rerun, row.said) for row in rows] == [
        (name, "not handed in", *NOT_RUN) for name in tried_in(LESSON.read_bytes())
    ]


def test_no_field_is_a_formula_or_holds_what_a_terminal_obeys(tmp_path, capsys):
    hand_in(tmp_path, "=1+1", [])
    hand_in(tmp_path, "a\x1b]0;b\x07", [])
    assert {row["learner"] for row in marks(capsys, tmp_path)} == {"'=1+1", "a\\x1b]0;b\\x07"}
    assert as_csv(["+1", "-1: é", "@a", "1-1", "\t=1\n"]) == "'+1,'-1: é,'@a,1-1,\\t=1\\n\n"


def test_a_notebook_at_another_place_or_under_another_name_is_named_on_standard_error(tmp_path):
    hand_in(tmp_path, "ana", [])
    path = hand_in(tmp_path, "bo", [])
    for name in ("03_loss (1).ipynb", "._03_loss.ipynb", ".ipynb_checkpoints/03_loss.ipynb", "__MACOSX/03_loss.ipynb"):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(path.read_bytes())
    hand_in(tmp_path / "cy", "handout", [])
    with pytest.warns(UserWarning) as told:
        list(read_handed_in(tmp_path, LESSONS))
    where = "a lesson is read from the learner's folder or its notebooks/, under its own name"
    assert [str(one.message) for one in told] == [
        f"bo: not read: {Path('notebooks', '03_loss (1).ipynb')}; {where}",
        f"cy: not read: {Path('handout', 'notebooks', LESSON.name)}; {where}",
    ]


def test_folders_that_programs_leave_are_no_learners(tmp_path, capsys):
    for name in ("ana", ".git", "__MACOSX"):
        hand_in(tmp_path, name, [])
    assert {row["learner"] for row in marks(capsys, tmp_path)} == {"ana"}


def test_an_interrupt_leaves_the_marks_that_are_known(tmp_path, capsys, monkeypatch):
    def interrupted(name, tried):
        if name != "log_sum_exp":
            raise KeyboardInterrupt
        return "passed", "right"

    monkeypatch.setattr(handed_in, "rerun", interrupted)
    hand_in(tmp_path, "ana", [WRONG + CALL, "checks.prompt_masked(1)"])
    assert main(["progress", "--csv", str(tmp_path), "--rerun"]) == 130
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["exercise"], row["rerun"], row["said"]) == ("log_sum_exp", "passed", "right")
