"""What the browser tests look for is found: each fault below is in a notebook, and each is reported."""

import pytest
from nbformat.v4 import new_markdown_cell

from .lab import find_chromium
from .notebook_page import THEMES, texts_of, write_notebook
from .widgets import answer, explorers, predictions

PATIENCE = 2
EXPLORER = """
from IPython.display import HTML, Javascript
from ipywidgets import Image
from matplotlib.figure import Figure
from course_lm.classroom.widgets import buttons, explorer, pick, slider, switch

def explored(draw, describe, *controls):
    def both(**values):
        figure = Figure()
        figure.subplots().text(0, 0, draw(values), color="#DDDD00")
        return figure, describe(values)
    return explorer(both, {control.label: control for control in controls})
"""
EVERY_KIND = """
letters = ["a", "b"]
explored(
    str, str,
    slider("slider", 2, range(3)), pick("list", letters),
    switch("switch"), buttons("buttons", letters),
)
"""
SAME = "lambda _: 'the same'"
UNKNOWN = """<div class='course-explorer' style='display: block'>
<form><input type='text' aria-label='unknown'></form>
<div class='result'>
<svg role='img' aria-label='none'></svg><pre aria-live='polite'></pre></div></div>"""
FALSE_PREDICTION = "<div class='course-predict'><details><summary>yes</summary></details></div>"
FAINT = """
import matplotlib.pyplot as plt
from course_lm.classroom import plots
figure = plt.figure()
figure.text(0.5, 0.5, "faint", color="white")
figure.text(0.5, 0.7, "dark", color="#BBBB00")
plots.show(figure, "Two words.")
"""
CONNECT = """
import socket
try:
    socket.create_connection(("kernel.invalid", 80), timeout=1)
except OSError:
    pass
"""
FAULTY = (
    EXPLORER,
    EVERY_KIND,
    f"explored({SAME}, str, slider('no picture', 0, range(3)))",
    f"explored(str, {SAME}, slider('no words', 0, range(3)))",
    f"explored({SAME}, {SAME}, slider('nothing', 0, range(3)))",
    f'HTML("""{UNKNOWN}""")',
    f'HTML("""{FALSE_PREDICTION}""")',
    new_markdown_cell("![words](http://page.invalid/x.png)"),
    "Javascript('console.error(\"a fault\")')",
    CONNECT,
    "long = '" + 300 * "-" + "'",
    FAINT,
    "Image(format='svg+xml', value=b'<svg xmlns=\"http://www.w3.org/2000/svg\" height=\"1000\"/>')",
    "print(1); 2",
    "1 / 0",
    "2",
)


@pytest.fixture(scope="module")
def faulty(page, lab):
    with page.opened(write_notebook(lab.root / "faulty.ipynb", FAULTY)):
        page.run_all()
        yield page


@pytest.fixture(scope="module")
def explored(faulty):
    return [(explorer.explore(), explorer.moved) for explorer in explorers(faulty, PATIENCE)]


def test_a_cell_that_raises_and_those_after_it_are_reported(faulty):
    assert faulty.problems() == ["cell 14: ZeroDivisionError: division by zero", "cell 15: did not run"]


def test_what_a_cell_has_printed_and_shown_is_read(faulty):
    assert [texts_of(cell["outputs"]) for cell in faulty.cells()[-3:]] == [
        {"stdout": "1\n", "text/plain": "2"},
        {"error": ""},
        {},
    ]


def test_every_kind_of_control_is_moved(explored):
    assert explored[0] == ([], ["slider", "list", "switch", "buttons"])


def test_a_control_that_changes_no_picture_is_reported(explored):
    assert explored[1][0] == ["no picture: ArrowRight leaves the picture as it was"]


def test_a_control_that_changes_no_words_is_reported(explored):
    assert explored[2][0] == ["no words: ArrowRight leaves the words as they were"]


def test_a_control_that_changes_nothing_is_reported(explored):
    assert explored[3][0] == ["nothing: press 1, ArrowRight, changes nothing"]


def test_a_control_that_the_test_cannot_move_is_reported(explored):
    assert "unknown: the test knows no keys for this kind of control" in explored[4][0]


def test_a_prediction_without_an_explanation_is_reported(faulty):
    (prediction,) = predictions(faulty)
    assert answer(faulty, prediction, PATIENCE) == ["'yes' is not explained", "not one Yes. and 0 No.: yes"]


def test_a_host_that_the_kernel_looks_for_is_reported(faulty):
    assert "kernel.invalid" in faulty.outside()


def test_an_error_in_the_console_is_reported(faulty):
    assert any("a fault" in error for error in faulty.console_errors)


def test_words_that_are_hard_to_read_are_reported(faulty):
    assert faulty.faint_labels() == ["'faint': 1.0 on #ffffff"]  # plots darkens the others


def test_an_explorer_whose_picture_stands_below_its_controls_is_reported(faulty):
    problem = "explorer 5 has its picture below its controls, screen of {} × {}"
    found = faulty.misplaced_explorers()
    assert [problem.format(*size) in found for size in ((1280, 900), (1600, 1000), (640, 900))] == [True, True, False]


def test_a_picture_from_outside_is_reported(faulty):
    assert "http://page.invalid/x.png" in faulty.outside()


def test_what_is_undescribed_too_tall_or_cut_off_is_reported(faulty):
    assert [flaw.partition(", ")[0] for flaw in faulty.flaws()] == [
        "cell 10: cut off",
        "cell 12: a picture without words",
        "cell 12: a picture of 1000 pixels in height",
    ]


def test_what_axe_finds_and_faint_words_of_an_explorer_are_reported_in_each_theme(faulty):
    found = faulty.violations()
    assert any(problem.startswith(f"{THEMES[0]}: the same: ") for problem in found)  # a yellow on white
    assert all(any(problem.startswith(f"{theme}: image-alt: ") for problem in found) for theme in THEMES)


def test_a_missing_browser_fails_in_ci_and_skips_elsewhere(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        find_chromium()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_chromium()
