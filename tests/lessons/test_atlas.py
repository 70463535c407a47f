"""The curve atlas: what it holds, that its runs are recognised by the others, and the picture that it gives."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import matplotlib.colors as colours
import numpy as np
import pytest

from course_lm.classroom import plots
from course_lm.classroom.atlas import HEALTHY, LEAST_REACH, SIGNS, Atlas, diagnose, load_atlas
from course_lm.corpus.shipped import data_file
from course_lm.monitoring import History

pytestmark = pytest.mark.usefixtures("course_figures")

ATLAS = load_atlas()
ILLNESSES = [name for name in ATLAS.runs if name != HEALTHY]
EACH_RUN = [(name, number) for name, runs in ATLAS.runs.items() for number in range(len(runs))]


def without(name, number):
    """The atlas as if it had never seen this run."""
    kept = [run for at, run in enumerate(ATLAS.runs[name]) if at != number]
    return replace(ATLAS, runs={**ATLAS.runs, name: kept})


def until(records, step):
    return [record for record in records if record["step"] <= step]


def tiny_atlas(**kinds):
    """Kinds of runs with a constant loss each: two seeds, ten steps a value, no spread."""
    runs = {name: [{"loss": [loss] * 4, "val_loss": [loss] * 4}] * 2 for name, loss in kinds.items()}
    return Atlas(0.5, 10, 10, {HEALTHY: [{"loss": [9.0] * 4, "val_loss": [9.0] * 4}] * 2, **runs})


def constant(loss, steps=40, every=10, val_loss=None):
    records = [{"event": "train", "step": step, "loss": loss} for step in range(every, steps + 1, every)]
    if val_loss is not None:
        records.append({"event": "validation", "step": steps, "val_loss": val_loss})
    return records


def test_the_atlas_holds_a_healthy_run_and_six_illnesses_with_five_seeds_each():
    assert list(ATLAS.runs) == list(SIGNS) and len(ILLNESSES) == 6
    seeds = {name: [run["seed"] for run in runs] for name, runs in ATLAS.runs.items()}
    assert all(each == [1, 2, 3, 4, 5] for each in seeds.values()), seeds


def test_every_curve_has_a_value_for_each_log_point_of_240_steps():
    for name, number in EACH_RUN:
        run = ATLAS.runs[name][number]
        for curve in ("loss", "grad_norm", "update_ratio", "val_loss"):
            assert ATLAS.steps(curve, run)[-1] == 240, (name, number, curve)
            assert np.isfinite(run[curve]).all()


def test_the_data_are_stored_compactly():
    path = data_file("curve_atlas.json")
    assert path.stat().st_size < 60_000
    numbers = [value for runs in json.loads(path.read_text())["runs"].values() for value in runs[0]["loss"]]
    assert all(float(f"{value:.4g}") == value for value in numbers)


@pytest.mark.parametrize(("name", "number"), EACH_RUN)
def test_each_run_is_recognised_by_an_atlas_that_has_not_seen_it(name, number):
    diagnosis = diagnose(ATLAS.records(name, number), without(name, number))
    assert diagnosis.name == name, diagnosis.message
    assert diagnosis.possible == (name,), diagnosis.message


@pytest.mark.parametrize(("name", "number"), EACH_RUN)
@pytest.mark.parametrize("every", [10, 20, 30])
def test_a_run_is_recognised_whatever_its_log_points(name, number, every):
    kept = [r for r in ATLAS.records(name, number) if r["event"] == "validation" and r["step"] % every == 0]
    losses = ATLAS.runs[name][number]["loss"]
    width = every // ATLAS.log_every
    train = [
        {"event": "train", "step": every * (at // width + 1), "loss": float(np.mean(losses[at : at + width]))}
        for at in range(0, len(losses), width)
    ]
    assert diagnose(train + kept, without(name, number)).name == name


def test_each_illness_shows_its_sign():
    runs = {name: runs[0] for name, runs in ATLAS.runs.items()}
    healthy = runs[HEALTHY]["val_loss"][-1]
    assert ATLAS.floor < healthy < ATLAS.floor + 1.2
    assert runs["learning rate too high"]["loss"][-1] > healthy + 2
    assert runs["learning rate too low"]["loss"][-1] > healthy + 2
    assert runs["no shift"]["loss"][-1] < 0.01 and runs["no shift"]["val_loss"][-1] > math.log(1024)
    assert max(runs["leak into validation"]["val_loss"][-1], runs["over-fitting"]["loss"][-1]) < ATLAS.floor
    assert min(runs["dead from clipping"]["loss"]) > 6.8 and min(runs["dead from clipping"]["grad_norm"]) > 0.5
    over_fitting = runs["over-fitting"]["val_loss"]
    assert over_fitting[-1] > min(over_fitting) + 0.3


def test_updates_are_larger_at_a_higher_rate_and_none_when_clipped_to_death():
    ratios = {name: np.median(runs[0]["update_ratio"]) for name, runs in ATLAS.runs.items()}
    assert ratios["learning rate too low"] < 0.2 * ratios[HEALTHY] < ratios["learning rate too high"]
    assert ratios["dead from clipping"] < 1e-4


@pytest.mark.parametrize("steps", [20, 30])
def test_a_healthy_run_is_never_called_ill_with_certainty_while_it_is_short(steps):
    for number in range(5):
        possible = diagnose(until(ATLAS.records(HEALTHY, number), steps), without(HEALTHY, number)).possible
        assert possible == () or HEALTHY in possible


def test_leak_and_over_fitting_are_told_apart_by_validation_alone():
    records = [r for r in ATLAS.records("over-fitting") if r["event"] == "train"]
    possible = diagnose(records).possible
    assert {"over-fitting", "leak into validation"} <= set(possible)


def test_a_run_far_from_everything_is_none_of_them():
    diagnosis = diagnose(constant(2.5, steps=240))
    assert diagnosis.name is None and diagnosis.message.startswith("none of them: over 240 steps the nearest is ")


def test_the_distance_is_the_mean_of_training_and_validation_in_nats():
    diagnosis = diagnose(constant(2.0, val_loss=1.0), tiny_atlas(three=3.0))
    assert diagnosis.distances == {"three": pytest.approx(1.5), HEALTHY: pytest.approx(7.5)}
    assert diagnose(constant(2.0), tiny_atlas(three=3.0)).distances["three"] == pytest.approx(1.0)


def test_within_reach_is_what_is_no_further_than_the_kind_is_wide():
    inside, outside = 3.0 + 0.9 * LEAST_REACH, 3.0 + 1.1 * LEAST_REACH
    assert diagnose(constant(inside), tiny_atlas(three=3.0)).name == "three"
    assert diagnose(constant(outside), tiny_atlas(three=3.0)).name is None
    wide = tiny_atlas(three=3.0)
    spread = [{"loss": [loss] * 4, "val_loss": [loss] * 4} for loss in (3.0, 3.5)]
    wide = replace(wide, runs={**wide.runs, "three": spread})
    assert diagnose(constant(2.1), wide).reaches["three"] == pytest.approx(1.5)
    assert diagnose(constant(2.1), wide).name == "three"


def test_a_message_names_all_that_is_possible():
    message = diagnose(constant(3.05), tiny_atlas(a=3.0, b=3.1)).message
    assert "too early to exclude" in message and "(0.05)" in message


def test_noise_of_single_steps_is_averaged_before_it_is_compared():
    noisy = [{"event": "train", "step": step, "loss": 3.0 + (-1) ** step} for step in range(1, 41)]
    assert diagnose(noisy, tiny_atlas(three=3.0)).distances["three"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_losses_that_are_not_finite_are_left_out(bad):
    records = constant(3.0, val_loss=3.0)
    records[1]["loss"] = bad
    records.append({"event": "validation", "step": 20, "val_loss": bad})
    assert diagnose(records, tiny_atlas(three=3.0)).distances["three"] == pytest.approx(0.0, abs=1e-12)


def test_steps_beyond_the_atlas_are_left_out():
    records = constant(3.0, steps=40) + [{"event": "train", "step": 50, "loss": 9.0}]
    assert diagnose(records, tiny_atlas(three=3.0)).distances["three"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("records", [[], [{"event": "train", "step": 5, "loss": math.nan}], constant(3.0, 900, 300)])
def test_nothing_to_compare_is_said(records):
    with pytest.raises(ValueError, match="no finite training loss in steps 1 to 240"):
        diagnose(records)


def test_records_of_other_events_are_no_matter():
    records = ATLAS.records(HEALTHY) + [{"event": "layers", "step": 5, "wte.weight/grad_norm": 1.0}]
    assert diagnose(History(records)).name == HEALTHY


def test_a_few_steps_are_enough_for_a_diagnosis_of_some_kind():
    records = [{"event": "train", "step": step, "loss": 6.9} for step in (1, 2, 3)]
    assert "learning rate too low" in diagnose(records).possible


def test_a_band_holds_every_seed():
    for name, runs in ATLAS.runs.items():
        for curve in ("loss", "val_loss"):
            steps, lowest, highest = ATLAS.band(name, curve)
            assert all(one < other for one, other in pairwise(steps))
            for run in runs:
                assert all(low <= value <= high for low, value, high in zip(lowest, run[curve], highest, strict=True))


def test_the_picture_has_a_panel_for_each_kind_and_shades_what_is_possible():
    figure, words = plots.compare_with_atlas(History(ATLAS.records("over-fitting")))
    *panels, key = figure.axes
    assert [axes.get_title("left") for axes in panels] == list(ATLAS.runs)
    shaded = [axes.get_title("left") for axes in panels if axes.get_facecolor() == colours.to_rgba(plots.CHOSEN)]
    assert shaded == ["over-fitting"] and words.startswith("over-fitting: over 240 steps")
    legend = key.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][-2:] == ["your loss", "your val_loss"]


def test_the_run_is_drawn_into_every_panel():
    figure, _ = plots.compare_with_atlas(ATLAS.records(HEALTHY))
    for axes in figure.axes[:-1]:
        losses = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
        assert list(ATLAS.runs[HEALTHY][0]["loss"]) in losses and list(ATLAS.runs[HEALTHY][0]["val_loss"]) in losses
