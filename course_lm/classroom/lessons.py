"""What the lessons stand on: their first cell, printed sources, headless runs and stored outputs.

A lesson is a notebook `NN_name.ipynb` whose stored outputs are what a reader sees before running anything.
`write` alone changes them, and it is reproducible: written twice, a file stays the same.
"""

import html
import inspect
import os
import platform
import shlex
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from course_lm import __version__
from course_lm.classroom import plots
from course_lm.classroom.stored_outputs import clean, keep_timings, refuse_absolute_paths
from course_lm.classroom.workspace import Changes, find_workspace, lesson_paths, prepare
from course_lm.display import Bar, table
from course_lm.reproducibility import resolve_device, seed_everything
from course_lm.trainer.allocator import tune_allocator
from course_lm.trainer.waiting import share_cores

MAX_THREADS = 4
CELL_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class LessonResult:
    """How one lesson ran: its name, the seconds it took, and None or a line that says which cell failed."""

    name: str
    seconds: float
    error: str | None = None


def setup(seed: int = 0, threads: int | None = None) -> None:
    """The first cell of every lesson: threads, seed, warnings, figure style; prints versions and device.

    `threads` is the number of CPU threads that torch uses; by default what the machine offers, at most 4.
    """
    tune_allocator()  # before torch allocates anything large
    torch.set_num_threads(threads or min(MAX_THREADS, torch.get_num_threads()))
    share_cores()
    seed_everything(seed)
    warnings.formatwarning = _format_warning
    plots.style()
    count = torch.get_num_threads()
    print(f"Python {platform.python_version()}, torch {torch.__version__}, course_lm {__version__}")
    print(f"device {resolve_device('auto')}, {count} CPU thread{'s' if count > 1 else ''}, seed {seed}")


def _format_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
    # Without the file name: it would store a path of the author's machine in the notebook.
    return f"{category.__name__}: {message}\n"


def show_source(thing: Any, *, folded: bool = False) -> None:
    """Show the source of a function, method, class or module as it stands in the package; `folded`, behind a click."""
    from IPython.display import display

    source = textwrap.dedent(inspect.getsource(thing)).rstrip()
    # As Markdown it is coloured by the viewer, for its own theme. The longer fence may hold one of a docstring.
    shown = f"````python\n{source}\n````"
    if folded:
        shown = f"<details><summary>The source of {html.escape(thing.__name__)}</summary>\n\n{shown}\n\n</details>"
    display({"text/plain": source, "text/markdown": shown}, raw=True)


def run(paths: Sequence[Path]) -> list[LessonResult]:
    """Run lessons from top to bottom, each in a fresh kernel; print a table of seconds, change no file."""
    return _run_all(paths, store=False)


def write(paths: Sequence[Path]) -> list[LessonResult]:
    """Run lessons and store their outputs, without what differs between machines; the file of one that fails stays.

    Raises ValueError where an output holds an absolute path.
    """
    return _run_all(paths, store=True)


def open_lab(workspace: Path | None = None, fresh: Sequence[str] = ()) -> int:
    """Open JupyterLab on the learner's copies of the lessons, and say which lessons have changed since the copying.

    `workspace` is the folder of the copies, see `find_workspace`; the lessons `fresh` are copied anew, and the first of
    them is opened. Without a display, print the URL and serve.

    Returns the server's exit code where the system cannot replace this process by the server. Raises OSError where
    JupyterLab is not installed or a copy cannot be written, ValueError for a lesson or a workspace that is none.
    """
    _need("jupyterlab")
    folder = find_workspace(workspace)
    changes = prepare(folder, fresh)
    print(f"your copies of the lessons are in {folder}")
    for line in describe(changes, f" --workspace {shlex.quote(str(workspace))}" if workspace else ""):
        print(line)
    return _serve(folder, f"notebooks/{lesson_paths(fresh or None)[0].name}")


def describe(changes: Changes, options: str = "") -> list[str]:
    """What a learner must know of `changes`, a line each; `options` are those that `course-lm lab` needs again."""
    lines = [f"lesson {name[:2]} is copied anew; yours is kept as {kept}" for name, kept in changes.kept.items()]
    if changes.followed:
        lines.append(
            f"changed by the course, and by nobody here, so that the copy follows: {_numbers(changes.followed)}"
        )
    if changes.newer:
        numbers = _numbers(changes.newer)
        lines.append(
            f"newer than your copy: {numbers}; to get it and keep yours: course-lm lab{options} --fresh {numbers}"
        )
    return lines


def _numbers(names: Sequence[str]) -> str:
    return " ".join(name[:2] for name in names)


def _serve(folder: Path, lesson: str) -> int:
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    command = lab_command(folder, lesson, browser=has_display(), as_root=as_root)
    sys.stdout.flush()  # execv drops what is still buffered
    if os.name == "posix":
        os.execv(command[0], command)  # signals reach the server itself
    return subprocess.call(command)


def lab_command(folder: Path, lesson: str, *, browser: bool, as_root: bool) -> list[str]:
    """The command that serves `folder` in JupyterLab, with `lesson` (the path of a file in it) opened."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    command.append(f"--LabApp.default_url=/lab/tree/{lesson}")
    if not browser:
        command.append("--no-browser")
    if as_root:
        command.append("--allow-root")  # else Jupyter refuses to start
    return command


def has_display() -> bool:
    """Whether a browser can be opened on this machine."""
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ  # a browser would open on the far screen
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _run_all(paths: Sequence[Path], *, store: bool) -> list[LessonResult]:
    _need("nbclient")
    import nbformat

    notebooks = [nbformat.read(path, as_version=4) for path in paths]
    cells = sum(cell.cell_type == "code" for notebook in notebooks for cell in notebook.cells)
    results = []
    with Bar(total=cells, unit="cell") as bar:
        for path, notebook in zip(paths, notebooks, strict=True):
            bar.set_description(path.stem)
            results.append(_run_one(path, notebook, bar.update))
            if store and results[-1].error is None:
                _store(path, notebook)
    print(format_table(results))
    return results


def _run_one(path: Path, notebook: Any, advance: Callable[[int], object]) -> LessonResult:
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError

    started, code_cells = time.perf_counter(), 0

    def count(cell: Any, **_: Any) -> None:
        nonlocal code_cells
        code_cells += 1
        advance(1)

    client = NotebookClient(
        notebook,
        kernel_name=NATIVE_KERNEL_NAME,  # whatever kernel the notebook names
        timeout=CELL_TIMEOUT_SECONDS,
        record_timing=False,  # times would change the file at every run
        coalesce_streams=True,  # how output is cut into pieces depends on timing
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=count,
    )
    error = None
    try:
        client.execute()
    except CellExecutionError as failure:
        error = f"code cell {code_cells}: {failure.ename}: {_lines(failure.evalue)[-1]}"
    except (CellControlSignal, DeadKernelError) as failure:
        # A cell that times out or loses its kernel never counts as executed; one that raises does.
        error = f"code cell {code_cells + 1}: {type(failure).__name__}: {_lines(str(failure))[0]}"
    return LessonResult(path.stem, time.perf_counter() - started, error)


def _store(path: Path, notebook: Any) -> None:
    import nbformat

    clean(notebook)
    keep_timings(notebook, nbformat.read(path, as_version=4))
    refuse_absolute_paths(path.stem, notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def format_table(results: Sequence[LessonResult]) -> str:
    """The lessons with their seconds and failures, one line each, and the total."""
    rows = [(result.name, f"{result.seconds:.1f}", result.error or "") for result in results]
    total = ("total", f"{sum(result.seconds for result in results):.1f}", "")
    return table([("lesson", "seconds", ""), *rows, total], left=(0, 2))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()] or [""]


def _need(module: str) -> None:
    if find_spec(module) is None:
        raise OSError(f"the lessons need {module}, which is not installed here: pip install 'course-lm[lab]'")
