"""The loop that the README audits, and what it prints of it."""

import re
from pathlib import Path
from typing import Any

import pytest

from course_lm.audit import audit

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow(seconds=20)
def test_the_readme_shows_what_the_audit_says_of_the_loop_that_stands_there() -> None:
    shown = re.search(r"audit my_loop\.py:train\n(.*?)```", README, re.DOTALL)
    loop = re.search(r"```python\n(import torch\n[^`]*def train\([^`]*)```", README)
    assert shown is not None and loop is not None
    names: dict[str, Any] = {}
    exec(loop[1], names)
    said = str(audit(names["train"], progress=False)).splitlines()
    assert said[:-1] == shown[1].splitlines()[:-1]  # the last line has the seconds
