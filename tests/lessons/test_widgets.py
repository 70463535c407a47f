"""Explorers: the picture and the words follow the controls, and show what the package computes."""

import math
from itertools import pairwise

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import yaml
from matplotlib.colors import to_hex

from course_lm import schedules
from course_lm.batching import MODES, make_loader, padding_share
from course_lm.classroom import plots, widgets
from course_lm.loss import count_targets
from course_lm.lr_finder import LRFinderResult, suggest
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.tokenizer import train_tokenizer

pytestmark = pytest.mark.usefixtures("course_figures")

DOCUMENTS = ["the cat sat on the mat " * (1 + number * number % 23) for number in range(60)]
TOKENIZER = train_tokenizer(DOCUMENTS, 270)

modes = pytest.mark.parametrize("mode", MODES)


def loader_of(mode, batch_size=4, max_length=64):
    return make_loader(DOCUMENTS, TOKENIZER, mode=mode, batch_size=batch_size, max_length=max_length)


def painted(batch):
    axes = plt.subplots()[1]
    widgets.paint_batch(axes, batch)
    return axes.images[0]


def values_of(batch):
    return np.asarray(painted(batch).get_array()).tolist()


def test_an_explorer_draws_at_once_and_after_each_change():
    drawn = []

    def draw(temperature):
        drawn.append(temperature)
        return plt.subplots()[0], f"<{temperature}>"

    slider = ipywidgets.FloatSlider(value=1.0, max=2.0)
    _, picture, words = widgets.explorer(draw, {"temperature": slider}).children
    first = picture.value
    slider.value = 2.0
    assert drawn == [1.0, 2.0]
    assert words.value == "<pre aria-live='polite'>&lt;2.0&gt;</pre>"
    assert bytes(first).startswith(b"\x89PNG") and plt.get_fignums() == []


def test_padding_and_each_document_of_a_row_have_colours_of_their_own():
    documents = torch.tensor([[0, 0, 1, 2, -1]])
    image = painted({"attention_mask": (documents >= 0).long(), "document_ids": documents})
    assert np.asarray(image.get_array()).tolist() == [[0, 0, 1, 2, -1]]
    pad, *colours = (to_hex(colour).upper() for colour in image.to_rgba(np.array([-1, 0, 1, 2])))
    assert pad == plots.BAND
    assert len({pad, *colours}) == 4


def test_a_row_that_holds_more_documents_than_there_are_colours_begins_again():
    documents = torch.arange(12)[None]
    (values,) = values_of({"attention_mask": torch.ones(1, 12), "document_ids": documents})
    assert all(one != other for one, other in pairwise(values)) and min(values) == 0


def test_the_real_tokens_of_an_unpacked_row_have_one_colour():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert values_of({"attention_mask": mask}) == [[0, 0, -1], [0, 0, 0]]


@modes
def test_the_words_below_a_batch_count_its_positions_targets_and_padding(mode):
    loader = loader_of(mode)
    batch = next(iter(loader))
    words = widgets.draw_batch(loader, mode)[1]
    mask = batch["attention_mask"]
    of_step, of_epoch = words.splitlines()[1:]
    assert f"{mask.numel():,} positions" in of_step
    assert f"{int(count_targets(batch['labels'])):,} target tokens" in of_step
    assert f"padding {1 - mask.double().mean():.1%}" in of_step
    assert f"{len(loader)} steps" in of_epoch and f"padding {padding_share(loader):.1%}" in of_epoch


@pytest.mark.long
@modes
def test_the_batching_explorer_shows_the_batches_of_make_loader(mode):
    choice, rows, length, _, words = widgets.batching_explorer(DOCUMENTS, TOKENIZER).children
    choice.value, rows.value, length.value = mode, 5, 128
    expected = widgets.draw_batch(loader_of(mode, 5, 128), mode)[1]
    assert words.value == f"<pre aria-live='polite'>{expected}</pre>"


def test_every_control_of_the_batching_explorer_changes_picture_and_words():
    *controls, picture, words = widgets.batching_explorer(DOCUMENTS, TOKENIZER).children
    for control, value in zip(controls, ("dynamic", 7, 64), strict=True):
        before = picture.value, words.value
        control.value = value
        assert picture.value != before[0] and words.value != before[1]


def test_a_redraw_does_not_encode_the_documents_again(monkeypatch):
    mode, rows, length, _, words = widgets.batching_explorer(DOCUMENTS, TOKENIZER).children
    before = words.value
    monkeypatch.setattr("course_lm.classroom.widgets.batches.encode_pieces", None)
    mode.value, rows.value, length.value = "packed", 3, 512
    assert words.value != before


def test_a_colder_next_token_is_more_certain():
    logits = torch.tensor([2.0, 1.0, 0.0])
    cold, warm = (widgets.draw_next_token(logits, ["a", "b", "c"], t)[1] for t in (0.5, 2.0))
    assert cold == "temperature 0.50: entropy 0.44 nats, first choice 'a' 86.7%"
    assert warm == "temperature 2.00: entropy 1.02 nats, first choice 'a' 50.6%"


def written(kind, **numbers):
    """The YAML and the Python that the schedule explorer offers."""
    _, text = widgets.draw_schedules([kind], **numbers)
    _, optimizer, scheduler, python = (line.strip() for line in text.splitlines())
    return yaml.safe_load(optimizer) | yaml.safe_load(scheduler), python


@pytest.mark.parametrize("kind", schedules.SCHEDULES)
def test_the_yaml_and_the_python_to_copy_give_the_drawn_schedule(kind):
    numbers = {"total_steps": 60, "warmup_steps": 7, "peak_lr": 0.02, "min_lr": 0.004}
    config, python = written(kind, num_cycles=1.5, **numbers)
    figure, _ = widgets.draw_schedules([kind], num_cycles=1.5, **numbers)
    curve = figure.axes[0].lines[0]
    by_config = build_schedule(
        ScheduleConfig(**config["lr_scheduler"]), peak_lr=config["optimizer"]["learning_rate"], total_steps=60
    )
    by_python = [eval(python, {"schedules": schedules, "step": step}) for step in range(60)]
    assert np.asarray(curve.get_ydata()).tolist() == pytest.approx([by_config(step) for step in range(60)])
    assert by_python == pytest.approx([by_config(step) for step in range(60)])


def test_the_area_under_a_schedule_is_the_sum_of_its_rates():
    _, text = widgets.draw_schedules(["constant"], total_steps=10, warmup_steps=0, peak_lr=0.5)
    assert text.splitlines()[0] == "constant: area 5, which is 10 steps at the peak"


def test_numbers_that_do_not_fit_the_run_are_cut_to_it():
    config, _ = written("linear", total_steps=50, warmup_steps=400, peak_lr=0.1, min_lr=0.5)
    assert config["lr_scheduler"] == {"type": "linear", "warmup_steps": 50, "min_lr": 0.1}


def test_schedules_are_overlaid_and_taken_away_in_the_explorer():
    box = widgets.schedule_explorer()
    words = box.children[-1]
    boxes = {control.description: control for control in box.children if isinstance(control, ipywidgets.Checkbox)}
    for name, control in boxes.items():
        control.value = name == "constant"
    assert "constant: area" in words.value and "cosine" not in words.value
    boxes["constant"].value = False
    assert "choose a schedule" in words.value


@pytest.mark.long
def test_every_control_of_the_schedule_explorer_changes_words_or_picture():
    box = widgets.schedule_explorer()
    *controls, picture, words = box.children
    for control in controls:
        before = picture.value, words.value
        control.value = not control.value if isinstance(control, ipywidgets.Checkbox) else control.value * 0.5 + 0.2
        if control.description != "cycles":
            assert (picture.value, words.value) != before, control.description


# The finder explorer

RATES = np.geomspace(1e-6, 1.0, 100).tolist()


def sweep(noise=0.05):
    fallen = 1 / (1 + np.exp(-(np.log10(RATES) + 3) / 0.3))
    rise = np.maximum(0, np.arange(100) - 80) * 0.2
    losses = 7 - 3 * fallen + rise + noise * np.random.default_rng(0).normal(size=100)
    return LRFinderResult(RATES, losses.tolist(), "diverged")


def test_without_settings_the_words_are_the_results_own_reading():
    result = sweep()
    read, numbers, message = widgets.draw_lr_reading(result)[1].splitlines()
    assert read == "points 1 to 100 of 100, smoothing 0.70, without 5 at the start and 5 at the end"
    assert result.suggestion and result.range
    low, high = result.range
    assert numbers == f"suggestion {result.suggestion:.2e}, range {low:.2e} to {high:.2e}"
    assert message == result.message


def test_the_words_are_what_suggest_says_of_the_chosen_points():
    result = sweep()
    settings = {"smoothing": 0.9, "skip_start": 2, "skip_end": 3}
    words = widgets.draw_lr_reading(result, points=(11, 90), **settings)[1]
    reading = suggest(result.lrs[10:90], result.losses[10:90], **settings)
    assert f"suggestion {reading.lr:.2e}," in words and words.endswith(reading.message)
    assert "stopped" not in words, "the end of the sweep was left out"


def test_the_points_left_out_are_drawn_as_rings_and_the_axis_stays():
    result = sweep()
    limits = set()
    for first, last in ((1, 100), (21, 60), (100, 100)):
        axes = widgets.draw_lr_reading(result, points=(first, last))[0].axes[0]
        limits.add(axes.get_xlim())
        dots, rings = (
            np.asarray(points.get_offsets())[:, 0] for points in axes.collections[:: len(axes.collections) - 1]
        )
        assert dots.tolist() == RATES[first - 1 : last]
        assert rings.tolist() == RATES[: first - 1] + RATES[last:]
    assert len(limits) == 1


def test_dotted_lines_stand_at_the_first_and_the_last_point_that_is_read():
    axes = widgets.draw_lr_reading(sweep(), skip_start=4, skip_end=9, points=(11, 90))[0].axes[0]
    places = sorted(float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_linestyle() == ":")
    assert places == [RATES[14], RATES[80]]


def test_no_dotted_line_crosses_the_label_of_the_points_that_lie_higher():
    result = sweep()
    losses = [*result.losses[:50], 20.0, *result.losses[51:]]
    figure, _ = widgets.draw_lr_reading(LRFinderResult(RATES, losses))
    axes = figure.axes[0]
    (label,) = (text for text in axes.texts if "lie higher" in text.get_text())
    figure.draw_without_rendering()
    box = label.get_window_extent()
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted and not any(box.overlaps(line.get_window_extent()) for line in dotted)


def test_where_no_slope_is_usable_the_words_say_so():
    flat = LRFinderResult(RATES, [6.0 + 0.01 * math.sin(9 * step) for step in range(100)])
    words = widgets.draw_lr_reading(flat)[1]
    assert "suggestion none, range none" in words and "no usable slope" in words


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_sweep_of_few_points_can_be_explored(count):
    result = LRFinderResult(RATES[:count], [6.0] * count, "not finite")
    assert "no usable slope" in widgets.lr_finder_explorer(result).children[-1].value


@pytest.mark.long
def test_every_control_of_the_finder_explorer_changes_picture_and_words():
    *controls, picture, words = widgets.lr_finder_explorer(sweep(noise=0.3)).children
    for control in controls:
        before = picture.value, words.value
        control.value = (20, 70) if control.description == "points" else control.value * 0.5
        assert picture.value != before[0], control.description
        assert words.value != before[1], control.description
