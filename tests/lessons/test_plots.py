"""Figures: the shared style, alternative text, the loss curve and the picture of the loop."""

import base64
import re
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from course_lm.classroom import plots
from course_lm.classroom.atlas import load_atlas

pytestmark = pytest.mark.usefixtures("course_figures")

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "00_the_whole_loop.ipynb"
LINKS = {part: f"{number:02d}_lesson_of_{number}.ipynb" for number, part in enumerate(plots.LOOP_PARTS)}


@pytest.fixture
def displayed(monkeypatch):
    calls = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: calls.append((data, options)))
    return calls


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_shown_figure_carries_its_alternative_text(displayed):
    plots.show(plt.figure(), "A falling line.")
    ((data, options),) = displayed
    found = re.fullmatch(r'<img alt="(.*?)" width=.* src="data:image/png;base64,(.*)">', data["text/html"])
    assert found is not None
    assert found[1] == data["text/plain"] == "A falling line."
    assert base64.b64decode(found[2]).startswith(b"\x89PNG")
    assert options == {"raw": True}


def test_an_alternative_text_with_quotes_and_signs_stays_one(displayed):
    plots.show(plt.figure(), 'The "loss" < 3 & falls.')
    ((data, _),) = displayed
    assert 'alt="The &quot;loss&quot; &lt; 3 &amp; falls."' in data["text/html"]


def test_words_in_any_form_of_a_colour_are_dark_enough_to_be_read():
    figure = plt.figure()
    words = [figure.text(0, 0, "x", color=colour) for colour in (plots.ORANGE, [0.9, 0.6, 0.0], "0.7", "white")]
    plots.png(figure)
    assert [plots.contrast(word.get_color(), "white") >= plots.LEGIBLE for word in words] == [True, True, True, False]


def test_a_font_that_the_machine_lacks_is_replaced_without_a_word(caplog):
    assert "DejaVu" in font_manager.findfont("No Such Font")
    assert caplog.messages == []


def test_a_shown_figure_is_closed_so_that_the_notebook_shows_it_once(displayed):
    figure = plt.figure()
    plots.show(figure, "A falling line.")
    assert not plt.fignum_exists(figure.number)


def test_the_same_figure_gives_the_same_bytes(displayed):
    for _ in range(2):
        plots.show(plots.loss_curve([1, 2, 3], [3.0, 2.0, 1.5], floor=1.0), "A falling line.")
    assert displayed[0] == displayed[1]


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_a_figure_without_alternative_text_is_refused(alt):
    with pytest.raises(ValueError, match="alternative text"):
        plots.show(plt.figure(), alt)


def test_the_palette_has_no_colour_twice():
    assert len(set(plots.PALETTE)) == len(plots.PALETTE) == 6


def test_the_loss_curve_has_units_on_both_axes_and_labels_each_line():
    figure = plots.loss_curve([1, 2, 3], [3.0, 2.0, 1.5], validation=([1, 3], [3.1, 1.6]), floor=1.25)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "optimizer steps"
    assert axes.get_ylabel() == "loss (nats per token)"
    assert texts(figure) == ["training", "validation", "floor 1.25"]
    assert axes.get_legend() is None


def test_the_loss_curve_draws_the_given_numbers():
    figure = plots.loss_curve([1, 2, 3], [3.0, 2.0, 1.5], validation=([1, 3], [3.1, 1.6]), floor=1.25)
    training, validation, floor = figure.axes[0].lines
    assert np.array_equal(training.get_ydata(), [3.0, 2.0, 1.5])
    assert np.array_equal(validation.get_xydata(), [[1, 3.1], [3, 1.6]])
    assert np.array_equal(floor.get_ydata(), [1.25, 1.25])


def test_the_floor_lies_inside_the_picture():
    bottom, top = plots.loss_curve([1, 2], [3.0, 2.9], floor=1.0).axes[0].get_ylim()
    assert bottom < 1.0 and top > 3.0


@pytest.mark.parametrize("steps, losses", [([1, 2], [1.0]), ([], [])])
def test_a_curve_needs_one_loss_per_step(steps, losses):
    with pytest.raises(ValueError, match="one loss per step, got"):
        plots.loss_curve(steps, losses)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.01, 0.2))
def test_labels_never_overlap_keep_their_order_and_move_only_up(heights, gap):
    moved = plots.spread(heights, gap)
    assert all(new >= old for old, new in zip(heights, moved, strict=True))
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(sorted(moved)))
    for i, first in enumerate(heights):
        assert all(moved[i] < moved[j] for j, second in enumerate(heights) if first < second)


def test_the_picture_names_every_part_and_its_lesson():
    shown = texts(plots.loop_picture(LINKS))
    for number, part in enumerate(plots.LOOP_PARTS):
        assert part in shown
        assert f"{number:02d} lesson of {number}" in shown


def test_each_box_of_the_picture_links_to_its_lesson(tmp_path):
    path = tmp_path / "loop.svg"
    plots.loop_picture(LINKS).savefig(path)
    drawing = path.read_text()
    assert [link for link in LINKS.values() if f'xlink:href="{link}"' not in drawing] == []


def test_no_text_of_the_picture_leaves_its_box():
    figure = plots.loop_picture(dict.fromkeys(plots.LOOP_PARTS, "07_mixed_precision.ipynb"))
    figure.canvas.draw()
    patches = [patch for patch in figure.axes[0].patches if patch.get_url()]
    boxes = [patch.get_window_extent() for patch in patches]
    assert len(boxes) == len(plots.LOOP_PARTS)
    inside = 0
    for text in figure.axes[0].texts:
        extent = text.get_window_extent()
        for box in boxes:
            if box.contains((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2):
                assert box.x0 < extent.x0 and extent.x1 < box.x1, text.get_text()
                assert box.y0 < extent.y0 and extent.y1 < box.y1, text.get_text()
                inside += 1
    assert inside == 3 * len(plots.LOOP_PARTS)


def test_an_unknown_part_of_the_loop_is_refused():
    with pytest.raises(ValueError, match="no part 'clipping'; it has next window, forward"):
        plots.loop_picture({"clipping": "09_clipping.ipynb"})


def test_no_curves_need_no_labels():
    axes = plt.subplots()[1]
    plots.label_ends(axes, [])
    assert len(axes.texts) == 0


def test_the_picture_and_the_table_of_lesson_00_name_the_same_lessons():
    lesson = nbformat.read(LESSON, as_version=4)
    [cell] = [cell.source for cell in lesson.cells if "| part | lesson |" in cell.source]
    rows = re.findall(r"^\| ([a-z, ]+) \| (\[.*) \|$", cell, re.MULTILINE)
    link = re.compile(r"\]\((\d\d_\w+\.ipynb)\)")
    lessons = {part: link.findall(links) for parts, links in rows for part in parts.split(", ")}
    assert {part for part in plots.LOOP_PARTS if plots.LOOP_LESSONS[part] not in lessons[part]} == set()
    named = [name for found in lessons.values() for name in found]
    assert [name for name in named if not (LESSON.parent / name).exists()] == []


def test_the_runs_of_the_atlas_stand_beside_what_a_perfect_model_pays():
    figure = plots.atlas_runs("over-fitting", paid=0.4321)
    words = texts(figure)
    assert "perfect model, training 0.43" in words and "perfect model, held out 0.44" in words
    assert any(word.startswith("training 0.2") for word in words)
    assert any(word.startswith("held out 3.0") for word in words)


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
    assert [np.array(line.get_xydata()).tolist() for line in axes.lines] == [[[0, 3], [1, 2]], [[5, 1], [9, 0.5]]]
    assert axes.get_ylabel() == "loss" and axes.get_ylim() == (0, 4)
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights["plain"] == pytest.approx(2 / 4, abs=0.01) and heights["placed"] == pytest.approx(0.5 / 4, abs=0.01)


def test_no_curve_is_left_out_where_there_are_more_than_colours():
    figure = plots.curves(
        {name: [float(place)] for place, name in enumerate("abc")}, levels={"floor": 9.0}, colours="rb"
    )
    assert [line.get_color() for line in figure.axes[0].lines] == ["r", "b", "r", plots.INK]
    assert texts(figure) == ["a", "b", "c", "floor"]


def test_runs_of_the_atlas_stand_side_by_side_with_the_floor():
    known = load_atlas()
    run = known.runs["over-fitting"][0]
    left, right = plots.training_and_validation({"run A": run}, known).axes
    assert np.array(left.lines[0].get_ydata()).tolist() == list(run["loss"])
    assert np.array(right.lines[0].get_xydata()).tolist() == [
        [x, y] for x, y in zip(known.steps("val_loss", run), run["val_loss"])
    ]
    assert [text.get_text() for text in right.texts] == ["run A", "floor"]
