"""Claims about corpora: what each source gives, what is refused and in which words, and splits without leaks."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lm.corpus import Corpus, load_corpus
from course_lm.corpus.load import matching_files

documents = st.lists(st.text(min_size=1).filter(lambda text: text.strip()), min_size=1)


@pytest.fixture(scope="module")
def stories() -> Corpus:
    return load_corpus("stories")


# Splits


@given(documents=documents, seed=st.integers(0, 1000), val_fraction=st.floats(0.01, 0.99))
def test_no_document_is_in_two_splits(documents: list[str], seed: int, val_fraction: float) -> None:
    everything = load_corpus([*documents, *documents])
    assert sorted(everything.documents) == sorted(set(documents))
    try:
        train, held_out = everything.split(val_fraction, seed)
    except ValueError as error:
        assert "split of the list is empty" in str(error)
        return
    assert sorted(train.documents + held_out.documents) == sorted(set(documents))


@given(documents=documents, more=documents, seed=st.integers(0, 1000))
def test_adding_documents_moves_none(documents: list[str], more: list[str], seed: int) -> None:
    fillers = [f"filler {i}" for i in range(40)]  # so that no split is empty

    def held_out(texts: list[str]) -> set[str]:
        return set(load_corpus([*texts, *fillers], split="validation", val_fraction=0.5, seed=seed).documents)

    assert held_out(documents) & {*documents} == held_out([*more, *documents]) & {*documents}


def test_splits_differ_between_seeds_and_repeat_for_one(stories: Corpus) -> None:
    assert load_corpus("stories", split="validation", seed=1) == stories.split(seed=1)[1]
    assert stories.split(seed=1)[1].documents != stories.split(seed=2)[1].documents


def test_each_split_keeps_the_neg_log_p_and_the_gold_counts_of_its_documents() -> None:
    corpus = load_corpus("hindi")
    assert corpus.neg_log_p is not None and corpus.gold is not None
    known = dict(zip(corpus.documents, zip(corpus.neg_log_p, corpus.gold, strict=True), strict=True))
    for part in corpus.split():
        assert [*zip(part.neg_log_p or (), part.gold or ())] == [known[document] for document in part.documents]


def test_a_test_split_takes_its_documents_from_training_alone(stories: Corpus) -> None:
    train, validation, test = (stories.part(split, 0.2, 0.3).documents for split in ("train", "validation", "test"))
    before, held_out = stories.split(0.2)
    assert validation == held_out.documents
    assert sorted([*train, *test]) == sorted(before.documents)
    shares = [len(part) / len(stories.documents) for part in (validation, test)]
    assert shares == pytest.approx([0.2, 0.3], abs=0.04)


@pytest.mark.parametrize(
    ("split", "fractions", "message"),
    [
        ("train", {"val_fraction": 0.0001}, "the validation split of the list is empty"),
        ("train", {"val_fraction": 0.9999}, "the train split of the list is empty"),
        ("test", {}, "the test split of the list is empty.*another test_fraction"),
        ("train", {"test_fraction": 0.0001}, "the test split of the list is empty.*another test_fraction"),
        *(("train", {"val_fraction": bad}, r"val_fraction must be in \(0, 1\), got") for bad in (0.0, 1, math.nan, "")),
        *(("train", {"test_fraction": bad}, r"must be in \[0, 1 - val_fraction\)") for bad in (-1, 0.7, math.nan, "")),
        ("dev", {}, "split must be None or one of train, validation, test, got 'dev'"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: str, fractions: dict[str, float], message: str) -> None:
    val_fraction, test_fraction = fractions.get("val_fraction", 0.3), fractions.get("test_fraction", 0.0)
    with pytest.raises(ValueError, match=message):
        load_corpus(list("abcdefghij"), split=split, val_fraction=val_fraction, test_fraction=test_fraction)


# Python's own documentation


def test_python_docs_holds_many_different_paragraphs_of_prose() -> None:
    paragraphs = load_corpus("python-docs").documents
    assert len(paragraphs) > 1000
    assert len(set(paragraphs)) == len(paragraphs)
    assert not [text for text in paragraphs if re.search(r"\n\s*\n|^\s|\s$|\n(\W)\1+$", text)]


# Files, globs and lists


def test_a_glob_reads_its_files_in_order_and_drops_duplicates(tmp_path: Path) -> None:
    for name, text in (("b.txt", "two\n\none"), ("a.txt", "one\n\nthree"), ("c.md", "four")):
        (tmp_path / name).write_text(text)
    assert load_corpus(str(tmp_path / "*.txt")).documents == ["one", "three", "two"]


def test_a_glob_reads_a_file_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    for name in ("a/b", "c"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/b/x.txt", "a-b.txt", "c/y.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "b" / "above").symlink_to(tmp_path)
    (tmp_path / "c" / "x.txt").symlink_to(tmp_path / "a" / "b" / "x.txt")
    paths = matching_files(str(tmp_path / "**" / "*.txt"))
    assert [str(path.relative_to(tmp_path)) for path in paths] == ["a-b.txt", "c/x.txt", "c/y.txt"]


def test_a_file_whose_name_holds_glob_characters_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes[1].txt").write_text("mine")
    assert load_corpus(str(tmp_path / "notes[1].txt")).documents == ["mine"]


def test_a_key_gold_in_a_file_of_the_user_is_theirs_and_ignored(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": "x", "gold": "anything"}) + "\n")
    assert load_corpus(tmp_path / "mine.jsonl").gold is None


def test_neg_log_p_or_gold_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="neg_log_p of mine must hold one entry for each of 2 documents, got 1"):
        Corpus("mine", ["a", "b"], [1.0])
    with pytest.raises(ValueError, match="gold of mine must hold one entry for each of 2 documents, got 1"):
        Corpus("mine", ["a", "b"], gold=[{"words": 1}])


def refusal(source: Any) -> str:
    """The one line with which a source is refused."""
    with pytest.raises((ValueError, OSError)) as caught:
        load_corpus(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("storys", "unknown corpus 'storys': did you mean stories? accepted are stories, hindi, python-docs, a file"),
        ("nowhere/book.txt", "there is no file nowhere/book.txt"),
        ("book.txt", "there is no file book.txt"),
        ("-", "a text on standard input can be read only once; write it to a file"),
        ("nowhere/*.txt", "no file matches nowhere/*.txt"),
        (".", ". is a folder; name its files with a glob such as *.txt"),
        ("", ". is a folder"),
        ("x\0y", ""),
        ("*\0", ""),
        ("a/" * 3000, ""),
        ("[a", ""),
        ("/dev/zero", "/dev/zero is no regular file"),
        ("hf:/dev/zero", "/dev/zero is no regular file"),
        *((value, f"got {type(value).__name__}") for value in (5, None, b"text", {"a": 1}, {"a"}, iter("ab"))),
        ([], "the list holds no document"),
        (["", " \n"], "the list holds no document"),
        (["a", 2], "must hold strings, got int at position 1"),
        (["a", "b\ud800"], "position 1 is not valid Unicode: lone surrogate U+D800 at character 1"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused_in_one_line(source: Any, part: str) -> None:
    assert part in refusal(source)


@pytest.mark.parametrize("glob", [False, True])
def test_a_pipe_is_not_waited_for_and_a_link_to_nothing_is_refused_by_its_target(tmp_path: Path, glob: bool) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "link.txt").symlink_to("gone.txt")
    assert "pipe.txt is no regular file" in refusal(str(tmp_path / ("pi*.txt" if glob else "pipe.txt")))
    link = refusal(str(tmp_path / ("li*.txt" if glob else "link.txt")))
    assert "link.txt is a link to gone.txt, which is not there" in link
