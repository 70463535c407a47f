"""The explorer of ranks: its bars and words are those of the plan."""

import re

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from course_lm.classroom.widgets.ranks import GIB, RANKS, SIZES, STRATEGIES, draw_ranks, rank_plan

pytestmark = pytest.mark.usefixtures("course_figures")

# Millions of parameters, with an output matrix that is the token embedding.
PUBLISHED = {
    "GPT-2 small": 124.4,
    "GPT-2 medium": 354.8,
    "GPT-2 large": 774.0,
    "GPT-2 XL": 1557.6,
    "GPT-3 6.7B": 6654.2,
}

with_each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def tops(axes):
    """The upper edge of the highest bar for each number of ranks, in bytes."""
    last = [patch for patch in axes.patches if isinstance(patch, StepPatch)][-1]
    return np.asarray(last.get_data()[0]) * GIB


def test_the_sizes_are_those_of_the_published_models():
    sizes = {model: round(rank_plan(model, 1, "ddp").parameters / 1e6, 1) for model in SIZES}
    assert sizes == PUBLISHED


@with_each_strategy
def test_the_bars_are_as_high_as_what_the_plan_holds_and_sends(strategy):
    left, right = draw_ranks("GPT-2 medium", 16, strategy)[0].axes
    plans = [rank_plan("GPT-2 medium", ranks, strategy) for ranks in RANKS]
    assert tops(left) == pytest.approx([one.held for one in plans])
    assert tops(right) == pytest.approx([one.sent for one in plans])


@with_each_strategy
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_words_hold_the_bytes_of_the_chosen_plan(strategy, checkpointing):
    held, sent = draw_ranks(ranks=8, strategy=strategy, checkpointing=checkpointing)[1].splitlines()[1:3]
    total, *parts = (float(number) for number in re.findall(r"\d+\.\d+", held))
    plan = rank_plan("GPT-2 XL", 8, strategy, checkpointing)
    assert total == pytest.approx(sum(parts), abs=0.03) and total == pytest.approx(plan.held / GIB, abs=0.01)
    owned = [plan.weights, plan.gradients, plan.moments, plan.activations]
    assert parts[:4] == pytest.approx([size / GIB for size in owned], abs=0.01)
    total, *parts = (float(number) for number in re.findall(r"\d+\.\d+", sent))
    assert total == pytest.approx(sum(parts), abs=0.03) and total == pytest.approx(plan.sent / GIB, abs=0.01)


def test_the_number_of_ranks_that_is_enough_fits_and_half_of_it_does_not():
    enough = int(re.findall(r"24 GiB are enough with (\d+) ranks or more", draw_ranks(strategy="fsdp")[1])[0])
    within, beyond = (rank_plan("GPT-2 XL", ranks, "fsdp").held for ranks in (enough, enough // 2))
    assert within <= 24 * GIB < beyond


def test_what_fits_anywhere_or_nowhere_is_said_so():
    assert "24 GiB are enough with any number of ranks" in draw_ranks("GPT-2 small", strategy="ddp")[1]
    assert "80 GiB are never enough here" in draw_ranks("GPT-3 6.7B", strategy="ddp")[1]


def test_the_axes_stay_while_strategy_and_checkpointing_change():
    limits = set()
    for strategy in STRATEGIES:
        for checkpointing in (False, True):
            figure, _ = draw_ranks("GPT-2 XL", 4, strategy, checkpointing)
            limits.add(tuple(axes.get_ylim() for axes in figure.axes))
            assert all(tops(axes).max() <= axes.get_ylim()[1] * GIB for axes in figure.axes)
    assert len(limits) == 1


@pytest.mark.parametrize("model", SIZES)
def test_a_limit_of_memory_is_in_the_picture_of_every_model(model):
    left = draw_ranks(model)[0].axes[0]
    named = [text.get_text() for text in left.texts if text.get_text().endswith("GiB")]
    assert named[0] == "24 GiB" and len(named) == sum(left.get_ylim()[1] > limit for limit in (24, 80))
