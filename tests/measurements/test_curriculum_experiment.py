"""Claims about the stored experiment: it is whole, was tuned and matched as it says, and its page shows its table."""

import json
from itertools import islice

import pytest
from curriculum_experiment import (
    ARMS,
    BASE,
    CORPORA,
    FILE,
    POINTS,
    SEEDS,
    describe,
    length,
    losses_of,
    missing,
    text,
    tokens_of,
    training_data,
    tuned,
)
from harness import load, without_end

from course_lm.batching import make_loader
from course_lm.curriculum import CurriculumLoader

RESULTS = load(FILE)


def test_every_run_is_there():
    assert not list(missing(RESULTS))
    for corpus, found in RESULTS["corpora"].items():
        assert list(found["losses"]) == list(found["tuning"]) == list(CORPORA[corpus])
        assert all([len(losses) for losses in runs] == [POINTS] * SEEDS for runs in found["losses"].values())


@pytest.mark.parametrize("corpus", CORPORA)
def test_it_was_measured_on_the_text_that_ships(corpus):
    fresh, stored = json.loads(json.dumps(describe(corpus))), RESULTS["corpora"][corpus]
    assert {key: stored[key] for key in fresh} == fresh
    lowest = min(min(losses) for runs in stored["losses"].values() for losses in runs)
    assert stored["floor"] < lowest < 2 * stored["floor"] + 1


@pytest.mark.parametrize("corpus", CORPORA)
def test_no_arm_had_its_best_learning_rate_at_the_end_of_the_sweep(corpus):
    for tuning in RESULTS["corpora"][corpus]["tuning"].values():
        best, rates = tuned(tuning), {float(pair.split()[0]) for pair in tuning}
        assert best is not None
        assert min(rates) < best[0] < max(rates)


def admitted_at_first(arm: str) -> list[str]:
    """The stories that the first epoch reads, of all."""
    loader, documents = training_data("stories", arm, seed=0), text("stories").train.documents
    assert isinstance(loader, CurriculumLoader)
    return [document for document, hard in zip(documents, loader.difficulty.tolist(), strict=True) if hard <= 0.2]


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != BASE])
def test_every_curriculum_admits_a_fifth_of_the_tokens_at_first(arm):
    of = tokens_of("stories")
    assert sum(of[story] for story in admitted_at_first(arm)) == pytest.approx(0.2 * sum(of.values()), rel=0.005)


def test_what_comes_first_is_what_the_arm_says():
    lengths = sorted(map(length, text("stories").train.documents))
    short, long = ([length(story) for story in admitted_at_first(f"{end} first")] for end in ("short", "long"))
    assert max(short) <= lengths[len(short)] and min(long) >= lengths[-len(long) - 1]


@pytest.mark.parametrize("corpus", CORPORA)
def test_without_a_curriculum_the_rows_are_those_of_the_loader(corpus):
    plain = training_data(corpus, BASE, seed=3)
    of = text(corpus)
    expected = make_loader(of.train.documents, of.tokenizer, mode="packed", batch_size=16, max_length=128, seed=3)
    for mine, theirs in islice(zip(without_end(plain), without_end(expected), strict=False), 3):
        assert mine["input_ids"].equal(theirs["input_ids"])


@pytest.mark.daily(0)
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_stored_run_repeats_to_an_eighth_of_its_tokens(corpus):
    """On other kernels too, so within what rounding does to so short a run."""
    found = RESULTS["corpora"][corpus]
    best = tuned(found["tuning"]["short first"])
    assert best is not None
    again = next(losses_of(corpus, "short first", *best, seed=0))
    assert again == pytest.approx(found["losses"]["short first"][0][0], abs=0.02)
