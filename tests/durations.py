"""Measured seconds: which tests they put into a set, and in which order.

`make durations` measures and writes durations.json: for each file its tests with the seconds of their middle case, and
the cases that take much longer or shorter. The time of shared fixtures is left out and has a table of its own: a test
counts with those that it needs. What has no entry is short.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

import pytest

from tests.sets import DAY, SET, some

STORED = Path(__file__).with_name("durations.json")
SHORTEST = 0.05  # seconds; what takes less has no entry
# The most seconds that a test of these sets takes. `slow` has what `test` has not, `nightly` everything.
LIMITS = {"check": 0.1, "test": 0.2}
SECONDS_A_DAY = 10.0  # of the cases of one test in `slow`; `nightly` has them all
WEEK = 7
LONG, TURN = 2.0, 3  # a test of `slow` that takes so many seconds a day runs on one day in three
# One browser and one JupyterLab; processes that come in time only where they do not fill the machine twice.
FOLDERS = ("tests/browser", "tests/distributed")


class Durations:
    """What was measured last."""

    def __init__(self) -> None:
        stored = json.loads(STORED.read_text(encoding="utf-8"))
        self.tests: dict[str, dict[str, float]] = stored["tests"]
        self.fixtures: dict[str, float] = stored["fixtures"]

    def own(self, item: pytest.Item) -> float:
        """Seconds of the test alone."""
        file, _, name = item.nodeid.partition("::")
        known = self.tests.get(file, {})
        return known.get(name, known.get(without_case(name), 0.0))

    def whole(self, item: pytest.Item) -> float:
        """Seconds of the test with the shared fixtures that it needs; one that says how often it runs is long."""
        if item.get_closest_marker("daily"):
            return inf
        return self.own(item) + sum(self.fixtures.get(name, 0.0) for name in shared_fixtures(item))


def together(nodeid: str) -> str:
    """The tests that one worker runs one after the other: a file's, or those of a folder that shares a server."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), file)


def without_case(name: str) -> str:
    return name.partition("[")[0]


def shared_fixtures(item: pytest.Item) -> Iterator[str]:
    found = getattr(item, "_fixtureinfo", None)  # a lesson's cell has none
    for definitions in found.name2fixturedefs.values() if found else ():
        if definitions[-1].scope != "function":
            yield fixture_name(definitions[-1])


def fixture_name(definition: pytest.FixtureDef[Any]) -> str:
    return f"{definition.baseid}::{definition.argname}"


def is_lesson(item: pytest.Item) -> bool:
    return item.path.suffix == ".ipynb"


def of_this_set(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items that belong to the set; what takes longest comes first, so that no worker is left with it."""
    durations = Durations()
    if SET in LIMITS:
        limit = LIMITS[SET]
        lessons = SET == "test"
        items = [item for item in items if (lessons if is_lesson(item) else durations.whole(item) <= limit)]
    elif SET == "slow":
        items = [item for item in items if not is_lesson(item) and durations.whole(item) > LIMITS["test"]]
        chosen = set(of_today(items, durations))
        items = [item for item in items if item in chosen]  # in pytest's order, by the fixtures that cases share
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        seconds[together(item.nodeid)] += durations.own(item) + is_lesson(item)  # of a lesson's cell: a guess
    return sorted(items, key=lambda item: (-seconds[together(item.nodeid)], together(item.nodeid)))


def of_today(items: Iterable[pytest.Item], durations: Durations) -> Iterator[pytest.Item]:
    """The tests of the day, and of one whose cases take long together those of the day: in time all."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[without_case(item.nodeid)].append(item)
    for name, test in cases.items():
        said = test[0].get_closest_marker("daily")
        total = sum(durations.own(item) for item in test)
        share = min(1.0, SECONDS_A_DAY / total) if total else 1.0
        number = said.args[0] if said else ceil(max(share, 1 / WEEK) * len(test))
        turn, rest = DAY.toordinal(), 0
        if total * number >= LONG * len(test):
            turn, rest = divmod(turn + crc32(name.encode()), TURN)
        if not rest:
            yield from some(test, number, turn)


class Stopwatch:
    """Measures every test and every shared fixture, and stores it when all is over; what did not run stays."""

    def __init__(self) -> None:
        self.tests: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.fixtures: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, name = report.nodeid.partition("::")
        seconds = self.tests[file]
        seconds[name] = seconds.get(name, 0.0) + report.duration
        if report.when == "teardown":
            for kind, value in report.user_properties:
                if kind == "shared fixture":
                    fixture, taken = value  # type: ignore[misc]
                    self.fixtures[fixture] = taken
                    seconds[name] -= taken

    def pytest_sessionfinish(self) -> None:
        stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"tests": {}, "fixtures": {}}
        tests = {file: known for file, known in stored["tests"].items() if (STORED.parents[1] / file).exists()}
        for file, measured in self.tests.items():
            if file.endswith(".py"):
                tests[file] = merged(tests.get(file, {}), measured)
        fixtures = stored["fixtures"] | self.fixtures
        content = {
            "fixtures": {name: round(taken, 2) for name, taken in sorted(fixtures.items()) if taken >= SHORTEST},
            "tests": {file: known for file, known in sorted(tests.items()) if known},
        }
        STORED.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(known: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """The entries of a file after a run: for each test its middle case, then the cases that are far from it."""
    cases: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, seconds in measured.items():
        cases[without_case(name)][name] = seconds
    entries = {name: taken for name, taken in known.items() if name not in measured and name not in cases}
    for test, seconds in cases.items():
        middle = entries[test] = median(seconds.values())
        far = {name: taken for name, taken in seconds.items() if abs(taken - middle) > max(0.5, 0.5 * middle)}
        entries |= {name: taken for name, taken in far.items() if name != test}
    return {name: round(taken, 2) for name, taken in sorted(entries.items()) if taken >= SHORTEST or "[" in name}


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Tell with the test that sets up a shared fixture what that took: so it reaches the process that stores it."""
    started = time.perf_counter()
    result = yield
    if fixturedef.scope != "function":
        told = (fixture_name(fixturedef), time.perf_counter() - started)
        request._pyfuncitem.user_properties.append(("shared fixture", told))  # type: ignore[attr-defined]
    return result
