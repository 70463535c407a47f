"""A run that is over, made once for all tests of the commands that use one."""

import shutil
from pathlib import Path

import pytest

from course_lm.cli import main
from tests.cli.small_runs import arguments, write_text


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run; its text, of sixty paragraphs, is text.txt beside runs/, which holds the folder."""
    folder = tmp_path_factory.mktemp("finished")
    text = write_text(folder / "text.txt")
    assert main(arguments("train", text, "--data.test_fraction=0.2", "--training.max_steps=3")) == 0
    return folder / "runs" / "toy"


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """The same folder, for a test that spoils it; checkpoints keep their times."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "toy"))
