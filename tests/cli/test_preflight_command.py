"""Claims about `course-lm preflight`: exit codes that a script can read, and one line for each check."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lm.cli import main
from course_lm.trainer import budget
from tests.cli.answers import printed
from tests.cli.small_runs import SMALL, write_text

LEARNS = ("--optimizer.type=adamw", "--optimizer.learning_rate=3e-2", "--training.max_steps=100")


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    text = write_text(tmp_path / "text.txt", number=200)
    return ["preflight", str(text), *SMALL, *LEARNS, f"--training.output_dir={tmp_path / 'runs'}"]


def test_a_run_that_is_well_is_0(arguments, capsys, tmp_path):
    assert main(arguments) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert said.endswith("wrong: nothing; left out: 0\n")
    assert not (tmp_path / "runs").exists()


def test_a_model_larger_than_the_memory_is_1_and_is_never_made(arguments, capsys):
    assert main([*arguments, "--model.n_layer=400", "--model.d_model=8192"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("wrong  memory")
    assert said.endswith("wrong: memory; left out: 1\n")


def test_a_folder_that_cannot_be_written_is_wrong_in_the_words_of_train(arguments, capsys, tmp_path):
    (tmp_path / "runs").touch()
    assert_refused_alike(capsys, arguments, "runs is no folder")


def test_a_folder_with_another_run_is_wrong_in_the_words_of_train_and_stays_as_it_is(arguments, capsys, tmp_path):
    short = [*arguments, "--training.max_steps=2"]
    assert main(["train", *short[1:]]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "goes on after step 2; it ends after step 2\n" in printed(capsys, short)
    assert_refused_alike(capsys, [*short, "--optimizer.learning_rate=2e-2"], "learning_rate 0.03, this run has 0.02")
    assert_refused_alike(capsys, [*short, "--training.max_steps=1"], "max_steps is 1, the run has taken 2 steps")
    anew = printed(capsys, [*short, "--optimizer.learning_rate=2e-2", "--training.resume=never"])
    assert "a new run; it ends after step 2\n" in anew
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_minutes_in_which_no_step_fits_are_wrong_and_those_of_the_reading_count(
    arguments, capsys, tmp_path, monkeypatch
):
    budgeted = [one for one in arguments if "max_steps" not in one]
    assert main([*budgeted, "--training.time_budget=1e-9"]) == 1
    assert "time_budget must be at least" in capsys.readouterr().out
    earlier = SimpleNamespace(clock=lambda: budget.clock() - 600)
    monkeypatch.setattr("course_lm.cli.preflight.budget", earlier)
    assert main([*budgeted, "--training.time_budget=5"]) == 1
    assert "time_budget must be at least 10." in capsys.readouterr().out


def assert_refused_alike(capsys, arguments, part):
    """`train` refuses these arguments in a line that holds the part, and a check of `preflight` is wrong with it."""
    capsys.readouterr()
    assert main(["train", *arguments[1:]]) == 2
    line = capsys.readouterr().err.splitlines()[-1].removeprefix("course-lm: error: ")
    assert part in line
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert re.search(rf"^wrong  beginning +\w+: {re.escape(line)}$", said, re.MULTILINE), said
    assert "wrong: beginning;" in said
