"""What makes a run repeat itself on a machine: its seed, its kernels, and the device that it computes on."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic as deterministic_settings

from course_lm.validation import require_whole

GENERATORS = (torch.Generator, random.Random, np.random.Generator)
PRODUCTS = ("highest", "high", "medium")  # how exact torch's products of float32 are
LARGEST_SEED = 2**32 - 1  # that NumPy takes
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def seed_everything(seed: int, deterministic: bool = True) -> None:
    """Seed Python, NumPy and torch on every device; `deterministic` also keeps torch to deterministic kernels.

    Raises ValueError unless `seed` is a whole number from 0 to 2**32 - 1.
    """
    seed = require_whole("seed", seed, least=0, most=LARGEST_SEED)
    seed_generators(seed)
    torch.manual_seed(seed)  # also of devices that are not in use yet
    _choose_kernels(deterministic)


def seed_generators(seed: int, own: Sequence[Any] = ()) -> None:
    """Seed the global generators of Python, NumPy and torch, these on every device in use; `seed` in [0, 2**32).

    own: others of `GENERATORS`; each gets a seed of its own that follows from `seed`.
    """
    _seed_host(seed)
    for number, generator in enumerate(own, start=1):
        drawn = seed_of(seed, number)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(drawn)
        elif isinstance(generator, random.Random):
            generator.seed(drawn)
        else:
            generator.bit_generator.state = type(generator.bit_generator)(drawn).state
    # not torch.manual_seed: it prepares devices that are not in use, which takes 0.2 ms, and a step comes here
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def keep_generator(one: Any) -> Callable[[], object]:
    """What puts one of `GENERATORS` back to where it is now."""
    if isinstance(one, torch.Generator):
        return partial(one.set_state, one.get_state())
    if isinstance(one, random.Random):
        return partial(one.setstate, one.getstate())
    return partial(setattr, one.bit_generator, "state", one.bit_generator.state)


def seed_of(*numbers: int) -> int:
    """A seed in [0, 2**32) that depends on all the numbers, such as a run's seed, an epoch and a batch."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the global generators of the CPU begin with `seed` in the body; then they are what they were."""
    with generators_kept(accelerators=False):  # to ask an accelerator for its state would wait for it
        _seed_host(seed)
        yield


@contextmanager
def generators_kept(accelerators: bool = True) -> Iterator[None]:
    """Put the global generators of Python, NumPy and torch back when the body ends, by an error too."""
    in_python, in_numpy = random.getstate(), np.random.get_state()
    asked = accelerators and torch.cuda.is_initialized()  # to ask starts CUDA on every device
    with torch.random.fork_rng(range(torch.cuda.device_count()) if asked else ()):
        try:
            yield
        finally:
            random.setstate(in_python)
            np.random.set_state(in_numpy)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Keep torch to deterministic kernels, or not, while the body runs; then the earlier settings come back.

    Raises:
        ValueError: an operation of the body has none.
    """
    chosen = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic_settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_WORKSPACE)
    _choose_kernels(wanted)
    try:
        yield
    except RuntimeError as error:
        operation, without, _ = str(error).partition(" does not have a deterministic implementation")
        if not without:
            raise
        raise ValueError(
            f"{operation} has no deterministic kernel on this device, so a run that goes on would not be the same to "
            "the bit; training.deterministic: false trains without that promise"
        ) from error
    finally:
        torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])
        deterministic_settings.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        if workspace is None:  # one that the user has set was not changed either
            os.environ.pop(_WORKSPACE, None)


def _seed_host(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def _choose_kernels(deterministic: bool) -> None:
    if deterministic:
        os.environ.setdefault(_WORKSPACE, ":4096:8")  # read when CUDA starts
        deterministic_settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a costly debugging aid
    # Not warn_only: with it the fused attention of CUDA takes its faster kernels, which add up in any order.
    torch.use_deterministic_algorithms(deterministic)


def check_default_device(kind: str = "cpu") -> None:
    """Refuse a `torch.set_default_device` that makes tensors elsewhere than on the CPU and on devices of this kind."""
    default = torch.empty(0).device.type
    if default not in ("cpu", kind):
        accepted = "cpu" if kind == "cpu" else f"cpu or {kind}"
        raise ValueError(
            f"torch.set_default_device must be {accepted}, got {default}: training.device says where to train"
        )


def float32_products() -> str:
    """One of `PRODUCTS`; another word where somebody has chosen by torch's newer switches, which exclude these."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "by fp32_precision"


def resolve_device(name: str) -> torch.device:
    """The device that `training.device` names; ValueError where this machine has none of that kind."""
    # in the order in which "auto" prefers them
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there and (kind != "mps" or updates_right(kind)))
    if not available.get(name, False):
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ValueError(f"training.device {name!r} is not on this machine; it has {there}")
    return torch.device(name)


def updates_right(device: str) -> bool:
    """Whether a step of AdamW on a transposed matrix leaves the weights that it leaves on the CPU.

    On Apple's GPUs some versions of torch left a tensor that is not contiguous as it was, and raised no error: the
    weights stayed where they were (pytorch/pytorch#118115).
    """
    after = []
    for kind in ("cpu", device):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4).t().to(kind))
        weight.grad = weight.detach() + 0.5
        torch.optim.AdamW([weight], lr=0.1).step()
        after.append(weight.detach().cpu())
    return torch.allclose(after[0], after[1], atol=1e-4)
