"""Figures: the shared style, alternative text, and pictures that draw what they are given."""

import base64
import re
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from course_lm.classroom import plots
from course_lm.classroom.atlas import load_atlas
from course_lm.profiling import Machine, Part

pytestmark = pytest.mark.usefixtures("course_figures")

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "00_the_whole_loop.ipynb"


@pytest.fixture
def displayed(monkeypatch):
    calls = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: calls.append((data, options)))
    return calls


def texts(figure):
    return [text.get_text().strip() for text in figure.axes[0].texts]


def places(line):
    """Places of a line's points, [[x, y], …]."""
    return np.asarray(line.get_xydata(), dtype=float).tolist()


def points_of(figure):
    """Places of all single markers, in the order in which they were drawn."""
    return [places(line)[0] for line in figure.axes[0].lines if len(places(line)) == 1]


def test_a_shown_figure_carries_its_alternative_text_and_is_closed(displayed):
    figure, alt = plt.figure(), 'The "loss" < 3 & falls.'
    plots.show(figure, alt)
    ((data, options),) = displayed
    found = re.fullmatch(r'<img alt="(.*?)" width=.* src="data:image/png;base64,(.*)">', data["text/html"])
    assert found is not None
    assert (found[1], data["text/plain"]) == ("The &quot;loss&quot; &lt; 3 &amp; falls.", alt)
    assert base64.b64decode(found[2]).startswith(b"\x89PNG") and options == {"raw": True}
    assert not plt.fignum_exists(figure.number), "the notebook would show it a second time"


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_a_figure_without_alternative_text_is_refused(alt):
    with pytest.raises(ValueError, match="alternative text"):
        plots.show(plt.figure(), alt)


def test_words_in_any_form_of_a_colour_are_dark_enough_to_be_read():
    figure = plt.figure()
    words = [figure.text(0, 0, "x", color=colour) for colour in (plots.ORANGE, [0.9, 0.6, 0.0], "0.7", "white")]
    plots.png(figure)
    assert [plots.contrast(word.get_color(), "white") >= plots.LEGIBLE for word in words] == [True, True, True, False]


def test_a_font_that_the_machine_lacks_is_replaced_without_a_word(caplog):
    assert "DejaVu" in font_manager.findfont("No Such Font")
    assert caplog.messages == []


def test_the_same_figure_gives_the_same_bytes():
    once, again = (plots.png(plots.curves({"a": [3.0, 2.0, 1.5]})) for _ in range(2))
    assert once == again


def test_the_loss_curve_draws_the_given_numbers_has_units_and_labels_each_line():
    figure = plots.loss_curve(
        [1, 2, 3], [3.0, 2.0, 1.5], validation=([1, 3], [3.1, 1.6]), floor=1.25, band=([1, 3], [2.5, 1], [4, 2])
    )
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("optimizer steps", "loss (nats per token)")
    assert texts(figure) == ["training", "validation", "floor 1.25"] and axes.get_legend() is None
    training, validation, floor = axes.lines
    assert places(training) == [[1, 3.0], [2, 2.0], [3, 1.5]] and places(validation) == [[1, 3.1], [3, 1.6]]
    assert [height for _, height in places(floor)] == [1.25, 1.25]
    bottom, top = axes.get_ylim()
    assert bottom < 1.25 and top > 3.1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.01, 0.2))
def test_labels_never_overlap_keep_their_order_and_move_only_up(heights, gap):
    moved = plots.spread(heights, gap)
    assert all(new >= old for old, new in zip(heights, moved, strict=True))
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(sorted(moved)))
    for i, first in enumerate(heights):
        assert all(moved[i] < moved[j] for j, second in enumerate(heights) if first < second)


@given(st.floats(1e-9, 1e9))
def test_an_axis_ends_at_a_round_number_that_is_not_far(value):
    end = plots.round_up(value)
    assert value * (1 - 1e-9) <= end <= 1.51 * value
    assert plots.round_up(end) == pytest.approx(end)


# The loop


def test_each_box_of_the_loop_names_its_part_and_links_to_its_lesson(tmp_path):
    links = {part: f"{number:02d}_lesson_of_{number}.ipynb" for number, part in enumerate(plots.LOOP_PARTS)}
    figure = plots.loop_picture(links)
    shown = texts(figure)
    for number, part in enumerate(plots.LOOP_PARTS):
        assert part in shown and f"{number:02d} lesson of {number}" in shown
    figure.savefig(tmp_path / "loop.svg")
    drawing = (tmp_path / "loop.svg").read_text()
    assert [link for link in links.values() if f'xlink:href="{link}"' not in drawing] == []


def test_no_text_of_the_loop_leaves_its_box():
    figure = plots.loop_picture(dict.fromkeys(plots.LOOP_PARTS, "07_mixed_precision.ipynb"))
    figure.canvas.draw()
    boxes = [patch.get_window_extent() for patch in figure.axes[0].patches if patch.get_url()]
    extents = [text.get_window_extent() for text in figure.axes[0].texts]
    pairs = [
        (box, extent)
        for extent in extents
        for box in boxes
        if box.contains((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
    ]
    assert len(pairs) == 3 * len(boxes) == 3 * len(plots.LOOP_PARTS)
    for box, extent in pairs:
        assert box.x0 < extent.x0 and extent.x1 < box.x1 and box.y0 < extent.y0 and extent.y1 < box.y1


def test_lesson_00_names_the_parts_of_the_loop_in_the_order_in_which_they_run_and_their_lessons():
    stored = LESSON.read_text(encoding="utf-8")
    assert ", ".join(f"{part} ({link[:2]})" for part, link in plots.LOOP_LESSONS.items()) in stored
    assert [link for link in plots.LOOP_LESSONS.values() if not (LESSON.parent / link).exists()] == []
    order = ["loss", "backward", "unscale", "clip", "step"]
    assert [part for part in plots.LOOP_PARTS if part in order] == order


# The pictures of the lessons: what they draw is what they are given


def test_runs_of_the_atlas_stand_side_by_side_with_the_floor():
    known = load_atlas()
    run = known.runs["over-fitting"][0]
    figure = plots.training_and_validation({"run A": run}, known)
    for axes, key in zip(figure.axes, ("loss", "val_loss")):
        assert places(axes.lines[0]) == [[x, y] for x, y in zip(known.steps(key, run), run[key])]
    assert [text.get_text() for text in figure.axes[1].texts] == ["run A", "floor"]


def test_the_picture_of_the_shift_scores_each_token_against_the_next_label():
    axes = plots.shift_picture(["<eos>", "a", "b", "<eos>"]).axes[0]
    arrows = [text for text in axes.texts if isinstance(text, Annotation)]
    assert [(round(arrow.xyann[0]), round(arrow.xy[0])) for arrow in arrows] == [(0, 1), (1, 2), (2, 3)]
    boxes = [(text.get_position(), text.get_bbox_patch()) for text in axes.texts]
    white = [place for place, box in boxes if box and to_hex(box.get_facecolor()) == "#ffffff"]
    assert white == [(3, 1), (0, 0)]


def test_a_curve_stands_at_its_places_and_its_name_at_its_end():
    figure = plots.curves({"plain": [3.0, 2.0], "placed": ((5, 9), (1.0, 0.5))}, ylabel="loss", ylim=(0, 4))
    (axes,) = figure.axes
    assert [places(line) for line in axes.lines] == [[[0, 3], [1, 2]], [[5, 1], [9, 0.5]]]
    assert axes.get_ylabel() == "loss" and axes.get_ylim() == (0, 4)
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights["plain"] == pytest.approx(2 / 4, abs=0.01) and heights["placed"] == pytest.approx(0.5 / 4, abs=0.01)


def test_no_curve_is_left_out_where_there_are_more_than_colours():
    figure = plots.curves(
        {name: [float(place)] for place, name in enumerate("abc")}, levels={"floor": 9.0}, colours="rb"
    )
    assert [line.get_color() for line in figure.axes[0].lines] == ["r", "b", "r", plots.INK]
    assert texts(figure) == ["a", "b", "c", "floor"]


def test_no_curves_need_no_labels():
    axes = plt.subplots()[1]
    plots.label_ends(axes, [])
    assert len(axes.texts) == 0


def test_each_reported_curve_starts_at_step_0_and_the_untrained_loss_is_named():
    figure = plots.reported_losses({"a": [6.0, 5.0], "b": [4.0, 3.0]}, untrained=6.24)
    first, second, *_ = figure.axes[0].lines
    assert (places(first), places(second)) == ([[0, 6], [1, 5]], [[0, 4], [1, 3]])
    assert set(texts(figure)) == {"a", "b", "untrained 6.24"}


def test_the_steps_of_the_second_arm_stand_after_those_of_the_first():
    first, second = plots.step_seconds({"old": [0.5, 0.1, 0.1], "new": [0.2, 0.3]}).axes[0].lines
    assert places(first) == [[1, 500], [2, 100], [3, 100]]
    assert [x for x, _ in places(second)] == [4, 5]


def test_the_median_of_the_reported_ratios_is_written_beside_their_bar():
    figure = plots.reported_speedups({"mean": [1.5, 1.25, 2.0], "turns": [1.0, 1.0, 1.0]})
    assert texts(figure) == ["1.50", "1.00"]
    assert points_of(figure) == [[1.5, 0], [1.0, 1]]


def test_a_part_stands_at_its_intensity_and_its_rate_and_the_roof_is_the_machines():
    parts = [
        Part("attention", 0.1, 4 * 10**9, 2 * 10**8, "fp32", 0.04),
        Part("clipping", 0.1, 0, 2 * 10**8, None, 0.02),  # without products: no place
    ]
    figure = plots.roofline(Machine({"fp32": 100e9}, bytes_per_second=10e9, threads=1), parts)
    (roof, *_), (place,) = figure.axes[0].lines, points_of(figure)
    assert place == pytest.approx([20.0, 40.0])
    intensities, rates = zip(*places(roof))
    assert max(rates) == pytest.approx(100.0) and rates[0] == pytest.approx(10.0 * intensities[0])


def test_a_roofline_has_a_second_slope_for_memory_and_a_line_for_each_step():
    machine, part = Machine({"fp32": 100e9}, 10e9, threads=1), Part("head", 0.1, 4 * 10**9, 2 * 10**8, "fp32", 0.04)
    figure = plots.roofline(machine, [part], memory=2e9, steps={"a step": 30e9})
    _, slope, step, _ = map(places, figure.axes[0].lines)
    assert slope[0][1] == pytest.approx(2.0 * slope[0][0]) and slope[-1][1] == 100.0
    assert [rate for _, rate in step] == [30.0, 30.0]


def test_a_stacked_bar_is_as_long_as_the_bytes_of_its_owners():
    ways = {"one": {"weights": 2**20, "moments": 3 * 2**20}, "other": {"weights": 2**20, "moments": 2**20}}
    assert texts(plots.memory_by_owner(ways, ("weights", "moments"))) == ["4.0", "2.0"]


def test_steps_and_rows_lie_beside_the_curve_of_the_equation_and_the_critical_batch_at_twice_the_fewest_of_both():
    figure = plots.steps_and_rows({2: (1000, 2000), 50: (60, 3000)}, least=(40.0, 1900.0))
    critical, *measured = points_of(figure)
    assert critical == [80.0, 3800.0] and measured == [[1000.0, 2000.0], [60.0, 3000.0]]
    steps, rows = np.array(places(figure.axes[0].lines[0])).T
    assert (steps / 40 - 1) * (rows / 1900 - 1) == pytest.approx(1.0)


def test_the_loss_over_flops_is_the_mean_over_seeds_in_the_order_of_the_budgets():
    figure = plots.loss_over_flops({"width 16": {1e12: [2.0, 3.0], 1e11: [4.0]}})
    (line,) = figure.axes[0].lines
    assert places(line) == [[1e11, 4.0], [1e12, 2.5]]
    assert texts(figure) == ["width 16"]


def test_a_change_stands_at_its_mean_and_its_numbers_beside_it_against_each_of_both():
    losses = {"none": [2.0, 2.1, 2.2], "control": [2.1, 2.2, 2.3], "mine": [2.0, 2.1, 2.2]}
    figure = plots.paired_changes({"a text": losses}, against=("none", "control"))
    (axes,) = figure.axes
    points = {tuple(np.asarray(line.get_xdata())) for line in axes.lines if line.get_marker() == "o"}
    changes = (100 * np.expm1(0.1), 0.0, 100 * np.expm1(-0.1))
    assert sorted(x for (x,) in points) == pytest.approx(sorted(changes))
    assert {text.get_text() for text in axes.texts} == {"+10.5 ± 0.0", "+0.0 ± 0.0", "−9.5 ± 0.0"}
    assert figure.get_suptitle() == "grey: against none; blue: against control"
