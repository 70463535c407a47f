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
from course_lm.classroom.checks.departure import departure, what_holds
from course_lm.classroom.checks.outcomes import Outcome, names_in
from course_lm.classroom.checks.question import Question
from course_lm.classroom.progress import SIGNS
from course_lm.display import GREEN, GREY, RED

Status = Literal["passed", "wrong", "raised", "not written yet"]
_COLOURS = {"passed": GREEN, "wrong": RED, "raised": RED, "not written yet": GREY}
_PRE = "margin:0.4em 0 0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # JupyterLab cuts words
_DOES_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


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


def _judge(
    question: Question, fn: Callable[..., object], name: str, got: dict[str, Outcome], wrong: list[str]
) -> Report:
    """What is said of a wrong answer: its mistake, shown in the smallest case that is wrong in the plainest way."""
    case = min(question.by_size(wrong), key=lambda case: _way(got[case]))
    where, mistake = departure(question, fn, case, got[case]), question.mistake_of(got)
    said = f"this is what you get when {mistake.words}" if mistake else ""
    hint = f"hint: {mistake.hint}" if mistake and mistake.hint else ""
    status: Status = "wrong"
    if (error := got[case].error) is not None:
        status, (message, line) = "raised", _what_was_raised(error, fn)
        said, where = f"{message}: {said}" if said else message, replace(where, said=line)
    elif got[case].gave_none:
        said = said or _none_words(got, case)
    said = said or got[case].refused or f"not the expected result in {len(wrong)} of {len(got)} cases"
    folded = "\n".join(line for line in (hint, what_holds(question, got)) if line)
    return Report(name, status, said, where.lines, folded, where.args, where.expected, where.got)


def _way(got: Outcome) -> int:
    """The plainest way to be wrong is to give nothing, then to raise, to be refused, to give another result."""
    return 0 if got.gave_none else 1 if got.error is not None else 2 if got.refused else 3


def _none_words(got: Mapping[str, Outcome], case: str) -> str:
    result = got[case].calls[-1].result
    what = "`...`, which stands there for what is to be written" if result is ... else "None"
    if all(one.gave_none for one in got.values()):
        return f"gives {what}: a `return` is missing"
    return f'gives {what} in the case "{case}": is a `return` missing there?'


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
