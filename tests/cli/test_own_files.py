"""Claims about a tokenizer and a validation text of the user's own, and about all that the page says `train` takes."""

import csv
import gzip
import json
import os
import re
import signal
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from course_lm.cli import main
from course_lm.config import DataConfig, TrainingConfig
from course_lm.corpus import Corpus, large, load_corpus
from course_lm.corpus.load import CORPORA
from course_lm.tokenizer import load_tokenizer
from tests.cli.answers import assert_refused, printed
from tests.cli.small_runs import SMALL, write_text
from tests.fork_server import forked, started
from tests.test_readme import BLOCK, ROOT

OWN = tuple(option for option in SMALL if "vocab_size" not in option and "fraction" not in option)
RUN = ("train", "my.txt", "--data.tokenizer=gpt2.json", "--data.validation=val.txt", *OWN, "--training.max_steps=2")


def write_tokenizer(path: Path, text: str, vocab_size: int = 280, prefix: bool = False) -> None:
    """A tokenizer.json as that of GPT-2: byte-level, `<|endoftext|>` for the end of text, no `<pad>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder, tokenizer.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(path))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training text, a validation text of twelve other documents, and a tokenizer, in the current folder."""
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path / "my.txt").read_text()
    (tmp_path / "val.txt").write_text("\n\n".join(f"a hen sat near bed {number}" for number in range(12)))
    write_tokenizer(tmp_path / "gpt2.json", text)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that succeeds prints."""
    return printed(capsys, arguments)


# From training to export


def test_a_run_with_its_own_files_is_evaluated_generated_from_resumed_and_exported_without_the_tokenizer(
    folder, capsys
):
    out = said(capsys, *RUN)
    assert out.startswith("my.txt: 60 documents to train on, 12 held out in val.txt; ")
    assert TrainingConfig.from_yaml("runs/my/config.yaml").data.vocab_size == 280
    assert load_tokenizer("runs/my/tokenizer.json").to_str() == Tokenizer.from_file("gpt2.json").to_str()
    (folder / "gpt2.json").rename(folder / "gone.json")
    assert "resumed runs/my/" in said(capsys, *RUN)
    measured = json.loads(said(capsys, "evaluate", "runs/my", "--json"))
    assert (measured["text"], measured["documents"]) == ("validation text val.txt", 12)
    assert f"{measured['bits_per_byte']['value']:.3f}" in out
    assert said(capsys, "generate", "runs/my", "--prompt=a cat").startswith("a cat")
    said(capsys, "export", "runs/my", "--to", "exported")
    named = json.loads(Path("exported/tokenizer_config.json").read_text())
    assert {named[f"{kind}_token"] for kind in ("bos", "eos", "pad")} == {"<|endoftext|>"}
    assert Tokenizer.from_file("exported/tokenizer.json").encode("a").tokens == ["<|endoftext|>", "a"]


def test_the_exported_tokenizer_opens_in_transformers_with_the_same_ids(capsys):
    transformers = pytest.importorskip("transformers")
    said(capsys, *RUN)
    said(capsys, "export", "runs/my", "--to", "exported")
    theirs, ours = transformers.AutoTokenizer.from_pretrained("exported"), Tokenizer.from_file("gpt2.json")
    assert theirs("a cow sat")["input_ids"] == [theirs.eos_token_id, *ours.encode("a cow sat").ids]
    assert transformers.AutoModelForCausalLM.from_pretrained("exported").config.vocab_size == 280


def test_a_run_that_ctrl_c_has_stopped_goes_on_with_its_own_copy(folder, capsys):
    constant = ["--lr_scheduler.type=constant", "--lr_scheduler.warmup_steps=0", "--training.logging_steps=1"]
    command, metrics = [*RUN[:-1], *constant], Path("runs/my/metrics.jsonl")
    endless = [sys.executable, "-m", "course_lm", *command, "--training.max_steps=1000000"]
    with started(folder, endless, start=forked) as running:
        running.wait_until(lambda: metrics.exists() and metrics.read_text(), "the first record")
        running.process.send_signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 128 + signal.SIGINT, ended.err
    os.remove("gpt2.json")
    assert "validation text val.txt" in said(capsys, "evaluate", "runs/my", "--split=validation")
    (step,) = re.findall(r"stopped by SIGINT after step (\d+)", ended.out + ended.err)
    out = said(capsys, *command, f"--training.max_steps={int(step) + 2}")
    assert f"after step {step}\n" in out and re.search(rf"optimizer steps +{int(step) + 2:,}\n", out)


def test_a_large_text_is_trained_on_whole_with_both_files(monkeypatch, capsys):
    held = said(capsys, *RUN, "--experiment_name=held")
    monkeypatch.setattr(large, "LARGE_BYTES", 2000)
    with pytest.warns(UserWarning, match=r"documents of val.txt .* is not known: that text, my.txt, is too large"):
        out = said(capsys, *RUN, "--data.cache=cache")
    assert out.startswith("my.txt: 60 documents to train on, 12 held out in val.txt; ")
    assert "the tokenizer was given" in out
    (loss,) = [line for line in held.splitlines() if line.startswith("validation loss")]
    assert re.search(rf"nats per token +{loss.split()[-1]}\n", out)


def test_inspect_counts_the_tokens_of_the_tokenizer(capsys):
    text = Path("my.txt").read_text().split("\n\n")
    tokens = sum(len(Tokenizer.from_file("gpt2.json").encode(document).ids) for document in set(text))
    share = tokens / sum(len(document.encode()) for document in set(text))
    out = said(capsys, "inspect", "my.txt", "--data.tokenizer=gpt2.json")
    (line,) = [line for line in out.splitlines() if line.startswith("tokens per byte, vocabulary 280")]
    assert line.split()[-1] == f"{share:.3f}"


# Wrong tokenizers


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("none.json", ["data.tokenizer none.json is no file that is there"]),
        ("folder", ["data.tokenizer folder is a folder: name the tokenizer.json in it"]),
        ("pipe", ["data.tokenizer pipe is no file that is there"]),
        ("my.txt", ["data.tokenizer my.txt", "is not a tokenizer file"]),
        ("vocab.json", ["data.tokenizer vocab.json", "is not a tokenizer file"]),
        (
            "endless.json",
            [
                "data.tokenizer endless.json",
                "no end of text",
                "<eos>, <|endoftext|>, <|end_of_text|>, </s>, got <|end|>",
            ],
        ),
        ("far.json", ["data.tokenizer far.json", "token id 4000000000: ids must be below 1,000,000"]),
        ("words.json", ["data.tokenizer words.json", "is no byte-level tokenizer, as GPT-2's is"]),
    ],
)
def test_a_file_that_is_no_such_tokenizer_is_refused(folder, capsys, name, parts):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "endless.json").write_text((folder / "gpt2.json").read_text().replace("<|endoftext|>", "<|end|>"))
    tree = json.loads((folder / "gpt2.json").read_text())
    tree["model"]["vocab"]["".join(tree["model"]["merges"][-1])] = 4_000_000_000  # a number for each id takes 32 GB
    (folder / "far.json").write_text(json.dumps(tree))
    words = Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>"))
    words.add_special_tokens(["</s>"])
    words.save("words.json")
    assert_refused(capsys, ["train", "my.txt", *OWN, f"--data.tokenizer={name}"], *parts)


def test_what_another_key_says_of_the_vocabulary_is_refused_beside_a_tokenizer(folder, capsys):
    refused = "data.vocab_size is 300, and data.tokenizer gpt2.json has 280 tokens: leave data.vocab_size out"
    assert_refused(capsys, [*RUN, "--data.vocab_size=300"], refused)
    (folder / "own.yaml").write_text("data: {tokenizer: gpt2.json, vocab_size: 300}")
    assert_refused(capsys, ["train", "my.txt", *OWN, "--config=own.yaml"], refused)
    said(capsys, *RUN)
    both = [*RUN, "--training.init_from=my", "--experiment_name=other"]
    assert_refused(capsys, both, "data.tokenizer gpt2.json beside training.init_from", "leave data.tokenizer out")


def test_a_run_does_not_go_on_with_another_tokenizer(folder, capsys):
    said(capsys, *RUN)
    tree = json.loads((folder / "gpt2.json").read_text())
    # a token that this text does not hold: no id of it changes, so that the ids alone would not tell
    tree["model"]["vocab"]["Qx"] = tree["model"]["vocab"].pop("".join(tree["model"]["merges"].pop()))
    (folder / "gpt2.json").write_text(json.dumps(tree))
    for command in (RUN, ("preflight", *RUN[1:])):
        capsys.readouterr()
        assert main(command) == 2
        assert "data.tokenizer gpt2.json is another one than runs/my/tokenizer.json" in capsys.readouterr().err
    assert main([*RUN, "--data.tokenizer=null", "--data.vocab_size=280"]) == 2
    assert "was saved with data.tokenizer 'gpt2.json'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "inspect", "find-lr"])
def test_a_slip_in_the_name_of_a_tokenizer_is_refused_where_a_run_has_a_copy_of_another(folder, capsys, command):
    said(capsys, *RUN)
    slip = [command, *RUN[1:], "--data.tokenizer=gtp2.json"]
    for given in (slip, [*slip, "--training.resume=never"]):
        capsys.readouterr()
        assert main(given) == 2
        assert "data.tokenizer gtp2.json is no file that is there" in capsys.readouterr().err
    assert TrainingConfig.from_yaml("runs/my/config.yaml").data.tokenizer == "gpt2.json"


def test_a_new_run_does_not_take_the_copy_of_the_one_that_it_puts_aside(folder, capsys):
    said(capsys, *RUN)
    os.remove("gpt2.json")
    anew = [*RUN, "--training.resume=never"]
    capsys.readouterr()
    assert main(anew) == 2
    assert "data.tokenizer gpt2.json is no file that is there" in capsys.readouterr().err
    assert not Path("runs/my.1").exists()


@pytest.mark.parametrize("changed", ["the tokenizer", "the training text"])
def test_another_vocabulary_is_not_taken_for_another_validation_text(folder, capsys, changed):
    own = ["--data.tokenizer=gpt2.json"] if changed == "the tokenizer" else ["--data.vocab_size=270"]
    run = ["train", "my.txt", *own, "--data.validation=val.txt", *OWN, "--training.max_steps=2"]
    said(capsys, *run)
    os.remove("runs/my/tokenizer.json")  # which a killed run has not written yet
    write_tokenizer(folder / "gpt2.json", (folder / "val.txt").read_text())
    if changed == "the training text":
        (folder / "my.txt").write_text((folder / "my.txt").read_text().replace("at", "ow"))
    capsys.readouterr()
    assert main(run) == 2
    error = capsys.readouterr().err
    assert "the text, its vocabulary or its batches changed since" in error and "val.txt" not in error


def test_a_tokenizer_that_changes_the_text_is_warned_of_with_the_first_difference(folder, capsys):
    write_tokenizer(folder / "spaced.json", (folder / "my.txt").read_text(), prefix=True)
    with pytest.warns(UserWarning, match=r"spaced.json changes 72 of 72 documents, such as '(.{10}).*' to ' \1"):
        said(capsys, *RUN, "--data.tokenizer=spaced.json")


# Wrong validation texts


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--data.validation=none.txt"], ["there is no file none.txt"]),
        (["--data.validation="], ["data.validation must be a name, a path, a glob or hf:<dataset>"]),
        (["--data.validation=-"], ["standard input"]),
        (["--data.validation=hollow.txt"], ["hollow.txt is empty: it holds no document"]),
        (["--data.validation=my.txt"], ["data.validation my.txt is a part of the training text, my.txt"]),
        (["--data.validation=copy.txt"], ["data.validation copy.txt is a part of the training text, my.txt"]),
        (["--data.corpus=*y.txt", "--data.validation=copy.txt"], ["copy.txt is a part of the training text, *y.txt"]),
        (["--data.val_fraction=0.2"], ["data.val_fraction must be left out, as nothing reads it beside validation"]),
        (["--data.test_fraction=0.2"], ["data.test_fraction must be left out, as nothing reads it beside validation"]),
    ],
)
def test_a_validation_text_that_holds_nothing_out_is_refused(folder, capsys, given, parts):
    (folder / "hollow.txt").touch()
    # among several files a file without blank lines is one document, alone it is cut: no document tells
    lines = (folder / "val.txt").read_text().replace("\n\n", "\n")
    (folder / "copy.txt").write_text(lines if "=*y" in given[0] else (folder / "my.txt").read_text())
    command = ["train", *OWN, "--data.vocab_size=270", "--data.corpus=my.txt", "--data.validation=val.txt"]
    assert_refused(capsys, [*command, *given], *parts)


def test_a_validation_text_that_is_too_large_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(large, "LARGE_BYTES", 100)
    assert_refused(capsys, [*RUN, "--data.cache=cache"], "data.validation val.txt has more than", "give a part of it")


def test_documents_that_stand_in_both_texts_are_counted_in_a_warning(folder, capsys):
    known = (folder / "my.txt").read_text().split("\n\n")[:2]
    with (folder / "val.txt").open("a") as file:
        file.write("\n\n" + "\n\n".join(known))
    with pytest.warns(UserWarning, match=r"2 of 14 documents of val.txt stand in the text that the run is trained on"):
        said(capsys, *RUN)


@pytest.mark.parametrize("batching", ["fixed", "dynamic", "bucketed", "packed"])
def test_one_word_is_validation_text_enough(folder, capsys, batching):
    (folder / "val.txt").write_text("x")
    assert "1 held out in val.txt" in said(capsys, *RUN, f"--data.batching={batching}")


def test_a_validation_text_that_has_changed_is_refused_by_train_and_named_by_evaluate(folder, capsys):
    said(capsys, *RUN)
    with (folder / "val.txt").open("a") as file:
        file.write("\n\na hen")
    capsys.readouterr()
    assert main([*RUN]) == 2
    error = capsys.readouterr().err
    assert "data.validation val.txt is another text than when the checkpoint was saved: change it back" in error
    with pytest.warns(UserWarning, match=r"val.txt is read otherwise now than when the run was trained"):
        said(capsys, "evaluate", "runs/my")
    assert "13 held out" in said(capsys, *RUN, "--training.resume=never")


def test_runs_with_unlike_validation_texts_are_not_compared_by_their_losses(folder, capsys):
    said(capsys, *RUN)
    (folder / "other.txt").write_text("a bed\n\na hat")
    said(capsys, *RUN, "--data.validation=other.txt", "--experiment_name=other")
    assert "unlike data.validation: losses per token" in said(capsys, "plot", "my", "other")


def test_beside_a_validation_text_a_run_s_own_file_may_hold_the_fractions():
    config = TrainingConfig(data=DataConfig(validation="val.txt"))
    config.to_yaml("own.yaml")
    assert TrainingConfig.from_yaml("own.yaml") == config and config.data.fractions == (0.0, 0.0)
    with pytest.raises(ValueError, match=r"data\.val_fraction must be left out"):
        TrainingConfig(data=DataConfig(validation="val.txt", val_fraction=0.2))


# The page

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").partition("## What train takes")[2]
TAKEN, REFUSED = (block.splitlines() for _, block in BLOCK.findall(PAGE)[:2])


def words_of(line: str) -> list[str]:
    """The arguments of a line of the page, without quotation marks and comment."""
    return line.partition(" # ")[0].replace("'", "").split()[1:]


@pytest.fixture
def shelf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All files that the page names."""
    documents = load_corpus("stories").documents[:40]
    text = "\n\n".join(documents)
    (folder / "my.txt").write_text(text)
    (folder / "texts" / "more").mkdir(parents=True)
    for number, name in enumerate(("a.txt", "b.txt", "more/c.txt")):
        (folder / "texts" / name).write_text("\n\n".join(documents[10 * number : 10 * number + 10]))
    rows = [{"text": document, "title": f"{document[:40]} again"} for document in documents]
    (folder / "my.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "chats.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    with (folder / "my.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([document] for document in documents)])
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": documents})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "my.parquet")
    (folder / "my.txt.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(folder / "my.zip", "w") as archive:
        archive.writestr("my.txt", text)
    (folder / "held_out.txt").write_text("\n\n".join(load_corpus("stories").documents[60:70]))
    write_tokenizer(folder / "tokenizer.json", text)
    # a shipped text takes minutes to read and to compress
    monkeypatch.setitem(CORPORA, "stories", lambda: Corpus("stories", documents))
    monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", str(folder / "cache"))
    return folder


def test_the_page_shows_a_line_for_each_kind():
    assert len(TAKEN) == 12 and len(REFUSED) == 4


@pytest.mark.parametrize("line", [line for line in TAKEN if "<" not in line], ids=lambda line: words_of(line)[1])
def test_what_the_page_says_train_takes_is_taken(shelf, capsys, line):
    size = [] if "tokenizer" in line else ["--data.vocab_size=270"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = said(capsys, *words_of(line), *OWN, *size, "--training.max_steps=1")
    assert "documents to train on" in out and "bits per byte" in out


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: words_of(line)[1])
def test_what_the_page_says_is_refused_is_refused(shelf, capsys, line):
    name = words_of(line)[1].replace("-", "standard input")
    assert_refused(capsys, [*words_of(line), *OWN, "--data.vocab_size=270"], name)
