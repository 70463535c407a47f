"""The state of every global random generator, as tensors and plain data that a checkpoint can hold."""

import math
import random
import struct
from typing import Any

import numpy as np
import torch

from course_lm.validation import ensure

_ACCELERATOR_BYTES = 16  # a seed and an offset
_MOST_BYTES = 2**16  # the largest state is torch's on the CPU, with 5,056


def rng_state() -> dict[str, Any]:
    """Return the state of all global random generators (Python, NumPy, torch: CPU, CUDA, MPS) as plain data.

    "cuda" is None until this process has used CUDA, since asking would start it on every device.
    """
    version, words, gauss = random.getstate()  # gauss: normal numbers are drawn in pairs, the second is kept
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    on_mps = torch.backends.mps.is_available()
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "words": torch.from_numpy(legacy["state"]["key"].astype(np.int64)),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "mps": torch.mps.get_rng_state() if on_mps else None,
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned. A device that this machine does not have is passed over.

    Raises ValueError, before any generator is touched, where it is not such a state.
    """
    check_rng_state(state)
    python, legacy = state["python"], state["numpy"]
    random.setstate(_python_state(python))
    np.random.set_state(_numpy_state(legacy))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        for device, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state.cpu(), device)  # torch takes states on the CPU only
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())


def check_rng_state(state: Any) -> None:
    """Raise ValueError, in one line, where `set_rng_state` could not restore this; no global generator is touched."""
    _check_keys(state, "random state", ("python", "numpy", "torch", "cuda", "mps"))
    _check_python(state["python"])
    _check_numpy(state["numpy"])
    _check_torch(state["torch"])
    cuda, mps = state["cuda"], state["mps"]
    ensure(cuda is None or isinstance(cuda, list), "the random state of CUDA must be a list of tensors or None")
    for number, part in enumerate(cuda or []):
        device = f"cuda:{number}" if torch.cuda.is_available() and number < torch.cuda.device_count() else None
        _check_bytes(part, f"CUDA device {number}", device)
    if mps is not None:
        _check_bytes(mps, "MPS", "mps" if torch.backends.mps.is_available() else None)


def _check_python(state: Any) -> None:
    _check_keys(state, "random state of Python", ("version", "words", "gauss"))
    version, mine = state["version"], random.getstate()[0]
    same = type(version) is int and version == mine
    ensure(same, f"the random state of Python has version {_shown(version)}, not {mine}")
    _check_words(state["words"], "Python", 625)
    _check_gauss(state["gauss"], "Python", or_none=True)
    try:
        random.Random().setstate(_python_state(state))
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"the random state of Python is not one: {error}") from None


def _check_numpy(state: Any) -> None:
    _check_keys(state, "random state of NumPy", ("words", "position", "has_gauss", "gauss"))
    _check_words(state["words"], "NumPy", 624)
    position, has_gauss = state["position"], state["has_gauss"]
    # NumPy itself takes any position, and reads whatever lies there in memory.
    where = f"the random state of NumPy has the position {_shown(position)}, not one in [0, 624]"
    ensure(type(position) is int and 0 <= position <= 624, where)
    known = type(has_gauss) is int and has_gauss in (0, 1)
    ensure(known, f"the random state of NumPy has has_gauss {_shown(has_gauss)}, not 0 or 1")
    _check_gauss(state["gauss"], "NumPy")


def check_generator_state(state: Any, name: str) -> None:
    """Raise ValueError where this is no state of a `torch.Generator`; of an accelerator's only the form is checked."""
    _check_bytes(state, name, None)
    if state.numel() != _ACCELERATOR_BYTES:
        _check_torch(state, name)


def _check_torch(state: Any, name: str = "torch") -> None:
    _check_bytes(state, name, "cpu")
    # A Mersenne twister's words left and the next one's place; torch does not hold them against each other, and reads
    # past the last word where they do not agree. The first 8 bytes are the seed.
    left, _, following = struct.unpack_from("=iiQ", state.cpu().contiguous().numpy().tobytes(), 8)
    agree = left > 0 and left + following <= 625
    ensure(agree, f"the random state of {name} has {left} words left from word {following} on; there are 624")


def _check_bytes(state: Any, name: str, device: str | None) -> None:
    dense = isinstance(state, torch.Tensor) and state.layout == torch.strided and not state.is_meta
    right = dense and state.dtype == torch.uint8 and state.ndim == 1 and state.numel() <= _MOST_BYTES
    ensure(right, f"the random state of {name} must be a tensor of bytes")
    if device is not None:
        try:
            torch.Generator(device).set_state(state.cpu().contiguous())
        except (RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"the random state of {name} is not one: {reason}") from None


def _check_words(words: Any, name: str, count: int) -> None:
    dense = isinstance(words, torch.Tensor) and words.layout == torch.strided and not words.is_meta
    right = dense and words.dtype == torch.int64 and words.shape == (count,)
    ensure(right, f"the random state of {name} must have {count} words in a tensor of int64")
    lowest, highest = int(words.min()), int(words.max())
    ensure(0 <= lowest <= highest < 2**32, f"the random state of {name} has a word outside [0, 2**32)")
    # all zeros stay zeros for ever: "random" numbers that are all the same
    ensure(highest > 0, f"the random state of {name} has no word but 0")


def _check_gauss(gauss: Any, name: str, or_none: bool = False) -> None:
    right = (or_none and gauss is None) or (type(gauss) is float and math.isfinite(gauss))
    ensure(right, f"the random state of {name} has the Gaussian {_shown(gauss)}, not a finite number")


def _check_keys(state: Any, name: str, keys: tuple[str, ...]) -> None:
    right = isinstance(state, dict) and set(state) == set(keys)
    ensure(right, f"the {name} must be a dict with {', '.join(keys)}")


def _python_state(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["words"].tolist()), state["gauss"]


def _numpy_state(state: dict[str, Any]) -> tuple[Any, ...]:
    words = state["words"].cpu().numpy().astype(np.uint32)
    return "MT19937", words, state["position"], state["has_gauss"], state["gauss"]


def _shown(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"
