"""Claims about what is wrong with a text: each finding in a text that has it, and none in one that has not."""

import random

import numpy as np
import pytest

from course_lm.inspection import find, measure
from course_lm.inspection.findings import needed_tokens
from course_lm.inspection.near_duplicates import near_duplicates, shingles

WORDS = [a + b for a in ("ba", "du", "ki", "lo", "me", "na") for b in ("st", "rm", "ll", "nk", "ve", "sh", "pt", "ck")]


def documents(count: int = 60, seed: int = 0, words: int = 40) -> list[str]:
    """Documents without a fault."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def found(text: list[str], parameters: int = 100, vocab_size: int = 270) -> dict[str, str]:
    return {one.name: str(one) for one in find(measure(text, vocab_size), parameters, 0.9)}


def near(text: str) -> str:
    """The text with two of its words changed."""
    first, second, *rest = text.split()
    return " ".join([second, first, *rest])


def test_a_text_without_a_fault_has_no_finding():
    assert found(documents()) == {}


FAULTS = {
    "one document": (["\n".join(documents())], "which no blank line divides"),
    "one long document": ([*documents(5), " ".join(documents(30, seed=1))], "of all bytes"),
    "exact duplicates": ([*documents(), *documents()[:3]], "3 of 63 documents equal an earlier one"),
    "near duplicates": (
        [*documents(words=90), *(near(text) for text in documents(words=90)[:4])],
        "4 of 64 distinct documents are nearly",
    ),
    "repeated lines": (
        [f"{text}\nHome | About | Contact us" for text in documents()],
        'in 60 documents, is "Home | About | Contact us"',
    ),
    "replacement characters": (
        [*documents(), "caf\ufffd und stra\ufffde " + documents(1, seed=2)[0]],
        "2 characters U+FFFD in 1 document;",
    ),
    "control characters": (
        [*documents(), "page\x0cbreak " + documents(1, seed=2)[0]],
        "1 control character in 1 document;",
    ),
    "several scripts": (
        [*documents(), "это совсем другой язык и ещё несколько слов, и ещё, и ещё, и ещё, и ещё " * 3],
        "CYRILLIC; 1 document is mostly of another script",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_alone_is_found_in_one_line_with_its_count_and_its_advice(name):
    text, part = FAULTS[name]
    [(only, line)] = found(text).items()
    assert only == name and line.startswith(f"{name}: ") and part in line and "; " in line and "\n" not in line


def test_too_little_text_is_measured_against_the_parameters():
    text = documents()
    tokens = 0.9 * sum(map(len, text)) * measure(text, 270).tokens_per_byte
    fitting = int(tokens / 5)
    assert needed_tokens(1000) == 5000
    assert found(text, parameters=fitting) == {}
    assert list(found(text, parameters=fitting + 2)) == ["too little text"]
    assert "Hoffmann et al. 2022" in found(text, parameters=fitting + 2)["too little text"]


def test_copies_do_not_count_as_text():
    text = documents()
    parameters = int(0.9 * sum(map(len, text)) * measure(text, 270).tokens_per_byte / 5) + 2
    assert "too little text" in found(text * 3, parameters=parameters)


def test_a_vocabulary_that_the_text_does_not_support_is_a_finding():
    line = found(documents(), vocab_size=5000)["vocabulary"]
    assert "lower vocab_size to" in line and list(found(documents(), vocab_size=5000)) == ["vocabulary"]


def test_line_breaks_and_tabs_are_no_control_characters():
    assert found([text.replace(" ", "\t", 1).replace(" ", "\n", 1) for text in documents()]) == {}


def test_short_lines_such_as_a_bracket_are_not_boilerplate():
    assert found([f"{text}\n}}\nelse:" for text in documents()]) == {}


@pytest.mark.parametrize("text", ["日本語のテキストです。ひらがなとカタカナ", "한국어 문장입니다", "یہ اردو ہے"])
def test_one_language_is_one_script(text):
    assert len(measure([f"{text} {i}" for i in range(20)], 258).scripts) == 1


def test_the_histogram_counts_every_document_once():
    measured = measure([*documents(), "a", ""], 258)
    assert sum(count for _, _, count in measured.lengths) == 62
    assert measured.lengths[0] == (0, 1, 1) and measured.lengths[1] == (1, 2, 1)


@pytest.mark.parametrize("changed", [0.02, 0.5])
def test_minhash_agrees_with_the_jaccard_index(changed):
    draw = random.Random(3)
    text = documents(1, words=600)[0].split()
    other = list(text)
    for place in draw.sample(range(len(other)), int(changed * len(other) / 5)):
        other[place] = f"other{place}"
    one, two = (set(shingles(" ".join(words)).tolist()) for words in (text, other))
    alike = len(one & two) / len(one | two)
    assert (alike > 0.85) if changed < 0.1 else (alike < 0.75)
    assert bool(near_duplicates([" ".join(text), " ".join(other)])) == (alike > 0.8)


def test_a_text_without_spaces_is_compared_by_characters():
    draw = random.Random(0)
    text = "".join(chr(draw.randrange(0x4E00, 0x9000)) for _ in range(300))
    assert near_duplicates([text, text[:-3], text[::-1]]) == [(1, 0)]


def test_the_hash_of_a_long_document_is_that_of_its_parts():
    """More shingles than are hashed at once."""
    draw = np.random.default_rng(0)
    text = " ".join(str(number) for number in draw.integers(10**9, size=9000))
    assert near_duplicates([text, f"{text} end", "another text of its own here"]) == [(1, 0)]


def test_what_costs_much_is_counted_on_a_bounded_sample_and_the_rest_on_all(monkeypatch):
    monkeypatch.setitem(measure.__globals__, "SAMPLE_DOCUMENTS", 10)
    measured = measure(documents(), 258)
    assert (measured.documents, measured.sampled) == (60, 10)


def test_the_sample_of_one_huge_document_is_cut(monkeypatch):
    monkeypatch.setitem(measure.__globals__, "SAMPLE_CHARACTERS", 100)
    measured = measure(["word " * 1000], 258)
    assert (measured.bytes, measured.sampled_bytes) == (5000, 100)


def test_counting_twice_gives_the_same():
    text, _ = FAULTS["near duplicates"]
    assert measure(text, 270) == measure(text, 270)
