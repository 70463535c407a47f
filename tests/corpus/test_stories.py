"""Claims about the stories: the -log p that is stored is the true one, and a trigram stays far above their floor."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import stories as stories_module
from grammar import search_derivations
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import STORY, generate_stories, story_neg_log_p, story_tables, write_stories

from course_lm.corpus import Corpus, load_corpus
from course_lm.corpus.shipped import data_file
from course_lm.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def stories() -> Corpus:
    return load_corpus("stories")


def derivations(text: str) -> list[float]:
    """The cost in nats of each way in which the grammar can write exactly this text."""
    return search_derivations(story_tables(), STORY, text)[0]


def test_the_generator_reproduces_the_shipped_stories_byte_for_byte(tmp_path: Path) -> None:
    write_stories(tmp_path / "stories.jsonl")
    assert (tmp_path / "stories.jsonl").read_bytes() == data_file("stories.jsonl").read_bytes()


def test_every_story_has_one_derivation_whose_cost_is_the_stored_neg_log_p(stories: Corpus) -> None:
    assert stories.neg_log_p is not None
    for text, stored in zip(stories.documents, stories.neg_log_p, strict=True):
        assert derivations(text) == [pytest.approx(stored, abs=1e-6)], text


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_reading_recovers_the_cost_of_writing_for_any_seed(seed: int) -> None:
    [story] = generate_stories(1, seed)
    assert derivations(story.text) == [pytest.approx(story.neg_log_p, abs=1e-9)]


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
    monkeypatch.setattr(stories_module, "DATA", tmp_path)
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


@pytest.mark.parametrize(
    ("old", "new"), [("Tom", "Tim"), ("her ", "his "), (r"\.", ""), ("On ", "on "), (r"\. .*", ".")]
)
def test_a_text_outside_the_grammar_has_no_probability(old: str, new: str, stories: Corpus) -> None:
    text = next(text for text in stories.documents if re.search(old, text) and "Tom" in text)
    with pytest.raises(ValueError, match=r"not a story of the grammar: nothing fits from character \d+ on"):
        story_neg_log_p(re.sub(old, new, text, count=1))


def test_no_two_tables_of_the_grammar_share_a_name() -> None:
    lines = data_file("stories.grammar").read_text(encoding="utf-8").splitlines()
    heads = [re.split(r" \(|:", line)[0] for line in lines if line[:1] in ("{", "[")]
    names = [name[1:-1] for head in heads for name in head.split()]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_stories_are_what_their_data_sheet_says_and_no_two_are_equal(stories: Corpus) -> None:
    sheet = data_file("README.md").read_text(encoding="utf-8").partition("\n## stories")[2].partition("\n## hindi")[0]
    assert stories.neg_log_p is not None
    assert len(stories.documents) == len(data_file("stories.jsonl").read_text(encoding="utf-8").splitlines())
    words, nats = sum(len(text.split()) for text in stories.documents), sum(stories.neg_log_p)
    figures = [
        f"{len(stories.documents):,} documents",
        f"{data_file('stories.jsonl').stat().st_size:,} bytes",
        f"{words:,} words",
        f"{nats / len(stories.documents):.1f} nats per document",
        f"({min(stories.neg_log_p):.1f} to {max(stories.neg_log_p):.1f})",
        f"{nats / words:.3f} nats per word",
    ]
    assert [figure for figure in figures if figure not in sheet] == []


def runs_of(tokens: Sequence) -> Iterator[list[tuple]]:
    """For each token, and the end: it alone, with the one before, and with the two before."""
    padded = [None, None, *tokens, "end"]
    return ([tuple(padded[at - order : at + 1]) for order in range(3)] for at in range(2, len(padded)))


def trigram_loss(train: list[Sequence], held_out: list[Sequence], discount: float = 0.5) -> float:
    """Nats per token of an interpolated trigram with absolute discounting, the end of each document included."""
    seen = Counter(run for tokens in train for runs in runs_of(tokens) for run in runs)
    after, kinds = Counter(), Counter()  # for each context: how many tokens followed it, and how many different ones
    for run, count in seen.items():
        after[run[:-1]] += count
        kinds[run[:-1]] += 1
    costs = []
    for tokens in held_out:
        for runs in runs_of(tokens):
            p = 1 / (kinds[()] + 1)
            for run in runs:
                if total := after[run[:-1]]:
                    p = (max(seen[run] - discount, 0) + discount * kinds[run[:-1]] * p) / total
            costs.append(-math.log(p))
    return sum(costs) / len(costs)


@pytest.mark.parametrize("vocab_size", [None, 512, 1500], ids=str)
def test_a_trigram_of_words_or_tokens_stays_about_one_nat_above_the_floor(
    vocab_size: int | None, stories: Corpus
) -> None:
    train, held_out = stories.split()
    tokenizer = None if vocab_size is None else train_tokenizer(train.documents, vocab_size)

    def tokens_of(text: str) -> Sequence:
        return re.findall(r"\w+|[^\w\s]", text) if tokenizer is None else tokenizer.encode(text).ids

    known, new = (list(map(tokens_of, part.documents)) for part in (train, held_out))
    floor = sum(held_out.neg_log_p or ()) / sum(len(tokens) + 1 for tokens in new)
    assert 0.85 < trigram_loss(known, new) - floor < 1.15  # data/README.md: 0.9 to 1.1
