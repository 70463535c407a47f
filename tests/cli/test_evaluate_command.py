"""Claims about `course-lm evaluate`: a run's numbers again, their intervals, and of which text they are."""

import json
import re

import pytest

from course_lm.cli import main
from course_lm.corpus import load_corpus
from tests.cli.answers import assert_refused, printed

NUMBERS = ("loss", "perplexity", "bits_per_byte", "accuracy")


def measured(capsys, run, *arguments):
    assert main(["evaluate", str(run), *map(str, arguments), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def split_sizes(finished):
    text = finished.parent.parent / "text.txt"
    fractions = {"val_fraction": 0.3, "test_fraction": 0.2, "seed": 42}
    return {one: len(load_corpus(text, split=one, **fractions).documents) for one in ("train", "validation", "test")}


@pytest.mark.filterwarnings("error")
def test_the_validation_part_has_the_numbers_that_training_has_found(finished, capsys):
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    best = min((one for one in records if one["event"] == "validation"), key=lambda one: one["val_loss"])
    found = measured(capsys, finished, "--split=validation")
    for mine, theirs in (("loss", "val_loss"), *((name, name) for name in NUMBERS[1:])):
        assert found[mine]["value"] == pytest.approx(best[theirs], rel=1e-6), mine
        assert found[mine]["low"] < found[mine]["value"] < found[mine]["high"]


def test_the_table_has_the_numbers_of_the_json(finished, capsys):
    found = measured(capsys, finished)
    first, _, *rows = printed(capsys, ["evaluate", str(finished)]).splitlines()
    assert f"test part of {finished.parent.parent / 'text.txt'}: {found['documents']} documents" in first
    assert first.endswith("fp32 on cpu")
    shown = [re.split(r" {2,}", row) for row in rows]
    loss = found["loss"]
    assert shown[0] == ["loss, nats per token", f"{loss['value']:.4f}", f"{loss['low']:.4f} to {loss['high']:.4f}"]
    assert [row[0] for row in shown] == ["loss, nats per token", "perplexity", "bits per byte", "accuracy"]


def test_a_text_of_one_document_has_numbers_and_no_interval(finished, capsys, tmp_path):
    (tmp_path / "one.txt").write_text("the cow slept on a hat")
    found = measured(capsys, finished, f"--data.corpus={tmp_path / 'one.txt'}")
    assert (found["documents"], found["bytes"]) == (1, 22)
    assert found["loss"]["low"] is None and found["loss"]["value"] > 0
    main(["evaluate", str(finished), f"--data.corpus={tmp_path / 'one.txt'}"])
    assert re.search(r"^loss, nats per token +[\d.]+ +-$", capsys.readouterr().out, re.MULTILINE)


def test_the_precision_is_the_runs_unless_another_one_is_asked_for(finished, capsys):
    assert measured(capsys, finished)["precision"] == "fp32"
    assert measured(capsys, finished, "--training.precision=bf16")["precision"] == "bf16"


def test_each_part_has_its_documents_and_the_test_part_is_the_default(finished, capsys):
    sizes = split_sizes(finished)
    assert sum(sizes.values()) == 60 and sizes["test"] > 0
    for split, count in sizes.items():
        assert measured(capsys, finished, f"--split={split}")["documents"] == count
    assert measured(capsys, finished)["documents"] == sizes["test"]


def without_a_test_part(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("test_fraction: 0.2", "test_fraction: 0.0"))


def test_the_validation_part_is_the_default_of_a_run_without_a_test_part(copy, capsys):
    without_a_test_part(copy)
    assert measured(capsys, copy)["text"].startswith("validation part of ")


def test_all_documents_of_another_text_count_and_those_of_the_training_text_are_named(finished, capsys, tmp_path):
    known = load_corpus(
        finished.parent.parent / "text.txt", split="train", val_fraction=0.3, test_fraction=0.2, seed=42
    )
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(["a cow sat on a mat", *known.documents[:2], "the bed ran"]))
    with pytest.warns(UserWarning) as caught:
        found = measured(capsys, finished, f"--data.corpus={other}")
    assert found["documents"] == 4
    (warned,) = caught
    assert f"2 of 4 documents of {other} stand in the text that the run was trained on" in str(warned.message)
    assert repr(known.documents[0][:60]) in str(warned.message)


def test_a_text_that_comes_after_the_run_is_the_corpus_and_the_table_says_how_it_is_divided(finished, capsys, tmp_path):
    documents = [f"a cow sat on mat {number}" for number in range(12)]
    for name, text in (("a.txt", "\n".join(documents)), ("a.csv", "\n".join(["text", *documents]))):
        (tmp_path / name).write_text(text)
    by_option = measured(capsys, finished, f"--data.corpus={tmp_path / 'a.txt'}")
    assert by_option == measured(capsys, finished, tmp_path / "a.txt") and by_option["documents"] == 12
    assert by_option | {"text": None} == measured(capsys, finished, tmp_path / "a.csv") | {"text": None}
    table = printed(capsys, ["evaluate", str(finished), str(tmp_path / "a.txt")])
    assert "a.txt (no blank line divides it: each line is a document): 12 documents" in table


@pytest.mark.filterwarnings("error")
def test_another_text_that_the_run_does_not_know_is_measured_without_a_word(finished, capsys, tmp_path):
    (tmp_path / "other.txt").write_text("a cow sat on a mat\n\nthe bed ran\n\nनमस्ते")
    assert measured(capsys, finished, f"--data.corpus={tmp_path / 'other.txt'}")["documents"] == 3


def test_where_the_training_text_is_gone_nobody_knows_and_a_warning_says_so(copy, capsys, tmp_path):
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub(r"corpus: .*text.txt", f"corpus: {tmp_path / 'gone.txt'}", text))
    (tmp_path / "other.txt").write_text("a cow sat on a mat\n\nthe bed ran")
    with pytest.warns(UserWarning, match="whether the run was trained on these documents is not known"):
        measured(capsys, copy, f"--data.corpus={tmp_path / 'other.txt'}")
    assert_refused(capsys, ["evaluate", str(copy)], "own text cannot be read", "gone.txt", "or give another text")


@pytest.mark.parametrize(("eval_tokens", "error", "warned"), [(60, 0.01, False), (60, 1e-4, True), (10**6, 0.01, True)])
def test_the_loss_of_a_sample_may_lie_some_standard_errors_from_that_of_the_text(
    copy, capsys, recwarn, eval_tokens, error, warned
):
    config, log = copy / "config.yaml", copy / "metrics.jsonl"
    config.write_text(re.sub(r"eval_tokens: \d+", f"eval_tokens: {eval_tokens}", config.read_text()))
    loss = measured(capsys, copy, "--split=validation")["loss"]["value"]
    record = {"event": "validation", "step": 3, "val_loss": 0.97 * loss, "val_loss_se": error * loss}
    log.write_text(json.dumps(record) + "\n")
    recwarn.clear()
    measured(capsys, copy, "--split=validation")
    assert [str(one.message).endswith("its text has changed since") for one in recwarn] == [True] * warned


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("validation", "own lowest validation loss was .* has changed since"),
        ("test", "is read otherwise now than when"),
    ],
)
def test_a_text_that_has_changed_since_is_warned_of(copy, capsys, tmp_path, split, said):
    text = (copy / "config.yaml").read_text()
    (tmp_path / "text.txt").write_text("\n\n".join(f"Zebra {i}, qux & 17!" for i in range(40)))
    (copy / "config.yaml").write_text(re.sub(r"corpus: .*text.txt", f"corpus: {tmp_path / 'text.txt'}", text))
    with pytest.warns(UserWarning, match=said):
        measured(capsys, copy, f"--split={split}")
