"""No small edit of a solution passes its check, but for those that change nothing: `equal_edits.toml` says why."""

import signal
import tomllib
from pathlib import Path
from types import FrameType

import pytest

from course_lm.classroom import checks
from tests.lessons.small_edits import small_edits
from tests.sets import some

EQUAL = tomllib.loads((Path(__file__).parent / "equal_edits.toml").read_text(encoding="utf-8"))
# An audit takes seconds for each edit; a test of a loop stays right with rows of another length or seed.
LEFT_OUT = ("mended_validation", "short_window")
NAMES = [name for name in checks.names() if name not in LEFT_OUT]
SOLUTION = "def f(k, n):\n    total = 0\n    for i in range(n):\n        total += i * k\n    return total / (n + 1)\n"


class Endless(BaseException):
    """Raised in an edit whose loop does not end."""


def stop(_: int, __: FrameType | None) -> None:
    raise Endless


@pytest.mark.parametrize("name", some(NAMES, 12))
def test_no_small_edit_of_a_solution_passes(name):
    exercise, passed = getattr(checks, name), []
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for words, program in small_edits(exercise.text).items():
            signal.setitimer(signal.ITIMER_REAL, 5.0)
            try:
                if exercise(exercise.compiled(program)).passed:
                    passed.append(words)
            except Endless:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sorted(passed) == sorted(EQUAL.get(name, {}))


def test_small_edits_are_programs_of_their_own():
    edits = small_edits(SOLUTION)
    assert len(set(edits.values())) == len(edits) > 15
    for words in (
        "total += i * k -> total = i * k",
        "total += i * k -> total += i / k",
        "total += i * k -> pass",
        "return total / (n + 1) -> return total",
        "return total / (n + 1) -> return total / (n + 2)",
        "for i in range(n): -> for i in n:",
    ):
        assert words in edits
