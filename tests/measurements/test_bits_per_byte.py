"""Claims about the stored runs of `python-docs`: the shipped configuration is what they found, and a run repeats."""

import pytest
from bits_per_byte import ARMS, BASE, FILE, SEEDS, configured, measure, of_seeds, rate_of
from harness import load

from course_lm.config import TrainingConfig

RESULTS = load(FILE)
SHIPPED = "Muon, rotary positions"


def test_the_shipped_configuration_is_the_arm_that_no_seed_beats():
    shipped = TrainingConfig.from_yaml("python-docs")
    best = configured(SHIPPED, rate_of(RESULTS, SHIPPED), seed=0)
    assert (shipped.model, shipped.optimizer) == (best.model, best.optimizer)
    for arm in ARMS:
        assert all(of_seeds(RESULTS, SHIPPED)[seed] <= of_seeds(RESULTS, arm)[seed] for seed in SEEDS)


@pytest.mark.daily(0)
def test_a_run_repeats():
    settings = {"arm": BASE, "learning_rate": 2e-3, "seed": 0, "steps": 2}
    assert measure(settings) == measure(settings)
