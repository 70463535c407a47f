"""Every lesson in a real browser as it is stored, no cell run: all of it can be seen, and by a learner who cannot see.

`test_gallery.py` looks at the widgets, which exist only beside a kernel.
"""

import shutil
from pathlib import Path

import pytest

LESSONS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NO_KERNEL = "Cannot read properties of null (reading 'kernel')"  # of ipywidgets, which look for one in any notebook


@pytest.fixture(scope="module", params=LESSONS, ids=lambda path: path.stem)
def lesson(request, page, lab):
    with page.opened(Path(shutil.copy(request.param, lab.root)), kernel=False):
        yield page


def test_its_pictures_have_alternative_texts_and_all_is_whole_on_the_screen(lesson):
    assert lesson.flaws() == []


@pytest.mark.daily(len(LESSONS))
def test_axe_finds_nothing_in_the_light_and_in_the_dark(lesson):
    assert lesson.violations() == []


def test_no_request_leaves_the_machine(lesson):
    assert lesson.outside() == []


def test_no_error_reaches_the_console(lesson):
    assert [error for error in lesson.console_errors if error != NO_KERNEL] == []
