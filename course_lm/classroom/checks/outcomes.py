"""What a function does in one case: its result, and what must be known of it before results are compared."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks.comparison import MOST_ITEMS

Run = Callable[..., object]
_DATA = (Tensor, dict, list, tuple)
_PLAIN = {str, int, float, bool, bytes, type(None)}


class Refused(Exception):
    """Raised by a check's `run` for a result that needs no comparison; its text is what the learner reads."""


class _GaveNone(Exception):
    pass


@dataclass(frozen=True)
class Call:
    """One call of a function by a check: its arguments as they were given, its result, and which it changed."""

    args: tuple[Any, ...]
    result: object
    changed: frozenset[int]


@dataclass
class Outcome:
    """What a function does in one case: a value, an error, a refusal in words, or None where there must be a result."""

    value: object = None
    error: Exception | None = None
    refused: str = ""
    gave_none: bool = False
    calls: list[Call] = field(default_factory=list)

    @property
    def returns_none(self) -> bool:
        """Whether any of the calls gave None, or `...`."""
        return any(call.result is None or call.result is ... for call in self.calls)

    @property
    def changed(self) -> frozenset[int]:
        """The positions of the arguments that any of the calls changed."""
        return frozenset[int]().union(*(call.changed for call in self.calls))

    @property
    def fault(self) -> str:
        """Empty for a value; else what stands in its place, in a word that can be compared."""
        if self.error is not None:
            return f"raises {type(self.error).__name__}"
        return self.refused or ("None" if self.gave_none else "")


def call(fn: Callable[..., object], *args: object) -> object:
    """`fn` called with `args`: how an answer is run unless a check says otherwise."""
    return fn(*args)


def at_each(place: int) -> Run:
    """A check's `run` that calls the answer once for each of the values at this place among its arguments."""

    def run(fn: Callable[..., object], *args: Any) -> list[object]:
        return [fn(*args[:place], value, *args[place + 1 :]) for value in args[place]]

    return run


def outcome(run: Run, fn: Callable[..., object], args: tuple[Any, ...], reference: Outcome | None = None) -> Outcome:
    """Call `fn` through `run` with copies of `args`. torch's random numbers start at the same seed every time.

    What the `reference` does, `fn` may do as well: return None, change arguments. Without one it may do both.
    """
    may_give_none = reference is None or reference.returns_none
    found = Outcome()
    with same_random_numbers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = run(_watched(fn, found.calls, may_give_none), *copy.deepcopy(args))
            found.value = list(islice(result, MOST_ITEMS)) if isinstance(result, Iterator) else result
        except _GaveNone:
            found.gave_none = True
        except Refused as refusal:
            found.refused = str(refusal)
        except Exception as error:
            found.error = error
    if not found.refused and reference is not None and found.changed - reference.changed:
        found.error, found.refused = None, "the function changes its input; make a new one instead"
    return found


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """torch's random numbers on the CPU start at one seed, and go on afterwards as if nothing had been."""
    generator = torch.default_generator  # torch.manual_seed would format a traceback for a CUDA that is not there yet
    state = generator.get_state()
    try:
        generator.manual_seed(0)
        yield
    finally:
        generator.set_state(state)


def _watched(fn: Callable[..., object], calls: list[Call], may_give_none: bool) -> Callable[..., object]:
    @wraps(fn)
    def watched(*args: object, **named: object) -> object:
        before = tuple(_copied(arg) for arg in args)
        result = fn(*args, **named)
        data = [i for i, arg in enumerate(before) if isinstance(arg, _DATA)]
        changed = frozenset(i for i in data if not _is_same(before[i], args[i]))
        calls.append(Call(before, result, changed))
        if (result is None or result is ...) and not may_give_none:
            raise _GaveNone
        return result

    return watched


def _copied(arg: object) -> object:
    if isinstance(arg, Tensor):
        return arg.detach().clone()
    if not isinstance(arg, _DATA):
        return arg
    if type(arg) is list and _is_flat(arg):
        return arg.copy()
    try:
        return copy.deepcopy(arg)
    except (TypeError, RuntimeError):  # an iterator within, or a tensor in the middle of a graph
        return arg


def _is_flat(items: list[Any]) -> bool:
    """Whether a list holds plain values alone: thousands of documents are copied and compared at once then."""
    return set(map(type, items)) <= _PLAIN


def _is_same(before: object, after: object) -> bool:
    if isinstance(before, Tensor):
        alike = isinstance(after, Tensor) and (before.dtype, before.shape) == (after.dtype, after.shape)
        return alike and torch.allclose(before, after.detach(), rtol=0, atol=0, equal_nan=True)
    if isinstance(before, dict) and isinstance(after, dict):
        return list(before) == list(after) and all(_is_same(before[key], after[key]) for key in before)
    if type(before) is type(after) is list and _is_flat(before) and before == after:
        return True
    if isinstance(before, list | tuple) and isinstance(after, Sequence):
        return len(before) == len(after) and all(_is_same(one, other) for one, other in zip(before, after))
    if isinstance(before, int | float | str | bytes):
        return before == after or (before != before and after != after)
    if isinstance(before, FunctionType):  # a copy of a function is the function itself
        return before is after
    return True  # what is no data may be a copy of itself


def with_gradient(fn: Callable[..., object], *args: object) -> dict[str, object]:
    """The loss that `fn` gives and its gradient in the fractional tensors among `args`: the `run` of a loss.

    Raises Refused for a result that no model can be trained with.
    """
    fractional = {i: arg for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.is_floating_point()}
    leaves = {i: arg.detach().clone().requires_grad_() for i, arg in fractional.items()}
    # not the leaves themselves, which torch lets nobody write to: the answer shall hear that from its own input
    loss = fn(*(leaves[i].clone() if i in leaves else arg for i, arg in enumerate(args)))
    if not (isinstance(loss, Tensor) and loss.requires_grad):
        raise Refused("the loss has no gradient: `detach`, `no_grad`, `.item()` or a new `torch.tensor` cuts it off")
    inputs = list(leaves.values())
    found = torch.autograd.grad(loss.sum(), inputs, allow_unused=True)
    gradients = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(inputs, found)]
    names = ["its gradient in the input", *(f"its gradient in input {i}" for i in range(2, len(gradients) + 1))]
    return {"the loss": loss.detach(), **dict(zip(names, gradients))}


def names_in(code: object) -> Iterator[str]:
    """The global names and attributes that a function uses, those of the functions within it as well."""
    code = getattr(code, "__code__", code)
    if isinstance(code, CodeType):
        yield from code.co_names
        for inner in code.co_consts:
            yield from names_in(inner) if isinstance(inner, CodeType) else ()
