"""The commands `lab`, `progress` and `lessons`. Only `progress` does without torch, which lessons load."""

from argparse import Namespace

from course_lm.classroom.progress import exercises_in, format_table, read_progress
from course_lm.classroom.workspace import find_workspace, lesson_paths


def open_copies(options: Namespace) -> int:
    """Open JupyterLab on the copies in the folder `workspace`, the lessons `fresh` copied anew."""
    from course_lm.classroom.lessons import open_lab

    return open_lab(options.workspace, options.fresh)


def show_progress(options: Namespace) -> int:
    """Print which exercises are solved in the copies in the folder `workspace`; return 0."""
    print(format_table(read_progress(find_workspace(options.workspace), lesson_paths())))
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
