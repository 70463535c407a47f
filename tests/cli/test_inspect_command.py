"""Claims about `course-lm inspect`: the counts, and the findings."""

import json
import random
from pathlib import Path

import pytest

from course_lm.cli import main
from course_lm.corpus import load_corpus
from tests.cli.answers import printed

SMALL = ["--data.vocab_size=270", "--model.n_layer=1", "--model.n_head=1", "--model.d_model=2", "--data.max_length=8"]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty paragraphs without a fault, enough for a model of some 700 parameters."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = [a + b for a in ("ba", "du", "ki", "lo", "me", "na") for b in ("st", "rm", "ll", "nk", "ve", "sh")]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(" ".join(draw.choices(words, k=40)) for _ in range(60)), encoding="utf-8")
    return path


def test_a_text_without_a_fault_has_counts_and_no_advice(text, capsys):
    counts, lengths = printed(capsys, ["inspect", "text.txt", *SMALL]).strip().split("\n\n")
    assert counts.startswith("text.txt\ndocuments") and "LATIN 100.0%" in counts and "vocabulary 270" in counts
    assert "█" in lengths


def test_a_fault_has_a_line_of_advice_at_the_end(text, capsys):
    text.write_text(text.read_text() + "\n\ncaf\ufffd\n\n" + text.read_text().split("\n\n")[0])
    *_, last = printed(capsys, ["inspect", "text.txt", *SMALL]).strip().split("\n\n")
    assert [line.split(":")[0] for line in last.splitlines()] == ["exact duplicates", "replacement characters"]


@pytest.mark.parametrize(
    ("divider", "division", "how"),
    [("\n", "lines", "each line is a document"), (". ", "length", "documents of at most 4,000 characters")],
)
def test_a_text_that_no_blank_line_divides_is_said_to_be_cut(text, capsys, divider, division, how):
    text.write_text(text.read_text().replace("\n\n", divider))
    first, second, *_ = printed(capsys, ["inspect", "text.txt", *SMALL]).splitlines()
    assert first.startswith("text.txt (no blank line divides it: ") and first.endswith(f"{how})")
    documents = len(load_corpus("text.txt").documents)
    assert second.split() == ["documents", str(documents)]
    counted = json.loads(printed(capsys, ["inspect", "text.txt", "--json", *SMALL]))
    assert (counted["division"], counted["documents"]) == (division, documents)


def test_the_counts_as_json_are_all_of_the_output(text, capsys):
    counted = json.loads(printed(capsys, ["inspect", "text.txt", "--json", *SMALL, "--data.vocab_size=5000"]))
    assert counted["documents"] == 60 and counted["tokens_per_byte"] is None
    assert [finding["name"] for finding in counted["findings"]] == ["vocabulary"]


def test_a_text_is_only_looked_at(text):
    main(["inspect", "text.txt", *SMALL])
    assert [path.name for path in text.parent.iterdir()] == ["text.txt"]
