"""Edits of a solution's text: those that a person writes by hand, and what those that a program makes stand on."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

_LONGEST = 70  # characters of an expression that is shown whole

Operator = ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.IfExp | ast.Lambda


@dataclass(frozen=True, order=True)
class Change:
    """One edit: `text[start:end]` becomes `new`; `words` finish the sentence "this is what … gives when"."""

    start: int
    end: int
    new: str
    words: str = ""


@dataclass(frozen=True)
class Edit:
    """A mistake as an edit of the solution: its one `old` becomes `new`."""

    old: str
    new: str


def changes_of(text: str, edits: Edit | Sequence[Edit], words: str) -> tuple[Change, ...]:
    """Edits by hand as places in `text`.

    Raises ValueError where the old part does not stand in the text exactly once.
    """
    changes = []
    for edit in [edits] if isinstance(edits, Edit) else edits:
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{edit.old!r} must stand in the solution once, it stands there {text.count(edit.old)} times"
            )
        start = text.index(edit.old)
        changes.append(Change(start, start + len(edit.old), edit.new, words))
    return tuple(sorted(changes))


def is_apart(changes: Sequence[Change]) -> bool:
    """Whether no two of the changes touch the same place."""
    ordered = sorted(changes)
    return all(one.end <= other.start and one.start < other.start for one, other in pairwise(ordered))


def apply(text: str, changes: Iterable[Change]) -> str:
    """The text with all changes made."""
    for change in sorted(changes, reverse=True):
        text = text[: change.start] + change.new + text[change.end :]
    return text


class Source:
    """A function's text beside its syntax tree, with positions in characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        functions = [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]
        self.function = functions[-1]

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    def nodes(self) -> Iterator[ast.AST]:
        """The nodes of the functions, from top to bottom, without docstrings."""
        docstrings = {
            node.body[0].value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr)
        }
        found = [node for node in ast.walk(self.tree) if hasattr(node, "lineno") and node not in docstrings]
        return iter(sorted(found, key=lambda node: self.span(node)))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends."""
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _place(self, line: int, byte: int) -> int:
        start = self._starts[line - 1]
        return start + len(self.text[start:].encode()[:byte].decode())

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def outer_span(self, node: ast.AST) -> tuple[int, int]:
        """Where an operand begins and ends together with the parentheses around it."""
        start, end = self.span(node)
        while True:
            left = len(self.text[:start].rstrip())
            right = len(self.text) - len(self.text[end:].lstrip())
            if self.text[left - 1 : left] != "(" or self.text[right : right + 1] != ")":
                return start, end
            start, end = left - 1, right + 1

    def outer(self, node: ast.AST) -> str:
        """The text of an operand with the parentheses around it."""
        start, end = self.outer_span(node)
        return self.text[start:end]

    def in_place_of(self, node: ast.AST, text: str) -> str:
        """`text` as it can stand where `node` stood: in parentheses where it would fall apart."""
        parent = self.parents.get(node)
        is_callee = isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is node
        if not (isinstance(parent, Operator) or is_callee) or self.outer_span(node) != self.span(node):
            return text
        try:
            made = ast.parse(text, mode="eval").body
        except SyntaxError:
            return text
        return f"({text})" if isinstance(made, Operator) else text

    def operand(self, node: ast.AST) -> str:
        """The text of an expression as it can stand beside any operator."""
        return f"({self.of(node)})" if isinstance(node, Operator) else self.of(node)

    def shown(self, node: ast.AST) -> str:
        """A node's text in one line of bounded length."""
        return shorten(self.of(node))

    def becomes(self, node: ast.AST, start: int, end: int, new: str) -> str:
        """ "`lr_at(k)` becomes `lr_at(k + 1)`": the smallest telling expression around a change, before and after."""
        around = node
        while not self._is_telling(around) or not (self.span(around)[0] <= start and end <= self.span(around)[1]):
            parent = self.parents.get(around)
            if parent is None or isinstance(parent, ast.FunctionDef | ast.For | ast.While | ast.Module):
                break
            around = parent
        first, last = self.span(around)
        first, last = min(first, start), max(last, end)
        old = self.text[first:last]
        changed = old[: start - first] + new + old[end - first :]
        if len(old) > _LONGEST or len(changed) > _LONGEST or "\n" in old:
            before = self.text[start:end]
            line = " ".join(self.text[: self._line_end(start)].splitlines()[-1].split("#")[0].split())
            return f"`{shorten(before)}` becomes `{shorten(new)}` in `{shorten(line)}`"
        return f"`{shorten(old)}` becomes `{shorten(changed)}`"

    def _is_telling(self, node: ast.AST) -> bool:
        if isinstance(
            node, ast.Name | ast.Constant | ast.Slice | ast.keyword | ast.Tuple | ast.comprehension | ast.arg
        ):
            return False
        return isinstance(node, ast.expr | ast.stmt) and len(self.of(node)) > 4

    def _line_end(self, place: int) -> int:
        found = self.text.find("\n", place)
        return len(self.text) if found < 0 else found

    def line_at(self, place: int) -> str:
        """The line of the text that holds a place, without its comment."""
        start = self.text.rfind("\n", 0, place) + 1
        return self.text[start : self._line_end(place)].split("  #")[0].strip()


def shorten(text: str) -> str:
    """A piece of code in one line of at most 70 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
