"""Claims about the stored runs of `python-docs`: they are whole, and the shipped configuration is what they found."""

import pytest
from bits_per_byte import ARMS, BASE, FILE, SEEDS, configured, measure, of_seeds, rate_of, rates_of, settings_of, table
from harness import ROOT, is_stored, load

from course_lm.config import TrainingConfig

PAGE = ROOT / "docs" / "measurements.md"
RESULTS = load(FILE)
SHIPPED = "Muon, rotary positions"


@pytest.mark.parametrize("part", ["sweep", "runs"])
def test_every_run_is_there_and_no_other(part):
    wanted = list(settings_of(RESULTS, ARMS, part))
    assert [settings for settings in wanted if not is_stored(RESULTS, part, settings)] == []
    assert len(RESULTS[part]) == len(wanted)


@pytest.mark.parametrize("arm", ARMS)
def test_no_arm_had_its_best_rate_at_the_end_of_its_grid(arm):
    assert rates_of(arm)[0] < rate_of(RESULTS, arm) < rates_of(arm)[-1]


def test_the_shipped_configuration_is_the_arm_that_no_seed_beats():
    shipped = TrainingConfig.from_yaml("python-docs")
    best = configured(SHIPPED, rate_of(RESULTS, SHIPPED), seed=0)
    assert (shipped.model, shipped.optimizer) == (best.model, best.optimizer)
    for arm in ARMS:
        assert all(of_seeds(RESULTS, SHIPPED)[seed] <= of_seeds(RESULTS, arm)[seed] for seed in SEEDS)


def test_the_page_of_measurements_shows_the_table():
    assert table(RESULTS) in PAGE.read_text(encoding="utf-8")


@pytest.mark.daily(0)
def test_a_run_repeats():
    settings = {"arm": BASE, "learning_rate": 2e-3, "seed": 0, "steps": 2}
    assert measure(settings) == measure(settings)
