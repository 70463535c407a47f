"""Claims about `course-lm profile`: both tables and three files, none of which is written over."""

import json
from pathlib import Path

import pytest

from course_lm.cli import main
from course_lm.profiling import OWNERS, machine
from tests.cli.answers import assert_refused

SMALL = ["--data.max_length=32", "--model.n_layer=1", "--model.d_model=16", "--training.batch_size=4", "--repeats=1"]


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "SECONDS", 0.0)


def test_the_command_prints_both_tables_and_writes_three_files(capfd, tmp_path):
    arguments = [*SMALL, "--training.gradient_accumulation_steps=2", "--output", "here/profile"]
    assert main(["profile", "--config=tiny", *arguments]) == 0
    out, err = capfd.readouterr()
    assert "profiler" not in err  # which torch's own writes to
    for part in ("data", "attention, backward", "perceptron", "optimizer", "all parts", *OWNERS, "the peak is"):
        assert f"\n{part}" in out
    folder = tmp_path / "here" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["profile.json", "profile.png", "trace.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]  # and no run's folder
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((folder / "profile.json").read_text())
    assert numbers["step"]["tokens"] > 2 * 4 * 16 and numbers["memory"]["peak_bytes"] > 0
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("name", ["profile.png", "trace.json", "profile.json"])
def test_the_files_of_an_earlier_profile_are_not_overwritten(capsys, tmp_path, name):
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / name).write_text("kept")
    assert_refused(capsys, ["profile"], f"profile holds the {name} of an earlier profile", "--output")
    assert (tmp_path / "profile" / name).read_text() == "kept"
