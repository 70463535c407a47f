"""The exercises of a lesson as its notebook holds them: stub, hints and solution."""

import ast
import html
import re
from dataclasses import dataclass
from typing import Any

from course_lm.classroom.progress import checks_called

# Reasons may stand before the code or after it.
SOLUTION = re.compile(r"<summary>Solution</summary>(?:(?!</details>|```).)*```python\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Exercise:
    """One exercise: the check that it calls, its cell, and the prose before and after it."""

    check: str
    cell: str
    before: str
    after: str

    @property
    def stub(self) -> str:
        """The learner's function as it stands at first."""
        definition = next(node for node in ast.parse(self.cell).body if isinstance(node, ast.FunctionDef))
        return ast.unparse(definition)

    @property
    def solution(self) -> str:
        """The code that folds open below the exercise."""
        return html.unescape("\n".join(SOLUTION.findall(self.after)))


def exercises_of(notebook: Any) -> list[Exercise]:
    """The exercises of a lesson in order."""
    found = []
    for before, cell, after in zip(notebook.cells, notebook.cells[1:], notebook.cells[2:]):
        if "exercise" in cell.metadata.get("tags", []):
            called = " ".join(checks_called(cell.source))
            found.append(Exercise(called, cell.source, before.source, after.source))
    return found


def _imports(notebook: Any) -> list[ast.Import | ast.ImportFrom]:
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return [node for source in code for node in _body(source) if isinstance(node, ast.Import | ast.ImportFrom)]


def define(notebook: Any, source: str) -> Any:
    """The function that `source` defines, with the lesson's imports and nothing else of it."""
    names: dict[str, Any] = {}
    exec(compile(ast.Module(list(_imports(notebook)), []), "imports", "exec"), names)
    before = set(names)
    exec(compile(source, "answer", "exec"), names)
    functions = [name for name in names if name not in before and callable(names[name])]
    return names[functions[-1]]


def _body(source: str) -> list[ast.stmt]:
    return ast.parse("\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))).body
