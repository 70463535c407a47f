"""Where two results differ, said in a line that is the same on every machine."""

import math
from collections import deque
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

Number = float | int | Tensor
Close = tuple[float, float]

MOST_ITEMS = 10_000  # of an endless iterator
_LONGEST = 60  # characters of a printed value
_LISTABLE = Iterator | range | deque | KeysView | ValuesView


@dataclass(frozen=True)
class _Rules:
    """How close numbers must be, and the largest of the expected ones."""

    close: Close | None
    scale: float


def difference(expected: object, got: object, close: Close | None = None) -> str | None:
    """The first difference between two results in words, None where they are equal.

    Fractional numbers may differ by 1e-7 of their size where both are float64 tensors, else by 1e-5; whole ones not at
    all. Beside that stands only what rounding leaves of the largest expected number: 1e-12 of it, 5e-7 where a tensor
    has 32 bits. `close` is a relative and an absolute tolerance to be used instead.

    NaN equals NaN, and a number may be a tensor without dimensions, a NumPy scalar, a `Fraction` or a `Decimal`.
    Tensors need the same shape, and both truth values, whole or fractional numbers; nested lists and arrays of the same
    numbers are as good. Lists, tuples, ranges, generators and arrays are all alike. Raises TypeError for an `expected`
    that is none of tensor, number, text, dict, list or None.
    """
    return _difference(expected, got, _Rules(close, _largest(expected)))


def _largest(value: object) -> float:
    numbers = (abs(leaf) for leaf in leaves(value) if not isinstance(leaf, str) and math.isfinite(leaf))
    return max(numbers, default=0.0) or 1.0


def leaves(value: object) -> Iterator[float | str]:
    """The numbers and texts of a result, one after the other."""
    value = plain(value)
    if isinstance(value, Tensor):
        yield from value.detach().flatten().tolist()
    elif isinstance(value, Mapping):
        yield from (leaf for one in value.values() for leaf in leaves(one))
    elif isinstance(value, list | tuple):
        yield from (leaf for one in value for leaf in leaves(one))
    elif isinstance(value, int | float | str):
        yield value


def plain(value: object) -> object:
    """A number, list or tensor in the form in which results are compared; anything else as it is."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value) if value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, Fraction | Decimal):
        return float(value)
    return list(islice(value, MOST_ITEMS)) if isinstance(value, _LISTABLE) else value


def _difference(expected: object, got: object, rules: _Rules) -> str | None:
    is_tensor = isinstance(got, Tensor)
    got = plain(got)
    if is_number(expected):
        if is_number(got):
            return _number_difference(expected, got, rules)
        return f"expected a number, {short(expected)}, got {short(got)}"
    if isinstance(expected, Tensor):
        return _tensor_difference(expected, got, rules, is_tensor)
    if isinstance(expected, Mapping):
        return _mapping_difference(expected, got, rules)
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        return _sequence_difference(expected, got, rules)
    if not isinstance(expected, str | bytes | None):
        raise TypeError(f"results of type {type(expected).__name__} cannot be compared")
    return None if expected == got else f"expected {short(expected)}, got {short(got)}"


def is_number(value: object) -> TypeGuard[Number]:
    """Whether a result is one number: an int, a float or a tensor without dimensions."""
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)


def _number_difference(expected: Number, got: Number, rules: _Rules) -> str | None:
    if _is_whole(expected) and not rules.close:
        one, other = _whole(expected), float(got)
        equal = _whole(got) == one if other.is_integer() else math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    else:
        relative, absolute = rules.close or _tolerance(rules.scale, expected, got)
        one, other = float(expected), float(got)
        equal = math.isclose(one, other, rel_tol=relative, abs_tol=absolute)
    return None if equal or (one != one and other != other) else beside(expected, got)


def _is_whole(value: Number) -> bool:
    return not (value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float))


def _whole(value: Number) -> int:
    return int(value.item()) if isinstance(value, Tensor) else int(value)


def _tolerance(scale: float, expected: object, got: object) -> Close:
    types = [value.dtype if isinstance(value, Tensor) else None for value in (expected, got)]
    both_double = types == [torch.float64, torch.float64]
    return 1e-7 if both_double else 1e-5, scale * (5e-7 if torch.float32 in types else 1e-12)


def sort_of(tensor: Tensor) -> str:
    """What its numbers are: tensors of two sorts are never equal."""
    return "fractional" if tensor.is_floating_point() else "truth values" if tensor.dtype == torch.bool else "whole"


def _tensor_difference(expected: Tensor, got: object, rules: _Rules, is_tensor: bool) -> str | None:
    made = got if isinstance(got, Tensor) else as_tensor(got)
    if made is None or (not is_tensor and not made.ndim):
        return f"expected a tensor of shape {tuple(expected.shape)}, got {short(got)}"
    if expected.shape != made.shape:
        return f"expected the shape {tuple(expected.shape)}, got {tuple(made.shape)}"
    if is_tensor and sort_of(expected) != sort_of(made):
        return f"expected {expected.dtype}, got {made.dtype}"
    whole = sort_of(expected) != "fractional" and not rules.close
    relative, absolute = (0.0, 0.0) if whole else rules.close or _tolerance(rules.scale, expected, made)
    one, other = expected.detach().double().cpu(), made.detach().double().cpu()
    apart = ~torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)
    if not apart.any():
        return None
    place = tuple(apart.nonzero()[0].tolist())
    return f"at {list(place)} {beside(expected[place], made[place])}"


def as_tensor(value: object) -> Tensor | None:
    """The tensor that nested lists of numbers, tensors and arrays stand for; None where they stand for none."""
    try:
        return torch.as_tensor(_nested(value))
    except (TypeError, ValueError, RuntimeError):
        return None


def _nested(value: object) -> Any:
    value = plain(value)
    if isinstance(value, Tensor):
        return value.tolist()
    return [_nested(one) for one in value] if isinstance(value, list | tuple) else value


def _mapping_difference(expected: Mapping[Any, object], got: object, rules: _Rules) -> str | None:
    if not isinstance(got, Mapping):
        return f"expected a dict with {', '.join(map(str, expected))}, got {short(got)}"
    if expected.keys() != got.keys():
        return f"expected the keys {', '.join(map(str, expected))}, got {', '.join(map(str, got))}"
    found = ((key, _difference(expected[key], got[key], rules)) for key in expected)
    return next((f"{key}: {said}" for key, said in found if said), None)


def _sequence_difference(expected: Sequence[object], got: object, rules: _Rules) -> str | None:
    if isinstance(got, Tensor) and got.ndim:
        got = got.tolist() if got.ndim == 1 else list(got)
    if not isinstance(got, Sequence) or isinstance(got, str | bytes):
        return f"expected {short(expected)}, got {short(got)}"
    if len(expected) != len(got):
        return f"expected {short(expected)} ({len(expected)} items), got {short(got)} ({len(got)} items)"
    found = ((i, _difference(one, other, rules)) for i, (one, other) in enumerate(zip(expected, got)))
    return next((f"item {i}: {said}" for i, said in found if said), None)


def beside(expected: object, got: object) -> str:
    """Both values in words, with as many digits as they need to look different."""
    one, other = short(expected), short(got)
    for digits in range(5, 18):
        if one != other:
            break
        one, other = short(expected, digits), short(got, digits)
    return f"expected {one}, got {other}"


def short(value: object, digits: int = 4) -> str:
    """A value in at most 60 characters."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else short(value.item(), digits)
    if isinstance(value, list | tuple):
        items = ", ".join(short(one, digits) for one in value)
        text = f"[{items}]" if isinstance(value, list) else f"({items})"
    else:
        text = f"{value:.{digits}g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
