"""A page to print: which exercises are solved, when each notebook was saved, and the hash of its file."""

from collections.abc import Sequence
from datetime import datetime

from course_lm import __version__
from course_lm.classroom.progress import LessonProgress
from course_lm.display import GREEN, GREY, GRID, INK

_STYLE = f"""
body {{ font: 11pt/1.4 sans-serif; color: {INK}; max-width: 180mm; margin: 10mm auto; padding: 0 5mm }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: 1.5mm 2mm; border-bottom: 1px solid {GRID} }}
tr {{ break-inside: avoid }}
small {{ color: {GREY}; overflow-wrap: anywhere }}
b {{ color: {GREEN} }}
"""


def progress_page(rows: Sequence[LessonProgress], made: datetime) -> str:
    """The page in HTML, on its own: it loads nothing, and a browser prints it on a sheet or two."""
    exercises, passed = sum(len(row.exercises) for row in rows), sum(row.passed for row in rows)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>course_lm: {passed} of {exercises} exercises</title><style>{_STYLE}</style>
<h1>course_lm: {passed} of {exercises} exercises solved</h1>
<p>Name: ______________________________</p>
<p>Made on {made:%Y-%m-%d} with course_lm {__version__}. An exercise counts as solved where the output that is stored in
the notebook says so. The SHA-256 below a lesson tells which file that is; a teacher runs the file again with
<code>course-lm progress --csv FOLDER --rerun</code>.</p>
<table><thead><tr><th>lesson</th><th>exercises</th><th>saved</th></tr></thead>
{"".join(map(_row, rows))}</table></html>
"""


def _row(row: LessonProgress) -> str:
    states = "<br>".join(
        f"<b>✓ {name}</b>" if state == "passed" else f"{name}: {state}" for name, state in row.exercises.items()
    )
    saved = f"{row.saved:%Y-%m-%d %H:%M}" if row.saved else "–"
    lesson = f"{row.lesson}<br><small>{row.sha256}</small>"
    return f"<tr><td>{lesson}</td><td>{states}</td><td>{saved}</td></tr>\n"
