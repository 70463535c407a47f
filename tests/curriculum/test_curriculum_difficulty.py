"""Claims about difficulty: scores lie in [0, 1], depend on the texts alone, and rise with what they measure."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lm.corpus import load_corpus
from course_lm.curriculum import (
    CombinedCurriculum,
    DynamicCurriculum,
    FrequencyBasedCurriculum,
    LengthBasedCurriculum,
    MorphologicalComplexityCurriculum,
    RandomCurriculum,
    create_curriculum_strategy,
)
from course_lm.curriculum.difficulty import STRATEGIES

GRADED = ["मैं घर जाता हूँ", "वह स्कूल में पढ़ता है", "लड़के ने किताब को पढ़ा था"]
word = st.sampled_from(["a", "cat", "the", "sat", "मैं", "ने", "घर", "है", "पढ़ा", "7", "—"])
text = st.lists(word, max_size=12).map(" ".join) | st.text(max_size=20)
texts = st.lists(text, max_size=12)


@pytest.mark.parametrize("name", STRATEGIES)
@given(examples=texts)
def test_every_score_lies_between_0_and_1(name, examples):
    scores = create_curriculum_strategy(name).compute_difficulty(examples)
    assert len(scores) == len(examples)
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("name", STRATEGIES)
@given(examples=texts, seed=st.integers())
def test_scores_do_not_depend_on_the_order_nor_on_what_was_scored_before(name, examples, seed):
    strategy = create_curriculum_strategy(name)
    scores = strategy.compute_difficulty(examples)
    order = random.Random(seed).sample(range(len(examples)), len(examples))
    assert strategy.compute_difficulty([examples[i] for i in order]) == [scores[i] for i in order]
    assert create_curriculum_strategy(name).compute_difficulty(examples) == scores


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_mapping_with_a_text_is_an_example_too(name):
    strategy = create_curriculum_strategy(name)
    assert strategy.compute_difficulty([{"text": t, "id": 3} for t in GRADED]) == strategy.compute_difficulty(GRADED)


@given(examples=texts)
def test_sorting_goes_from_easy_to_hard_and_keeps_the_order_of_equals(examples):
    numbered = [{"text": text, "number": number} for number, text in enumerate(examples)]
    ordered, scores = LengthBasedCurriculum().sort_by_difficulty(numbered)
    assert scores == sorted(scores)
    assert sorted(example["number"] for example in ordered) == list(range(len(examples)))
    pairs = [(score, example["number"]) for score, example in zip(scores, ordered)]
    assert pairs == sorted(pairs)


def test_length_is_a_line_between_its_bounds():
    texts = ["one", "one two", "one two, three.", "a b c d", "a b c d e f g"]
    assert LengthBasedCurriculum({"min_length": 2, "max_length": 4}).compute_difficulty(texts) == [0, 0, 0.5, 1, 1]
    assert LengthBasedCurriculum().compute_difficulty(texts) == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 1])


def test_rare_words_are_hard_and_unseen_ones_hardest():
    reference = ["the cat sat"] * 8 + ["the dog ran", "an old horse slept"]
    frequency = FrequencyBasedCurriculum({"reference": reference})
    common, rare, unseen = frequency.compute_difficulty(["The cat sat", "the horse slept", "zebras gallop"])
    assert common == 0
    assert common < rare < 1
    assert unseen == 1


def test_frequency_equals_a_count_by_hand():
    frequency = FrequencyBasedCurriculum({"reference": ["a a a", "a b"]})
    # a 4 times, b once; each once more, and one unseen word: 8 in all
    cost_a, cost_b = math.log(8 / 5), math.log(8 / 2)
    easiest, hardest = cost_a, (cost_a + cost_b) / 2
    expected = [0.0, ((3 * cost_a + cost_b) / 4 - easiest) / (hardest - easiest), 1.0, 0.0]
    assert frequency.compute_difficulty(["a", "a a a b", "b b", ""]) == pytest.approx(expected)


def test_frequency_can_count_in_a_corpus_by_name():
    stories = load_corpus("stories").documents
    by_name = FrequencyBasedCurriculum({"reference": "stories"}).compute_difficulty(stories[:20])
    assert by_name == FrequencyBasedCurriculum({"reference": stories}).compute_difficulty(stories[:20])


def test_only_the_proportions_of_weights_count():
    weights = {"case_weight": 0.3, "length_weight": 0.1, "verb_weight": 0.5, "compound_weight": 0.0}
    tenfold = {name: 10 * weight for name, weight in weights.items()}
    scores = MorphologicalComplexityCurriculum(weights).compute_difficulty(GRADED)
    assert MorphologicalComplexityCurriculum(tenfold).compute_difficulty(GRADED) == pytest.approx(scores)


def test_a_weight_of_zero_takes_its_count_out():
    no_cases = {"case_weight": 0.0, "length_weight": 1.0, "verb_weight": 0.0, "compound_weight": 0.0}
    scores = MorphologicalComplexityCurriculum(no_cases).compute_difficulty(GRADED)
    assert scores == pytest.approx([1 - math.exp(-words / 10) for words in (4, 5, 6)])


def test_combined_is_the_weighted_mean_of_its_parts():
    settings = {
        "morphological_weight": 2.0,
        "length_weight": 1.0,
        "frequency_weight": 1.0,
        "morphological": {"case_weight": 1.0},
        "length": {"max_length": 9},
        "frequency": {"reference": [*GRADED, "घर घर"]},
    }
    parts = [
        create_curriculum_strategy(name, settings[name]).compute_difficulty(GRADED)
        for name in ("morphological", "length", "frequency")
    ]
    expected = [(2 * m + length + f) / 4 for m, length, f in zip(*parts)]
    assert CombinedCurriculum(settings).compute_difficulty(GRADED) == pytest.approx(expected)


def test_dynamic_scores_like_its_base_and_follows_the_loss():
    dynamic = DynamicCurriculum(
        {"base_strategy": "length", "length": {"max_length": 9}, "adaptation_rate": 0.3, "max_threshold": 0.6}
    )
    assert dynamic.compute_difficulty(GRADED) == LengthBasedCurriculum({"max_length": 9}).compute_difficulty(GRADED)
    moves = [dynamic.update_difficulty_threshold(loss) for loss in (3.0, 2.5, 2.0, 4.0, 5.0)]
    assert moves == pytest.approx([0.2, 0.5, 0.6, 0.3, 0.2])


def test_random_scores_are_uniform_and_change_with_the_seed():
    texts = [f"text {number}" for number in range(4000)]
    scores = RandomCurriculum().compute_difficulty(texts)
    assert sum(scores) / len(scores) == pytest.approx(0.5, abs=0.02)  # four standard errors
    assert sum(score < 0.2 for score in scores) / len(scores) == pytest.approx(0.2, abs=0.025)
    assert RandomCurriculum({"seed": 1}).compute_difficulty(texts) != scores


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("words", {}, "strategy must be one of length, frequency, .*, got 'words'"),
        ("length", 7, "length: it must be keys and values, got 7"),
        ("length", {"min_length": 5, "max_length": 5}, r"length: max_length must be above min_length \(5\), or null"),
        ("frequency", {"reference": "storys"}, "unknown corpus 'storys': did you mean stories"),
        ("combined", {f"{n}_weight": 0 for n in ("morphological", "length", "frequency")}, "sum of the weights must"),
        ("morphological", {"case_weight": 1e308, "verb_weight": 1e308}, "sum of the weights must"),
        (
            "dynamic",
            {"min_threshold": 0.6, "max_threshold": 0.5},
            r"max_threshold must be in \[min_threshold \(0.6\), 1\]",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        create_curriculum_strategy(name, settings)


@pytest.mark.parametrize("example", [3, None, {"body": "x"}, {"text": 3}, b"bytes"])
def test_an_example_without_a_text_is_refused(example):
    with pytest.raises(ValueError, match="an example must be a string"):
        LengthBasedCurriculum().compute_difficulty([example])


@pytest.mark.parametrize("name", STRATEGIES)
def test_examples_may_come_from_an_iterator_and_are_not_the_characters_of_one_text(name):
    strategy, texts = create_curriculum_strategy(name), ["one", "one two three", "four five"]
    one_pass: Any = iter(texts)
    assert strategy.compute_difficulty(one_pass) == strategy.compute_difficulty(texts)
    with pytest.raises(ValueError, match="examples must be a list, got 'one two'"):
        strategy.compute_difficulty("one two")
