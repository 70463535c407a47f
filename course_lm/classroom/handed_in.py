"""Handed-in notebooks: what their stored outputs say of each exercise, and what its check says of the answer now.

A stored output is text that anybody can write. `rerun` runs an answer in a process of its own, in an empty folder, with
a time limit, and its verdict counts. The answer's code has all rights of whoever runs it, and shares its process with
the check; docs/instructors.md says what that means.
"""

import ast
import csv
import io
import json
import linecache
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from course_lm.classroom.progress import Tried, digest, tried_in
from course_lm.classroom.workspace import PACKAGE
from course_lm.display import Bar
from course_lm.validation import ensure, one_line

SECONDS = 120  # for one exercise: on a busy machine the import of torch takes some of them
NOT_RUN = ("not run", "")
_COMMAND = "from course_lm.classroom.handed_in import judge_order; judge_order()"


class Row(NamedTuple):
    """What became of one exercise: `stored` as its output says, `rerun` as its check says now, `said` in its words."""

    learner: str
    lesson: str
    exercise: str
    stored: str
    rerun: str
    said: str
    sha256: str


def read_handed_in(folder: Path, lessons: Sequence[Path], *, run_code: bool = False) -> Iterator[Row]:
    """A row for each learner and exercise, of every one of the `lessons` that anybody has handed in, as it comes.

    A folder in `folder` is a learner's. The notebooks lie in it, or in its folder `notebooks/`, and have the names of
    the lessons; a warning for each learner names those that do not.

    Args:
        run_code: whether the answers are run, see `rerun`. All notebooks are read before the first of them runs.

    Raises:
        ValueError: no folder, one learner's, or one in which nobody has handed in a lesson.
    """
    ensure(folder.is_dir(), f"{folder} must be a folder that holds one folder for each learner")
    ensure(not _files_in(folder, lessons), f"{folder} is the folder of one learner; give the one that holds it")
    learners = [path for path in sorted(folder.iterdir()) if path.is_dir() and not _is_aside(path.name)]
    places = {path.name: _files_in(path, lessons) for path in learners}
    handed_in = [lesson for lesson in lessons if any(lesson.stem in files for files in places.values())]
    ensure(bool(handed_in), f"no folder in {folder} holds a lesson, such as LEARNER/notebooks/{lessons[0].name}")
    for learner in learners:
        _warn_of_unread(learner, places[learner.name].values())
    found = {name: {stem: path.read_bytes() for stem, path in files.items()} for name, files in places.items()}
    originals = {lesson.stem: tried_in(lesson.read_bytes()) for lesson in handed_in}
    asked = [
        (learner, lesson, name, *_found(files.get(lesson), name))
        for learner, files in found.items()
        for lesson, exercises in originals.items()
        for name in exercises
    ]

    def told(lesson: str, name: str, tried: Tried | None) -> tuple[str, str]:
        if not run_code or tried is None:
            return NOT_RUN
        return ("not written yet", "") if tried.cell == originals[lesson][name].cell else rerun(name, tried)

    return (
        Row(learner, lesson, name, state, *told(lesson, name, tried), sha256)
        for learner, lesson, name, state, tried, sha256 in Bar(asked, unit="exercise", disable=not run_code)
    )


def _is_aside(name: str) -> bool:
    """Whether a file or folder has a name that programs give to what they keep for themselves."""
    return name.startswith(".") or name == "__MACOSX"


def _files_in(learner: Path, lessons: Sequence[Path]) -> dict[str, Path]:
    places = {lesson.stem: (learner / "notebooks" / lesson.name, learner / lesson.name) for lesson in lessons}
    files = {stem: next((path for path in paths if path.is_file()), None) for stem, paths in places.items()}
    return {stem: path for stem, path in files.items() if path is not None}


def _warn_of_unread(learner: Path, read: Collection[Path]) -> None:
    others = sorted(path.relative_to(learner) for path in learner.rglob("*.ipynb") if path not in read)
    if names := [str(path) for path in others if not any(map(_is_aside, path.parts))]:
        where = "a lesson is read from the learner's folder or its notebooks/, under its own name"
        warnings.warn(f"{learner.name}: not read: {', '.join(names)}; {where}", stacklevel=3)


def _found(file: bytes | None, name: str) -> tuple[str, Tried | None, str]:
    """The state of an exercise, what was handed in for it, and the hash of the file."""
    if file is None:
        return "not handed in", None, ""
    try:
        tried = tried_in(file).get(name)
    except ValueError:
        return "no notebook that can be read", None, digest(file)
    return tried.state if tried else "not in the notebook", tried, digest(file)


def as_csv(row: Sequence[str]) -> str:
    """One line for a spreadsheet: no field is a formula, which it would run, and what does not print is an escape."""
    text = io.StringIO()
    fields = ("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in field) for field in row)
    csv.writer(text, lineterminator="\n").writerow("'" * one.startswith(tuple("=+-@")) + one for one in fields)
    return text.getvalue()


def rerun(check: str, tried: Tried, seconds: float = SECONDS) -> tuple[str, str]:
    """What a check says of an answer that runs in a process of its own, in an empty folder: a state and its words.

    Only what begins with a word that the process was given and the answer was not counts as the verdict.
    """
    word = secrets.token_hex()
    order = json.dumps([word, check, tried.cell, tried.before]).encode()
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty, tempfile.TemporaryFile() as told:
        # Told through a file: a pipe would be waited for as long as any process that the answer has left holds it.
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            cwd=empty,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(order, timeout=seconds)
        except subprocess.TimeoutExpired:
            return "wrong", f"no end within {seconds:g} s"
        finally:
            _end(process)
        told.seek(0)
        _, _, verdict = told.read().partition(word.encode())
    if not verdict:
        return "wrong", f"the process ended without a verdict (exit code {process.returncode})"
    state, said = json.loads(verdict)
    return state, said


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()
    process.wait()


def judge_order() -> None:
    """Read an order from standard input, judge the answer, tell the verdict, and end: what `rerun` starts."""
    word, check, cell, before = json.load(sys.stdin)
    told = os.fdopen(os.dup(1), "w")  # a copy that no process inherits
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    verdict = judge(check, cell, before)
    told.write(word + json.dumps(verdict))
    told.flush()
    os._exit(0)  # past whatever the answer has left to run at the end


def judge(check: str, cell: str, before: Sequence[str]) -> tuple[str, str]:
    """Run the cell of an exercise, and its check on the function that the cell gives to it: a state and its words.

    Of the cells `before` it only what defines a name is run: imports, functions, classes and plain values; a lesson's
    trainings are not made again.
    """
    from course_lm.classroom import checks

    exercise = getattr(checks, check)  # now, since the answer may replace what has this name
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in before:
        with suppress(Exception):  # a name that is missing shows where the answer needs it
            for node in filter(_defines, _statements(source)):
                _run(node, names)
    try:
        answer = _answer(check, cell, names)
    except Exception as error:
        return "stopped by an error", one_line(f"{type(error).__name__}: {error}")
    report = exercise(answer)
    if report.passed and exercise(lambda *_: object()).passed:
        return "wrong", "the check was changed: it takes any answer"
    return "wrong" if report.status == "raised" else report.status, one_line(report.message)


def _answer(check: str, cell: str, names: dict[str, Any]) -> Any:
    """What the cell gives to the check, after all else in it has run."""
    linecache.cache["answer"] = (len(cell), None, cell.splitlines(keepends=True), "answer")
    answer = None
    for node in _statements(cell):
        match node:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("checks"), attr), [given])) if attr == check:
                answer = eval(compile(ast.Expression(given), "answer", "eval"), names)
            case _:
                _run(node, names)
    return answer


def _statements(source: str) -> list[ast.stmt]:
    """The statements of a cell; a line for the notebook, such as `%time`, is left empty."""
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    return ast.parse("\n".join(lines)).body


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        with suppress(ValueError):
            ast.literal_eval(node.value)
            return True
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


def _run(node: ast.stmt, names: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), "answer", "exec"), names)
