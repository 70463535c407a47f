"""Claims about random states: all of them are kept, in a checkpoint file too."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.checkpoints import load_checkpoint, rng_state, save_checkpoint, set_rng_state


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def draws() -> list[float]:
    """Numbers from every global generator on this machine; the odd Gaussian leaves a cached one behind."""
    values = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]
    if torch.cuda.is_available():
        values.append(torch.rand((), device="cuda").item())
    if torch.backends.mps.is_available():
        values.append(torch.rand((), device="mps").item())
    return values


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), drawn=st.integers(0, 700))
def test_every_random_state_survives_a_checkpoint_file(scratch: Path, seed: int, drawn: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(drawn):
        draws()
    save_checkpoint(scratch / "rng.pt", {"rng": rng_state()})
    expected = [draws() for _ in range(3)]
    set_rng_state(load_checkpoint(scratch / "rng.pt")["rng"])
    assert [draws() for _ in range(3)] == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without CUDA")
def test_a_random_state_from_a_cuda_machine_is_restored_without_cuda() -> None:
    state = rng_state()
    expected = draws()
    set_rng_state({**state, "cuda": [torch.zeros(16, dtype=torch.uint8)]})
    assert draws() == expected
