"""What a command answers: its output, or the one line of a refusal."""

from collections.abc import Sequence

import pytest

from course_lm.cli import main


def printed(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """The standard output of a command that succeeds."""
    capsys.readouterr()
    assert main(arguments) == 0
    return capsys.readouterr().out


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], *parts: str) -> None:
    """Exit code 2, nothing on standard output, and one line on standard error that holds every part."""
    capsys.readouterr()
    assert main(arguments) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("course-lm: error: "), line
    for part in parts:
        assert part in line, line
