"""What every command that refuses its input does."""

import pytest

from course_lm.cli import main


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *parts: str) -> None:
    """Exit code 2, nothing on standard output, and one line on standard error that holds every part."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("course-lm: error: "), line
    for part in parts:
        assert part in line, line
