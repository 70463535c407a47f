"""Claims about seeds, kernels and devices."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from course_lm.reproducibility import deterministic_kernels, resolve_device, seed_everything


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_fixes_python_numpy_and_torch_and_another_one_changes_them():
    drawn = []
    for seed in (3, 3, 4):
        seed_everything(seed)
        drawn.append(draws())
    assert drawn[0] == drawn[1] and all(a != b for a, b in zip(drawn[1], drawn[2]))


def test_deterministic_asks_torch_for_deterministic_kernels():
    seed_everything(0, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    seed_everything(0, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    # with warnings alone the fused attention of CUDA takes kernels that are not deterministic
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_an_operation_without_a_deterministic_kernel_is_refused_by_its_name():
    def put() -> None:
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))

    refusal = r"put_ has no deterministic kernel .*training\.deterministic: false"
    with pytest.raises(ValueError, match=refusal), deterministic_kernels(True):
        put()
    with deterministic_kernels(False):
        put()


def test_other_errors_pass_through_deterministic_kernels():
    with pytest.raises(RuntimeError, match="size"), deterministic_kernels(True):
        torch.zeros(2) + torch.zeros(3)


def test_the_cpu_is_always_there():
    assert resolve_device("cpu") == torch.device("cpu")


def test_auto_takes_an_accelerator_before_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(("moves", "taken"), [(True, "mps"), (False, "cpu")])
def test_auto_takes_apples_gpu_only_where_a_step_moves_the_weights_as_on_the_cpu(monkeypatch, moves, taken):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    optimizers = []

    def adamw(parameters, lr):
        optimizers.append(torch.optim.SGD(parameters, lr=lr if moves or not optimizers else 0.0))
        return optimizers[-1]

    monkeypatch.setattr(torch.optim, "AdamW", adamw)
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, kind: to(tensor, "cpu"))  # this machine has no such GPU
    assert resolve_device("auto").type == taken and len(optimizers) == 2


def test_a_device_that_is_not_there_is_refused_with_what_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="'cuda' is not on this machine; it has cpu"):
        resolve_device("cuda")


@pytest.mark.parametrize("seed", [-1, 2**32, True, 1.5, "3", None])
def test_what_is_no_seed_is_refused_in_one_line(seed):
    with pytest.raises(ValueError, match=f"seed must be a whole number from 0 to 4294967295, got {seed!r}"):
        seed_everything(seed, deterministic=False)


def test_a_seed_of_numpy_is_the_number_in_it():
    seed_everything(3, deterministic=False)
    expected = torch.rand(2)
    seed: Any = np.int64(3)
    seed_everything(seed, deterministic=False)
    assert torch.equal(torch.rand(2), expected)
