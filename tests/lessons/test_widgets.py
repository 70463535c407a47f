"""Explorers: the picture and the words follow the controls, and show what the package computes."""

import json
import math
import random
import re
import zlib
from base64 import b64decode
from dataclasses import replace
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from course_lm import schedules
from course_lm.batching import MODES, make_loader, padding_share
from course_lm.classroom import plots, widgets
from course_lm.classroom.widgets.batches import draw_batch
from course_lm.classroom.widgets.explorer import MOST_STORED
from course_lm.classroom.widgets.lr_finder import draw_lr_reading
from course_lm.classroom.widgets.next_token import draw_next_token
from course_lm.classroom.widgets.scene import scene
from course_lm.classroom.widgets.schedule import NANOGPT, draw_schedules, run_rates
from course_lm.config import TrainingConfig
from course_lm.loss import count_targets
from course_lm.lr_finder import LRFinderResult, suggest
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from tests.lessons.test_widgets_accumulation import make_batch, make_model
from tests.lessons.test_widgets_tokens import TEXTS
from tests.sets import SET
from tests.small_run import small_batches, small_trainer

pytestmark = pytest.mark.usefixtures("course_figures")

DOCUMENTS = ["the cat sat on the mat " * (1 + number * number % 23) for number in range(60)]
TOKENIZER = train_tokenizer(DOCUMENTS, 270)

modes = pytest.mark.parametrize("mode", MODES)


def loader_of(mode, batch_size=4, max_length=64):
    return make_loader(DOCUMENTS, TOKENIZER, mode=mode, batch_size=batch_size, max_length=max_length)


def painted(batch):
    """The image of a batch, and the number of the colour at each position."""
    axes = plt.subplots()[1]
    widgets.paint_batch(axes, batch)
    return axes.images[0], np.asarray(axes.images[0].get_array()).tolist()


RATES = np.geomspace(1e-6, 1.0, 100).tolist()


def sweep(noise=0.05):
    fallen = 1 / (1 + np.exp(-(np.log10(RATES) + 3) / 0.3))
    rise = np.maximum(0, np.arange(100) - 80) * 0.2
    losses = 7 - 3 * fallen + rise + noise * np.random.default_rng(0).normal(size=100)
    return LRFinderResult(RATES, losses.tolist(), "diverged")


def tokens():
    learned = {"one": train_tokenizer(TEXTS[:1], 260), "both": train_tokenizer(TEXTS, 268)}
    return widgets.token_explorer(dict(zip(("cat", "apple"), TEXTS)), list(learned), lambda name, _: learned[name])


# Each explorer, and to what its controls are moved, one after the other.
EXPLORERS = {
    "accumulation": (lambda: widgets.accumulation_explorer(make_model(), make_batch()), (1, 5, 7, "by length")),
    "batching": (lambda: widgets.batching_explorer(DOCUMENTS, TOKENIZER), ("dynamic", 7, 64)),
    "checkpoint": (widgets.checkpoint_explorer, (100.0, 10.0, 1.995, 30)),
    "clipping": (widgets.clipping_explorer, ("value", 1.0, 3.0, 25)),
    "lr_finder": (lambda: widgets.lr_finder_explorer(sweep(noise=0.3)), (0.34, 2, 2, 20, 70)),
    "memory": (widgets.memory_explorer, (24, 1024, 512, 8192, 32, "bf16")),
    "monitoring": (widgets.monitoring_explorer, (10, 0.5, 0.95, 0.5, 5)),
    "number_format": (widgets.number_format_explorer, (1e-6, 12)),
    "pacing": (widgets.pacing_explorer, ("step", "quantile", 0.8, 5, 24)),
    "ranks": (widgets.ranks_explorer, ("GPT-2 small", 8, "hybrid", True)),
    "step_memory": (widgets.step_memory_explorer, (2, 16, 32, "bf16", True)),
    "temperature": (lambda: widgets.temperature_explorer(torch.arange(10), list("abcdefghij")), (0.5,)),
    "token": (tokens, ("apple", "both", 258)),
}


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_control_changes_picture_and_words(name):
    make, values = EXPLORERS[name]
    box = make()
    for place, ((moved, control), value) in enumerate(zip(box.controls.items(), values, strict=True)):
        before, places = box.view(), box.places()
        places[place] = control.options.index(value)
        after = box.answer({"turn": 1, "places": places})
        assert after["scene"] != before["scene"], moved
        assert after["words"] != before["words"], moved


SETTINGS = 50 if SET == "nightly" else 5


@pytest.mark.parametrize("name", [*EXPLORERS, "schedule"])
def test_at_random_settings_what_is_drawn_stands_where_the_figures_numbers_are(name):
    box = widgets.schedule_explorer() if name == "schedule" else EXPLORERS[name][0]()
    draw, compared = random.Random(0), 0
    for _ in range(SETTINGS):
        box.values |= {key: draw.choice(one.options) for key, one in box.controls.items() if one.options}
        figure, _ = box.draw(**box.values)
        for axes, panel in zip(figure.axes, scene(figure)["panels"], strict=True):
            if panel["x"] and panel["y"]:
                compared += compare(axes, panel)
        plt.close(figure)
    draws_cells_and_letters = name in ("batching", "number_format", "token")
    assert compared >= SETTINGS or draws_cells_and_letters


def compare(axes, panel):
    """Hold each line and each bar of the axes against the marks of the panel; how many there were."""
    points = [np.array(mark["points"], float).reshape(-1, 2) for mark in panel["marks"] if mark.get("points")]
    paths = [re.findall(r"(-?[\d.]+) (-?[\d.]+)", mark["path"]) for mark in panel["marks"] if mark["kind"] == "fill"]
    boxes = [extent(np.array(path, float)) for path in paths if path]
    lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    for line in lines:
        expected = pixels(panel, line.get_xydata())
        expected = expected[np.isfinite(expected).all(1) & (abs(expected) < 5e4).all(1)]
        assert any(apart(expected, drawn) < 1 for drawn in points), line
    bars = [bar for bar in axes.patches if bar.get_data_transform() == axes.transData and bar is not axes.patch]
    for bar in bars:
        corners = bar.get_patch_transform().transform_path(bar.get_path()).vertices
        assert min(np.abs(extent(pixels(panel, corners)) - box).max() for box in boxes) < 1, bar
    return len(lines) + len(bars)


def pixels(panel, numbers):
    """Where explorer.js draws the numbers (N, 2): its `pixelOf`."""
    left, top, width, height = panel["box"]
    parts = []
    for axis, values in zip((panel["x"], panel["y"]), np.asarray(numbers, float).T, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high, at = (np.log(each) if axis["log"] else each for each in (*axis["limits"], values))
        parts.append((at - low) / (high - low))
    return np.stack([left + parts[0] * width, top + height - parts[1] * height], 1)


def extent(points):
    return np.array([*np.nanmin(points, 0), *np.nanmax(points, 0)])


def apart(expected, drawn):
    """How far the farthest of the expected points (N, 2) is from the line through the drawn ones, in pixels."""
    start, step = drawn[:-1], np.diff(drawn, axis=0)
    if not len(step) or not len(expected):
        return float(np.abs(expected - drawn[0]).max()) if len(expected) else 0.0
    sampled = expected[:: max(1, len(expected) // 100), None]
    with np.errstate(divide="ignore", invalid="ignore"):
        along = np.nan_to_num((((sampled - start) * step).sum(-1) / (step**2).sum(-1)).clip(0, 1))
    return float(np.nanmin(np.linalg.norm(sampled - start - along[..., None] * step, axis=-1), axis=1).max())


def boxed(options=("a", "b", "c"), value="a", stored=2):
    def draw(letter):
        figure, axes = plt.subplots()
        axes.text(0.5, 0.5, letter)
        return figure, f"<{letter}>\nmore"

    return widgets.explorer(draw, {"letter": widgets.slider("letter", value, options, stored=stored)})


def test_an_explorer_answers_with_the_view_of_the_asked_places():
    answer = boxed().answer({"turn": 7, "places": [2]})
    assert (answer["turn"], answer["words"], plt.get_fignums()) == (7, "<c>\nmore", [])
    assert [mark["text"] for mark in answer["scene"]["panels"][0]["marks"]] == ["c"]


def test_the_output_of_an_explorer_is_text_and_a_page_that_needs_no_kernel():
    bundle = boxed()._repr_mimebundle_()
    assert bundle["text/plain"] == "<a>\nmore" and "<pre>&lt;a&gt;\nmore</pre>" in bundle["text/html"]
    assert bundle == boxed()._repr_mimebundle_(), "the same at every run"
    told = json.loads(bundle["text/html"].partition("const told = ")[2].partition("\n")[0].replace("<\\/", "</"))
    assert told["controls"][0]["stored"] == [0, 2]
    views = json.loads(zlib.decompress(b64decode(told["stored"])))
    assert [view["words"][1] for view in views] == ["a", "c"] and views[0] == told["view"]


@pytest.mark.parametrize(("value", "stored", "places"), [("c", 3, [0, 2, 9]), ("j", 2, [0, 9]), ("e", 1, [4])])
def test_the_stored_places_are_spread_and_hold_the_first_value(value, stored, places):
    assert boxed("abcdefghij", value, stored).stored_places() == [places]


def test_the_stored_views_are_no_more_than_an_output_should_hold():
    for make, _ in EXPLORERS.values():
        assert math.prod(len(places) for places in make().stored_places()) <= MOST_STORED


def test_what_a_drawing_raises_is_told_in_its_words():
    box = widgets.explorer(lambda letter: 1 / 0, boxed().controls)  # pyrefly: ignore[bad-argument-type]
    assert box.answer({"turn": 1, "places": [0]})["words"] == "ZeroDivisionError: division by zero"


def test_a_value_that_is_no_option_is_refused():
    with pytest.raises(ValueError, match=r"letter: the value must be one of \['a', 'b', 'c'\], got 'd'"):
        boxed(value="d")


def test_padding_and_each_document_of_a_row_have_colours_of_their_own():
    documents = torch.tensor([[0, 0, 1, 2, -1]])
    image, values = painted({"attention_mask": (documents >= 0).long(), "document_ids": documents})
    assert values == [[0, 0, 1, 2, -1]]
    pad, *colours = (to_hex(colour).upper() for colour in image.to_rgba(np.array([-1, 0, 1, 2])))
    assert pad == plots.BAND
    assert len({pad, *colours}) == 4
    # More documents than colours: these begin again. Without documents the real tokens of a row have one colour.
    _, (values,) = painted({"attention_mask": torch.ones(1, 12), "document_ids": torch.arange(12)[None]})
    assert all(one != other for one, other in pairwise(values)) and min(values) == 0
    assert painted({"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])})[1] == [[0, 0, -1], [0, 0, 0]]


@modes
def test_the_words_below_a_batch_count_its_positions_targets_and_padding(mode):
    loader = loader_of(mode)
    batch = next(iter(loader))
    words = draw_batch(loader, mode)[1]
    mask = batch["attention_mask"]
    of_step, of_epoch = words.splitlines()[1:]
    assert f"{mask.numel():,} positions" in of_step
    assert f"{int(count_targets(batch['labels'])):,} target tokens" in of_step
    assert f"padding {1 - mask.double().mean():.1%}" in of_step
    assert f"{len(loader)} steps" in of_epoch and f"padding {padding_share(loader):.1%}" in of_epoch


@modes
def test_the_batching_explorer_shows_the_batches_of_make_loader(mode):
    box = widgets.batching_explorer(DOCUMENTS, TOKENIZER)
    words = box.view(mode=mode, batch_size=5, max_length=128)["words"]
    assert words == draw_batch(loader_of(mode, 5, 128), mode)[1]


def test_a_redraw_does_not_encode_the_documents_again(monkeypatch):
    box = widgets.batching_explorer(DOCUMENTS, TOKENIZER)
    monkeypatch.setattr("course_lm.classroom.widgets.batches.encode_pieces", None)
    assert box.view(mode="packed", batch_size=3, max_length=512)["words"] != box.view()["words"]


def test_a_colder_next_token_is_more_certain():
    logits = torch.tensor([2.0, 1.0, 0.0])
    cold, warm = (draw_next_token(logits, [" a", "b", "c"], t)[1] for t in (0.5, 2.0))
    assert cold == "temperature 0.50: entropy 0.44 nats, first choice '·a' 86.7%"
    assert warm == "temperature 2.00: entropy 1.02 nats, first choice '·a' 50.6%"


# The schedule explorer

# Minimum and warm-up are shares of the peak and of the run.
NUMBERS = {
    "total_steps": st.integers(1, 10**6),
    "peak_lr": st.floats(1e-9, 10.0),
    "min_lr": st.floats(0.0, 1.0),
    "warmup_steps": st.floats(0.0, 1.0),
    "num_cycles": st.floats(0.01, 20.0),
    "decay_ratio": st.floats(0.0, 1.0),
    "timescale": st.integers(1, 10**6),
    "gamma": st.floats(0.01, 1.0),
    "milestones": st.none() | st.lists(st.integers(1, 10**6), max_size=3),
}


def rates_of_yaml(text, folder):
    """The function that the package makes of a run's YAML, and the steps of the run."""
    (folder / "run.yaml").write_text(text)
    config = TrainingConfig.from_yaml(folder / "run.yaml")
    steps = config.training.max_steps
    assert steps is not None
    return build_schedule(config.lr_scheduler, peak_lr=config.optimizer.learning_rate, total_steps=steps), steps


@given(kind=st.sampled_from([*schedules.SCHEDULES]), numbers=st.fixed_dictionaries(NUMBERS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_yaml_to_copy_is_accepted_and_gives_exactly_the_drawn_rates(tmp_path, kind, numbers):
    warmup_steps, min_lr = int(numbers["warmup_steps"] * numbers["total_steps"]), numbers["min_lr"] * numbers["peak_lr"]
    curve = {"type": kind, **numbers, "warmup_steps": warmup_steps, "min_lr": min_lr}
    figure, text = draw_schedules({"A": curve})
    schedule, total_steps = rates_of_yaml(text, tmp_path)
    line = figure.axes[0].lines[0]
    steps, rates = (np.asarray(values).tolist() for values in (line.get_xdata(), line.get_ydata()))
    assert total_steps == numbers["total_steps"] and (steps[0], steps[-1]) == (0, total_steps - 1)
    assert rates == [schedule(step) for step in steps]


@pytest.mark.parametrize(
    ("wrong", "key"),
    [({"min_lr": 1e-3}, "min_lr"), ({"warmup_steps": 600_001}, "warmup_steps"), ({"total_steps": 0}, "max_steps")]
    + [({"peak_lr": 0.0}, "learning_rate"), ({"type": "step", "gamma": 2.0}, "gamma")],
)
def test_numbers_that_the_package_refuses_are_refused_in_words_and_nothing_is_drawn(wrong, key):
    figure, text = draw_schedules({"A": {**NANOGPT, **wrong}})
    assert re.match(rf"# A \w+ is refused: .*{key} must be ", text) and len(text.splitlines()) == 1
    assert len(figure.axes[0].lines) == 0


@pytest.mark.parametrize("kind", schedules.SCHEDULES)
def test_the_python_to_copy_gives_the_drawn_rates(kind):
    numbers = {"total_steps": 60, "warmup_steps": 7, "peak_lr": 0.02, "min_lr": 0.004, "milestones": [20, 40]}
    figure, text = draw_schedules({"A": {"type": kind, "num_cycles": 1.5, **numbers}})
    python = text.partition("# in Python: ")[2].replace("\n#  ", "")
    rates = [eval(python, {"schedules": schedules, "step": step}) for step in range(60)]
    assert np.asarray(figure.axes[0].lines[0].get_ydata()).tolist() == rates


def test_the_area_under_a_schedule_is_the_sum_of_its_rates():
    curve = {"type": "constant", "total_steps": 10, "warmup_steps": 0, "peak_lr": 0.5}
    heading = draw_schedules({"A": curve})[1].splitlines()[0]
    assert heading == "# A constant: area 5, as much as 10 steps at 0.5; last rate 0.5"
    schedule = build_schedule(ScheduleConfig("cosine", warmup_steps=2_000), peak_lr=6e-4, total_steps=50_003)
    curve = {"type": "cosine", "total_steps": 50_003, "warmup_steps": 2_000, "peak_lr": 6e-4}
    area = sum(schedule(step) for step in range(50_003))  # where not all steps are drawn
    assert f"area {area:.4g}," in draw_schedules({"A": curve})[1]


def moved(column="A", own=None, **values):
    """A schedule explorer whose curve has these values."""
    box = widgets.schedule_explorer(own)
    box.values |= {f"{column} {name}": value for name, value in values.items()}
    return box


def blocks_of(box):
    """What is below the picture, by curve."""
    blocks = re.split("^(?=# [ABCD] )", box.view()["words"], flags=re.MULTILINE)
    return {block[2]: block for block in blocks if block}


def test_what_a_curve_gives_to_copy_is_that_curve(tmp_path):
    copies = moved(peak_lr=5e-4).view()["copies"]
    schedule, total_steps = rates_of_yaml(copies["A as YAML"], tmp_path)
    assert total_steps == 600_000 and schedule(2_000) == 5e-4
    assert eval(copies["A as Python"], {"schedules": schedules, "step": 2_000}) == 5e-4
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=5e-4)
    scheduler = eval(copies["A as PyTorch"], {"torch": torch, "schedules": schedules, "optimizer": optimizer})
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(schedule(3))
    assert not any(name.startswith("A") for name in moved(warmup_steps=700_000).view()["copies"]), "it is refused"


def test_each_curve_of_the_explorer_has_numbers_of_its_own(tmp_path):
    box = moved("C", type="linear")
    box.values |= {"A warmup_steps": 8, "A total_steps": 80, "A min_lr": 0.0, "A peak_lr": 3e-3}
    rates = {name: rates_of_yaml(block, tmp_path) for name, block in blocks_of(box).items()}
    assert {name: steps for name, (_, steps) in rates.items()} == {"A": 80, "B": 600_000, "C": 600_000}
    assert (rates["A"][0](8), rates["A"][0](80), rates["C"][0](2_000)) == (3e-3, 0.0, 6e-4)


@pytest.mark.parametrize(
    ("kind", "own"),
    {
        "none": "",
        "constant": "total_steps warmup_steps peak_lr",
        "linear": "total_steps warmup_steps peak_lr min_lr",
        "cosine": "total_steps warmup_steps peak_lr min_lr num_cycles",
        "step": "total_steps warmup_steps peak_lr min_lr gamma drop_1 drop_2 drop_3",
        "inverse_sqrt": "total_steps warmup_steps peak_lr min_lr timescale",
        "warmup_stable_decay": "total_steps warmup_steps peak_lr min_lr decay_ratio",
        "mine": "total_steps",
    }.items(),
)
def test_a_curve_shows_the_controls_that_its_type_reads_and_each_changes_words_and_picture(kind, own):
    box = moved(type=kind, own={"mine": one_cycle})
    box.values["C type"] = "none"
    view = box.view()
    shown = [name[2:] for name in box.controls if name[0] == "A" and name not in view["hidden"]]
    assert shown == ["type", *own.split()]
    for name in shown[1:]:
        other = box.view(**{f"A {name}": box.values[f"A {name}"] * 0.5 if name in ("gamma", "min_lr") else 3})
        assert other["scene"] != view["scene"] and other["words"] != view["words"], name
        box.values[f"A {name}"] = box.controls[f"A {name}"].value


def test_a_function_of_ones_own_is_drawn_at_once_and_gives_nothing_to_copy_or_drag():
    view = widgets.schedule_explorer(own={"mine": one_cycle}).view()
    assert "# C mine: " in view["words"]
    assert not any(name.startswith("C") for name in [*view["copies"], *(each["name"] for each in view["handles"])])


def test_the_rates_that_a_run_recorded_are_a_curve_as_long_as_the_run(tmp_path):
    small = small_trainer(40, output_dir=str(tmp_path / "run"), logging_steps=1)
    warmed = replace(small.config, lr_scheduler=ScheduleConfig(type="linear", warmup_steps=7))
    Trainer(small.model, warmed).train(small_batches())
    schedule = build_schedule(warmed.lr_scheduler, peak_lr=3e-3, total_steps=40)
    box = widgets.schedule_explorer(own={"run": tmp_path / "run" / "my-lm"})
    assert box.curves()["C"]["total_steps"] == 40
    figure, words = draw_schedules({"C": box.curves()["C"]}, own={"run": run_rates(tmp_path / "run" / "my-lm")[0]})
    drawn = np.asarray(figure.axes[0].lines[0].get_ydata())
    assert drawn.tolist() == pytest.approx([schedule(step) for step in range(40)])
    assert "# C run: area" in words and "# C run: area" in box.view()["words"]


def test_a_folder_without_recorded_rates_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no metrics.jsonl with a learning rate"):
        widgets.schedule_explorer(own={"run": tmp_path})


def one_cycle(step):
    return 0.1 * max(0, min(step, 40 - step)) / 20


@pytest.mark.parametrize("wrong", [3e-4, lambda: 0.1, lambda step: -1.0, lambda step: float("nan"), lambda step: 1 / 0])
def test_a_function_that_gives_no_rate_is_refused_in_words(wrong):
    text = draw_schedules({"A": {"type": "mine", "total_steps": 40}}, own={"mine": wrong})[1]
    assert text.startswith("# A mine is refused: ") and len(text.splitlines()) == 1


def test_drops_of_the_explorer_are_the_milestones_and_a_drop_at_0_is_none():
    dropped = moved(type="step", drop_1=500_000, drop_2=0, drop_3=100_000)
    assert "milestones: [100000, 500000]" in blocks_of(dropped)["A"]
    assert "milestones:" not in blocks_of(moved(type="step", drop_1=0, drop_2=0, drop_3=0))["A"]


@pytest.mark.parametrize(
    ("handle", "to", "numbers"),
    [
        ("B peak", (5_000.4, 1e-3), {"warmup_steps": 5_000, "peak_lr": 1e-3}),
        ("B end", (300_000, 1e-5), {"total_steps": 300_000, "min_lr": 1e-5}),
        ("B decay", (450_000, 0.0), {"decay_ratio": 0.25}),
        ("B peak", (-9, -1.0), {"warmup_steps": 0, "peak_lr": 6e-5}),
        ("B end", (5, 1.0), {"total_steps": 2_000, "min_lr": 6e-4}),
    ],
)
def test_a_handle_that_is_dragged_takes_its_numbers_along_as_far_as_they_are_accepted(handle, to, numbers):
    box = widgets.schedule_explorer()
    answer = box.answer({"turn": 1, "places": box.places(), "dragged": [handle, *to]})
    assert {name: box.values[f"B {name}"] for name in numbers} == numbers
    assert "refused" not in answer["words"] and answer["places"] == box.places()
    (place,) = (each["at"] for each in answer["handles"] if each["name"] == handle)
    if handle != "B decay":
        assert tuple(place) == pytest.approx(tuple(numbers.values()))


# The finder explorer


def test_without_settings_the_words_are_the_results_own_reading():
    result = sweep()
    read, numbers, message = draw_lr_reading(result)[1].splitlines()
    assert read == "points 1 to 100 of 100, smoothing 0.70, without 5 at the start and 5 at the end"
    assert result.suggestion and result.range
    low, high = result.range
    assert numbers == f"suggestion {result.suggestion:.2e}, range {low:.2e} to {high:.2e}"
    assert message == result.message


def test_the_words_are_what_suggest_says_of_the_chosen_points():
    result = sweep()
    settings = {"smoothing": 0.9, "skip_start": 2, "skip_end": 3}
    words = draw_lr_reading(result, points=(11, 90), **settings)[1]
    reading = suggest(result.lrs[10:90], result.losses[10:90], **settings)
    assert f"suggestion {reading.lr:.2e}," in words and words.endswith(reading.message)
    assert "stopped" not in words, "the end of the sweep was left out"


def test_the_points_left_out_are_drawn_as_rings_and_the_axis_stays():
    result = sweep()
    limits = set()
    for first, last in ((1, 100), (21, 60), (100, 100)):
        axes = draw_lr_reading(result, points=(first, last))[0].axes[0]
        limits.add(axes.get_xlim())
        dots, rings = (
            np.asarray(points.get_offsets())[:, 0] for points in axes.collections[:: len(axes.collections) - 1]
        )
        assert dots.tolist() == RATES[first - 1 : last]
        assert rings.tolist() == RATES[: first - 1] + RATES[last:]
    assert len(limits) == 1


def test_several_tests_lie_over_each_other_and_the_chosen_one_is_read():
    short = LRFinderResult(RATES[:60], sweep().losses[:60])
    box = widgets.lr_finder_explorer({"long": sweep(), "short": short}, unigram=5.0)
    assert box.view()["words"].startswith("long, points 1 to 100 of 100")
    assert box.view(test="short")["words"].startswith("short, points 1 to 60 of 60")
    figure, _ = draw_lr_reading(sweep(), others=[short], unigram=5.0)
    assert 60 in [len(np.asarray(line.get_xdata())) for line in figure.axes[0].lines]
    assert "unigram" in [text.get_text() for text in figure.axes[0].texts]


def test_dotted_lines_stand_at_the_first_and_the_last_point_that_is_read():
    axes = draw_lr_reading(sweep(), skip_start=4, skip_end=9, points=(11, 90))[0].axes[0]
    places = sorted(float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_linestyle() == ":")
    assert places == [RATES[14], RATES[80]]


def test_no_dotted_line_crosses_the_label_of_the_points_that_lie_higher():
    result = sweep()
    losses = [*result.losses[:50], 20.0, *result.losses[51:]]
    figure, _ = draw_lr_reading(LRFinderResult(RATES, losses))
    axes = figure.axes[0]
    (label,) = (text for text in axes.texts if "lie higher" in text.get_text())
    figure.draw_without_rendering()
    box = label.get_window_extent()
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted and not any(box.overlaps(line.get_window_extent()) for line in dotted)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_sweep_of_few_points_can_be_explored(count):
    result = LRFinderResult(RATES[:count], [6.0] * count, "not finite")
    words = widgets.lr_finder_explorer(result).view()["words"]
    assert "suggestion none, range none" in words and "no usable slope" in words
