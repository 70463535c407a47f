"""How wrong results as a whole relate to the expected ones: a factor, a shift, an order, a shape, a kind."""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
from torch import Tensor

from course_lm.classroom.checks.comparison import as_tensor, is_number, plain, short, sort_of

Pair = tuple[object, object]  # what is expected, and what came

_SHAPES = re.compile(r"\(.*?\)|\[.*?\]")
_FACTORS = {
    60: "60 times the expected one, as between minutes and seconds",
    3600: "3600 times the expected one, as between hours and seconds",
    1024: "1024 times the expected one, as between bytes and KiB",
    1024**2: "1024² times the expected one, as between bytes and MiB",
    100: "100 times the expected one, as between a share and per cent",
    8: "8 times the expected one, as between bytes and bits",
    4: "4 times the expected one, as between numbers and bytes of float32",
    math.log(2): "ln 2 times the expected one, as between bits and nats",
    math.log(10): "ln 10 times the expected one, as between base 10 and base e",
}
_TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the exponential of": np.exp,
    "the natural logarithm of": np.log,
    "the logarithm to base 2 of": np.log2,
    "2 to the power of": np.exp2,
    "the square root of": np.sqrt,
    "the square of": np.square,
    "1 minus": lambda x: 1 - x,
    "1 divided by": lambda x: 1 / x,
    "the absolute value of": np.abs,
}
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rounded to whole numbers": np.round,
    "rounded down": np.floor,
    "rounded up": np.ceil,
    **{f"rounded to {places} decimal places": (lambda x, places=places: np.round(x, places)) for places in range(1, 7)},
}


def relation(pairs: Sequence[Pair]) -> str:
    """A relation that holds between all pairs of expected and wrong results, as a sentence; empty where none does."""
    for kind in (_kind, _shape):
        said = [kind(expected, got) for expected, got in pairs]
        if all(said) and len({_SHAPES.sub("", one) for one in said}) == 1:
            return said[0]
    arrays = [(_numbers(expected), _numbers(got)) for expected, got in pairs]
    known = [(one, other) for one, other in arrays if one is not None and other is not None]
    if len(known) < len(arrays) or any(one.shape != other.shape for one, other in known):
        return ""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return next(_numeric(known), "")


def _kind(expected: object, got: object) -> str:
    """Another type of result."""
    got_is_tensor, got = isinstance(got, Tensor), plain(got)
    if is_number(expected):
        if isinstance(got, str):
            return "the result is a text where a number is expected"
        many = isinstance(got, list | tuple | Tensor) and not is_number(got)
        return f"the result is {short(got)} where one number is expected" if many else ""
    if isinstance(expected, Tensor) and isinstance(got, Tensor) and got_is_tensor:
        if expected.shape == got.shape and sort_of(expected) != sort_of(got):
            return f"the result has the type {got.dtype}, it should have {expected.dtype}"
        return ""
    for kinds, name in (((list, tuple), "a list"), (Mapping, "a dict"), (str, "text")):
        if isinstance(expected, kinds) and not isinstance(got, kinds) and not isinstance(got, Tensor):
            return f"the result is a {type(got).__name__} where {name} is expected"
    return ""


def _shape(expected: object, got: object) -> str:
    """The expected numbers in another shape, with one place too few or too many."""
    one, other = _numbers(expected), _numbers(got)
    if one is None or other is None or one.shape == other.shape or not one.ndim:
        return ""
    shapes = f"the shape is {other.shape}, it should be {one.shape}"
    if one.ndim > 1 and _near(np.swapaxes(one, -1, -2), other):
        return "the result is transposed: its last two axes have changed places"
    if one.size == other.size:
        return f"the numbers are right, but {shapes}" if _near(one.reshape(-1), other.reshape(-1)) else ""
    for axis in range(one.ndim):
        for which, part in (("last", _cut(one, axis, 0, -1)), ("first", _cut(one, axis, 1, None))):
            if part.size and _near(part, other):
                return f"the {which} place of axis {axis} is missing, the rest is right: {shapes}"
        if one.ndim == other.ndim:
            for where, part in (("end", _cut(other, axis, 0, -1)), ("start", _cut(other, axis, 1, None))):
                if _near(one, part):
                    return f"there is one place too many at the {where} of axis {axis}: {shapes}"
    return ""


def _numeric(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[str]:
    """Relations between arrays of one shape, the plainest first; none where only their parts differ in length."""
    if all(_near(one, other) for one, other in pairs):
        return
    many = max(one.size for one, _ in pairs) > 1
    every, the = ("every number is", "the expected numbers") if many else ("the result is", "the expected one")
    varied = all(np.unique(one).size > 1 for one, _ in pairs)
    if varied and all(_near(one.reshape(-1)[::-1], other.reshape(-1)) for one, other in pairs):
        yield "the numbers stand in the opposite order"
    for axis in range(min(one.ndim for one, _ in pairs) if varied else 0):
        if all(_near(_cut(one, axis, 0, -1), _cut(other, axis, 1, None)) for one, other in pairs):
            yield "the numbers are right, but stand one place too late"
        if all(_near(_cut(one, axis, 1, None), _cut(other, axis, 0, -1)) for one, other in pairs):
            yield "the numbers are right, but stand one place too early"
    if all(np.unique(one).size > 2 and _near(np.sort(one, None), np.sort(other, None)) for one, other in pairs):
        yield "the numbers are right, but stand in another order"
    expected, got = np.concatenate([one for one, _ in pairs], None), np.concatenate([one for _, one in pairs], None)
    if not (np.isfinite(expected).all() and np.isfinite(got).all()):
        return
    for what, how in _ROUNDINGS.items():
        if np.allclose(how(expected), got, rtol=1e-6, atol=0.0) and np.any(got):
            yield f"{'the numbers are' if many else 'the result is'} {what}"
    if (expected == np.round(expected)).all() and not _near(expected, got) and _near(expected, np.round(got)):
        yield f"{'the numbers are' if many else 'the result is'} not rounded"
    yield from (f"{every} {factor}" for factor in _factor(expected, got))
    if np.unique(expected).size > 1 or not (expected == np.round(expected)).all():
        for what, how in _TRANSFORMS.items():
            if _near(how(expected), got) and not np.isin(got, (0.0, 1.0)).all():
                yield f"{every} {what} {'the expected one' if many else the}"
    by = float(np.median(got - expected))
    tells = np.unique(expected).size > 1 or abs(by) == 1
    if by and tells and np.allclose(got - expected, by, rtol=1e-5, atol=_noise(expected)):
        yield f"{every} {_as_text(abs(by))} too {'large' if by > 0 else 'small'}"


def _factor(expected: np.ndarray, got: np.ndarray) -> Iterator[str]:
    counted = expected != 0
    if not counted.any() or np.any(got[~counted]):
        return
    factors = got[counted] / expected[counted]
    factor = float(np.median(factors))
    if factor == 0 or not np.allclose(factors, factor, rtol=1e-5, atol=0):
        return
    if math.isclose(factor, -1, rel_tol=1e-5):
        yield "minus the expected one"
    for known, words in _FACTORS.items():
        if math.isclose(factor, known, rel_tol=1e-5):
            yield words
        if math.isclose(factor, 1 / known, rel_tol=1e-5):
            yield f"1/{words}"
    if np.unique(expected[counted]).size > 1 or factor in (2, 0.5, 10, 0.1):
        yield f"{_as_text(factor)} times the expected one"


def _cut(array: np.ndarray, axis: int, start: int, stop: int | None) -> np.ndarray:
    part = [slice(None)] * array.ndim
    part[axis] = slice(start, stop)
    return array[tuple(part)]


def _as_text(number: float) -> str:
    near = Fraction(number).limit_denominator(12)
    return str(near) if near and math.isclose(float(near), number, rel_tol=1e-6) else f"{number:.4g}"


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    same = one.shape == other.shape
    return same and bool(np.allclose(other, one, rtol=1e-5, atol=_noise(one), equal_nan=True))


def _noise(numbers: np.ndarray) -> float:
    """A share of the largest number; none where small ones stand beside a huge one, for they would be noise too."""
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    return 1e-7 * float(sizes.max()) if sizes.size and sizes.min() > 1e-6 * sizes.max() else 0.0


def _numbers(value: object) -> np.ndarray | None:
    """The numbers of a tensor, of nested lists or of a dict, in a row where parts differ in shape; None for others."""
    value = plain(value)
    value = list(value.values()) if isinstance(value, Mapping) else value
    made = value if isinstance(value, Tensor) else as_tensor(value)
    if made is None and isinstance(value, list | tuple):
        parts = [_numbers(one) for one in value]
        known = [one.reshape(-1) for one in parts if one is not None]
        return np.concatenate(known) if known and len(known) == len(parts) else None
    return None if made is None or made.is_complex() else made.detach().double().cpu().numpy()
