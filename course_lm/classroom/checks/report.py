"""Feedback on an exercise: an answer beside the reference, and the name of the mistake that it makes.

A check runs the answer, the solution and wrong variants of it on the same inputs. An answer that gives the same results
as a wrong variant makes the same mistake, and the report names it.
"""

import dis
import html
import inspect
import linecache
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal

from course_lm.classroom.checks import attempts
from course_lm.classroom.checks.departure import Departure, departure, what_holds
from course_lm.classroom.checks.naming import Named, name_fault, name_mistake
from course_lm.classroom.checks.outcomes import Outcome, names_in
from course_lm.classroom.checks.question import Question
from course_lm.classroom.progress import SIGNS
from course_lm.display import GREEN, GREY, RED

Status = Literal["passed", "wrong", "raised", "not written yet"]
_COLOURS = {"passed": GREEN, "wrong": RED, "raised": RED, "not written yet": GREY}
_PRE = "margin:0.4em 0 0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # JupyterLab cuts words
_DOES_NOTHING = {
    "RESUME",
    "NOP",
    "CACHE",
    "POP_TOP",
    "COPY_FREE_VARS",
    "MAKE_CELL",
    "RETURN_VALUE",
    "LOAD_CONST",
    "RETURN_CONST",
}
_KEEPS = (
    "right in the first call, and not when the same arguments come again: it keeps something from earlier calls, "
    "such as a list among its defaults, or is left to chance"
)


@dataclass(frozen=True)
class Report:
    """What a check says of an answer; a notebook shows it in colour, a terminal as text.

    Of an answer that failed: `args` are the arguments of the call that shows it, `expected` and `got` its results.
    """

    exercise: str
    status: Status
    message: str
    details: str = ""
    folded: str = ""
    args: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    expected: object = field(default=None, repr=False, compare=False)
    got: object = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """Whether the answer is right in every case."""
        return self.status == "passed"

    def __repr__(self) -> str:
        lines = [*self.details.splitlines(), *self.folded.splitlines()]
        indented = "".join(f"\n  {line}" for line in lines)
        return f"{SIGNS[self.status]} {self.exercise}: {self.message}{indented}"

    def _repr_html_(self) -> str:
        colour = _COLOURS[self.status]
        head = f"<b style='color:{colour}'>{SIGNS[self.status]} {html.escape(self.exercise)}</b>"
        details, folded = (
            f"<pre style='{_PRE}'>{html.escape(part)}</pre>" if part else "" for part in (self.details, self.folded)
        )
        more = f"<details><summary>More</summary>{folded}</details>" if folded else ""
        message = html.escape(self.message)
        return f"<div style='border-left:4px solid {colour};padding:0.3em 0.8em'>{head}: {message}{details}{more}</div>"


_failed: list[Report] = []


def last_failed() -> Report:
    """The latest report of an answer that failed. Raises LookupError where none has."""
    if not _failed:
        raise LookupError("no answer has failed a check yet")
    return _failed[-1]


def remembered(report: Report) -> Report:
    """The same report, kept as the latest where its answer failed."""
    if report.status in ("wrong", "raised"):
        _failed[:] = [report]
    return report


def compare(question: Question, fn: Callable[..., object]) -> Report:
    """Compare an answer with the reference in every case; where it differs, name the mistake that it reproduces."""
    name = getattr(fn, "__name__", "the answer")
    if not callable(fn):
        return Report(name, "wrong", "give the function itself, without calling it")
    if _is_stub(fn):
        return Report(name, "not written yet", "not written yet")
    got = {case: question.ask(fn, case) for case in question.cases}
    if any(isinstance(one.error, NotImplementedError) and _raised_by(one.error, fn) for one in got.values()):
        return Report(name, "not written yet", "not written yet")
    wrong = [case for case in got if not question.is_right(case, got[case])]
    since = attempts.compared_with_last(question.check, wrong)
    if not wrong:
        forbidden = [used for used in names_in(inspect.unwrap(fn)) if used in question.without]
        if forbidden:
            message = f"`{forbidden[0]}` does the work; the exercise asks for a way without it"
            return Report(name, "wrong", message)
        return Report(name, "passed", f"right in all {len(got)} cases")
    report = _judge(question, fn, name, got, wrong)
    return replace(report, folded="\n".join(line for line in (report.folded, since) if line))


def _is_stub(fn: Callable[..., object]) -> bool:
    """Whether a function's code does nothing: no instruction but to return None or `...`."""
    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    steps = list(dis.get_instructions(code))
    constants = [step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")]
    nothing = all(value is None or value is ... for value in constants)
    return nothing and all(step.opname in _DOES_NOTHING for step in steps)


def _raised_by(error: Exception, fn: Callable[..., object]) -> bool:
    """Whether a `raise` of the function itself raised an error, and nothing that it called, such as a torch kernel."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code is not getattr(fn, "__code__", None):
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _judge(
    question: Question, fn: Callable[..., object], name: str, got: dict[str, Outcome], wrong: list[str]
) -> Report:
    order = question.by_size(wrong)
    without = [case for case in order if got[case].gave_none]
    raised = [case for case in order if got[case].error is not None]
    refused = [case for case in order if got[case].refused]
    case = next(iter([*without, *raised, *refused, *order]))
    where = departure(question, fn, case, got[case])
    if _is_right_only_at_first(question, fn, got):
        return _report(question, name, _KEEPS, where, got)
    named = name_fault(question, got) if without or raised or refused else None
    if without:
        named = named or Named(_none_words(got, case))
        return _report(question, name, named.sentence, where, got, named.hint)
    if raised:
        error = got[case].error
        assert error is not None
        message, line = _what_was_raised(error, fn)
        message, hint = (f"{message}: {named.sentence}", named.hint) if named else (message, "")
        report = _report(question, name, message, replace(where, said=line), got, hint)
        return replace(report, status="raised")
    if refused:
        named = named or Named(got[case].refused)
        return _report(question, name, named.sentence, where, got, named.hint)
    named = name_mistake(question, got)
    if named is not None:
        return _report(question, name, named.sentence, where, got, named.hint)
    return _report(question, name, f"not the expected result in {len(wrong)} of {len(got)} cases", where, got)


def _is_right_only_at_first(question: Question, fn: Callable[..., object], got: Mapping[str, Outcome]) -> bool:
    """Whether the first case, which was right before the others were asked, is wrong after them."""
    first = next(iter(got))
    return question.is_right(first, got[first]) and not question.is_right(first, question.ask(fn, first))


def _none_words(got: Mapping[str, Outcome], case: str) -> str:
    result = got[case].calls[-1].result
    what = "`...`, which stands there for what is to be written" if result is ... else "None"
    if all(one.gave_none for one in got.values()):
        return f"gives {what}: a `return` is missing"
    return f'gives {what} in the case "{case}": is a `return` missing there?'


def _report(
    question: Question,
    name: str,
    message: str,
    where: Departure,
    got: Mapping[str, Outcome],
    hint: str = "",
) -> Report:
    folded = "\n".join(line for line in (f"hint: {hint}" if hint else "", what_holds(question, got)) if line)
    return Report(name, "wrong", message, where.lines, folded, where.args, where.expected, where.got)


def _what_was_raised(error: Exception, fn: Callable[..., object]) -> tuple[str, str]:
    """The message of an exception, and the line of the answer that it came from."""
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    code = getattr(fn, "__code__", None)
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if code is not None and frame.f_code.co_filename == code.co_filename:
            source = linecache.getline(code.co_filename, number).strip()
            return message, f"line {number - code.co_firstlineno + 1} of {code.co_name}: {source}"
    return message, ""
