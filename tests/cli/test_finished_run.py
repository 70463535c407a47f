"""Claims about a run's folder as `generate`, `evaluate` and `export` find it: what is missing, and what to do."""

import os
import warnings
from pathlib import Path

import pytest
import torch

from course_lm.checkpoints import load_checkpoint, save_checkpoint
from course_lm.cli import main
from course_lm.use.finished_run import open_run
from course_lm.use.run_folder import find_run
from tests.cli.answers import assert_refused

COMMANDS = {"generate": [], "evaluate": [], "export": ["--to=exported"]}


def test_a_finished_run_is_opened_without_a_word_and_its_model_is_the_exported_one(finished):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = open_run(str(finished))
    assert not run.model.training and run.tokenizer.get_vocab_size() == run.config.data.vocab_size == 270


def test_a_bare_name_is_looked_for_among_the_runs_of_this_folder(finished, monkeypatch):
    monkeypatch.chdir(finished.parent.parent)
    assert find_run("toy") == Path("runs/toy") and find_run("runs/toy/") == Path("runs/toy")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_a_run_that_was_stopped_before_its_end_is_told_how_to_go_on(copy, capsys, command, missing):
    (copy / missing).unlink()
    arguments = [command, str(copy), *COMMANDS[command]]
    going_on = f"`course-lm train --config {copy / 'config.yaml'} --experiment_name toy --training.output_dir"
    assert_refused(capsys, arguments, "is not finished", f"it has no {missing}", going_on, "from its checkpoint")


def test_the_way_on_that_is_named_finishes_the_run(copy, capsys):
    (copy / "model.safetensors").unlink()
    assert main(["generate", str(copy)]) == 2
    _, way, _ = capsys.readouterr().err.split("`")
    assert main(way.split()[1:]) == 0
    assert main(["generate", str(copy), "--max_new_tokens=1"]) == 0


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (lambda run: (run / "config.yaml").unlink(), ["holds checkpoints, but no config.yaml"]),
        (lambda run: (run / "config.yaml").write_text("model: ["), ["config.yaml", "not a YAML file"]),
        (lambda run: (run / "tokenizer.json").write_text("{"), ["tokenizer.json is not a tokenizer file"]),
        (
            lambda run: os.truncate(run / "model.safetensors", 3000),
            ["model.safetensors cannot be used", "goes on from"],
        ),
        (lambda run: (run / "model.safetensors").write_bytes(b""), ["model.safetensors cannot be used"]),
        (lambda run: edit(run, "d_model: 16", "d_model: 32"), ["model.safetensors cannot be used", "another model"]),
        (lambda run: edit(run, "vocab_size: 270", "vocab_size: 280"), ["tokenizer.json has 270 tokens", "says 280"]),
        (lambda run: edit(run, "n_head: 2", "n_head: 4"), ["made for n_head 2", "model has 4", "goes on from"]),
        (
            lambda run: edit(run, '"<pad>"', '"<pad>" ', "tokenizer.json"),
            ["made for another tokenizer.json", "goes on"],
        ),
    ],
    ids=["config", "broken config", "broken tokenizer", "cut", "empty", "other model", "vocabulary", "heads", "tokens"],
)
def test_a_folder_whose_files_are_damaged_or_do_not_fit_together_is_one_line(copy, capsys, spoil, parts):
    spoil(copy)
    assert_refused(capsys, ["generate", str(copy)], *parts)


def edit(run: Path, old: str, new: str, file: str = "config.yaml") -> None:
    text = (run / file).read_text()
    assert old in text
    (run / file).write_text(text.replace(old, new))


def test_a_run_that_has_gone_on_since_its_export_is_warned_of(copy, capsys):
    """By their steps: what clocks and copies do to modification times says nothing."""
    last = copy / "checkpoint_last.safetensors"
    later = (copy / "model.safetensors").stat().st_mtime + 60
    os.utime(last, (later, later))
    with warnings.catch_warnings(action="error"):
        assert main(["generate", str(copy), "--max_new_tokens=1"]) == 0
    state = load_checkpoint(last)
    save_checkpoint(last, state | {"step": state["step"] + 3})
    os.utime(last, (later - 120, later - 120))
    with pytest.warns(UserWarning, match=r"since its weights were exported: checkpoint_last.safetensors is of step"):
        assert main(["generate", str(copy), "--max_new_tokens=1"]) == 0


def test_a_run_of_a_device_that_is_not_here_is_used_on_another_one(copy, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    edit(copy, "device: cpu", "device: cuda")
    assert main(["generate", str(copy), "--max_new_tokens=1"]) == 0
