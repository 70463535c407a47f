"""One JupyterLab and one Chromium for all browser tests, and their timings at the end of the report."""

import pytest

from .lab import find_chromium, running_browser, running_lab

BENCHMARK = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def chromium() -> str:
    return find_chromium()


@pytest.fixture(scope="session")
def browser(chromium):
    with running_browser(chromium) as browser:
        yield browser


@pytest.fixture(scope="session")
def lab(chromium, tmp_path_factory):
    """On one thread and the baseline kernels, which every CPU has; `make test` runs the lessons on its own kernels."""
    home = tmp_path_factory.mktemp("lab")
    # With AMX torch's fused attention in bf16 calls a kernel that the baseline lacks: "pack_vnni2 is only supported …".
    baseline = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    with running_lab(home, **baseline, OMP_NUM_THREADS="1") as lab:
        yield lab


@pytest.fixture(scope="session")
def benchmark(pytestconfig):
    """Lines that are printed when all tests are done."""
    return pytestconfig.stash.setdefault(BENCHMARK, [])


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(BENCHMARK, [])
    if lines:
        terminalreporter.section("in the browser: seconds to run, median redraw time of 8 key presses")
        for line in lines:
            terminalreporter.write_line(line)
