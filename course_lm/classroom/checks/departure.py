"""Where an answer departs from what is expected, and the call with which a reader sees it again."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lm.classroom.checks.outcomes import Outcome
from course_lm.classroom.checks.question import Question

_LONGEST_CALL = 100  # characters
_MOST_ELEMENTS = 30  # of a tensor that is written out


@dataclass(frozen=True)
class Departure:
    """The place to look at: the case, what differs in words, the call as code, its arguments and both results."""

    case: str
    said: str
    code: str
    args: tuple[Any, ...]
    expected: object
    got: object

    @property
    def lines(self) -> str:
        """Two lines for the reader."""
        said = f": {self.said}" if self.said else ""
        return f'case "{self.case}"{said}\nto see it: {self.code}'


def departure(question: Question, fn: Callable[..., object], case: str, got: Outcome) -> Departure:
    """Where `fn` departs in a case: in the first of its calls whose result is another, or in what they lead to."""
    expected = question.expected[case]
    name = _name_of(fn, question)
    for right, own in zip(expected.calls, got.calls) if _same_calls(expected, got) else ():
        said = question.difference(right.result, own.result)
        if said:
            return Departure(case, said, code_of(name, own.args), own.args, right.result, own.result)
    said = "" if got.fault else question.difference(expected.value, got.value)
    fresh = question.first_args(case)
    args = got.calls[-1].args if got.gave_none and got.calls else fresh
    code = code_of(name, args)
    if not got.fault and expected.calls and expected.calls[-1].result is None:  # a call alone shows nothing
        code = "checks.last.expected, checks.last.got"
    return Departure(case, said, code, args, expected.value, None if got.fault else got.value)


def _same_calls(expected: Outcome, got: Outcome) -> bool:
    """Whether the check has called both functions several times and with the same arguments."""
    if got.fault or len(expected.calls) < 2 or len(expected.calls) != len(got.calls):
        return False
    return all(_text(one.args) == _text(other.args) != "" for one, other in zip(expected.calls, got.calls))


def what_holds(question: Question, got: Mapping[str, Outcome]) -> str:
    """ "right in: …; wrong in: …", the names of the cases; empty where nothing is right."""
    right = [case for case in got if question.is_right(case, got[case])]
    wrong = [case for case in got if case not in right]
    return f"right in: {', '.join(right)}; wrong in: {', '.join(wrong)}" if right else ""


def _name_of(fn: Callable[..., object], question: Question) -> str:
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() else question.check


def code_of(name: str, args: tuple[Any, ...]) -> str:
    """The call as code; where it is longer than 100 characters, or cannot be written, with the kept arguments."""
    text = _text(args)
    return f"{name}{text}" if text and len(name + text) <= _LONGEST_CALL else f"{name}(*checks.last.args)"


def _text(args: tuple[Any, ...]) -> str:
    parts = [_code(arg) for arg in args]
    return f"({', '.join(parts)})" if all(parts) else ""


def _code(value: object) -> str:
    """A value as an expression; empty where there is none."""
    if isinstance(value, Tensor):
        return _code_of_tensor(value)
    if isinstance(value, list | tuple):
        parts = [_code(one) for one in value]
        if not all(parts):
            return ""
        inner = ", ".join(parts)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(parts) == 1 else f"({inner})"
    if isinstance(value, dict):
        items = [(repr(key), _code(one)) for key, one in value.items()]
        return "{" + ", ".join(f"{key}: {one}" for key, one in items) + "}" if all(one for _, one in items) else ""
    if isinstance(value, float) and not math.isfinite(value):
        return "-math.inf" if value < 0 else "math.nan" if math.isnan(value) else "math.inf"
    return repr(value) if value is None or isinstance(value, bool | int | float | str | bytes) else ""


def _code_of_tensor(value: Tensor) -> str:
    if value.numel() > _MOST_ELEMENTS or value.dtype in (torch.float16, torch.bfloat16) or not value.numel():
        return ""
    numbers = _code_of_numbers(value.detach().cpu().numpy())
    usual = value.dtype in (torch.float32, torch.int64, torch.bool)
    return f"torch.tensor({numbers})" if usual else f"torch.tensor({numbers}, dtype={value.dtype})"


def _code_of_numbers(numbers: np.ndarray) -> str:
    if numbers.ndim:
        return f"[{', '.join(_code_of_numbers(one) for one in numbers)}]"
    if numbers.dtype.kind != "f":
        return str(numbers.item())
    return str(numbers[()]) if np.isfinite(numbers) else _code(float(numbers))  # the fewest digits of its type
