"""Claims about the text that a command is given: TEXT is `--data.corpus`, and two texts never meet in one folder."""

from pathlib import Path

import pytest

from course_lm.cli import main
from course_lm.cli.configured import configured as read_configuration
from course_lm.cli.text import name_after
from course_lm.config import TrainingConfig
from tests.cli.answers import printed
from tests.cli.small_runs import SMALL, write_text


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text of forty lines, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return write_text(tmp_path / "my.txt", 40, "\n")


def configured(*arguments: str, config: str = "python-docs", command: str = "train") -> TrainingConfig:
    return read_configuration(command, config, arguments)[0]


@pytest.mark.parametrize("command", ["train", "find-lr", "profile", "inspect"])
@pytest.mark.parametrize(
    "arguments", [("my.txt", "--training.seed=1"), ("--training.seed=1", "my.txt"), ("--training.seed", "1", "my.txt")]
)
def test_a_text_may_stand_anywhere_and_is_the_corpus(command, arguments):
    assert configured(*arguments, command=command).data.corpus == "my.txt"


def test_a_text_makes_the_run_of_the_option():
    assert configured("my.txt") == configured("--data.corpus=my.txt") == configured("my.txt", "--data.corpus=my.txt")


@pytest.mark.parametrize(
    ("corpus", "name"),
    [
        ("my.txt", "my"),
        ("/some/where/my notes (2).txt", "my-notes-2"),
        ("texts/notes.v2.jsonl.gz", "notes.v2"),
        ("A.TXT.ZST", "A"),
        ("नमस्ते.txt", "नमस्ते"),
        (".hidden", "hidden"),
        ("texts/*.txt", "texts"),
        ("texts/**/a?.txt", "texts"),
        ("hf:org/tiny.stories:train:text", "tiny.stories"),
        ("hf:my.txt", "my"),
        ("x" * 200 + ".txt", "x" * 60),
        ("stories", "stories"),
        ("???.txt/../", "current"),
        ("(((.txt", None),
        ("..", None),
    ],
)
def test_a_run_is_called_after_its_text(tmp_path, monkeypatch, corpus, name):
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    (tmp_path / "current" / "my.txt").touch()
    assert name_after(corpus) == name
    if name is not None:
        TrainingConfig(experiment_name=name)  # else it would be refused


@pytest.mark.parametrize(
    ("arguments", "config", "name"),
    [
        (["my.txt"], "python-docs", "my"),
        (["--data.corpus=my.txt"], "python-docs", "my"),
        (["my.txt", "--experiment_name=mine"], "python-docs", "mine"),
        (["my.txt", "--experiment_name=python-docs"], "python-docs", "python-docs"),
        ([], "tiny", "tiny"),  # a shipped configuration on its own text
        (["stories"], "tiny", "tiny"),
        (["stories"], "python-docs", "stories"),  # and on another one
        (["my.txt"], "experiment_name: mine", "mine"),  # what stands in a file of one's own
        (["my.txt"], "model: {n_layer: 1}", "my"),
    ],
)
def test_a_run_that_nobody_named_is_called_after_its_text(tmp_path, arguments, config, name):
    if ":" in config:
        (tmp_path / "own.yaml").write_text(config)
        config = "own.yaml"
    assert configured(*arguments, config=config).experiment_name == name


def test_a_line_in_a_file_is_the_same_experiment_as_the_option(tmp_path):
    lines = {
        "data.corpus=my.txt": "data: {corpus: my.txt}",
        "optimizer.type=adamw": "optimizer: {type: adamw}",
        "training.num_epochs=3": "training: {num_epochs: 3}",
        "curriculum.max_length=9": "curriculum: {strategy: length, max_length: 9}",
        "experiment_name=mine": "experiment_name: mine",
        "training.seed=42": "",  # what is the default anyway
    }
    for option, line in lines.items():
        (tmp_path / "own.yaml").write_text(line)
        also = ["--curriculum.strategy=length"] if "curriculum" in option else []
        assert configured(config="own.yaml") == configured(*also, f"--{option}"), line
        assert configured("my.txt", config="own.yaml") == configured("my.txt", *also, f"--{option}"), line


def test_a_whole_file_is_its_own_experiment_whatever_the_default_is_and_a_part_of_one_says_what_it_takes(
    tmp_path, capsys
):
    TrainingConfig(experiment_name="mine").to_yaml(tmp_path / "own.yaml")
    assert configured(config="own.yaml") == TrainingConfig(experiment_name="mine")
    assert capsys.readouterr().out == ""
    # AdamW, which is the default in Python, has no momentum
    for line in ("experiment_name: mine", "optimizer: {momentum: 0.8}"):
        (tmp_path / "own.yaml").write_text(line)
        configured(config="own.yaml")
        assert capsys.readouterr().out == "what own.yaml leaves out is that of the shipped configuration python-docs\n"


def test_the_first_lines_say_how_the_text_is_divided_and_where_the_run_is_kept(capsys):
    first, second, *_ = printed(capsys, ["train", "my.txt", *SMALL, "--training.max_steps=2"]).splitlines()
    assert first.startswith("my.txt (no blank line divides it: each line is a document): ")
    assert "documents to train on" in first
    assert second == "the run is kept in runs/my, named after its text; --experiment_name gives it another name"


def test_the_same_command_goes_on_and_so_does_the_saved_configuration(capsys, tmp_path):
    assert main(["train", "my.txt", *SMALL, "--training.max_steps=2"]) == 0
    for again in (["train", "my.txt", *SMALL, "--training.max_steps=2"], ["train", "--config=runs/my/config.yaml"]):
        assert "resumed" in printed(capsys, again)
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == ["my"]


def test_another_text_of_the_same_name_is_refused_and_another_name_is_asked_for(capsys, tmp_path, text):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my.txt").write_bytes(text.read_bytes())
    assert main(["train", "my.txt", *SMALL, "--training.max_steps=2"]) == 0
    capsys.readouterr()
    assert main(["train", "other/my.txt", *SMALL, "--training.max_steps=2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "data.corpus 'my.txt'" in line and "'other/my.txt'" in line and "another experiment_name" in line
