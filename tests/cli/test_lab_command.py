"""Claims about `course-lm lab`: a learner works in copies, which lose nothing and leave the course as it is.

JupyterLab itself is not started: `served` notes what it would open.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_lm.classroom import lessons, workspace
from course_lm.cli import main
from tests.cli.answers import assert_refused, printed
from tests.cli.small_course import ROOT, commit, git, make_course, solve, write_lesson

FIRST, SECOND = "notebooks/00_first.ipynb", "notebooks/01_second.ipynb"
LINK = re.compile(r"\]\((?!http)([^)#\s]+)[^)]*\)")


@pytest.fixture
def served(monkeypatch):
    """What JupyterLab would have opened: folders with a lesson each."""
    opened = []
    monkeypatch.setattr(lessons, "_serve", lambda folder, lesson: opened.append((folder, lesson)) or 0)
    return opened


@pytest.fixture
def checkout(tmp_path, monkeypatch, served):
    """A clone of the course, in which the command runs."""
    git(tmp_path, "clone", "--quiet", str(make_course(tmp_path / "upstream")), "checkout")
    monkeypatch.setattr(workspace, "PACKAGE", tmp_path / "checkout" / "course_lm")
    monkeypatch.chdir(tmp_path / "checkout")
    return tmp_path / "checkout"


def change(checkout, place=FIRST, text="# A better lesson"):
    """Change a file of the course, and pull the change into the clone."""
    path = checkout.parent / "upstream" / place
    if path.suffix == ".ipynb":
        write_lesson(path.parents[1], path.stem, ["floor"], text)
    else:
        path.write_text(text)
    pull(checkout)


def rename(checkout, place, name):
    """Rename a file of the course, and pull the change into the clone."""
    git(checkout.parent / "upstream", "mv", place, str(Path(place).with_name(name)))
    pull(checkout)


def pull(checkout):
    commit(checkout.parent / "upstream")
    git(checkout, "pull", "--quiet", "--ff-only")


def said(capsys, *arguments):
    """The lines that the command prints below the one that says where the copies are."""
    where, *lines = printed(capsys, ["lab", *arguments]).splitlines()
    assert where.startswith("your copies of the lessons are in ")
    return lines


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts}


def test_the_lab_opens_copies_of_all_lessons_at_the_first(checkout, served):
    assert main(["lab"]) == 0
    assert served == [(checkout / "workspace", FIRST)]
    for lesson in (FIRST, SECOND):
        assert (checkout / "workspace" / lesson).read_bytes() == (checkout / lesson).read_bytes()


def test_an_answer_survives_a_pull_of_the_changed_lesson_and_nothing_is_dirty(checkout, capsys):
    assert said(capsys) == []
    mine = solve(checkout / "workspace" / FIRST)
    assert git(checkout, "status", "--porcelain") == ""
    change(checkout)
    (line,) = said(capsys)
    assert line == "newer than your copy: 00; to get it and keep yours: course-lm lab --fresh 00"
    assert (checkout / "workspace" / FIRST).read_bytes() == mine
    assert said(capsys) == [line], "it is said until the learner has got the newer lesson"
    assert git(checkout, "status", "--porcelain") == ""


def test_a_copy_that_nobody_has_changed_follows_the_course_in_one_line(checkout, capsys):
    said(capsys)
    change(checkout, FIRST)
    change(checkout, SECOND)
    assert said(capsys) == ["changed by the course, and by nobody here, so that the copy follows: 00 01"]
    assert (checkout / "workspace" / FIRST).read_bytes() == (checkout / FIRST).read_bytes()
    assert said(capsys) == []


def test_a_fresh_copy_keeps_the_old_one_under_another_name_every_time(checkout, capsys, served):
    main(["lab"])
    copy = checkout / "workspace" / SECOND
    answers = []
    for number, prose in ((2, "# Better"), (3, "# Better still")):
        answers.append(solve(copy))
        change(checkout, SECOND, prose)
        capsys.readouterr()
        (line,) = said(capsys, "--fresh", "01")
        assert line == f"lesson 01 is copied anew; yours is kept as 01_second ({number}).ipynb"
        assert copy.read_bytes() == (checkout / SECOND).read_bytes()
    kept = [copy.with_stem(f"01_second ({number})").read_bytes() for number in (2, 3)]
    assert kept == answers
    assert served[-1] == (checkout / "workspace", SECOND)
    assert said(capsys) == []
    assert git(checkout, "status", "--porcelain") == ""


def test_a_fresh_copy_of_a_lesson_without_an_answer_leaves_no_second_one(checkout, served):
    for _ in range(2):
        assert main(["lab", "--fresh", "0", "01_second"]) == 0
    assert sorted(path.name for path in (checkout / "workspace" / "notebooks").iterdir()) == [
        "00_first.ipynb",
        "01_second.ipynb",
    ]


def test_a_new_lesson_comes_and_one_that_was_deleted_comes_back(checkout):
    main(["lab"])
    (checkout / "workspace" / FIRST).unlink()
    change(checkout, "notebooks/02_third.ipynb")
    main(["lab"])
    names = {path.name for path in (checkout / "workspace" / "notebooks").iterdir()}
    assert names == {"00_first.ipynb", "01_second.ipynb", "02_third.ipynb"}


def test_what_the_course_drops_goes_unless_it_holds_an_answer(checkout):
    main(["lab"])
    mine = solve(checkout / "workspace" / FIRST)
    rename(checkout, FIRST, "00_first_renamed.ipynb")
    rename(checkout, SECOND, "01_second_renamed.ipynb")
    main(["lab"])
    names = {path.name for path in (checkout / "workspace" / "notebooks").iterdir()}
    assert names == {"00_first.ipynb", "00_first_renamed.ipynb", "01_second_renamed.ipynb"}
    assert (checkout / "workspace" / FIRST).read_bytes() == mine


@pytest.mark.parametrize("change_of_the_course", ["another text", "another name"])
def test_answers_in_the_notebooks_of_the_checkout_stay_in_the_copy_when_these_are_put_back(
    checkout, change_of_the_course
):
    mine = solve(checkout / FIRST)
    main(["lab"])
    git(checkout, "checkout", "--", FIRST)
    if change_of_the_course == "another name":
        git(checkout, "mv", FIRST, "notebooks/00_renamed.ipynb")
    main(["lab"])
    assert (checkout / "workspace" / FIRST).read_bytes() == mine


def test_files_of_the_learner_beside_the_copies_stay(checkout):
    main(["lab"])
    own = [checkout / "workspace" / place for place in ("notebooks/notes.ipynb", "course_lm/try.py", "notes.md")]
    for path in own:
        path.write_text("mine")
    change(checkout, "course_lm/loss.py", "changed")
    main(["lab", "--fresh", "00"])
    assert [path.read_text() for path in own] == ["mine"] * 3


def test_the_sources_stand_beside_the_copies_as_they_are_now(checkout):
    main(["lab"])
    change(checkout, "course_lm/loss.py", "changed")
    rename(checkout, "course_lm/configs/tiny.yaml", "small.yaml")
    main(["lab"])
    sources = checkout / "workspace" / "course_lm"
    assert (sources / "loss.py").read_text() == "changed"
    assert [path.name for path in (sources / "configs").iterdir()] == ["small.yaml"]
    assert (checkout / "workspace" / "docs" / "contract.md").is_file()


@pytest.mark.skipif(os.name != "posix", reason="files are read-only where they can be replaced all the same")
def test_the_sources_are_to_be_read_and_the_lessons_to_be_written(checkout):
    main(["lab"])
    writable = {
        place: (checkout / "workspace" / place).stat().st_mode & 0o222 for place in (FIRST, "course_lm/loss.py")
    }
    assert writable[FIRST] and not writable["course_lm/loss.py"]


def test_python_in_the_workspace_imports_the_package_and_not_the_copy_of_its_sources(tmp_path, served):
    assert main(["lab", "--workspace", str(tmp_path)]) == 0
    assert (tmp_path / "course_lm" / "corpus" / "shipped.py").is_file()
    code = "import course_lm; from course_lm.corpus.shipped import data_file; print(course_lm.__file__)"
    code += "; assert data_file('stories.jsonl').is_file()"
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    assert Path(told.stdout.strip()) == ROOT / "course_lm" / "__init__.py"


def test_every_link_of_a_copy_leads_to_a_file_of_the_workspace(tmp_path, served):
    main(["lab", "--workspace", str(tmp_path)])
    pages = [*(tmp_path / "notebooks").glob("*.ipynb"), *(tmp_path / "docs").glob("*.md")]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text(encoding="utf-8"))]
    files = [(page, link) for page, link in links if re.search(r"\.(ipynb|md|py)$", link)]
    assert len(pages) > 17 and len(files) > 100
    inside = [(page.parent / link).resolve().is_relative_to(tmp_path.resolve()) for page, link in files]
    assert all(inside)
    assert [link for page, link in files if not (page.parent / link).is_file()] == []


def test_another_folder_is_the_workspace_where_it_is_asked_for(checkout, tmp_path, served, capsys):
    mine = tmp_path / "my lessons"
    main(["lab", "--workspace", str(mine)])
    assert served == [(mine, FIRST)] and not (checkout / "workspace").exists()
    solve(mine / FIRST)
    change(checkout)
    capsys.readouterr()
    (line,) = said(capsys, "--workspace", str(mine))
    assert line.endswith(f": course-lm lab --workspace '{mine}' --fresh 00")


def test_without_a_checkout_the_workspace_is_in_the_current_folder(checkout, tmp_path, monkeypatch, served):
    for name in ("notebooks", "docs"):
        (checkout / name).rename(checkout / "course_lm" / f"_{name}")
    monkeypatch.chdir(tmp_path)
    main(["lab"])
    monkeypatch.chdir(tmp_path / "course_lm_lessons" / "notebooks")
    main(["lab"])
    assert served == [(tmp_path / "course_lm_lessons", FIRST)] * 2
    assert (tmp_path / "course_lm_lessons" / "docs" / "contract.md").is_file()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"notebooks/00_first.ipynb": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_manifest_is_refused_and_without_it_answers_stay(checkout, capsys, content):
    main(["lab"])
    mine = solve(checkout / "workspace" / FIRST)
    manifest = checkout / "workspace" / ".course_lm.json"
    manifest.write_bytes(content)
    before = contents(checkout)
    assert_refused(capsys, ["lab"], str(manifest), "damaged", "remove it")
    assert contents(checkout) == before
    manifest.unlink()
    assert said(capsys) == []
    assert (checkout / "workspace" / FIRST).read_bytes() == mine
    change(checkout)
    assert said(capsys) == ["newer than your copy: 00; to get it and keep yours: course-lm lab --fresh 00"]


def test_a_copy_that_cannot_be_read_is_refused_in_one_line(checkout, capsys):
    (checkout / "workspace" / FIRST).mkdir(parents=True)
    assert_refused(capsys, ["lab"], "00_first.ipynb")


@pytest.mark.parametrize("writes", range(8))
def test_a_copy_is_whole_or_not_there_and_the_next_start_makes_the_rest(checkout, monkeypatch, writes):
    """The disk is full after some of the writes of a start that would make new copies, fresh ones and newer ones."""
    main(["lab"])
    mine = solve(checkout / "workspace" / FIRST)
    for place in (FIRST, SECOND, "notebooks/02_third.ipynb", "course_lm/loss.py"):
        change(checkout, place)
    old = contents(checkout / "workspace")
    new = {checkout / "workspace" / path.relative_to(checkout): bytes for path, bytes in contents(checkout).items()}
    replace, left = os.replace, [None] * writes

    def run_full(*names):
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()
        replace(*names)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", run_full)
        assert main(["lab", "--fresh", "00"]) == (2 if writes < 5 else 0)
    for path, content in contents(checkout / "workspace").items():
        assert path.name == ".course_lm.json" or content in (mine, old.get(path), new.get(path)), path
    assert main(["lab"]) == 0
    assert (checkout / "workspace" / "notebooks" / "00_first (2).ipynb").read_bytes() == mine
    for place in (FIRST, SECOND, "notebooks/02_third.ipynb", "course_lm/loss.py"):
        assert (checkout / "workspace" / place).read_bytes() == (checkout / place).read_bytes()
    assert not list((checkout / "workspace").rglob("*.tmp"))
