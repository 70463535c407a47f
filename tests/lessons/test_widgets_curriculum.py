"""The pacing explorer: what it says an epoch admits is what the package's own loaders read."""

import re
from typing import Any

import pytest
import torch
import yaml
from matplotlib.patches import Rectangle
from torch.utils.data import TensorDataset

from course_lm.classroom import plots
from course_lm.classroom.widgets.curriculum import BATCH_SIZE, EXAMPLES, draw_pacing, sentence_difficulty
from course_lm.corpus import load_corpus
from course_lm.curriculum import CurriculumConfig, CurriculumTrainingManager

pytestmark = pytest.mark.usefixtures("course_figures")

SCHEDULES = ("linear", "root", "exponential", "step")


@pytest.fixture(scope="module")
def difficulty():
    return sentence_difficulty()


def admitted(words):
    """Epoch -> (threshold, examples), as the words say it."""
    found = re.findall(r"epoch +(\d+): threshold ([\d.]+) admits +(\d+) of", words)
    return {int(epoch): (float(threshold), int(count)) for epoch, threshold, count in found}


def lengths_read(schedule, **config):
    """How many sentences each epoch reads through the package's own loader."""
    examples = load_corpus("hindi").documents[:EXAMPLES]
    numbers = TensorDataset(torch.arange(len(examples)))
    manager = CurriculumTrainingManager("combined", schedule, config)
    epochs = range(config["num_epochs"] + 1)
    loaders = (manager.prepare_epoch(numbers, BATCH_SIZE, epoch, examples) for epoch in epochs)
    return [sum(len(batch) for (batch,) in loader) for loader in loaders]


@pytest.mark.parametrize("threshold_on", ["score", "quantile"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_words_hold_what_the_loader_reads(difficulty, schedule, threshold_on):
    config = {"start_threshold": 0.05, "warmup_epochs": 1, "num_epochs": 8, "threshold_on": threshold_on}
    words, lengths = draw_pacing(difficulty, schedule=schedule, **config)[1], lengths_read(schedule, **config)
    manager = CurriculumTrainingManager("combined", schedule, config)
    for epoch, (threshold, count) in admitted(words).items():
        assert threshold == pytest.approx(manager.threshold(epoch), abs=0.006)
        assert count == lengths[epoch]
    assert list(admitted(words)) == [0, 4, 8]
    assert f"from epoch {lengths.index(EXAMPLES)} on" in words
    share = sum(lengths) / (9 * EXAMPLES)
    assert f"epochs 0 to 8 read {sum(lengths):,} examples: {share:.0%} of the {9 * EXAMPLES:,}" in words


def test_the_bars_are_the_shares_that_the_loader_reads(difficulty):
    config = {"start_threshold": 0.2, "warmup_epochs": 2, "num_epochs": 10}
    figure, _ = draw_pacing(difficulty, schedule="root", **config)
    shares = [bar.get_height() for bar in figure.axes[1].patches if isinstance(bar, Rectangle)]
    assert shares == [pytest.approx(100 * length / EXAMPLES) for length in lengths_read("root", **config)]


def test_at_least_one_batch_is_admitted(difficulty):
    first, *_, last = draw_pacing(difficulty, start_threshold=0.0, batch_size=32)[1].splitlines()[1:4]
    assert admitted(first)[0] == (0.0, 32) and "0 of them by the threshold" in first
    assert "by the threshold" not in last


def test_the_configuration_in_the_words_can_be_copied(difficulty):
    settings: Any = {"schedule": "step", "start_threshold": 0.3, "num_epochs": 12, "threshold_on": "quantile"}
    words = draw_pacing(difficulty, **settings)[1]
    config = CurriculumConfig(**yaml.safe_load(words.splitlines()[0])["curriculum"])
    assert config == CurriculumConfig(enabled=True, warmup_epochs=2, **settings)


def test_a_warm_up_shows_even_where_it_moves_no_threshold(difficulty):
    without, short = (
        draw_pacing(difficulty, schedule="step", num_epochs=10, warmup_epochs=epochs) for epochs in (0, 1)
    )
    assert admitted(without[1]) == admitted(short[1]) and without[1] != short[1]
    assert plots.png(without[0]) != plots.png(short[0])
