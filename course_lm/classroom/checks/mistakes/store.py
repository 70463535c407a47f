"""The stored mutants of an exercise: its solution, the edits of it that give other results, and functions of them.

One JSON file a lesson lies in `checks/mutants`, written by `make mutants`.
"""

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from course_lm.classroom.checks.mistakes.edits import Change, apply

FOLDER = Path(__file__).resolve().parents[1] / "mutants"
_TICK = "_count_round"
_TEXT = r'("(?:[^"\\]|\\.)*")'
_PLACE = re.compile(rf"\[\s+(\d+),\s+(\d+),\s+{_TEXT},\s+{_TEXT}\s+\]")  # an edit, which stands in one line


class TooManyRounds(Exception):
    """Raised in a mutant's loop that goes on much longer than the solution's loops."""


@dataclass(frozen=True)
class Mutants:
    """What is kept of one exercise.

    Attributes:
        imports: lines that the solution needs before it.
        solution: the code that folds open below the exercise.
        rounds: of all the solution's loops, in all cases together.
        made: the number of edits that were tried.
        told_apart: edits with results of their own, the nearest mistakes first.
        merged: the words of every edit with the results of an earlier one or of a mistake by hand → the words of that.
        useless: the number of edits that raise or are refused in every case.
        equal: the words of edits that no case tells from the solution → why that is right; empty: not yet accepted.
    """

    imports: list[str]
    solution: str
    rounds: int = 0
    made: int = 0
    told_apart: list[Change] = field(default_factory=list)
    merged: dict[str, str] = field(default_factory=dict)
    useless: int = 0
    equal: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _names(self) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec("\n".join(self.imports), names)
        return names

    def function(self, changes: Sequence[Change] = ()) -> "Counted":
        """The solution with these changes, as a function whose loops end. Raises SyntaxError where it is no program."""
        return compiled(apply(self.solution, changes), self._names, 20 * self.rounds + 2_000)


def compiled(text: str, names: dict[str, Any], rounds: int) -> "Counted":
    """The last function that `text` defines; its loops raise TooManyRounds after so many rounds altogether."""
    tree = ast.parse(text)
    space = dict(names)
    function = next(node.name for node in reversed(tree.body) if isinstance(node, ast.FunctionDef))
    if "for " in text or "while " in text:
        _count_rounds(tree)
    counted = Counted(rounds)
    space[_TICK] = counted.count_round
    exec(compile(tree, "solution", "exec"), space)
    counted.fn = space[function]
    return counted


class Counted:
    """A function of which the rounds of its loops are counted."""

    def __init__(self, most: int) -> None:
        self.rounds, self._most = 0, most
        self.fn: Callable[..., object] = print

    def __call__(self, *args: object, **named: object) -> object:
        """Call the function."""
        return self.fn(*args, **named)

    def count_round(self) -> bool:
        """Called in every round of every loop; true, so that it can stand among a comprehension's conditions."""
        self.rounds += 1
        if self.rounds > self._most:
            raise TooManyRounds
        return True


def _count_rounds(tree: ast.Module) -> None:
    """Call `_TICK` in each round of each loop; much faster than a NodeTransformer, and there are many mutants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            node.body.insert(0, _at(node, ast.Expr(_tick(node))))
        elif isinstance(node, ast.comprehension):
            node.ifs.insert(0, _tick(node.iter))


def _tick(place: ast.AST) -> ast.Call:
    return _at(place, ast.Call(_at(place, ast.Name(_TICK, ast.Load())), [], []))


def _at(place: ast.AST, node: Any) -> Any:
    return ast.copy_location(node, place)


def path_of(lesson: str) -> Path:
    """Where the mutants of a lesson's exercises lie; `lesson` is the name of the module of its checks."""
    return FOLDER / f"{lesson}.json"


@lru_cache
def of_lesson(lesson: str) -> dict[str, Mutants]:
    """The mutants of the exercises of a lesson, by the names of their checks; empty where none are stored."""
    path = path_of(lesson)
    return read(path.read_text(encoding="utf-8")) if path.exists() else {}


def read(text: str) -> dict[str, Mutants]:
    """The mutants of a stored text."""
    return {check: _mutants(entry) for check, entry in json.loads(text).items()}


def _mutants(entry: dict[str, Any]) -> Mutants:
    changes = [Change(*place) for place in entry["told_apart"]]
    return Mutants(**(entry | {"solution": "\n".join(entry["solution"]), "told_apart": changes}))


def written(exercises: dict[str, Mutants]) -> str:
    """The text that is stored for the exercises of a lesson: one line an edit."""
    entries = {check: _entry(mutants) for check, mutants in exercises.items()}
    return _PLACE.sub(r"[\1, \2, \3, \4]", json.dumps(entries, indent=1, ensure_ascii=False)) + "\n"


def _entry(mutants: Mutants) -> dict[str, Any]:
    changes = [list(asdict(change).values()) for change in mutants.told_apart]
    return {**asdict(mutants), "solution": mutants.solution.splitlines(), "told_apart": changes}
