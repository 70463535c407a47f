"""Settings for every test: no network, and reproducible property tests."""

import os
import signal
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
settings.load_profile("ci" if os.environ.get("CI") else "local")


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
