"""A course of two lessons in a git repository, and its clone on a learner's machine."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *arguments: str) -> str:
    """What a git command prints, without settings of this machine."""
    nobody = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *nobody, "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def commit(folder: Path) -> None:
    """Commit everything."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")


def make_course(folder: Path) -> Path:
    """A repository with two lessons, a page, sources, and what this repository ignores."""
    write_lesson(folder, "00_first", ["floor", "train_steps"])
    write_lesson(folder, "01_second", ["padding_share"])
    for place in ("docs/contract.md", "course_lm/__init__.py", "course_lm/loss.py", "course_lm/configs/tiny.yaml"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(f"{place} as it was first\n")
    shutil.copy(ROOT / ".gitignore", folder)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def write_lesson(folder: Path, name: str, checks: Sequence[str], prose: str = "# A lesson") -> Path:
    """A lesson with an exercise for each check, none of them written yet."""
    cells = [new_markdown_cell(prose)]
    for check in checks:
        cell = new_code_cell(f"def {check}_of(x): ...\n\n\nchecks.{check}({check}_of)", metadata={"tags": ["exercise"]})
        cell.outputs = [report(f"… {check}_of: not written yet")]
        cells.append(cell)
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    path = folder / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)
    return path


def report(text: str) -> nbformat.NotebookNode:
    """An output as a check's report leaves it."""
    return new_output("execute_result", data={"text/plain": text, "text/html": "<div></div>"}, execution_count=1)


def solve(notebook: Path, exercise: int = 0, output: nbformat.NotebookNode | None = None) -> bytes:
    """Write an answer to an exercise, run it, save; the notebook's bytes."""
    lesson = nbformat.read(notebook, as_version=4)
    cell = [cell for cell in lesson.cells if cell.cell_type == "code"][exercise]
    cell.source = f"# mine\n{cell.source}"
    cell.outputs = [output or report("✓ it: right in all 3 cases")]
    nbformat.write(lesson, notebook)
    return notebook.read_bytes()
