"""The exercises of a lesson as its notebook holds them: stub, hints and solution."""

import ast
import html
import re
from dataclasses import dataclass
from typing import Any

SOLUTION = re.compile(r"<details>\s*<summary>Solution</summary>\s*```python\n(.*?)```\s*</details>", re.DOTALL)


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
            called = re.findall(r"^checks\.(\w+)\(\w+\)$", cell.source, re.MULTILINE)
            found.append(Exercise(" ".join(called), cell.source, before.source, after.source))
    return found


def define(notebook: Any, source: str) -> Any:
    """The function that `source` defines, with the lesson's imports and nothing else of it."""
    names: dict[str, Any] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            imports: list[ast.stmt] = [
                node for node in _body(cell.source) if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            exec(compile(ast.Module(imports, []), "imports", "exec"), names)
    before = set(names)
    exec(compile(source, "answer", "exec"), names)
    functions = [name for name in names if name not in before and callable(names[name])]
    return names[functions[-1]]


def _body(source: str) -> list[ast.stmt]:
    return ast.parse("\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))).body
