"""Claims about `made_by.json`: how each session of a run was made, without secrets and without errors."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import course_lm
from course_lm.run_records import read_sessions
from course_lm.trainer import made_by
from course_lm.trainer.made_by import SessionLog, describe_session, git_state, processor
from tests.cli.small_course import commit, git
from tests.small_run import small_batches, small_trainer


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init")
    (folder / "file").write_text("one")
    commit(folder)
    return folder


def test_the_commit_is_that_of_the_repository_and_a_changed_file_makes_it_dirty(repository):
    head = git(repository, "rev-parse", "HEAD").strip()
    assert git_state(repository) == (head, False)
    (repository / "new").write_text("not tracked")
    assert git_state(repository) == (head, False)
    (repository / "file").write_text("two")
    assert git_state(repository) == (head, True)


def test_there_is_no_commit_outside_a_repository_or_before_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) == (None, None)
    git(tmp_path, "init")
    assert git_state(tmp_path) == (None, None)


@pytest.mark.parametrize(
    "failure", [FileNotFoundError("git"), PermissionError("git"), subprocess.TimeoutExpired("git", 5)]
)
def test_a_git_that_is_missing_or_hangs_or_may_not_run_is_no_error(tmp_path, monkeypatch, failure):
    def fail(*arguments, **options):
        raise failure

    monkeypatch.setattr(made_by.subprocess, "run", fail)
    assert git_state(tmp_path) == (None, None)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/course-lm", "train", "--data.corpus=a b"], ["course-lm", "train", "--data.corpus=a b"]),
        (["/site/course_lm/__main__.py", "train"], ["course-lm", "train"]),
        (["/home/me/serve.py", "--token=secret"], None),
        (["", "--token=secret"], None),
        ([], None),
    ],
)
def test_the_command_is_the_packages_own_and_another_programs_is_left_out(monkeypatch, argv, command):
    monkeypatch.setattr(sys, "argv", argv)
    assert describe_session()["command"] == command


def test_a_session_names_versions_machine_and_threads(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "do-not-keep")
    session = describe_session()
    assert (session["course_lm"], session["torch"]) == (course_lm.__version__, torch.__version__)
    assert (session["python"], session["threads"]) == (platform.python_version(), torch.get_num_threads())
    assert session["processor"] == processor() != ""
    assert session["started"].endswith("+00:00") and "do-not-keep" not in json.dumps(session)


def test_each_session_of_a_run_adds_an_entry(tmp_path):
    for steps in (2, 4):
        small_trainer(steps, output_dir=str(tmp_path)).train(small_batches(8))
    sessions = read_sessions(tmp_path / "my-lm")
    assert [(session["step"], session["total_steps"]) for session in sessions] == [(0, 2), (2, 4)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sessions": 3}', '{"sessions": [1]}'])
def test_a_broken_file_is_begun_anew(tmp_path, content):
    (tmp_path / "made_by.json").write_text(content)
    SessionLog(tmp_path).start(3, None)
    (session,) = read_sessions(tmp_path)
    assert session["step"] == 3
