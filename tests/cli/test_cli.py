"""Claims about the command line: what it prints, and the code it ends with."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

import pytest
import safetensors.torch
import torch

import course_lm
from course_lm.checkpoints import load_checkpoint, weights_for_use
from course_lm.cli import main
from course_lm.cli.commands import COMMANDS
from tests.cli.answers import assert_refused, printed
from tests.cli.small_runs import arguments, write_text
from tests.fork_server import Start, anew, forked, started
from tests.records import lines_of
from tests.training_run import without_measures


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text of sixty short paragraphs."""
    return write_text(tmp_path / "text.txt")


train = partial(arguments, "train")


def metrics(folder: Path) -> list[dict]:
    return without_measures(lines_of(folder / "metrics.jsonl"))


# A run from the command line


def test_training_ends_with_a_table_and_a_sample_and_leaves_its_files(text, capsys):
    shown = printed(capsys, train(text, "--training.max_steps=3"))
    rows = ["optimizer steps", "validation loss", "accuracy", "tokens per second", "seconds", "bits per byte"]
    for row in [*rows, "xz -9e alone", "xz -9e after the training text"]:
        assert row in shown, shown
    table, sample = shown.split("\n\n", 1)
    assert "xz -9e after" in table and sample.strip()
    checkpoints = {"checkpoint_last.safetensors", "checkpoint_best.safetensors"}
    left = {path.name for path in (text.parent / "runs" / "toy").iterdir()}
    assert left >= checkpoints | {"config.yaml", "metrics.jsonl", "tokenizer.json", "model.safetensors"}


def test_a_run_with_a_curriculum_says_what_it_admits_and_is_repeated(text, capsys):
    settings = ("schedule=root", "num_epochs=2", "warmup_epochs=0", "settings={length: {max_length: 40}}")
    curriculum = [f"--curriculum.{setting}" for setting in ("enabled=true", "threshold_on=quantile", *settings)]
    main(train(text, "--training.num_epochs=3", *curriculum))
    first = text.parent / "runs" / "toy"
    epochs = [record for record in metrics(first) if record["event"] == "epoch"]
    admitted, of_all = epochs[0]["examples"], epochs[-1]["examples"]
    share = f"{admitted} of {of_all} documents ({admitted / of_all:.0%}), up to quantile 0.20"
    assert f"combined difficulty, root schedule; the first epoch admits {share}" in capsys.readouterr().out
    assert [round(record["threshold"], 3) for record in epochs] == [0.2, 0.721, 1.0]
    assert epochs[0]["examples"] < epochs[-1]["examples"]
    assert main(["train", f"--config={first / 'config.yaml'}", f"--training.output_dir={text.parent / 'again'}"]) == 0
    assert metrics(text.parent / "again" / "toy") == metrics(first)


@pytest.mark.parametrize(("restore_best", "average"), [("true", "null"), ("false", "null"), ("false", "0.5")])
def test_the_exported_weights_are_the_best_validated_ones_and_the_table_is_theirs(text, capsys, restore_best, average):
    """A run that gets worse: a rate far too high after the warm-up."""
    adamw = ("--optimizer.type=adamw", "--optimizer.weight_decay=1.0", "--optimizer.learning_rate=3.0")
    rate = (*adamw, "--lr_scheduler.type=constant", "--lr_scheduler.warmup_steps=0")
    steps = ("--training.max_steps=6", "--training.eval_steps=1", f"--training.restore_best={restore_best}")
    assert main(train(text, *rate, *steps, f"--training.average_weights={average}")) == 0
    folder = text.parent / "runs" / "toy"
    losses = {record["step"]: record["val_loss"] for record in metrics(folder) if record["event"] == "validation"}
    best = min(losses, key=losses.__getitem__)
    assert best != 6, "the run must get worse for this test to tell anything"
    printed = " ".join(capsys.readouterr().out.split())
    assert f"lowest validation loss after step {best} validation loss, nats per token {losses[best]:.4f}" in printed
    exported = safetensors.torch.load_file(folder / "model.safetensors")
    kept = weights_for_use(load_checkpoint(folder / "checkpoint_best.safetensors"))
    torch.testing.assert_close({name: kept[name] for name in exported}, exported, rtol=0, atol=0)


LONG = (
    "--training.max_steps=100000",
    "--training.logging_steps=1",
    "--training.save_steps=1",
    "--training.gradient_accumulation_steps=1",
    "--lr_scheduler.type=constant",  # with it, and without a warm-up, a run may be made shorter
    "--lr_scheduler.warmup_steps=0",
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "course_lm", *words]


def test_a_second_terminal_is_refused_in_one_line_and_the_first_run_is_whole(text, tmp_path):
    words = command(*train(text, *LONG))
    folder = text.parent / "runs" / "toy"
    with started(tmp_path, words) as first:
        first.wait_until((folder / "checkpoint_step_2.safetensors").exists, "the second step")
        for resume in ("auto", "never"):
            with started(tmp_path, [*words, f"--training.resume={resume}"]) as second:
                ended = second.end(60)
            (line,) = ended.err.splitlines()
            assert (ended.code, ended.out) == (2, "")
            assert line.startswith(f"course-lm: error: another process is training in {folder}")
        first.process.send_signal(signal.SIGTERM)
        assert first.end(60).code == 128 + signal.SIGTERM
    steps = [record["step"] for record in metrics(folder) if record["event"] == "train" and not record.get("partial")]
    assert steps == list(range(1, len(steps) + 1))


def assert_goes_on_after(start: Start, number: int, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Send a run a signal after its second record, and call the command again."""
    folder = text.parent / "runs" / "toy"
    file = folder / "metrics.jsonl"
    with started(text.parent, command(*train(text, *LONG)), start=start) as running:
        running.wait_until(lambda: file.exists() and file.read_text().count("\n") >= 2, "the second step")
        running.process.send_signal(number)
        ended = running.end(60)
    assert ended.code == 128 + number, ended.err
    assert f"stopped by {signal.Signals(number).name} after step" in ended.out
    assert "Traceback" not in ended.err
    reached = metrics(folder)[-1]["step"]
    assert "resumed" in printed(capsys, train(text, *LONG, f"--training.max_steps={reached + 2}"))
    steps = [record["step"] for record in metrics(folder) if record["event"] == "train"]
    assert steps == list(range(1, reached + 3))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_at_the_second_call(text, capsys, number):
    assert_goes_on_after(forked, number, text, capsys)


def test_ctrl_c_before_the_first_step_ends_in_one_line(text, capsys, monkeypatch):
    def press(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("course_lm.cli.preparation.load_corpus", press)
    try:
        code = main(train(text))
    except KeyboardInterrupt:
        pytest.fail("the command ended in a traceback")
    assert code == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_tilde_is_the_home_folder_wherever_a_command_writes(text, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert main(train(text, "--training.max_steps=1", "--training.output_dir=~/runs")) == 0
    assert main(["plot", str(home / "runs" / "toy"), "--png=~/plot.png"]) == 0
    assert main(["export", str(home / "runs" / "toy"), "--to=~/exported"]) == 0
    assert {path.name for path in home.iterdir()} >= {"runs", "plot.png", "exported"}
    assert not Path("~").exists()


# A stream that nobody reads


@contextmanager
def lost(kind: str, buffering: int = 1) -> Iterator[TextIO]:
    """A stream whose reader has gone, as after `| head`; one of a terminal that was closed; one to a full disk."""
    reading, writing = os.openpty() if kind == "terminal" else os.pipe()
    os.close(reading)
    with open("/dev/full" if kind == "full disk" else writing, "w", buffering) as stream:
        yield stream


@pytest.mark.parametrize("kind", ["pipe", "terminal", "full disk"])
def test_a_run_to_which_nobody_listens_any_more_is_trained_to_its_end(text, monkeypatch, kind):
    with lost(kind) as out, lost(kind) as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main(train(text, "--training.max_steps=3")) == 0
    folder = text.parent / "runs" / "toy"
    assert load_checkpoint(folder / "checkpoint_last.safetensors")["step"] == 3
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize(("kind", "code", "told"), [("pipe", 0, ""), ("full disk", 2, "No space left on device")])
@pytest.mark.parametrize("buffering", [1, -1])
def test_a_command_that_only_prints_ends_quietly_where_its_reader_has_gone(
    monkeypatch, capsys, kind, buffering, code, told
):
    with lost(kind, buffering) as out:  # flushed as it is closed, as Python does when it ends
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["completion", "bash"]) == code
    assert told in capsys.readouterr().err


def test_a_run_says_where_it_goes_on_without_standard_output(text, monkeypatch, recwarn):
    with lost("pipe") as out:
        monkeypatch.setattr(sys, "stdout", out)
        main(train(text, "--training.max_steps=1"))
    (said,) = [str(one.message) for one in recwarn if "standard output" in str(one.message)]
    assert said == "the run goes on without standard output ([Errno 32] Broken pipe)"


# A range test from the command line


def find_lr(text: Path, *more: str) -> list[str]:
    """The arguments of a small range test on `text`; its picture goes beside the text."""
    sweep = ["--start_lr=1e-4", "--end_lr=1", "--num_iter=20", f"--png={text.parent / 'picture.png'}"]
    return arguments("find-lr", text, *sweep, *more)


def test_a_range_test_ends_with_a_table_a_picture_and_the_option_to_copy(text, capsys):
    assert main(find_lr(text, "--training.gradient_accumulation_steps=2")) == 0
    printed = capsys.readouterr()
    rows = [
        "suggested learning rate",
        "range in which the loss falls",
        "steps taken",
        "20 of 20",
        "muon",
        "fp32 on cpu",
    ]
    for row in [*rows, "the loss falls steepest at", str(text.parent / "picture.png")]:
        assert row in printed.out, printed.out
    (option,) = re.findall(r"to train with it: (--optimizer.learning_rate \S+)$", printed.out, re.MULTILINE)
    assert (text.parent / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "20/20" in printed.err
    assert main(train(text, "--training.max_steps=1", *option.split())) == 0


def test_a_range_test_leaves_nothing_but_its_picture(text):
    assert main(find_lr(text)) == 0
    assert {path.name for path in text.parent.iterdir()} == {"text.txt", "picture.png"}


def test_ctrl_c_in_a_range_test_ends_in_one_line(text, capsys, monkeypatch):
    def press(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("course_lm.lr_finder.range_test.take_step", press)
    assert main(find_lr(text)) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "course-lm: interrupted"
    assert not (text.parent / "picture.png").exists()


# Bad input


@pytest.mark.filterwarnings("ignore")
def test_a_run_whose_gradient_is_not_finite_fails_in_one_line(capsys, text):
    diverging = ["--training.max_steps=9", "--optimizer.learning_rate=1e30", "--training.max_grad_norm=null"]
    assert main(train(text, *diverging, "--lr_scheduler.type=constant")) == 1
    assert "gradient is not finite" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 1, "MemoryError"),
        (OSError(), 2, "OSError"),
        (OSError(28, os.strerror(28)), 2, "[Errno 28] No space left on device: standard output, or standard input"),
        (FileNotFoundError(2, os.strerror(2)), 2, "[Errno 2] No such file or directory: the current folder"),
        (ValueError(" \n"), 2, "ValueError"),
        (KeyError("x"), 1, "KeyError: 'x' ("),
        (AssertionError(), 1, "AssertionError ("),
        (RecursionError("too deep"), 1, "RecursionError: too deep ("),
        (RuntimeError("a.cpp:12\nframe #0\nframe #1"), 1, "RuntimeError: a.cpp:12 ("),
    ],
)
def test_any_error_is_one_line_that_names_it(capsys, monkeypatch, error, code, line):
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr("course_lm.cli.runs.list_runs", fail)
    assert main(["runs"]) == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"course-lm: error: {line}")
    assert told.endswith(line) or f"{Path(__file__).name}, line" in told


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["lab", "lessons", "train", "find-lr"]),
        (["nothing"], ["nothing", "lab", "lessons", "train", "find-lr"]),
        (["--versio"], []),
        (["trian"], ["'trian'", "did you mean train?"]),
        (["evalute", "runs/toy"], ["'evalute'", "did you mean evaluate?"]),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(capsys, arguments, parts):
    assert_refused(capsys, arguments, *parts)


# Help


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--help", list(COMMANDS)),
        ("train --help", ["TEXT", "--config", "--training.batch_size", "--data.corpus", "rows in a micro-batch"]),
        ("find-lr --help", ["usage: course-lm find-lr", "--config", "--start_lr", "--png", "--optimizer.type"]),
        ("plan --config=gpt2 --help", ["--ranks", "--distributed.shard_size", "--model.n_layer", "default: 12"]),
        ("profile --help", ["usage: course-lm profile", "--output", "--repeats", "--training.batch_size"]),
        ("--version", ["course-lm 0."]),
    ],
)
def test_each_command_has_its_help(capsys, arguments, parts):
    shown = printed(capsys, arguments.split())
    for part in parts:
        assert part in shown


@pytest.mark.parametrize("configured", [False, True])
def test_help_waits_for_no_more_than_it_shows(configured):
    """Without a configuration not for torch; with one not for the trainer, nor for the collector of garbage."""
    names = [name for name, command in COMMANDS.items() if (command.text is not None) == configured]
    code = f"import gc, sys\nfrom course_lm.cli import main\nfor name in {names}: main([name, '--help'])\n"
    code += "print(*[one in sys.modules for one in ('torch', 'course_lm.trainer')], gc.get_freeze_count() > 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("usage: course-lm ") == len(names)
    assert done.stdout.endswith("\nTrue False True\n" if configured else "\nFalse False False\n"), done.stderr


# The command itself: a process that imports torch anew

INSTALLED = str(Path(sys.executable).with_name("course-lm"))


def test_the_literal_command_leaves_the_run_that_a_forked_one_leaves(text, tmp_path):
    folder = text.parent / "runs" / "toy"
    said, left = [], []
    for start, program in ((anew, [INSTALLED]), (forked, command())):
        with started(tmp_path, [*program, *train(text, "--training.max_steps=3")], start=start) as running:
            ended = running.end()
        assert ended.code == 0 and "warning" not in ended.err.lower(), ended.err
        said.append([line for line in ended.out.splitlines() if "second" not in line])
        left.append((metrics(folder), (folder / "model.safetensors").read_bytes()))
        shutil.rmtree(folder)
    assert said[0] == said[1] and left[0] == left[1]


def test_the_literal_command_goes_on_after_ctrl_c(text, capsys):
    assert_goes_on_after(anew, signal.SIGINT, text, capsys)


@pytest.mark.parametrize("name", ["json", "random", "torch"])
def test_a_file_of_the_working_directory_is_never_taken_for_a_library(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    environment = {**os.environ, "PYTHONPATH": str(Path(course_lm.__file__).parents[1])}
    command = [sys.executable, "-m", "course_lm", "plan", "--ranks", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "collectives" in done.stdout, done.stderr
