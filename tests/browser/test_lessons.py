"""Some lessons in a real browser, other ones each day: Run All reaches the end, as a learner's does.

The tests of one lesson share one page and follow each other as a learner's hour does: Run All first, then the
predictions; what must not have happened meanwhile is looked at last. `test_stored_lessons.py` opens every lesson,
`test_gallery.py` moves every control.
"""

import re
import shutil
from pathlib import Path

import nbformat
import pytest

from tests.sets import some

from .notebook_page import texts_of
from .test_stored_lessons import LESSONS
from .widgets import answer, explorers, predictions


@pytest.fixture(scope="module", params=some(LESSONS, 3), ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture(scope="module")
def stored(path):
    return nbformat.read(path, as_version=4).cells


@pytest.fixture(scope="module")
def lesson(path, page, lab):
    """The lesson's page after Run All."""
    with page.opened(Path(shutil.copy(path, lab.root))):
        page.run_all()
        yield page


def calls(cells, function):
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    return len(re.findall(rf"\b{function}\(", code))


def is_compared(cell):
    return cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", [])


def test_run_all_reaches_the_end_without_an_error(lesson):
    assert lesson.problems() == []


def test_its_outputs_are_the_stored_ones(stored, lesson):
    compared = [(old, new) for old, new in zip(stored, lesson.cells(), strict=True) if is_compared(old)]
    assert len(compared) > 5
    for old, new in compared:
        assert texts_of(new["outputs"]) == texts_of(old.outputs), old.source


def test_an_explorer_is_whole_on_one_screen(stored, lesson):
    assert len(explorers(lesson)) == calls(stored, r"\w*explorer")
    assert lesson.misplaced_explorers() == []


def test_every_prediction_is_answered_from_the_keyboard(stored, lesson):
    found = predictions(lesson)
    assert len(found) == calls(stored, "predict")
    assert [problem for prediction in found for problem in answer(lesson, prediction)] == []


def test_its_pictures_have_alternative_texts_and_all_is_whole_on_the_screen(lesson):
    assert lesson.flaws() == []


def test_no_words_of_a_figure_are_hard_to_read(lesson):
    assert lesson.faint_labels() == []


def test_no_request_leaves_the_machine(lesson):
    assert lesson.outside() == []


def test_no_error_reaches_the_console(lesson):
    assert lesson.console_errors == []
