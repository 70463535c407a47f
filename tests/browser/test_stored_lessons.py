"""Every lesson in a real browser as it is stored, no cell run: all of it can be seen, and by a learner who cannot see.

`test_gallery.py` looks at the explorers beside a kernel.
"""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from .widgets import explorers

LESSONS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NO_KERNEL = "Cannot read properties of null (reading 'kernel')"  # of ipywidgets, which look for one in any notebook


@pytest.fixture(scope="module", params=LESSONS, ids=lambda path: path.stem)
def lesson(request, page, lab):
    copy = Path(shutil.copy(request.param, lab.root))
    # As `course-lm lab` does: JupyterLab runs no script of a notebook that nobody vouches for.
    NotebookNotary(data_dir=str(lab.root.parent / "JUPYTER_DATA_DIR")).sign(nbformat.read(copy, as_version=4))
    with page.opened(copy, kernel=False):
        yield page


@pytest.mark.daily(len(LESSONS))
def test_each_control_of_its_explorer_moves_without_a_kernel(lesson):
    assert [problem for one in explorers(lesson) for problem in one.explore()] == []


def test_its_pictures_have_alternative_texts_and_all_is_whole_on_the_screen(lesson):
    assert lesson.flaws() == []


@pytest.mark.daily(len(LESSONS))
def test_axe_finds_nothing_in_the_light_and_in_the_dark(lesson):
    assert lesson.violations() == []


def test_no_request_leaves_the_machine(lesson):
    assert lesson.outside() == []


def test_no_error_reaches_the_console(lesson):
    assert [error for error in lesson.console_errors if error != NO_KERNEL] == []
