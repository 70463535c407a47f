"""A learner's own copies of the lessons: what JupyterLab opens, so that an answer changes no file of the course.

    workspace/
        notebooks/         the copies that the learner works in
        course_lm/, docs/  copies of what lessons and pages link to, to be read
        .course_lm.json    for each copy the SHA-256 of the file that it was made from

A copy that the learner has changed is never written again; one that nobody has changed follows the course. Whether the
course has changed since a copy was made, the manifest `.course_lm.json` tells. It also tells of a folder that `release`
has made: there the lessons come without solutions, now and later.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from course_lm.classroom.progress import digest, is_answered
from course_lm.validation import ensure

MANIFEST = ".course_lm.json"
RELEASED = "solutions", "left out"  # an entry of the manifest
SOLUTION = re.compile(r"<details><summary>Solution</summary>.*?</details>\n*", re.DOTALL)
PACKAGE = Path(__file__).resolve().parents[1]


def lesson_folder() -> Path:
    """The folder that holds the lessons: inside the installed package, or `notebooks/` of this checkout."""
    return _course_folder("notebooks")


def lesson_paths(numbers: Iterable[str | int] | None = None) -> list[Path]:
    """The notebooks of the named lessons (`0`, `"00"`, `"00_the_whole_loop"`), by default of all.

    Raises ValueError for a lesson that does not exist, FileNotFoundError where there are no lessons at all.
    """
    lessons = {path.stem: path for path in sorted(lesson_folder().glob("[0-9][0-9]_*.ipynb"))}
    if not lessons:
        raise FileNotFoundError(
            f"no lessons in {lesson_folder()}; they come with a checkout of the repository, and with a wheel"
        )
    if numbers is None:
        return list(lessons.values())
    by_number = {stem[:2]: path for stem, path in lessons.items()}
    found = [by_number.get(str(number).zfill(2)) or lessons.get(str(number)) for number in numbers]
    for number, path in zip(numbers, found, strict=True):
        if path is None:
            raise ValueError(f"there is no lesson {number!r}; there are {', '.join(by_number)}")
    return sorted({path for path in found if path is not None})


def find_workspace(given: Path | None = None) -> Path:
    """The folder of the workspace, which need not be there yet.

    It is the one that is `given`, else the one that holds the current folder, else `workspace/` of this checkout, and
    `course_lm_lessons/` under the current folder where the package is installed without one.

    Raises ValueError for a path that is no folder, or a folder in which the copies would be the lessons themselves.
    """
    here = Path.cwd()
    around = next((folder for folder in (here, *here.parents) if (folder / MANIFEST).is_file()), None)
    in_checkout = lesson_folder().parent == PACKAGE.parent
    folder = given or around or (PACKAGE.parent / "workspace" if in_checkout else here / "course_lm_lessons")
    folder = folder.expanduser().absolute()
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))  # a link that leads nowhere, too
    kind = "file" if there.exists() else "dangling link"
    ensure(there.is_dir(), f"the workspace {folder} must be a folder, got the {kind} {there}")
    own = (folder / "notebooks").resolve() != lesson_folder().resolve()
    ensure(own, f"the workspace must be another folder than the course's own, got {folder}")
    return folder


@dataclass
class Changes:
    """What has become of the lessons in a workspace, by the names of their files.

    Attributes:
        followed: copies that nobody had changed, now of the newer lesson.
        kept: of lessons that were copied anew, the name that the learner's copy has now.
        newer: lessons that are newer than the copy, which the learner has changed.
    """

    followed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    newer: list[str] = field(default_factory=list)


def prepare(workspace: Path, fresh: Iterable[str | int] = ()) -> Changes:
    """Copy into `workspace` what is not there yet or nobody has changed, and the lessons `fresh` in any case.

    What the learner has written stays as it is; a copy that makes room for a fresh one gets another name.

    Raises:
        OSError: a file that cannot be read or written.
        ValueError: a lesson that does not exist, or a manifest that cannot be read; then nothing was changed.
    """
    wanted = {path.name for path in lesson_paths(fresh)}
    originals = _originals()
    recorded = _read_manifest(workspace)
    made_of, changes = dict(recorded), Changes()
    for place, original in originals.items():
        copy, content = workspace / place, original.read_bytes()
        is_lesson = place.startswith("notebooks/")
        if is_lesson and RELEASED in recorded.items():
            content = without_solutions(content)
        mine, shipped = _digest_of(copy), digest(content)
        if mine not in (None, shipped) and _holds_work(copy, made_of.get(place)):
            if not (is_lesson and copy.name in wanted):
                # Of a copy without a record nobody knows the age: it counts as one of the present lesson.
                if made_of.setdefault(place, shipped) != shipped and is_lesson:
                    changes.newer.append(copy.name)
                continue
            changes.kept[copy.name] = _set_aside(copy).name
            mine = None
        if mine != shipped:
            _write(copy, content, read_only=not is_lesson)
            if is_lesson:
                _trust(copy)
            if mine is not None and is_lesson:
                changes.followed.append(copy.name)
        made_of[place] = shipped
    for place in made_of.keys() - originals.keys() - {RELEASED[0]}:  # the course has them no longer
        copy, made = workspace / place, made_of.pop(place)
        if copy.exists() and not _holds_work(copy, made):
            copy.unlink()
    if made_of != recorded:
        _write(workspace / MANIFEST, json.dumps(made_of, indent=1).encode())
    return changes


def release(folder: Path) -> None:
    """Make `folder`, which is new or empty, a workspace whose lessons have no solutions; cut short, leave it empty.

    Raises OSError where it cannot be written, ValueError where it is a file or holds something.
    """
    folder = find_workspace(folder)
    ensure(not folder.exists() or not any(folder.iterdir()), f"the folder must be new or empty, {folder} is neither")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(folder / MANIFEST, json.dumps(dict([RELEASED])).encode())
        prepare(folder)
    except BaseException:  # an interrupt, too: a part would pass for a release
        for part in folder.iterdir():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise


def without_solutions(lesson: bytes) -> bytes:
    """The file of a lesson without the folds that hold solutions; its explanations and hints stay."""
    notebook = json.loads(lesson)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = SOLUTION.sub("", "".join(cell["source"])).splitlines(keepends=True)
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _trust(lesson: Path) -> None:
    """Sign a lesson as the reader's own: of others JupyterLab runs no script, and their explorers would be still."""
    import nbformat
    from nbformat.sign import NotebookNotary

    NotebookNotary().sign(nbformat.read(lesson, as_version=4))


def _course_folder(name: str) -> Path:
    installed = PACKAGE / f"_{name}"
    return installed if installed.is_dir() else PACKAGE.parent / name


def _originals() -> dict[str, Path]:
    """Every file that a workspace has a copy of, by its place there; lessons and pages find each other as at home."""
    originals = {f"notebooks/{path.name}": path for path in lesson_paths()}
    originals |= {f"docs/{path.name}": path for path in sorted(_course_folder("docs").glob("*.md"))}
    sources = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".yaml"))
    sources = [path for path in sources if path.parent != PACKAGE / "classroom" / "exercises"]  # the solutions
    # Without the first __init__.py: Python takes a folder that has none for a package only where it finds no other, so
    # that a kernel or a terminal in the workspace imports the package itself, and not this copy, which has no data.
    sources.remove(PACKAGE / "__init__.py")
    return originals | {f"course_lm/{path.relative_to(PACKAGE).as_posix()}": path for path in sources}


def _read_manifest(workspace: Path) -> dict[str, str]:
    path = workspace / MANIFEST
    try:
        made_of = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (RecursionError, ValueError):  # brackets without end, no JSON, no text at all
        made_of = None
    if not isinstance(made_of, dict) or not all(isinstance(made, str) for made in made_of.values()):
        raise ValueError(f"{path} is damaged: remove it, and what you have changed stays as it is")
    return made_of


def _digest_of(file: Path) -> str | None:
    return digest(file.read_bytes()) if file.exists() else None


def _holds_work(copy: Path, made_of: str | None) -> bool:
    """Whether a learner has changed a copy, or it holds answers all the same.

    The lesson that it was made from held them, where somebody had worked in the notebooks of the checkout; once these
    are put back as they were, the answers are in the copy alone.
    """
    return _digest_of(copy) != made_of or (copy.suffix == ".ipynb" and is_answered(copy))


def _set_aside(copy: Path) -> Path:
    """Give a copy the first free name of `06_lr_finder (2).ipynb`, `06_lr_finder (3).ipynb`, …"""
    names = (copy.with_stem(f"{copy.stem} ({number})") for number in count(2))
    return copy.rename(next(path for path in names if not path.exists()))


def _write(path: Path, content: bytes, *, read_only: bool = False) -> None:
    from course_lm.checkpoints.atomic_write import atomic_file  # loads torch, which who only reads does without

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(content)
    if read_only and os.name == "posix":  # Windows could not replace it by the next one
        path.chmod(0o444)
