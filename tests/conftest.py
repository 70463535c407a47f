"""Settings for every test: no network, random cases of the day, and the tests of the set that is run."""

import os
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis.core
import pytest
from hypothesis import settings

from tests.durations import Stopwatch, of_this_set, pytest_fixture_setup, together
from tests.sets import DAY, SET

__all__ = ["pytest_fixture_setup"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does that to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if getattr(signal, "SIGHUP", None) and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

EXAMPLES = {"check": 20, "nightly": 500}.get(SET, 100)
settings.register_profile("day", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.register_profile("ci", settings.get_profile("day"), database=None)
settings.load_profile("ci" if os.environ.get("CI") else "day")
hypothesis.core.global_force_seed = DAY.toordinal()  # pyrefly: ignore[bad-assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help="store in tests/durations.json what was measured")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("store_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())


def pytest_report_header() -> str:
    return f"random cases of {DAY}; DAY={DAY} repeats them"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of this set, see tests/durations.py."""
    chosen = of_this_set(items)
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares fixtures goes to one worker."""
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Together(config, log)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """A sync serves for a loss of power alone, which no test causes; most of a toy run would be waiting for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def temporary_folders_go_with_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that draws its cases makes folders of its own, which lie where pytest clears up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
        yield


@pytest.fixture
def course_figures() -> Iterator[None]:
    """The course's figure style for one test, on no screen; figures left open are closed."""
    import matplotlib
    import matplotlib.pyplot as plt

    from course_lm.classroom import plots

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        plots.style()
        yield
    plt.close("all")
