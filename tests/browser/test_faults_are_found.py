"""What the browser tests look for is found: each fault below is in a notebook, and each is reported."""

import pytest
from nbformat.v4 import new_markdown_cell

from .lab import find_chromium
from .notebook_page import THEMES, texts_of, write_notebook
from .widgets import answer, explorers, predictions

PATIENCE = 2
EXPLORER = """
import ipywidgets
from base64 import b64encode
from IPython.display import HTML, Javascript, display

def explorer(draw, describe, *controls):
    image, words = ipywidgets.HTML(), ipywidgets.HTML()
    def redraw(_=None):
        values = [control.value for control in controls]
        text = f'<text y="20">{draw(values)}</text>'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="40">{text}</svg>'
        source = "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()
        image.value = f'<img alt="values" src="{source}">'
        words.value = f"<pre aria-live='polite'>{describe(values)}</pre>"
    for control in controls:
        control.observe(redraw, names="value")
    redraw()
    box = ipywidgets.VBox([ipywidgets.VBox(controls), ipywidgets.VBox([image, words])])
    box.add_class("course-explorer")
    return box
"""
EVERY_KIND = """
explorer(
    str, str,
    ipywidgets.FloatSlider(description="float"),
    ipywidgets.IntSlider(value=2, min=0, max=2, description="int"),
    ipywidgets.SelectionSlider(options=[16, 32], description="selection"),
    ipywidgets.Dropdown(options=["a", "b"], description="dropdown"),
    ipywidgets.BoundedIntText(description="number"),
    ipywidgets.Checkbox(description="checkbox"),
    ipywidgets.ToggleButton(description="toggle"),
    ipywidgets.ToggleButtons(options=["a", "b"], description="toggles"),
    ipywidgets.RadioButtons(options=["a", "b"], description="radio"),
)
"""
FALSE_PREDICTION = """
button, answer = ipywidgets.Button(description="yes"), ipywidgets.HTML()
box = ipywidgets.VBox([button, answer])
box.add_class("course-predict")
button.add_class("course-predict-option")
answer.add_class("course-predict-answer")
box
"""
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
    "explorer(lambda _: 'the same', str, ipywidgets.IntSlider(max=2, description='no picture'))",
    "explorer(str, lambda _: 'the same', ipywidgets.IntSlider(max=2, description='no words'))",
    "explorer(lambda _: 'the same', lambda _: 'the same', ipywidgets.IntSlider(description='nothing'))",
    "explorer(str, str, ipywidgets.Text(description='unknown'))",
    FALSE_PREDICTION,
    new_markdown_cell("![words](http://page.invalid/x.png)"),
    "Javascript('console.error(\"a fault\")')",
    CONNECT,
    "long = '" + 300 * "-" + "'",
    FAINT,
    "ipywidgets.Image(format='svg+xml', value=b'<svg xmlns=\"http://www.w3.org/2000/svg\" height=\"1000\"/>')",
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
    kinds = ["float", "int", "selection", "dropdown", "number", "checkbox", "toggle", "toggles", "radio"]
    assert explored[0] == ([], kinds)


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
    assert answer(faulty, prediction, PATIENCE) == ["no explanation appears"]


def test_a_host_that_the_kernel_looks_for_is_reported(faulty):
    assert "kernel.invalid" in faulty.outside()


def test_an_error_in_the_console_is_reported(faulty):
    assert any("a fault" in error for error in faulty.console_errors)


def test_words_that_are_hard_to_read_are_reported(faulty):
    assert faulty.faint_labels() == ["'faint': 1.0 on #ffffff"]  # plots darkens the others


def test_an_explorer_whose_picture_stands_below_its_controls_is_reported(faulty):
    problem = "explorer 1 has its picture below its controls, screen of {} × {}"
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


def test_what_axe_finds_is_reported_in_each_theme(faulty):
    found = faulty.violations()
    assert all(any(problem.startswith(f"{theme}: image-alt: ") for problem in found) for theme in THEMES)


def test_a_missing_browser_fails_in_ci_and_skips_elsewhere(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        find_chromium()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_chromium()
