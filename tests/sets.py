"""What runs when: which set of tests this is, the day that its random cases are drawn from, and how many it draws.

`make check`, `make test`, `make test-slow` and `make nightly` name their set in the variable `COURSE_TESTS`; without it
every test runs that pytest is given, with as many cases as a day has. Which tests are in a set follows from measured
seconds, see `tests/conftest.py`.

Random cases are drawn from the day of HEAD's commit, so each day has others and one commit always the same; `DAY`
names another. A case that has failed once becomes an explicit example of its test.
"""

import os
import random
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings

T = TypeVar("T")
SETS = ("check", "test", "slow", "nightly")
SET = os.environ.get("COURSE_TESTS", "")
if SET not in ("", *SETS):
    raise ValueError(f"COURSE_TESTS must be one of {', '.join(SETS)}, got {SET!r}")


def _day() -> date:
    """The variable `DAY`, else the day of HEAD's commit, else, where there is no commit, today."""
    if given := os.environ.get("DAY"):
        return date.fromisoformat(given)
    asked = ["git", "show", "--no-patch", "--format=%cs", "HEAD"]
    try:
        told = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        told = ""
    return date.fromisoformat(told) if told else date.today()


DAY = _day()


def draws(name: str) -> random.Random:
    """Random numbers of the day; `name` tells them from those of other tests."""
    return random.Random(f"{DAY} {name}")


def of_set(day: int, night: int) -> int:
    """How many random cases a test has: so many a day, and so many in the nightly set."""
    return night if SET == "nightly" else day


def examples(day: int, night: int, **others: Any) -> settings:
    """Hypothesis's settings for a test whose cases are costly: their number, and no time spent on shrinking them."""
    return settings(
        max_examples=of_set(day, night),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        **others,
    )


def some(items: Sequence[T], number: int, turn: int = DAY.toordinal()) -> list[T]:
    """`number` of the items, each turn those that follow the ones of the turn before; by night all."""
    number = len(items) if SET == "nightly" else min(number, len(items))
    return [items[place % len(items)] for place in range(turn * number, (turn + 1) * number)]
