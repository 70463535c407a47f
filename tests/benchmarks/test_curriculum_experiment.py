"""Claims about the stored experiment: it is whole, and README says what it says."""

import json
from pathlib import Path

import pytest
from curriculum_experiment import ARMS, CORPORA, POINTS, RATES, SEEDS, configured, empty, missing, table, training_data

from course_lm.corpus import load_corpus
from course_lm.corpus.shipped import data_file
from course_lm.curriculum import CurriculumLoader

README = Path(__file__).resolve().parents[2] / "README.md"
RESULTS = json.loads(data_file("curriculum_experiment.json").read_text(encoding="utf-8"))


def test_every_run_is_there():
    assert not list(missing(RESULTS))
    for found in RESULTS["corpora"].values():
        assert list(found["losses"]) == list(found["rates"]) == list(ARMS)
        assert all([len(losses) for losses in runs] == [POINTS] * SEEDS for runs in found["losses"].values())


@pytest.mark.parametrize("corpus", CORPORA)
def test_it_was_measured_on_the_text_that_ships(corpus):
    fresh, stored = empty()["corpora"][corpus], RESULTS["corpora"][corpus]
    assert stored["floor"] == fresh["floor"]
    assert stored["tokens"] == fresh["tokens"]
    lowest = min(min(losses) for runs in stored["losses"].values() for losses in runs)
    assert stored["floor"] < lowest < 2 * stored["floor"] + 1


@pytest.mark.parametrize("corpus", CORPORA)
def test_no_arm_had_its_best_learning_rate_at_the_end_of_the_sweep(corpus):
    for rates in RESULTS["corpora"][corpus]["rates"].values():
        assert list(rates) == [str(rate) for rate in RATES]
        best = min(rates, key=rates.get)
        assert best not in (str(RATES[0]), str(RATES[-1]))


@pytest.mark.long
@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_is_what_its_name_says(arm):
    loader = training_data(configured("hindi", arm, RATES[0], seed=0))
    assert isinstance(loader, CurriculumLoader) == (arm != "no curriculum")
    if isinstance(loader, CurriculumLoader):
        sentences = len(load_corpus("hindi", split="train", seed=0).documents)
        strategy = {"random order": "random"}.get(arm, arm)
        assert loader.manager.config.strategy == strategy
        assert loader.describe_epoch()["examples"] == pytest.approx(0.2 * sentences, rel=0.02)


def test_readme_shows_the_table_of_these_results():
    assert table(RESULTS) in README.read_text(encoding="utf-8")
