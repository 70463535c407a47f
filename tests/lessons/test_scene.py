"""What explorer.js is told to draw: `test_widgets.py` holds its lines and bars against the numbers of the figures."""

import math

from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.scene import scene


def panel_of(axes):
    return scene(axes.figure)["panels"][0]


def marks_of(axes, kind):
    return [mark for mark in panel_of(axes)["marks"] if mark["kind"] == kind]


def test_ticks_stand_inside_the_axes_with_powers_of_ten_as_text():
    axes = Figure().subplots()
    axes.plot([1e-6, 1], [0, 1])
    axes.set(xscale="log")
    left, _, width, _ = panel_of(axes)["box"]
    ticks = panel_of(axes)["x"]["ticks"]
    assert {"10⁻⁶", "10⁰"} <= {text for _, text in ticks}
    assert all(left - 0.1 <= place <= left + width + 0.1 for place, _ in ticks)


def test_a_gap_in_a_line_stays_a_gap_and_what_is_far_away_stays_a_number():
    axes = Figure().subplots()
    axes.plot([0, 1, 2, 3, 4], [0, 1, math.nan, 1, 1e300])
    axes.set(ylim=(0, 1))
    (line,) = marks_of(axes, "line")
    assert line["points"].count(None) == 2 and max(abs(each) for each in line["points"] if each is not None) <= 1e5


def test_cells_of_an_image_cover_it_once():
    axes = Figure().subplots()
    axes.imshow([[0, 0, 1], [1, 1, 1]], aspect="auto", extent=(0, 3, 2, 0))
    cells = marks_of(axes, "fill")
    assert len(cells) == 2 and [mark["path"].count("M") for mark in cells] == [1, 2]


def test_words_in_ink_take_the_colour_of_the_page_and_others_their_own():
    axes = Figure().subplots()
    axes.text(0.5, 0.5, "ink", color=plots.INK)
    axes.text(0.5, 0.6, "blue", color=plots.BLUE)
    assert [mark["colour"] for mark in marks_of(axes, "text")] == ["ink", plots.BLUE.lower()]
