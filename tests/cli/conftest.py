"""A run that is over, made once for all tests of the commands that use one."""

import random
import shutil
from pathlib import Path

import pytest

from course_lm.cli import main

TINY = [
    "--data.vocab_size=270",
    "--data.max_length=16",
    "--data.val_fraction=0.3",
    "--data.test_fraction=0.2",
    "--model.n_layer=1",
    "--model.n_head=2",
    "--model.d_model=16",
    "--training.batch_size=4",
    "--training.precision=fp32",
    "--training.device=cpu",
    "--training.max_steps=3",
]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run; its text, of sixty paragraphs, is text.txt beside runs/, which holds the folder."""
    folder = tmp_path_factory.mktemp("finished")
    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "cow", "sat", "ran", "slept", "on", "under", "near", "mat", "hat", "bed"]
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(draw.choices(words, k=9)) for _ in range(60)), encoding="utf-8")
    where = [f"--data.corpus={text}", f"--training.output_dir={folder / 'runs'}", "--experiment_name=toy"]
    assert main(["train", *TINY, *where]) == 0
    return folder / "runs" / "toy"


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """The same folder, for a test that spoils it; checkpoints keep their times."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "toy"))
