"""The curve atlas: what it holds, that each illness shows, and the picture of a run over it."""

import json
import math

import numpy as np
import pytest

from course_lm.classroom import plots
from course_lm.classroom.atlas import load_atlas
from course_lm.corpus.shipped import data_file
from course_lm.monitoring import History

pytestmark = pytest.mark.usefixtures("course_figures")

ATLAS = load_atlas()


def history_of(name):
    """The first run of that name, as the records that a trainer would have kept."""
    run = ATLAS.runs[name][0]
    events = (("train", "loss"), ("validation", "val_loss"))
    return History(
        {"event": event, "step": step, key: value}
        for event, key in events
        for step, value in zip(ATLAS.steps(key, run), run[key], strict=True)
    )


def test_the_atlas_holds_240_steps_of_a_healthy_run_and_six_illnesses_with_five_seeds_each():
    assert next(iter(ATLAS.runs)) == "healthy" and len(ATLAS.runs) == 7
    for name, runs in ATLAS.runs.items():
        assert [run["seed"] for run in runs] == [1, 2, 3, 4, 5], name
        for run in runs:
            for curve in ("loss", "grad_norm", "update_ratio", "val_loss"):
                assert ATLAS.steps(curve, run)[-1] == 240 and np.isfinite(run[curve]).all(), (name, curve)


def test_a_band_reaches_from_the_lowest_to_the_highest_seed():
    for name, runs in ATLAS.runs.items():
        steps, lowest, highest = ATLAS.band(name, "val_loss")
        values = np.array([run["val_loss"] for run in runs])
        assert steps == ATLAS.steps("val_loss", runs[0])
        assert (lowest, highest) == (values.min(0).tolist(), values.max(0).tolist())


def test_the_data_are_stored_compactly():
    path = data_file("curve_atlas.json")
    assert path.stat().st_size < 60_000
    numbers = [value for runs in json.loads(path.read_text())["runs"].values() for value in runs[0]["loss"]]
    assert all(float(f"{value:.4g}") == value for value in numbers)


@pytest.mark.parametrize("seed", range(5))
def test_each_illness_shows_its_sign_with_every_seed(seed):
    runs = {name: runs[seed] for name, runs in ATLAS.runs.items()}
    healthy = runs["healthy"]["val_loss"][-1]
    assert ATLAS.floor < healthy < ATLAS.floor + 1.2
    assert runs["learning rate too high"]["loss"][-1] > healthy + 2
    assert runs["learning rate too low"]["loss"][-1] > healthy + 2
    assert runs["no shift"]["loss"][-1] < 0.01 and runs["no shift"]["val_loss"][-1] > math.log(1024)
    assert max(runs["leak into validation"]["val_loss"][-1], runs["over-fitting"]["loss"][-1]) < ATLAS.floor
    assert min(runs["dead from clipping"]["loss"]) > 6.8 and min(runs["dead from clipping"]["grad_norm"]) > 0.5
    over_fitting = runs["over-fitting"]["val_loss"]
    assert over_fitting[-1] > min(over_fitting) + 0.3


@pytest.mark.parametrize("seed", range(5))
def test_a_rate_shows_in_the_first_updates_and_one_that_is_too_high_not_in_later_ones(seed):
    ratios = {name: runs[seed]["update_ratio"] for name, runs in ATLAS.runs.items()}
    healthy, high, low = (ratios[name] for name in ("healthy", "learning rate too high", "learning rate too low"))
    assert high[0] > 5 * healthy[0] and low[0] < healthy[0] / 20
    assert high[11] < healthy[11], "by step 60 its weights have grown"
    assert max(ratios["dead from clipping"]) < 1e-4


def test_the_picture_has_a_panel_for_each_kind_and_the_run_in_every_one():
    *panels, key = plots.compare_with_atlas(history_of("over-fitting")).axes
    assert [axes.get_title("left") for axes in panels] == list(ATLAS.runs)
    run = ATLAS.runs["over-fitting"][0]
    for axes in panels:
        losses = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
        assert list(run["loss"]) in losses and list(run["val_loss"]) in losses
    legend = key.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][-2:] == ["your loss", "your val_loss"]
