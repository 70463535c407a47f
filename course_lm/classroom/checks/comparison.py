"""Where two results differ, said in a line that is the same on every machine."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

Number = float | int | Tensor

_LONGEST = 60  # characters of a printed value


def difference(expected: object, got: object, close: tuple[float, float] | None = None) -> str | None:
    """The first difference between two results in words, None where they are equal.

    Tensors need the same shape, and both whole or both fractional numbers; a number may be a tensor without
    dimensions. `close` is the relative and the absolute tolerance: by default 1e-7 and 1e-9 where both are float64
    tensors, 1e-2 and 1e-3 where one has 16 bits, else 1e-5 and 1e-6. NaN equals NaN. Raises TypeError for an
    `expected` that is none of tensor, number, text, dict, list or None.
    """
    if isinstance(got, np.ndarray | np.generic):
        got = torch.as_tensor(got)
    if _is_number(expected) and _is_number(got):
        return _number_difference(expected, got, close)
    if _is_number(expected):
        return f"expected a number, {_short(expected)}, got {_short(got)}"
    if isinstance(expected, Tensor):
        return _tensor_difference(expected, got, close)
    if isinstance(expected, Mapping):
        return _mapping_difference(expected, got, close)
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        return _sequence_difference(expected, got, close)
    if not isinstance(expected, str | bytes | None):
        raise TypeError(f"results of type {type(expected).__name__} cannot be compared")
    return None if expected == got else f"expected {_short(expected)}, got {_short(got)}"


def _is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)


def _number_difference(expected: Number, got: Number, close: tuple[float, float] | None) -> str | None:
    relative, absolute = close or _tolerance(expected, got)
    one, other = float(expected), float(got)
    if math.isclose(one, other, rel_tol=relative, abs_tol=absolute) or (math.isnan(one) and math.isnan(other)):
        return None
    return f"expected {_short(expected)}, got {_short(got)}"


def _tolerance(*values: object) -> tuple[float, float]:
    types = {value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point()}
    if types & {torch.float16, torch.bfloat16}:
        return 1e-2, 1e-3
    both_double = all(isinstance(value, Tensor) for value in values) and types == {torch.float64}
    return (1e-7, 1e-9) if both_double else (1e-5, 1e-6)


def _tensor_difference(expected: Tensor, got: object, close: tuple[float, float] | None) -> str | None:
    if not isinstance(got, Tensor):
        return f"expected a tensor of shape {tuple(expected.shape)}, got {_short(got)}"
    if expected.shape != got.shape:
        return f"expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    if expected.is_floating_point() != got.is_floating_point():
        return f"expected {expected.dtype}, got {got.dtype}"
    relative, absolute = close or _tolerance(expected, got)
    one, other = expected.detach().double().cpu(), got.detach().double().cpu()
    apart = ~torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)
    if not apart.any():
        return None
    place = tuple(apart.nonzero()[0].tolist())
    return f"at {list(place)} expected {_short(expected[place])}, got {_short(got[place])}"


def _mapping_difference(expected: Mapping, got: object, close: tuple[float, float] | None) -> str | None:
    if not isinstance(got, Mapping):
        return f"expected a dict with {', '.join(map(str, expected))}, got {_short(got)}"
    if expected.keys() != got.keys():
        return f"expected the keys {', '.join(map(str, expected))}, got {', '.join(map(str, got))}"
    found = ((key, difference(expected[key], got[key], close)) for key in expected)
    return next((f"{key}: {said}" for key, said in found if said), None)


def _sequence_difference(expected: Sequence, got: object, close: tuple[float, float] | None) -> str | None:
    if not isinstance(got, Sequence) or isinstance(got, str | bytes):
        return f"expected {_short(expected)}, got {_short(got)}"
    if len(expected) != len(got):
        return f"expected {_short(expected)} ({len(expected)} items), got {_short(got)} ({len(got)} items)"
    found = ((i, difference(one, other, close)) for i, (one, other) in enumerate(zip(expected, got)))
    return next((f"item {i}: {said}" for i, said in found if said), None)


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else _short(value.item())
    if isinstance(value, list | tuple):
        items = ", ".join(map(_short, value))
        text = f"[{items}]" if isinstance(value, list) else f"({items})"
    else:
        text = f"{value:.4g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
