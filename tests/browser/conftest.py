"""One JupyterLab and one Chromium for all browser tests, and a page for each file."""

import pytest
import torch

from .lab import find_chromium, running_browser, running_lab
from .notebook_page import lab_page


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


@pytest.fixture(scope="module")
def page(browser, lab):
    """JupyterLab, as a browser that has never seen it opens it."""
    with lab_page(browser, lab) as page:
        yield page
