"""Claims about `--training.init_from`: another text, or more steps, with a run's weights, sizes and tokens."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from course_lm.cli import main
from course_lm.config import TrainingConfig
from course_lm.corpus import large
from course_lm.tokenizer import load_tokenizer
from course_lm.trainer.init_from import check_sizes
from tests.cli.answers import assert_refused, printed
from tests.cli.small_runs import write_text

STEPS = ("--training.max_steps=2", "--training.precision=fp32", "--training.device=cpu")


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another text, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return write_text(tmp_path / "other.txt", 40, "\n\n")


def begin(source: Path | str, *more: str) -> list[str]:
    return ["train", "other.txt", f"--training.init_from={source}", *STEPS, *more]


def weights_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "made_by.json").read_text())["sessions"][0]["weights"]


@pytest.mark.parametrize("kind", ["run", "export", "file", "checkpoint"])
def test_another_text_is_trained_on_with_the_weights_and_tokens_of_the_source(finished, other, capsys, kind):
    assert main(["export", str(finished), "--to", "exported"]) == 0
    named = {
        "run": finished,
        "export": Path("exported"),
        "file": finished / "model.safetensors",
        "checkpoint": finished / "checkpoint_last.safetensors",
    }[kind]
    out = "".join(printed(capsys, begin(named)) for _ in range(2))
    assert out.count(f"begins with the weights in {named}") == 1 and "resumed runs/other/" in out
    old, new = (TrainingConfig.from_yaml(folder / "config.yaml") for folder in (finished, Path("runs/other")))
    assert (new.model, new.data.vocab_size, new.data.max_length) == (
        old.model,
        old.data.vocab_size,
        old.data.max_length,
    )
    texts = ["the cat sat on the mat", "a dog"]
    ids = [
        load_tokenizer(folder / "tokenizer.json").encode_batch(texts, add_special_tokens=False)
        for folder in (finished, Path("runs/other"))
    ]
    assert [one.ids for one in ids[0]] == [one.ids for one in ids[1]]
    if kind != "checkpoint":  # which is that of the last step, and not the best
        capsys.readouterr()
        assert main(begin(finished, "--experiment_name=again")) == 0
        assert weights_of(Path("runs/again"))["sha256"] == weights_of(Path("runs/other"))["sha256"]


def test_what_the_weights_do_not_decide_may_be_given(finished, other):
    assert main(begin(finished, "--model.dropout=0.25", "--config=tiny", "--training.precision=bf16")) == 0
    config = TrainingConfig.from_yaml("runs/other/config.yaml")
    assert config.model.dropout == 0.25 and config.optimizer.type == "adamw" and config.data.vocab_size == 270


def test_the_saved_configuration_repeats_such_a_run(finished, other, capsys):
    assert main(begin(finished)) == 0
    assert main(["train", "--config=runs/other/config.yaml", "--training.output_dir=again"]) == 0
    first, second = (Path(name, "other", "model.safetensors").read_bytes() for name in ("runs", "again"))
    assert first == second


@pytest.mark.parametrize(
    ("option", "value"),
    [("model.n_layer", "2"), ("model.d_model", "32"), ("data.vocab_size", "300")],
)
@pytest.mark.parametrize("where", ["option", "file"])
def test_another_size_than_that_of_the_weights_is_refused(finished, other, capsys, option, value, where):
    given = f"--{option}={value}"
    if where == "file":
        section, _, key = option.partition(".")
        Path("own.yaml").write_text(f"{section}: {{{key}: {value}}}")
        given = "--config=own.yaml"
    assert_refused(capsys, begin(finished, given), f"{option} is {value}", str(finished), f"leave {option} out")


def test_weights_that_are_made_for_other_heads_than_their_folder_says_are_refused(copy, other, capsys):
    """Their shapes do not tell: the model would be another one without a word."""
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("n_head: 2", "n_head: 4"))
    assert_refused(capsys, begin(copy), "model.safetensors", "made for n_head 2", "model has 4")


def test_rows_may_be_longer_where_no_position_has_a_weight_of_its_own(finished, other, capsys):
    assert main(begin(finished, "--data.max_length=32")) == 0
    config = TrainingConfig.from_yaml("runs/other/config.yaml")
    learned = replace(config, model=replace(config.model, positions="learned"))
    with pytest.raises(ValueError, match=r"data.max_length is 32, and .* made for 16: leave data.max_length out"):
        check_sizes(learned, {"model": asdict(learned.model), "data": {"vocab_size": 270, "max_length": 16}})


def test_weights_without_a_tokenizer_are_refused(finished, other, capsys):
    Path("alone").mkdir()
    shutil.copy(finished / "checkpoint_last.safetensors", "alone")
    assert_refused(capsys, begin("alone"), "training.init_from alone", "config.yaml", "alone")
    shutil.copy(finished / "config.yaml", "alone")
    assert_refused(capsys, begin("alone"), "training.init_from alone", "tokenizer.json", "alone")


def test_a_large_text_is_encoded_by_the_tokenizer_of_the_source(finished, other, monkeypatch, capsys):
    monkeypatch.setattr(large, "LARGE_BYTES", 100)
    out = printed(capsys, begin(finished, "--data.cache=cache", "--data.test_fraction=0.2"))
    assert "the tokenizer was given" in out
    mine, theirs = (load_tokenizer(folder / "tokenizer.json") for folder in (Path("runs/other"), finished))
    assert mine.to_str() == theirs.to_str()
    monkeypatch.setattr(large.FilesText, "documents", None)  # the text is not encoded once more
    assert main(["evaluate", "runs/other"]) == 0
