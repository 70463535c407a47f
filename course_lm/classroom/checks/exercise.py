"""An exercise: its solution, the cases in which an answer is tried, and the table of the mistakes that are named.

    @exercise(cases={"far apart": (FAR,)})
    def log_sum_exp(logits):
        ...

The decorated function is the solution and the reference at once. The mistakes and hints lie in the TOML file beside its
module, under the function's name: a mistake is the words that finish the sentence "this is what you get when …", and
the edits of the solution that make it. What is no edit is added in Python, by `log_sum_exp.also(words, function)`.
"""

import ast
import inspect
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from course_lm.classroom.checks.comparison import Close
from course_lm.classroom.checks.outcomes import Run, call
from course_lm.classroom.checks.question import Mistake, Question
from course_lm.classroom.checks.report import Report, compare, remembered

Fn = Callable[..., Any]
Edits = Sequence[tuple[str, str]]  # parts of the solution, each with what stands there instead
Judge = Callable[[Fn, Report], Report]


class Exercise:
    """Calling it with an answer gives a `Report`. `text` is the solution, as it folds open below the exercise.

    `asked` is what the check asks, but for the mistakes that can be named.
    """

    def __init__(self, solution: Fn, asked: Question, judge: Judge | None) -> None:
        self.solution, self.name, self.__doc__ = solution, solution.__name__, solution.__doc__
        self._asked, self._judge = asked, judge
        self._functions: list[tuple[str, Fn]] = []

    def __call__(self, fn: Fn) -> Report:
        """Judge an answer."""
        report = compare(self.question(), fn)
        return remembered(self._judge(fn, report) if self._judge else report)

    def also(self, words: str, *functions: Fn) -> None:
        """Add a mistake that is no edit of the solution; several functions are ways to make the same one."""
        self._functions += [(words, function) for function in functions]

    def question(self) -> Question:
        """What the check asks, with nothing remembered from earlier answers."""
        return replace(self._asked, mistakes=self.mistakes())

    def mistakes(self) -> list[Mistake]:
        """All mistakes that can be named, those of the table first.

        Raises ValueError for an edit whose old part does not stand in the solution exactly once.
        """
        found = []
        for words, edits in self._table.get("mistakes", {}).items():
            for variant in _variants(edits):
                places = _places(self.text, variant)
                hint = self.hints.get(words) or self._hint_at(places)
                found.append(Mistake(words, partial(self.edited, variant), hint))
        for words, function in self._functions:
            found.append(Mistake(words, lambda function=function: function, self.hints.get(words, "")))
        return found

    def edited(self, edits: Edits) -> Fn:
        """The solution with these edits, as a function that sees the names of its module."""
        text = self.text
        for (start, end), (_, new) in sorted(zip(_places(self.text, edits), edits), reverse=True):
            text = text[:start] + new + text[end:]
        return self.compiled(text)

    def compiled(self, text: str) -> Fn:
        """The function of this name that `text` defines."""
        names = dict(vars(sys.modules[self.solution.__module__]))
        exec(compile(text, "solution", "exec"), names)
        return names[self.name]

    @cached_property
    def text(self) -> str:
        """The source of the solution, without its decorator and its docstring."""
        source = textwrap.dedent(inspect.getsource(self.solution))
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        lines, first = source.splitlines(), function.body[0]
        head, body = lines[function.lineno - 1 : first.lineno - 1], lines[first.lineno - 1 :]
        if ast.get_docstring(function):
            body = lines[first.end_lineno :]
        return "\n".join([*head, *(body if body[0] else body[1:])])

    @property
    def _table(self) -> Mapping[str, Any]:
        file = Path(inspect.getfile(self.solution)).with_suffix(".toml")
        return table_of(file).get(self.name, {})

    @property
    def hints(self) -> Mapping[str, str]:
        """The author's sentences, by the words of a mistake or by a part of the solution that was missed."""
        return self._table.get("hints", {})

    def _hint_at(self, places: Sequence[tuple[int, int]]) -> str:
        """The author's sentence to the part that is edited, or to its line where the line has only one."""
        for start, end in places:
            first, last = self.text.rfind("\n", 0, start) + 1, self.text.find("\n", start)
            line = self.text[first : last if last > 0 else None]
            parts = {part: first + line.find(part) for part in self.hints if part in line}
            touched = [part for part, at in parts.items() if at <= end and start <= at + len(part)]
            if touched or len(parts) == 1:
                return self.hints[next(iter(touched or parts))]
        return ""


def exercise(
    *,
    cases: Mapping[str, tuple[Any, ...]],
    run: Run = call,
    close: Close | None = None,
    without: Sequence[str] = (),
    unchanged: str = "it has changed nothing",
    judge: Judge | None = None,
) -> Callable[[Fn], Exercise]:
    """Make an exercise of its solution.

    Args:
        cases: the name of each case and its positional arguments. Every function gets copies of its own.
        run: `run(fn, *args)` gives the result to compare; the same for answers, solution and mistakes. It may raise
            `Refused` with the words that the learner reads. `with_gradient` compares a loss and its gradient.
        close: relative and absolute tolerance of numbers, by default chosen by their type.
        without: functions that the exercise forbids: a right answer that uses one of these names is refused.
        unchanged: what to say of a procedure that has changed nothing: where `run` gives None.
        judge: `judge(answer, report)` may give another report.
    """

    def make(solution: Fn) -> Exercise:
        asked = Question(solution.__name__, solution, cases, (), run, close, without, unchanged)
        return Exercise(solution, asked, judge)

    return make


@lru_cache
def table_of(file: Path) -> Mapping[str, Any]:
    """Mistakes and hints of a lesson's exercises, by the names of their functions."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _variants(edits: Sequence[Any]) -> list[Edits]:
    """A mistake's edits; where it shows in several ways, the edits of each."""
    return list(edits) if isinstance(edits[0][0], list) else [edits]


def _places(text: str, edits: Edits) -> list[tuple[int, int]]:
    for old, _ in edits:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} must stand in the solution once, it stands there {text.count(old)} times")
    return [(text.index(old), text.index(old) + len(old)) for old, _ in edits]
