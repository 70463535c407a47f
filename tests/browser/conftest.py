"""One JupyterLab and one Chromium for all browser tests, and their timings at the end of the report."""

import pytest
import torch

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
    """On one thread and other kernels than this CPU's own, on which `make test` runs the lessons."""
    home = tmp_path_factory.mktemp("lab")
    other = "avx2" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "default"
    # With AMX torch's fused attention in bf16 calls a kernel that these lack: "pack_vnni2 is only supported …".
    kernels = {"ATEN_CPU_CAPABILITY": other, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    with running_lab(home, **kernels, OMP_NUM_THREADS="1") as lab:
        yield lab


@pytest.fixture(scope="session")
def benchmark(pytestconfig):
    """Lines that are printed when all tests are done."""
    return pytestconfig.stash.setdefault(BENCHMARK, [])


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(BENCHMARK, [])
    if lines:
        terminalreporter.section("in the browser: seconds to run, median redraw time of 5 key presses")
        for line in lines:
            terminalreporter.write_line(line)
