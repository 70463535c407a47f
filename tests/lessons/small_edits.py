"""The small mistakes that a solution offers, made from its syntax tree: each check must refuse all of them."""

import ast
import copy
from collections.abc import Iterator
from itertools import pairwise

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = [("min", "max"), ("amin", "amax"), ("any", "all"), ("ceil", "floor"), ("sum", "mean"), ("append", "insert")]
_RENAMED = {one: other for pair in _NAMES for one, other in (pair, pair[::-1])}


def small_edits(text: str) -> dict[str, str]:
    """The words of each small edit of a function, and the program that it makes."""
    tree, found = ast.parse(text), {}
    for place, node in enumerate(ast.walk(tree)):
        for number in range(len(list(_edited(node)))):
            changed = copy.deepcopy(tree)
            old = list(ast.walk(changed))[place]
            new = list(_edited(old))[number]
            _put(changed, old, new)
            program = ast.unparse(ast.fix_missing_locations(changed))
            if program != ast.unparse(tree) and _compiles(program):
                found.setdefault(_words(ast.unparse(tree), program), program)
    for program in _statements_exchanged(tree):
        found.setdefault(_words(ast.unparse(tree), program), program)
    return found


def _edited(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place by mistake."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OTHER:
            yield ast.Compare(left, [_OTHER[type(operator)]()], [right])  # type: ignore[list-item]
        case ast.BinOp(left=left, op=operator, right=right):
            yield from (left, right)
            if type(operator) in _OTHER:
                yield ast.BinOp(left, _OTHER[type(operator)](), right)  # type: ignore[arg-type]
        case ast.BoolOp(op=operator, values=values):
            yield from values
            yield ast.BoolOp(_OTHER[type(operator)](), values)  # type: ignore[arg-type]
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Slice(lower=lower, upper=upper):
            yield from (ast.Slice(None, upper) for _ in [lower] if lower)
            yield from (ast.Slice(lower, None) for _ in [upper] if upper)
        case ast.Call(func=func, args=args, keywords=keywords):
            yield from _calls(func, args, keywords)
        case ast.comprehension(target=target, iter=iterated, ifs=[_, *_], is_async=is_async):
            yield ast.comprehension(target, iterated, [], is_async)
        case ast.If(body=body, orelse=orelse):
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.AugAssign(target=target, value=value):
            yield ast.Assign([target], value)
            yield ast.Pass()
        case ast.Assign() | ast.Expr() | ast.For():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _calls(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Iterator[ast.AST]:
    if isinstance(func, ast.Attribute):
        yield func.value
        if func.attr in _RENAMED:
            yield ast.Call(ast.Attribute(func.value, _RENAMED[func.attr], func.ctx), args, keywords)
    elif isinstance(func, ast.Name) and func.id in _RENAMED:
        yield ast.Call(ast.Name(_RENAMED[func.id], func.ctx), args, keywords)
    name = func.id if isinstance(func, ast.Name) else ""
    if len(args) == 1 and name not in ("int", "float", "list"):  # the same number or list of another type is accepted
        yield args[0]
    for place in range(len(args)):
        yield ast.Call(func, args[:place] + args[place + 1 :], keywords)
    for place in range(len(keywords)):
        yield ast.Call(func, args, keywords[:place] + keywords[place + 1 :])
    if len(args) == 2 and name not in ("min", "max"):
        yield ast.Call(func, args[::-1], keywords)


def _statements_exchanged(tree: ast.Module) -> Iterator[str]:
    """Each two neighbours in the other order, but for two assignments, which often do not need each other."""
    for place, node in enumerate(ast.walk(tree)):
        body = getattr(node, "body", None)
        for first, (one, other) in enumerate(pairwise(body)) if isinstance(body, list) else ():
            if isinstance(one, ast.Assign) and isinstance(other, ast.Assign):
                continue
            changed = copy.deepcopy(tree)
            lines = list(ast.walk(changed))[place].body  # type: ignore[attr-defined]
            lines[first : first + 2] = lines[first : first + 2][::-1]
            yield ast.unparse(changed)


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(one is old for one in value):
                value[:] = [new if one is old else one for one in value]


def _compiles(program: str) -> bool:
    try:
        compile(program, "edit", "exec")
    except SyntaxError:
        return False
    return True


def _words(before: str, after: str) -> str:
    """ "these lines become those"."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    one, other = (" ; ".join(line.strip() for line in lines) for lines in (old, new))
    return f"{one} -> {other}"
