"""Claims about the shipped Hindi: the counter, which reads text alone, finds what the grammar knew it was writing."""

from functools import cache

import pytest
import torch

from course_lm.corpus import Corpus, load_corpus
from course_lm.curriculum import MorphologicalComplexityCurriculum, MorphologyCounts, count_morphology

GRADED = ["मैं घर जाता हूँ", "वह स्कूल में पढ़ता है", "लड़के ने किताब को पढ़ा था"]


@cache
def corpus_and_counts() -> tuple[Corpus, list[MorphologyCounts]]:
    corpus = load_corpus("hindi")
    return corpus, [count_morphology(text) for text in corpus.documents]


@pytest.mark.parametrize("count", MorphologyCounts._fields)
def test_each_count_matches_gold_in_99_of_100_sentences(count):
    corpus, counts = corpus_and_counts()
    assert corpus.gold is not None
    wrong = [
        text
        for text, gold, found in zip(corpus.documents, corpus.gold, counts, strict=True)
        if gold[count] != getattr(found, count)
    ]
    assert len(wrong) <= 0.01 * len(corpus.documents), wrong[:5]


@pytest.mark.parametrize("count", MorphologyCounts._fields)
def test_each_count_varies_in_the_corpus(count):
    _, counts = corpus_and_counts()
    assert len({getattr(found, count) for found in counts}) >= 2
    assert sum(getattr(found, count) > 0 for found in counts) > 300


def test_difficulty_uses_the_whole_scale_and_rises_with_the_grades():
    corpus, _ = corpus_and_counts()
    scores = torch.tensor(MorphologicalComplexityCurriculum().compute_difficulty(corpus.documents))
    low, middle, high = scores.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    assert low < 0.35 and 0.5 < middle < 0.75 and high > 0.8
    graded = MorphologicalComplexityCurriculum().compute_difficulty(GRADED)
    assert [abs(score - place) <= 0.15 for score, place in zip(graded, (0.2, 0.5, 0.8))] == [True] * 3
