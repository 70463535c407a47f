"""The small mistakes that people make with whole lines and with names, as edits of a solution."""

import ast
import textwrap
from collections.abc import Iterator
from itertools import pairwise

from course_lm.classroom.checks.mistakes.edits import Source, shorten
from course_lm.classroom.checks.mistakes.expressions import Found, Rule

Body = list[ast.stmt]


def lines_left_out(source: Source, node: ast.AST) -> Iterator[Found]:
    """A statement that is forgotten, a guard above all."""
    if not isinstance(node, ast.stmt) or isinstance(node, ast.FunctionDef | ast.Return):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    start, end = source.span(node)
    first = _first_line(source, node)
    if isinstance(node, ast.If):
        yield Found(1, start, end, "pass", f"the case `{first}` is left out")
        if node.orelse:
            yield from _branches(source, node)
    elif isinstance(node, ast.AugAssign):
        yield Found(1, start, end, "pass", f"the line `{first}` is left out")
        target, value = source.of(node.target), source.of(node.value)
        symbol = source.text[source.span(node.target)[1] : source.span(node.value)[0]].strip()
        yield Found(1, start, end, f"{target} = {value}", f"`{first}` becomes `{shorten(f'{target} = {value}')}`")
        other = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}.get(symbol)
        if other:
            new = f"{target} {other} {value}"
            yield Found(2, start, end, new, f"`{first}` becomes `{shorten(new)}`")
    else:
        kind = "loop" if isinstance(node, ast.For | ast.While) else "line"
        yield Found(1, start, end, "pass", f"the {kind} `{first}` is left out")


def _branches(source: Source, node: ast.If) -> Iterator[Found]:
    start, end = source.span(node)
    column = node.col_offset
    for kept, words in ((node.body, "always"), (node.orelse, "never")):
        text = _block(source, kept, column)
        yield Found(2, start, end, text, f"`{shorten(source.of(node.test))}` is taken to hold {words}")


def jumps_exchanged(source: Source, node: ast.AST) -> Iterator[Found]:
    """`break` for `continue`, a `return` in a loop, the search that goes on."""
    start, end = source.span(node) if isinstance(node, ast.stmt) else (0, 0)
    if isinstance(node, ast.Continue):
        yield Found(1, start, end, "break", "the loop ends with `break` where it should go on with `continue`")
    elif isinstance(node, ast.Break):
        yield Found(1, start, end, "continue", "the loop goes on with `continue` where it should end with `break`")


def statements_moved(source: Source, node: ast.AST) -> Iterator[Found]:
    """Two neighbours exchanged, a line moved into a loop or out of it."""
    for body in _bodies(node):
        statements = [one for one in body if not _is_docstring(one)]
        for one, other in pairwise(statements):
            if not isinstance(one, ast.FunctionDef):
                yield from _exchanged(source, one, other)
                yield from _into_the_loop(source, one, other)
            yield from _out_of_the_loop(source, one)
        if statements:
            yield from _out_of_the_loop(source, statements[-1])


def _exchanged(source: Source, one: ast.stmt, other: ast.stmt) -> Iterator[Found]:
    (start, middle), (right, end) = source.span(one), source.span(other)
    new = source.of(other) + source.text[middle:right] + source.of(one)
    words = f"`{_first_line(source, other)}` comes before `{_first_line(source, one)}`"
    yield Found(1, start, end, new, words)


def _into_the_loop(source: Source, one: ast.stmt, other: ast.stmt) -> Iterator[Found]:
    """The line before a loop at the start of its body; the line after a loop at the end of its body."""
    if isinstance(other, ast.For | ast.While) and not isinstance(one, ast.For | ast.While | ast.If):
        start, end = source.span(one)[0], source.span(other)[1]
        moved = _block(source, [one], other.body[0].col_offset)
        head, body = source.text[source.span(other)[0] : source.span(other.body[0])[0]], source.span(other.body[0])[0]
        margin = "\n" + " " * other.body[0].col_offset
        new = head + moved + margin + source.text[body:end]
        yield Found(1, start, end, new, f"`{_first_line(source, one)}` stands within the loop, in every round")
    if isinstance(one, ast.For | ast.While) and not isinstance(other, ast.For | ast.While):
        start, end = source.span(one)[0], source.span(other)[1]
        new = source.of(one) + "\n" + " " * one.body[0].col_offset + _block(source, [other], one.body[0].col_offset)
        words = f"`{_first_line(source, other)}` stands within the loop, in its first round already"
        if not isinstance(other, ast.Return):
            words = f"`{_first_line(source, other)}` stands within the loop, in every round"
        yield Found(1, start, end, new, words)


def _out_of_the_loop(source: Source, loop: ast.stmt) -> Iterator[Found]:
    """The last line of a loop's body after the loop, the first one before it."""
    if not isinstance(loop, ast.For | ast.While) or len(loop.body) < 2:
        return
    start, end = source.span(loop)
    margin = "\n" + " " * loop.col_offset
    first, last = loop.body[0], loop.body[-1]
    before_last = source.span(loop.body[-2])[1]
    after = source.text[start:before_last] + margin + _block(source, [last], loop.col_offset)
    yield Found(1, start, end, after, f"`{_first_line(source, last)}` stands after the loop, once")
    head = source.text[start : source.span(first)[0]]
    rest = source.text[source.span(loop.body[1])[0] : end]
    before = _block(source, [first], loop.col_offset) + margin + head + rest
    yield Found(1, start, end, before, f"`{_first_line(source, first)}` stands before the loop, once")


def names_exchanged(source: Source, node: ast.AST) -> Iterator[Found]:
    """Another of the function's variables in a variable's place."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
        return
    bound = _bound_before(source, node)
    if node.id not in bound:
        return
    start, end = source.span(node)
    for other in bound:
        if other != node.id:
            yield Found(3, start, end, other, source.becomes(node, start, end, other))


def returns_early(source: Source, node: ast.AST) -> Iterator[Found]:
    """A variable on the way returned for the result."""
    if not isinstance(node, ast.Return) or node.value is None or isinstance(node.value, ast.Name | ast.Constant):
        return
    start, end = source.span(node.value)
    for name in _assigned_before(source, node):
        yield Found(2, start, end, name, f"`{name}` itself is returned")


def _bound_before(source: Source, node: ast.AST) -> list[str]:
    """The parameters and variables that have a value where `node` stands."""
    parameters = [arg.arg for arg in source.function.args.args]
    inner = []
    around = source.parents.get(node)
    while around is not None:
        if isinstance(around, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            inner += [
                name.id for part in around.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)
            ]
        around = source.parents.get(around)
    return list(dict.fromkeys([*parameters, *_assigned_before(source, node), *inner]))


def _assigned_before(source: Source, node: ast.AST) -> list[str]:
    place = source.span(node)[0]
    names = [
        one.id
        for one in source.nodes()
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and source.span(one)[1] < place
        if not _is_in_comprehension(source, one)
    ]
    return list(dict.fromkeys(names))


def _is_in_comprehension(source: Source, node: ast.AST) -> bool:
    around: ast.AST | None = node
    while around is not None and not isinstance(around, ast.stmt):
        if isinstance(around, ast.comprehension):
            return True
        around = source.parents.get(around)
    return False


def _bodies(node: ast.AST) -> Iterator[Body]:
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt) and not isinstance(node, ast.Module):
            yield body


def _block(source: Source, statements: Body, column: int) -> str:
    """Statements as they read at another column; the first line has no margin."""
    start, end = source.span(statements[0])[0], source.span(statements[-1])[1]
    lines = textwrap.dedent(" " * statements[0].col_offset + source.text[start:end]).splitlines()
    return ("\n" + " " * column).join(lines)


def _first_line(source: Source, node: ast.stmt) -> str:
    return shorten(source.of(node).splitlines()[0].split("  #")[0].removesuffix(":"))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


RULES: tuple[Rule, ...] = (lines_left_out, jumps_exchanged, statements_moved, returns_early, names_exchanged)
