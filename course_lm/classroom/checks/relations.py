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
Arrays = tuple[np.ndarray, np.ndarray]

_BRACKETS = re.compile(r"\(.*?\)|\[.*?\]")
_KNOWN_FACTORS = {
    60: "60, as between minutes and seconds or hours and minutes",
    3600: "3600, as between hours and seconds",
    1000: "1000",
    1024: "1024, as between bytes and KiB",
    1024**2: "1024², as between bytes and MiB",
    100: "100, as between a share and per cent",
    10: "10",
    8: "8, as between bytes and bits",
    4: "4, as between numbers and bytes of float32",
    2: "2",
    math.log(2): "ln 2, as between bits and nats",
    math.log(10): "ln 10, as between base 10 and base e",
    math.pi: "π",
    2 * math.pi: "2π",
    -1: "−1: the sign is wrong",
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
    for kind in (_kind, _length, _shape):
        said = [kind(expected, got) for expected, got in pairs]
        if all(said) and len({_BRACKETS.sub("", one) for one in said}) == 1:
            return said[0]
    arrays = [_arrays(expected, got) for expected, got in pairs]
    known = [one for one in arrays if one is not None]
    if not known or len(known) < len(arrays):
        return ""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return next(_numeric(known), "")


def _kind(expected: object, got: object) -> str:
    """Another type of result."""
    got_is_tensor, got = isinstance(got, Tensor), plain(got)
    if is_number(expected):
        return _kind_for_number(float(expected), got)
    both = isinstance(expected, Tensor) and isinstance(got, Tensor) and got_is_tensor
    if both and expected.shape == got.shape and sort_of(expected) != sort_of(got):
        return f"the result has the type {got.dtype}, it should have {expected.dtype}"
    if isinstance(expected, list | tuple) and isinstance(got, set | frozenset):
        return "the result is a set, which has no order: return a list"
    if isinstance(expected, list | tuple) and isinstance(got, Mapping):
        return f"the result is a dict where a {type(expected).__name__} is expected"
    if isinstance(expected, Mapping) and isinstance(got, list | tuple):
        return f"the result is a {type(got).__name__} where a dict is expected"
    if isinstance(expected, str) and isinstance(got, bytes):
        return "the result is bytes where text is expected"
    if isinstance(expected, str) and not isinstance(got, str):
        return f"the result is a {type(got).__name__} where text is expected"
    return ""


def _kind_for_number(number: float, got: object) -> str:
    if isinstance(got, str):
        return "the result is a text where a number is expected"
    alone = got if isinstance(got, Tensor) and got.numel() == 1 and got.ndim else None
    if alone is not None and _near(np.asarray(number), np.asarray(float(alone))):
        return f"the number is right, but it stands in a tensor of shape {tuple(alone.shape)}: return the number itself"
    made = as_tensor(got) if isinstance(got, list | tuple | Tensor) else None
    if made is None or not made.ndim or not made.numel():
        return ""
    found = made.detach().double().numpy()
    parts = {
        "their sum": found.sum(),
        "their mean": found.mean(),
        "the last of them": found.flat[-1],
        "the first of them": found.flat[0],
    }
    for what, value in parts.items():
        if _near(np.asarray(number), np.asarray(value)):
            return f"the result is many numbers where one is expected: {what}"
    return f"the result is {short(got)} where one number is expected"


def _length(expected: object, got: object) -> str:
    """A list with one item too many or too few."""
    got = plain(got)
    if isinstance(got, Tensor) and got.ndim == 1:
        got = got.tolist()
    if isinstance(expected, Tensor) and expected.ndim == 1:
        expected = expected.tolist()
    if not isinstance(expected, list | tuple) or not isinstance(got, list | tuple):
        return ""
    one, other = list(expected), list(got)
    by = len(other) - len(one)
    if by in (1, 2):
        for where, part in (("end", other[:-by]), ("start", other[by:])):
            if _items_match(one, part):
                return f"there {'is one item' if by == 1 else 'are two items'} too many at the {where}"
    if by in (-1, -2) and other:
        for where, part in (("last", one[:by]), ("first", one[-by:])):
            if _items_match(part, other):
                return f"the {where} item is missing" if by == -1 else f"the {where} two items are missing"
    if by and sorted(map(str, set(map(str, other)))) == sorted(set(map(str, one))):
        return "the items are right, but some come more often or less often than they should"
    return ""


def _items_match(expected: list[object], got: list[object]) -> bool:
    arrays = _arrays(expected, got)
    return _near(*arrays) if arrays else [str(one) for one in expected] == [str(one) for one in got]


def _shape(expected: object, got: object) -> str:
    """The expected numbers in another shape."""
    if not isinstance(expected, Tensor):
        return ""
    made = got if isinstance(got, Tensor) else as_tensor(got)
    if made is None or made.shape == expected.shape:
        return ""
    one, other = _numbers(expected), _numbers(made)
    if one is None or other is None:
        return ""
    shapes = f"the shape is {tuple(made.shape)}, it should be {tuple(expected.shape)}"
    if one.size == other.size:
        if one.ndim > 1 and other.shape == np.swapaxes(one, -1, -2).shape and _near(np.swapaxes(one, -1, -2), other):
            return "the result is transposed: its last two axes have changed places"
        if _near(one.reshape(-1), other.reshape(-1)):
            return f"the numbers are right, but {shapes}"
        return ""
    for axis in range(one.ndim):
        for what, how in (("averaged", np.mean), ("summed", np.sum), ("reduced to the largest", np.max)):
            if _is_reduced(one, other, axis, how):
                return f"the result is {what} over axis {axis}: {shapes}"
    for axis in range(one.ndim):
        for which, part in (("last", _cut(one, axis, 0, -1)), ("first", _cut(one, axis, 1, None))):
            if part.size and one.ndim == other.ndim and _near(part, other):
                return f"the {which} place of axis {axis} is missing, the rest is right: {shapes}"
    for what, how in (("the mean", np.mean), ("the sum", np.sum)):
        if other.size == 1 and _near(np.asarray(how(one)), other.reshape(())):
            return f"the result is {what} of the expected numbers: {shapes}"
    return ""


def _is_reduced(one: np.ndarray, other: np.ndarray, axis: int, how: Callable[..., np.ndarray]) -> bool:
    reduced = how(one, axis=axis)
    return reduced.size == other.size and reduced.size > 1 and _near(reduced.reshape(-1), other.reshape(-1))


def _numeric(pairs: list[Arrays]) -> Iterator[str]:
    """Relations between arrays of one shape, the plainest first."""
    wrong = [(e[~_same(e, g)], g[~_same(e, g)]) for e, g in pairs]
    if not any(g.size for _, g in wrong):
        return  # the same numbers, differently parted
    many = max(one.size for one, _ in pairs) > 1
    every, the = ("every number is", "the expected numbers") if many else ("the result is", "the expected one")
    if all(np.isnan(g).all() for _, g in wrong):
        yield "nan stands where a number is expected" if many else "the result is nan"
    if all(np.isinf(g).all() for _, g in wrong):
        yield "inf stands where a number is expected" if many else "the result is inf"
    yield from _order(pairs)
    expected, got = np.concatenate([one for one, _ in pairs], None), np.concatenate([one for _, one in pairs], None)
    if not (np.isfinite(expected).all() and np.isfinite(got).all()):
        return
    yield from _rounding(expected, got)
    yield from _factor(expected, got, every, many)
    if np.unique(expected).size > 1 or not _are_whole(expected):
        for what, how in _TRANSFORMS.items():
            if _near(how(expected), got) and _varies(how(expected)):
                yield f"{every} {what} {'the expected one' if many else the}"
    yield from _offset(expected, got, every)


def _order(pairs: list[Arrays]) -> Iterator[str]:
    """The same numbers in another order."""
    if any(one.size < 2 for one, _ in pairs):
        return
    if all(_near(one[::-1], other) for one, other in pairs):
        yield "the numbers stand in the opposite order" if pairs[0][0].size > 2 else "the two change places"
    square = all(one.ndim > 1 and one.shape[-1] == one.shape[-2] for one, _ in pairs)
    if square and all(_near(np.swapaxes(one, -1, -2), other) for one, other in pairs):
        yield "the result is transposed: its last two axes have changed places"
    for axis in range(min(one.ndim for one, _ in pairs)):
        if all(one.shape[axis] > 2 for one, _ in pairs) and any(np.unique(one).size > 1 for one, _ in pairs):
            if all(_near(_cut(one, axis, 0, -1), _cut(other, axis, 1, None)) for one, other in pairs):
                yield "the numbers are right, but stand one place too late"
            if all(_near(_cut(one, axis, 1, None), _cut(other, axis, 0, -1)) for one, other in pairs):
                yield "the numbers are right, but stand one place too early"
    if all(_near(np.sort(one, None), np.sort(other, None)) and np.unique(one).size > 2 for one, other in pairs):
        yield "the numbers are right, but stand in another order"


def _cut(array: np.ndarray, axis: int, start: int, stop: int | None) -> np.ndarray:
    part = [slice(None)] * array.ndim
    part[axis] = slice(start, stop)
    return array[tuple(part)]


def _rounding(expected: np.ndarray, got: np.ndarray) -> Iterator[str]:
    if _are_whole(expected) and _are_whole(got):
        return
    for what, how in _ROUNDINGS.items():
        if np.allclose(how(expected), got, rtol=1e-6, atol=0.0) and np.any(got):
            yield f"the numbers are {what}" if expected.size > 1 else f"the result is {what}"
    if _are_whole(expected) and not _are_whole(got):
        for what, how in list(_ROUNDINGS.items())[:3]:
            if _near(how(got), expected):
                numbers = "the numbers are" if expected.size > 1 else "the result is"
                yield f"{numbers} not {what.replace('rounded to whole numbers', 'rounded to a whole number')}"


def _factor(expected: np.ndarray, got: np.ndarray, every: str, many: bool) -> Iterator[str]:
    counted = expected != 0
    if not counted.any() or np.any(got[~counted]):
        return
    factors = got[counted] / expected[counted]
    factor = float(np.median(factors))
    if factor == 0 or not np.allclose(factors, factor, rtol=1e-5, atol=0):
        return
    known = _known(factor)
    if known:
        times, words = known
        yield f"{every} {times} the expected one, {words}" if words else f"{every} {times} the expected one"
    elif np.unique(expected[counted]).size > 1:
        yield f"{every} {_as_text(factor)} times the expected one"


def _known(factor: float) -> tuple[str, str] | None:
    for one, words in _KNOWN_FACTORS.items():
        if math.isclose(factor, one, rel_tol=1e-5):
            return ("minus", "") if one == -1 else (f"{words.split(',')[0]} times", words.partition(", ")[2])
        if one != -1 and math.isclose(factor, 1 / one, rel_tol=1e-5):
            return (f"1/{words.split(',')[0]} times", words.partition(", ")[2])
    return None


def _offset(expected: np.ndarray, got: np.ndarray, every: str) -> Iterator[str]:
    apart = got - expected
    by = float(np.median(apart))
    if by == 0 or not np.allclose(apart, by, rtol=1e-5, atol=_noise(expected, 1e-9)):
        return
    if np.unique(expected).size > 1 or abs(by) == 1:
        yield f"{every} {_as_text(abs(by))} too {'large' if by > 0 else 'small'}"


def _as_text(number: float) -> str:
    near = Fraction(number).limit_denominator(12)
    if near and math.isclose(float(near), number, rel_tol=1e-6):
        return str(near)
    return f"{number:.4g}"


def _varies(values: np.ndarray) -> bool:
    """Whether numbers say more than 0 and 1 do, which many relations give."""
    return not np.isin(values, (0.0, 1.0)).all()


def _are_whole(values: np.ndarray) -> bool:
    return bool((values == np.round(values)).all())


def _same(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    return np.isclose(got, expected, rtol=1e-5, atol=0, equal_nan=True)


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    return bool(np.allclose(other, one, rtol=1e-5, atol=_noise(one, 1e-7), equal_nan=True))


def _noise(numbers: np.ndarray, share: float) -> float:
    """A share of the largest number; none where small ones stand beside a huge one, for they would be noise too."""
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    return share * float(sizes.max()) if sizes.size and sizes.min() > 1e-6 * sizes.max() else 0.0


def _arrays(expected: object, got: object) -> Arrays | None:
    """Both as arrays of one shape; None where they are no numbers or of different shapes."""
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or expected.keys() != got.keys():
            return None
        expected, got = [expected[key] for key in expected], [got[key] for key in expected]
    one, other = _numbers(expected), _numbers(got)
    return (one, other) if one is not None and other is not None and one.shape == other.shape else None


def _numbers(value: object) -> np.ndarray | None:
    value = plain(value)
    made = value if isinstance(value, Tensor) else as_tensor(value)
    if made is None:
        return _ragged(value)
    return made.detach().double().cpu().numpy()


def _ragged(value: object) -> np.ndarray | None:
    """The numbers of parts of different shapes in a row."""
    if not isinstance(value, list | tuple):
        return None
    parts = [_numbers(one) for one in value]
    known = [one.reshape(-1) for one in parts if one is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None
