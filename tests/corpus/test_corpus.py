"""Corpora are read whole, split without leaks, and the stories' -log p is what it is said to be."""

import functools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.corpus import Corpus, generate_stories, load_corpus, story_neg_log_p, write_stories
from course_lm.corpus import stories as stories_module
from course_lm.corpus.shipped import data_file
from course_lm.corpus.stories import story_derivations, story_tables
from course_lm.tokenizer import train_tokenizer

documents = st.lists(st.text(min_size=1).filter(lambda text: text.strip()), min_size=1)


@pytest.fixture(scope="module")
def stories() -> Corpus:
    return load_corpus("stories")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "dataset"
    folder.mkdir()
    rows = [{"text": "one", "title": "I"}, {"text": "two", "title": "II"}, {"text": " ", "title": "III"}]
    for split in ("train", "validation"):
        lines = [json.dumps({**row, "text": f"{split} {row['text']}".strip()}) for row in rows[:2]]
        (folder / f"{split}.jsonl").write_text("\n".join([*lines, json.dumps(rows[2])]))
    return folder


# Stories


def test_the_generator_reproduces_the_shipped_stories_byte_for_byte(tmp_path: Path) -> None:
    write_stories(tmp_path / "stories.jsonl")
    assert (tmp_path / "stories.jsonl").read_bytes() == data_file("stories.jsonl").read_bytes()


def test_every_story_has_one_derivation_whose_cost_is_the_stored_neg_log_p(stories: Corpus) -> None:
    assert stories.neg_log_p is not None
    for text, stored in zip(stories.documents, stories.neg_log_p, strict=True):
        assert story_derivations(text) == [pytest.approx(stored, abs=1e-6)], text


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_reading_recovers_the_cost_of_writing_for_any_seed(seed: int) -> None:
    [story] = generate_stories(1, seed)
    assert story_derivations(story.text) == [pytest.approx(story.neg_log_p, abs=1e-9)]


SMALL_GRAMMAR = """
# Two facts from one table, so the second has what the first left.
{hero} {friend} (name, he):
  3 Ann | she / 1 Bob | he
[story]:
  3 {hero} met {friend}. {hero.he!} [felt].
  1 Nobody came.
[felt]: 2 smiled / 1 cried
"""


def test_the_probabilities_of_a_small_grammar_are_those_worked_out_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stories.grammar").write_text(SMALL_GRAMMAR)
    tables = story_tables.__wrapped__
    monkeypatch.setattr(stories_module, "data_file", tmp_path.joinpath)
    monkeypatch.setattr(stories_module, "story_tables", functools.cache(tables))
    by_hand = {
        "Ann met Bob. She smiled.": 3 / 8,
        "Ann met Bob. She cried.": 3 / 16,
        "Bob met Ann. He smiled.": 1 / 8,
        "Bob met Ann. He cried.": 1 / 16,
        "Nobody came.": 1 / 4,
    }
    written = {story.text: story.neg_log_p for story in generate_stories(200)}
    assert {text: math.exp(-cost) for text, cost in written.items()} == pytest.approx(by_hand)
    assert {text: math.exp(-story_neg_log_p(text)) for text in by_hand} == pytest.approx(by_hand)


def test_choices_come_as_often_as_their_weights_say() -> None:
    rows = story_tables()["story"]
    texts = [story.text for story in generate_stories(1500, seed=1)]
    races = sum("race for it" in text or "run faster than you" in text or "race home" in text for text in texts)
    expected = rows[4].weight / sum(row.weight for row in rows)
    assert races / len(texts) == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / len(texts)))


@pytest.mark.parametrize("change", [("Tom", "Tim"), ("her ", "his "), (".", ""), ("On ", "on ")])
def test_a_text_outside_the_grammar_has_no_probability(change: tuple[str, str], stories: Corpus) -> None:
    text = next(text for text in stories.documents if change[0] in text and "Tom" in text)
    with pytest.raises(ValueError, match=r"nothing fits from character \d+ on"):
        story_neg_log_p(text.replace(change[0], change[1], 1))


def test_a_story_that_stops_early_has_no_probability(stories: Corpus) -> None:
    first_sentence = stories.documents[0].split(". ")[0] + "."
    with pytest.raises(ValueError, match="not a story of the grammar"):
        story_neg_log_p(first_sentence)


def test_no_two_tables_of_the_grammar_share_a_name() -> None:
    lines = data_file("stories.grammar").read_text(encoding="utf-8").splitlines()
    heads = [re.split(r" \(|:", line)[0] for line in lines if line[:1] in ("{", "[")]
    names = [name[1:-1] for head in heads for name in head.split()]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_stories_are_what_their_data_sheet_says(stories: Corpus) -> None:
    sheet = data_file("README.md").read_text(encoding="utf-8")
    assert stories.neg_log_p is not None
    words = sum(len(text.split()) for text in stories.documents)
    nats = sum(stories.neg_log_p)
    size = data_file("stories.jsonl").stat().st_size
    for figure in (f"{len(stories.documents):,} documents", f"{size:,} bytes", f"{words:,} words"):
        assert figure in sheet, f"data/README.md should say {figure}"
    for figure in (f"{nats / len(stories.documents):.1f} nats per document", f"{nats / words:.3f} nats per word"):
        assert figure in sheet, f"data/README.md should say {figure}"


def test_every_story_costs_at_least_forty_nats_so_that_duplicates_do_not_occur(stories: Corpus) -> None:
    assert stories.neg_log_p is not None
    assert min(stories.neg_log_p) > 40
    lines = data_file("stories.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(set(stories.documents)) == len(lines)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def _continuations(counts: Counter) -> tuple[Counter, Counter]:
    """For each context: how many tokens followed it, and how many different ones."""
    tokens, types = Counter(), Counter()
    for gram, count in counts.items():
        tokens[gram[:-1]] += count
        types[gram[:-1]] += 1
    return tokens, types


def _trigram_loss(train: list[Sequence], held_out: list[Sequence], discount: float) -> float:
    """Nats per token, the end of each document included, of an interpolated trigram with absolute discounting."""
    counts = [Counter() for _ in range(3)]
    for tokens in train:
        padded = [None, None, *tokens, "end"]
        for i in range(2, len(padded)):
            for order in range(3):
                counts[order][tuple(padded[i - order : i + 1])] += 1
    contexts = [_continuations(count) for count in counts]
    loss, total = 0.0, 0
    for tokens in held_out:
        padded = [None, None, *tokens, "end"]
        for i in range(2, len(padded)):
            p = 1 / (len(counts[0]) + 1)
            for order in range(3):
                gram = tuple(padded[i - order : i + 1])
                seen = contexts[order][0][gram[:-1]]
                if seen:
                    reserved = discount * contexts[order][1][gram[:-1]]
                    p = (max(counts[order][gram] - discount, 0) + reserved * p) / seen
            loss -= math.log(p)
            total += 1
    return loss / total


def _gap_to_floor(tokenize: Callable[[str], Sequence], train: Corpus, held_out: Corpus) -> float:
    assert held_out.neg_log_p is not None
    tokens = [tokenize(text) for text in held_out.documents]
    floor = sum(held_out.neg_log_p) / sum(len(document) + 1 for document in tokens)
    known = [tokenize(text) for text in train.documents]
    return min(_trigram_loss(known, tokens, discount) for discount in (0.25, 0.5, 0.75)) - floor


def test_a_trigram_of_words_stays_0_3_nats_per_token_above_the_floor(stories: Corpus) -> None:
    assert _gap_to_floor(_words, *stories.split()) >= 0.3


def test_a_trigram_of_bpe_tokens_stays_0_3_nats_per_token_above_the_floor(stories: Corpus) -> None:
    train, held_out = stories.split()
    tokenizer = train_tokenizer(train.documents, vocab_size=1024)
    assert _gap_to_floor(lambda text: tokenizer.encode(text).ids, train, held_out) >= 0.3


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
    assert load_corpus("stories", split="validation", seed=1) == load_corpus("stories", split="validation", seed=1)
    assert stories.split(seed=1)[1].documents != stories.split(seed=2)[1].documents


def test_the_validation_split_has_about_the_fraction_asked_for(stories: Corpus) -> None:
    assert len(stories.split(0.25)[1].documents) / len(stories.documents) == pytest.approx(0.25, abs=0.04)


def test_each_split_keeps_the_neg_log_p_of_its_documents(stories: Corpus) -> None:
    assert stories.neg_log_p is not None
    known = dict(zip(stories.documents, stories.neg_log_p, strict=True))
    for part in stories.split():
        assert part.neg_log_p == [known[document] for document in part.documents]


@pytest.mark.parametrize(("val_fraction", "split"), [(0.0001, "validation"), (0.9999, "train")])
def test_an_empty_split_is_an_error_that_names_it(val_fraction: float, split: str) -> None:
    with pytest.raises(ValueError, match=f"the {split} split of the list is empty"):
        load_corpus(["a", "b"], split="train", val_fraction=val_fraction)


@pytest.mark.parametrize("val_fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_validation_fraction_outside_the_open_unit_interval_is_refused(val_fraction: float) -> None:
    with pytest.raises(ValueError, match=r"val_fraction must be in \(0, 1\), got"):
        load_corpus(["a", "b"], split="train", val_fraction=val_fraction)


def test_an_unknown_split_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="split must be None or one of train, validation, test, got 'dev'"):
        load_corpus("stories", split="dev")


def test_a_test_split_takes_its_documents_from_training_alone(stories: Corpus) -> None:
    train, validation, test = (stories.part(split, 0.2, 0.3).documents for split in ("train", "validation", "test"))
    before, held_out = stories.split(0.2)
    assert validation == held_out.documents
    assert sorted([*train, *test]) == sorted(before.documents)
    assert len(test) / len(stories.documents) == pytest.approx(0.3, abs=0.04)


@pytest.mark.parametrize(("test_fraction", "split"), [(0.0, "test"), (0.0001, "train")])
def test_an_empty_test_split_is_an_error_where_it_is_wanted(test_fraction: float, split: str) -> None:
    with pytest.raises(ValueError, match=r"the test split of the list is empty.*another test_fraction"):
        load_corpus(list("abcdefghij"), split=split, val_fraction=0.3, test_fraction=test_fraction)


@pytest.mark.parametrize("test_fraction", [-0.1, 0.7, math.nan])
def test_a_test_fraction_that_leaves_nothing_to_train_on_is_refused(test_fraction: float) -> None:
    with pytest.raises(ValueError, match="test_fraction must be in"):
        load_corpus(["a", "b"], split="train", val_fraction=0.3, test_fraction=test_fraction)


# Python's own documentation


def test_python_docs_holds_many_different_paragraphs_of_prose() -> None:
    paragraphs = load_corpus("python-docs").documents
    assert len(paragraphs) > 1000
    assert len(set(paragraphs)) == len(paragraphs)
    assert not [text for text in paragraphs if re.search(r"\n\s*\n|^\s|\s$|\n(\W)\1+$", text)]


def test_no_paragraph_of_python_docs_is_in_two_splits() -> None:
    parts = [load_corpus("python-docs", split=split).documents for split in ("train", "validation")]
    assert not set(parts[0]) & set(parts[1])
    assert sum(map(len, parts)) == len(load_corpus("python-docs").documents)


# Files, globs and lists


def test_blank_lines_divide_a_text_file_into_documents(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes("\ufeffFirst line\r\nsecond line\r\n \r\n\r\nnamasté नमस्ते\n\n".encode())
    assert load_corpus(str(file)).documents == ["First line\nsecond line", "namasté नमस्ते"]


def test_a_jsonl_file_gives_texts_and_their_neg_log_p(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(
        '{"text": "a\\n\\nb", "neg_log_p": 1.5}\n\n{"text": "c\u2028d", "neg_log_p": 2}\n', encoding="utf-8"
    )
    assert load_corpus(file) == Corpus(str(file), ["a\n\nb", "c\u2028d"], [1.5, 2])


def test_a_glob_reads_its_files_in_order_and_drops_duplicates(tmp_path: Path) -> None:
    for name, text in (("b.txt", "two\n\none"), ("a.txt", "one\n\nthree"), ("c.md", "four")):
        (tmp_path / name).write_text(text)
    assert load_corpus(str(tmp_path / "*.txt")).documents == ["one", "three", "two"]


def test_a_file_whose_name_holds_glob_characters_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes[1].txt").write_text("mine")
    assert load_corpus(str(tmp_path / "notes[1].txt")).documents == ["mine"]


def test_a_bad_byte_is_named_with_file_and_offset(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3"):
        load_corpus(file)


@pytest.mark.parametrize("content", ["", " \n\n\t\n"])
@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl"])
def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is empty"):
        load_corpus(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2 is not JSON"),
        ('{"body": "x"}', 'line 2 must be an object with a string "text"'),
        ('["x"]', 'line 2 must be an object with a string "text"'),
        ('{"text": "x", "neg_log_p": "low"}', 'line 2: "neg_log_p" must be a number'),
    ],
)
def test_a_bad_line_of_jsonl_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        load_corpus(tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["nowhere/book.txt", "book.txt", "nowhere/*.txt"])
def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        load_corpus(str(tmp_path / name))


def test_a_folder_is_refused_with_the_glob_to_use(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder; name its files with a glob such as .*\*\.txt"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize(("name", "meant"), [("storys", "stories"), ("hindu", "hindi")])
def test_an_unknown_corpus_is_refused_with_what_is_accepted(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown corpus '{name}': did you mean {meant}\? accepted") as error:
        load_corpus(name)
    assert "stories, hindi, python-docs" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("texts", [[], ["", " \n"]])
def test_a_list_without_text_is_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="the list holds no document"):
        load_corpus(texts)


def test_a_list_of_other_things_is_refused_with_the_position() -> None:
    with pytest.raises(ValueError, match="must hold strings, got int at position 1"):
        load_corpus(["a", 2])  # pyrefly: ignore[bad-argument-type]


def test_neg_log_p_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="one number for each of 2 documents, got 1"):
        Corpus("mine", ["a", "b"], [1.0])


# Hugging Face datasets, from local files


def test_a_dataset_folder_is_read_by_split(folder: Path) -> None:
    assert load_corpus(f"hf:{folder}:validation").documents == ["validation one", "validation two"]


def test_a_dataset_file_is_read_by_column(folder: Path) -> None:
    assert load_corpus(f"hf:{folder / 'train.jsonl'}:train:title").documents == ["I", "II", "III"]


def test_a_missing_column_is_refused_with_those_that_exist(folder: Path) -> None:
    with pytest.raises(ValueError, match="has no column 'body'; it has text, title"):
        load_corpus(f"hf:{folder}:train:body")


@pytest.mark.parametrize("end", [":test", "/nowhere"])
def test_a_dataset_that_cannot_be_loaded_gives_one_line(folder: Path, end: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"hf:{folder}{end} cannot be loaded")) as error:
        load_corpus(f"hf:{folder}{end}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["hf:", "hf::train", "hf:a:b:c:d"])
def test_a_malformed_dataset_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form hf:<dataset>"):
        load_corpus(address)


def test_a_second_slash_names_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load(name: str, configuration: str, split: str) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"text": [f"{name} {configuration} {split}"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_corpus("hf:org/wiki/small:test").documents == ["org/wiki small test"]


def test_without_datasets_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'course-lm\[hub\]'"):
        load_corpus("hf:org/wiki")
