"""Claims about commands on a text that is too large to be held: each does what it does with a small one, or refuses."""

import json
import random
from pathlib import Path

import pytest

from course_lm.cli import inspect, main
from course_lm.corpus import large
from course_lm.corpus.large import FilesText
from tests.cli.answers import printed
from tests.cli.small_runs import arguments, write_text


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text of sixty short paragraphs, for which there is too little memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(large, "LARGE_BYTES", 100)
    return write_text(tmp_path / "text.txt")


def refuse_to_read(*arguments: object) -> None:
    raise AssertionError("the text was read")


def test_a_run_says_what_its_tokenizer_was_trained_on_and_reports_without_xz(text, capsys):
    assert main(arguments("train", text, "--data.cache=cache", "--training.max_steps=3")) == 0
    printed = capsys.readouterr()
    assert "documents to train on" in printed.out
    assert f"token ids in {text.parent / 'cache'}" in printed.out and "of training text" in printed.out
    table, sample = printed.out.split("\n\n", 1)
    assert "bits per byte" in table and "xz" not in table and sample.strip()
    for bar in ("reading the text", "training the tokenizer", "encoding the text"):
        assert bar in printed.err
    assert (text.parent / "runs" / "toy" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("train", ["--training.time_budget=0.03"], "lowest validation loss"),
        ("find-lr", ["--start_lr=1e-3", "--end_lr=1", "--num_iter=4", "--png=curve.png"], "steps taken"),
        ("profile", ["--repeats=1", "--output=profile"], "documents to train on"),
    ],
)
def test_a_large_text_is_read_by_every_command_that_steps(text, capsys, monkeypatch, command, options, said):
    assert said in printed(capsys, arguments(command, text, "--data.cache=cache", *options))


def test_a_run_on_a_large_text_is_evaluated_on_its_own_part_without_reading_it(text, capsys, monkeypatch):
    sizes = ("--training.max_steps=3", "--data.test_fraction=0.2")
    assert main(arguments("train", text, "--data.cache=cache", *sizes)) == 0
    run, small = str(text.parent / "runs" / "toy"), text.with_name("small.txt")
    logged = [json.loads(line) for line in (text.parent / "runs" / "toy" / "metrics.jsonl").read_text().splitlines()]
    with monkeypatch.context() as patch:
        patch.setattr(FilesText, "documents", refuse_to_read)
        for split in ("train", "validation", "test"):
            capsys.readouterr()
            assert main(["evaluate", run, f"--split={split}", "--json"]) == 0
            printed = capsys.readouterr()
            found = json.loads(printed.out)
            assert found["documents"] and "warning" not in printed.err
            if split == "validation":
                (loss,) = {record["val_loss"] for record in logged if record["event"] == "validation"}
                assert found["loss"]["value"] == pytest.approx(loss, rel=1e-5)
    small.write_text("the cat sat", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"text\.txt, is too large to compare"):
        assert main(["evaluate", run, f"--data.corpus={small}"]) == 0
    small.write_text("the cat sat on the mat\n\n" * 6, encoding="utf-8")
    assert main(["evaluate", run, f"--data.corpus={small}"]) == 2
    assert "give a part of it" in capsys.readouterr().err


def test_a_large_text_is_inspected_by_a_share_of_its_documents(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(large, "LARGE_BYTES", 20_000)
    monkeypatch.setattr(inspect, "LARGE_BYTES", 20_000)
    draw = random.Random(0)
    made = ["".join(draw.choices("abcdefghij klmnop", k=70)) for _ in range(400)]
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join([*made, *made]), encoding="utf-8")  # each twice
    found = json.loads(printed(capsys, ["inspect", str(text), "--json"]))
    assert found["share"] == pytest.approx(20_000 / text.stat().st_size)
    assert 0.5 * found["share"] < found["documents"] / 800 < 1.5 * found["share"]
    assert found["exact_duplicates"] == found["documents"] / 2
    assert f"all counts are on {found['share']:.1%} of its documents" in printed(capsys, ["inspect", str(text)])
