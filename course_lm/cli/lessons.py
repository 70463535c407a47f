"""The commands `lab`, `progress`, `release` and `lessons`. Only `progress` does without torch, which lessons load."""

import os
import sys
from argparse import Namespace
from datetime import datetime
from itertools import chain

from course_lm.classroom.handed_in import Row, as_csv, read_handed_in
from course_lm.classroom.progress import exercises_in, format_table, read_progress
from course_lm.classroom.progress_page import progress_page
from course_lm.classroom.workspace import find_workspace, lesson_paths, release
from course_lm.display import Bar
from course_lm.validation import ensure


def open_copies(options: Namespace) -> int:
    """Open JupyterLab on the copies in the folder `workspace`, the lessons `fresh` copied anew."""
    from course_lm.classroom.lessons import open_lab

    return open_lab(options.workspace, options.fresh)


def show_progress(options: Namespace) -> int:
    """Print which exercises are solved in the copies in the folder `workspace`, and write the `page`; return 0.

    Of the folder `csv` of handed-in notebooks print a table of all learners, with `rerun` after their code has run.

    Raises:
        ValueError: options that do not go together, no copies, or no notebook that can be read.
        OSError: the page cannot be written.
    """
    if options.csv:
        ensure(not (options.page or options.workspace), "--csv goes with neither --page nor --workspace")
        rows = read_handed_in(options.csv, lesson_paths(), run_code=options.rerun)
        for row in chain([Row._fields], rows):
            Bar.write(as_csv(row), end="")  # above the bar
            sys.stdout.flush()  # what is known outlasts an interrupt
        return 0
    ensure(not options.rerun, "--rerun needs --csv FOLDER")
    page = options.page
    new = page is None or (page.suffix == ".html" and not os.path.lexists(page))
    ensure(new, f"--page must be a new file that ends in .html, got {page}")
    ensure(page is None or page.parent.is_dir(), f"--page must lie in a folder that is there, got {page}")
    rows = read_progress(find_workspace(options.workspace), lesson_paths())
    if page:
        page.write_text(progress_page(rows, datetime.now()), encoding="utf-8")
    print(format_table(rows))
    return 0


def write_release(options: Namespace) -> int:
    """Write the lessons without their solutions into the new `folder`; return 0."""
    release(options.folder)
    print(f"{options.folder}: {len(lesson_paths())} lessons without solutions; course-lm lab, called in it, opens them")
    return 0


def run_lessons(options: Namespace) -> int:
    """Run lessons by their `numbers`, all of them by default, and `write` their outputs; return 1 if one fails.

    Raises:
        ValueError: there is no such lesson, or its file is no notebook.
    """
    from course_lm.classroom import lessons

    paths = lesson_paths(options.numbers or None)
    for lesson in paths:
        exercises_in(lesson)  # refuses what is no notebook, before any is run
    results = lessons.write(paths) if options.write else lessons.run(paths)
    return 1 if any(result.error for result in results) else 0
