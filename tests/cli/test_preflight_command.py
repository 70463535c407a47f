"""Claims about `course-lm preflight`: exit codes that a script can read, and one line for each check."""

from pathlib import Path

import pytest

from course_lm.cli import main
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


def test_a_configuration_given_as_a_text_is_2(capsys):
    assert main(["preflight", "my.yaml"]) == 2
    assert "give a configuration as --config" in capsys.readouterr().err
