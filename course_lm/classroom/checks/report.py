"""Feedback on an exercise: an answer beside the reference, and the name of the mistake that it makes.

A check runs the answer, the reference and wrong variants of it on the same inputs. An answer that gives the same
results as a wrong variant makes the same mistake, and the report names it.
"""

import copy
import html
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from course_lm.classroom.checks.comparison import difference

Status = Literal["passed", "wrong", "raised", "not written yet"]
_SIGNS = {"passed": "✓", "wrong": "✗", "raised": "✗", "not written yet": "…"}
_COLOURS = {"passed": "#009E73", "wrong": "#D55E00", "raised": "#D55E00", "not written yet": "#6E6E6E"}
_MOST_ITEMS = 10_000  # of an endless iterator


@dataclass(frozen=True)
class Report:
    """What a check says of an answer; a notebook shows it in colour, a terminal as text."""

    exercise: str
    status: Status
    message: str
    details: str = ""

    @property
    def passed(self) -> bool:
        """Whether the answer is right in every case."""
        return self.status == "passed"

    def __repr__(self) -> str:
        indented = "".join(f"\n  {line}" for line in self.details.splitlines())
        return f"{_SIGNS[self.status]} {self.exercise}: {self.message}{indented}"

    def _repr_html_(self) -> str:
        colour = _COLOURS[self.status]
        head = f"<b style='color:{colour}'>{_SIGNS[self.status]} {html.escape(self.exercise)}</b>"
        details = f"<pre style='margin:0.4em 0 0'>{html.escape(self.details)}</pre>" if self.details else ""
        message = html.escape(self.message)
        return f"<div style='border-left:4px solid {colour};padding:0.3em 0.8em'>{head}: {message}{details}</div>"


def call(fn: Callable[..., object], *args: object) -> object:
    """`fn` called with `args`: how `compare` runs an answer unless told otherwise."""
    return fn(*args)


def compare(
    fn: Callable[..., object],
    *,
    reference: Callable[..., object],
    cases: Mapping[str, tuple[Any, ...]],
    mistakes: Mapping[str, Callable[..., object]],
    run: Callable[..., object] = call,
    close: tuple[float, float] | None = None,
) -> Report:
    """Compare an answer with `reference` in every case; where it differs, name the mistake that it reproduces.

    Args:
        fn: the answer.
        reference: gives the right result.
        cases: the name of each case and its positional arguments. Every function gets copies of its own.
        mistakes: wrong variants; each name finishes the sentence "this is what you get when …".
        run: `run(fn, *args)` gives the result to compare; the same for answer, reference and mistakes.
        close: relative and absolute tolerance of numbers, by default chosen by their type.
    """
    name = getattr(fn, "__name__", "the answer")
    if not callable(fn):
        return Report(name, "wrong", "give the function itself, without calling it")
    expected = {case: _result(run, reference, copy.deepcopy(args)) for case, args in cases.items()}
    got: dict[str, object] = {}
    for case, args in cases.items():
        given = copy.deepcopy(args)
        try:
            got[case] = _result(run, fn, given)
        except NotImplementedError:
            return Report(name, "not written yet", "not written yet")
        except Exception as error:
            return Report(name, "raised", *_what_was_raised(error, fn, case))
        if got[case] is None or got[case] is Ellipsis:
            return Report(name, "not written yet", "not written yet")
        if run is call and _changed(args, given):
            return Report(name, "wrong", "the function changes its input; make a new one instead", f'case "{case}"')
    return _judge(name, expected, got, _outcomes(mistakes, cases, run), close)


def _result(run: Callable[..., object], fn: Callable[..., object], args: tuple[Any, ...]) -> object:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        result = run(fn, *args)
        return list(islice(result, _MOST_ITEMS)) if isinstance(result, Iterator) else result


def _changed(args: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
    data = [(one, other) for one, other in zip(args, given) if isinstance(one, Tensor | Mapping | Sequence)]
    return any(difference(one, other) is not None for one, other in data)


def _outcomes(
    mistakes: Mapping[str, Callable[..., object]], cases: Mapping[str, tuple[Any, ...]], run: Callable[..., object]
) -> Iterator[tuple[str, dict[str, object]]]:
    for clause, wrong in mistakes.items():
        results = {}
        for case, args in cases.items():
            try:
                results[case] = _result(run, wrong, copy.deepcopy(args))
            except Exception as error:
                results[case] = error  # a mistake may fail in some of the cases
        yield clause, results


def _judge(
    name: str,
    expected: Mapping[str, object],
    got: Mapping[str, object],
    outcomes: Iterator[tuple[str, dict[str, object]]],
    close: tuple[float, float] | None,
) -> Report:
    wrong = {case: difference(expected[case], got[case], close) for case in expected}
    wrong = {case: said for case, said in wrong.items() if said is not None}
    if not wrong:
        return Report(name, "passed", f"right in all {len(expected)} cases")
    case, said = next(iter(wrong.items()))
    details = f'case "{case}": {said}'
    best, most = "", 0
    for clause, results in outcomes:
        finished = [case for case in expected if not isinstance(results[case], Exception)]
        same = {case for case in finished if difference(results[case], got[case], close) is None}
        if same.issuperset(wrong) and len(same) > most:
            best, most = clause, len(same)
        if most == len(expected):
            break
    if best:
        return Report(name, "wrong", f"this is what you get when {best}", details)
    return Report(name, "wrong", f"not the expected result in {len(wrong)} of {len(expected)} cases", details)


def _what_was_raised(error: Exception, fn: Callable[..., object], case: str) -> tuple[str, str]:
    """The message and the details of an exception, with the line of the answer that it came from."""
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    code = getattr(fn, "__code__", None)
    details = f'case "{case}"'
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if code is not None and frame.f_code.co_filename == code.co_filename:
            source = linecache.getline(code.co_filename, number).strip()
            return message, f"{details}, line {number - code.co_firstlineno + 1} of {code.co_name}: {source}"
    return message, details
