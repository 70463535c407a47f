"""Settings for every test: no network, reproducible property tests, and an order that keeps all workers busy."""

import os
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WANDB_MODE", "offline")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does that to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("quick", deadline=None, print_blob=True, max_examples=20)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker is left with one when the others are done."""
    seconds: Counter[str] = Counter()
    for item in items:
        seconds[str(item.path)] += expected_seconds(item)
    items.sort(key=lambda item: -seconds[str(item.path)])


def expected_seconds(item: pytest.Item) -> int:
    """A rough guess: what a slow test says of itself, and one second for a long one or a lesson's cell."""
    slow = item.get_closest_marker("slow")
    if slow is not None:
        return slow.kwargs.get("seconds", 10)
    return item.get_closest_marker("long") is not None or item.path.suffix == ".ipynb"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Beside the slowest tests that `--durations` asks for, the seconds of each file."""
    if config.getoption("durations") is None:
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("seconds of each file")
    for file, total in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{total:8.2f}  {file}")


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
