"""Every lesson in a real browser: it runs to its end, its widgets answer the keyboard, nothing leaves the machine.

The tests of one lesson share one page and follow each other as a learner's hour does: Run All first, then the
widgets; what must not have happened meanwhile is looked at last.
"""

import os
import re
import shutil
import time
from pathlib import Path

import nbformat
import pytest

from .notebook_page import THEMES, opened, texts_of
from .widgets import answer, explorers, predictions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
IGNORED = "nbval-ignore-output"
SCREENSHOTS = ROOT / "build" / "screenshots"


@pytest.fixture(scope="module", params=LESSONS, ids=lambda path: path.stem)
def name(request):
    return request.param.stem


@pytest.fixture(scope="module")
def lesson(name, browser, lab, benchmark):
    """The lesson's page after Run All."""
    copy = Path(shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", lab.root))
    with opened(browser, lab, copy) as page:
        started = time.perf_counter()
        page.run_all()
        benchmark.append(f"{name}, Run All: {time.perf_counter() - started:.0f} s")
        yield page


def calls(page, function):
    return sum(len(re.findall(rf"\b{function}\(", cell.source)) for cell in page.cells())


def test_run_all_reaches_the_end_without_an_error(lesson):
    assert lesson.problems() == []


def test_its_outputs_are_the_stored_ones(name, lesson):
    stored = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    compared = [cell for cell in lesson.cells() if IGNORED not in stored[cell.number].metadata.get("tags", [])]
    assert len(compared) > 5
    for cell in compared:
        assert texts_of(cell.outputs) == texts_of(stored[cell.number].outputs), cell.source


def test_every_control_changes_the_picture_and_the_words(name, lesson, benchmark):
    found = explorers(lesson)
    assert len(found) == calls(lesson, r"\w*explorer")
    explored = [explorer.explore() for explorer in found]
    for result in explored:
        benchmark += [f"{name}, {label}: {median:.0f} ms" for label, median in result.medians()]
    assert [problem for result in explored for problem in result.problems] == []


@pytest.mark.parametrize(("width", "height", "wide"), [(1280, 900, True), (1600, 1000, True), (640, 900, False)])
def test_an_explorer_is_whole_on_one_screen(lesson, width, height, wide):
    assert lesson.misplaced_explorers(width, height, wide) == []


def test_a_button_that_copies_leaves_its_text_on_the_clipboard(name, lesson):
    buttons = lesson.page.locator("button[data-text]").all()
    assert bool(buttons) == (name == "05_schedules")
    for button in buttons:
        button.click()
        button.get_by_text("copied").wait_for()
        assert lesson.page.evaluate("navigator.clipboard.readText()") == button.get_attribute("data-text")


def test_every_prediction_is_answered_from_the_keyboard(lesson):
    found = predictions(lesson)
    assert len(found) == calls(lesson, "predict")
    assert [problem for prediction in found for problem in answer(lesson, prediction)] == []


@pytest.mark.skipif("CI" in os.environ, reason="there nobody looks at them")
def test_every_screen_of_the_lesson_is_kept_as_a_picture(name, lesson):
    assert lesson.take_screenshots(SCREENSHOTS, name)


def test_every_picture_has_an_alternative_text_on_the_page(lesson):
    assert lesson.undescribed_pictures() == []


def test_no_words_of_a_figure_are_hard_to_read(lesson):
    assert lesson.faint_labels() == []


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_in_the_light_and_in_the_dark(lesson, theme):
    assert lesson.violations(theme) == []


def test_no_cell_is_cut_off_at_the_right(lesson):
    assert lesson.wide_cells() == []


def test_no_picture_is_taller_than_the_screen(lesson):
    assert lesson.tall_pictures() == []


def test_no_request_leaves_the_machine(lesson):
    assert lesson.outside() == []


def test_no_error_reaches_the_console(lesson):
    assert lesson.console_errors == []
