"""The small mistakes that people make within an expression, as edits of a solution.

A rule is a function `rule(source, node)` that gives `Found` edits for a node that concerns it. `rank` says how near
the mistake lies: 1 for what many people do, 4 for what few do. Words of a nearer one win where results are equal.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from course_lm.classroom.checks.mistakes.edits import Source, shorten


class Found(NamedTuple):
    """An edit that a rule has found: how near the mistake lies, the place, its new text and the words."""

    rank: int
    start: int
    end: int
    new: str
    words: str


Rule = Callable[[Source, ast.AST], Iterable[Found]]

_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_EXCHANGED = {
    "+": ["-"],
    "-": ["+"],
    "*": ["/", "+"],
    "/": ["*", "//"],
    "//": ["/", "%"],
    "%": ["//"],
    "**": ["*"],
    "&": ["|", "^"],
    "|": ["&", "^"],
    "<<": [">>"],
    ">>": ["<<"],
    "<": ["<=", ">", "=="],
    "<=": ["<", ">=", "=="],
    ">": [">=", "<", "=="],
    ">=": [">", "<=", "=="],
    "==": ["!=", ">=", "<="],
    "!=": ["==", "<", ">"],
    "is": ["is not"],
    "is not": ["is"],
    "in": ["not in"],
    "not in": ["in"],
}
_LEFT_OUT = {
    "+": "the term `{}` is left out",
    "-": "`{}` is not subtracted",
    "*": "the factor `{}` is left out",
    "/": "it is not divided by `{}`",
    "//": "it is not divided by `{}`",
    "%": "the remainder is not taken: `% {}` is left out",
    "**": "the power `** {}` is left out",
}
_ORDERED = {"-", "/", "//", "%", "**", "<<", ">>"}
_NEAR_FUNCTIONS = [  # each is confused with those of its own row
    {"sum", "mean", "amax", "amin", "max", "min", "prod", "median"},
    {"ceil", "floor", "round", "trunc"},
    {"log", "log2", "log10", "log1p"},
    {"exp", "exp2", "expm1"},
    {"sqrt", "square"},
    {"sin", "cos", "tan"},
    {"softmax", "log_softmax", "sigmoid"},
    {"any", "all"},
    {"argmax", "argmin"},
    {"cumsum", "sum"},
    {"isnan", "isinf", "isfinite"},
    {"tril", "triu"},
    {"stdev", "pstdev", "variance"},
    {"fmean", "median"},
    {"append", "extend"},
    {"squeeze", "unsqueeze"},
    {"digest", "hexdigest"},
    {"add", "update"},
    {"keys", "values", "items"},
    {"split", "splitlines"},
    {"lower", "upper", "casefold"},
    {"int", "round", "float"},
]
_OF_TENSORS = {"amax", "amin", "prod", "square", "exp2", "expm1", "cumsum", "sigmoid"}
_OF_NUMBERS = {"sum", "max", "min", "round", "any", "all", "int", "float"}
_REDUCTIONS = {
    *("sum", "mean", "amax", "amin", "max", "min", "logsumexp", "softmax", "log_softmax", "argmax", "argmin", "all"),
    *("any", "norm", "cumsum", "prod", "size", "squeeze", "unsqueeze", "std", "var", "gather"),
}
_STEPS = re.compile(
    r"^(\w*_)?(k|t|n|i|j|num|count|size|steps?|epochs?|position|length|tokens|batch(es)?|rows?)(_\w+)?$"
)


def operators_exchanged(source: Source, node: ast.AST) -> Iterator[Found]:
    """`+` for `-`, `<=` for `<`, the operands the other way round."""
    if isinstance(node, ast.BinOp):
        old, left, right = _SYMBOLS.get(type(node.op), ""), node.left, node.right
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        old, left, right = _SYMBOLS[type(node.ops[0])], node.left, node.comparators[0]
    else:
        return
    one, other = source.outer(left), source.outer(right)
    for symbol in _EXCHANGED.get(old, []):
        rank = 2 if (old, symbol) in {("*", "+"), ("==", ">="), ("==", "<="), ("<", "=="), (">", "==")} else 1
        yield _replaced(source, node, f"{one} {symbol} {other}", rank)
    if old in _ORDERED:
        yield _replaced(source, node, f"{source.operand(right)} {old} {source.operand(left)}", 2)


def parts_left_out(source: Source, node: ast.AST) -> Iterator[Found]:
    """A term, a factor, a divisor, a part of `and`, a sign, a side of a conditional expression."""
    if isinstance(node, ast.BinOp):
        symbol = _SYMBOLS.get(type(node.op), "")
        words = _LEFT_OUT.get(symbol, f"the part `{symbol} {{}}` is left out")
        yield _replaced(source, node, source.operand(node.left), 1, words.format(source.shown(node.right)))
        left = source.operand(node.right)
        if symbol == "-":
            yield _replaced(source, node, f"-{left}", 2, f"the term `{source.shown(node.left)}` is left out")
        elif symbol == "/":
            yield _replaced(source, node, f"1 / {left}", 3)
        else:
            yield _replaced(source, node, left, 2, _first_left_out(symbol, source.shown(node.left)))
    elif isinstance(node, ast.BoolOp):
        yield from _parts_of_bool(source, node)
    elif isinstance(node, ast.UnaryOp):
        yield _replaced(source, node, source.operand(node.operand), 1)
    elif isinstance(node, ast.IfExp):
        test, body, other = source.of(node.test), source.of(node.body), source.of(node.orelse)
        yield _replaced(source, node, source.operand(node.body), 1, f"`{shorten(test)}` is not asked: always `{body}`")
        yield _replaced(
            source, node, source.operand(node.orelse), 1, f"`{shorten(test)}` is not asked: always `{other}`"
        )
        yield _replaced(source, node, f"{other} if {test} else {body}", 2)


def _first_left_out(symbol: str, shown: str) -> str:
    kind = {"+": "term", "*": "factor"}.get(symbol, "part")
    return f"the {kind} `{shown}` is left out"


def _parts_of_bool(source: Source, node: ast.BoolOp) -> Iterator[Found]:
    word = "and" if isinstance(node.op, ast.And) else "or"
    parts = [source.outer(value) for value in node.values]
    for i, part in enumerate(parts):
        rest = f" {word} ".join(parts[:i] + parts[i + 1 :])
        yield _replaced(source, node, rest, 1, f"the condition `{shorten(part)}` is left out")
    other = {"and": "or", "or": "and"}[word]
    yield _replaced(source, node, f" {other} ".join(parts), 1)


def conditions_turned(source: Source, node: ast.AST) -> Iterator[Found]:
    """The condition of an `if`, a comprehension or a conditional expression, negated or left out."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        if not isinstance(node.test, ast.Compare):
            yield _replaced(source, node.test, f"not ({source.of(node.test)})", 2)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
        for part in node.generators:
            for test in part.ifs:
                start, end = source.outer_span(test)
                before = source.text.rfind("if", 0, start)
                shown = source.shown(test)
                yield Found(1, before, end, "", f"the condition `if {shown}` is left out")
                yield Found(2, start, end, f"not ({source.of(test)})", f"the condition `if {shown}` is turned around")


def parentheses_left_out(source: Source, node: ast.AST) -> Iterator[Found]:
    """`(a + b) * c` as `a + b * c`."""
    parent = source.parents.get(node)
    if isinstance(node, ast.BinOp) and isinstance(parent, ast.BinOp | ast.UnaryOp):
        start, end = source.outer_span(node)
        if (start, end) != source.span(node):
            yield Found(2, start, end, source.of(node), f"the parentheses of `{source.shown(parent)}` are left out")


def constants_changed(source: Source, node: ast.AST) -> Iterator[Found]:
    """Off by one, 0 for 1, another sign, another unit, half, double, ten times."""
    if isinstance(node, ast.UnaryOp) and _is_whole_number(node):
        yield _replaced(source, node, "0", 1)
    if not isinstance(node, ast.Constant) or source.parents.get(node).__class__ is ast.JoinedStr:
        return
    value = node.value
    if isinstance(value, bool):
        yield _replaced(source, node, str(not value), 1)
    elif isinstance(value, int):
        near = {1: [value + 1, value - 1], 2: [0, 1], 3: [2, value * 2, value // 2]}
        units = {3600: [60, 1000, 1], 60: [3600, 1], 1000: [1024, 1], 1024: [1000, 1], 4: [8, 1], 8: [1], 100: [1]}
        yield from _other_values(source, node, {1: [*units.get(value, []), *near[1]], 2: near[2], 3: near[3]})
    elif isinstance(value, float):
        rest = [round(1 - value, 12)] if 0 < value < 1 else []
        tenth = round(1 - value, 12) != value
        near = {1: [*rest, 0.0, 1.0], 2: [value * 2, value / 2], 3: [round(value * 10, 12), round(value / 10, 12)]}
        yield from _other_values(source, node, near if tenth else {1: [0.0, 1.0], 2: [0.25], 3: [2.0]})


def _other_values(source: Source, node: ast.Constant, ranks: Mapping[int, Sequence[float]]) -> Iterator[Found]:
    for rank, values in ranks.items():
        for value in values:
            if value != node.value and not (value <= 0 and isinstance(source.parents.get(node), ast.UnaryOp)):
                yield _replaced(source, node, repr(value), rank)


def slices_moved(source: Source, node: ast.AST) -> Iterator[Found]:
    """A bound moved by one or dropped, `[:-1]` for `[1:]`, another item."""
    if isinstance(node, ast.Slice):
        lower, upper = (source.of(bound) if bound else "" for bound in (node.lower, node.upper))
        step = f":{source.of(node.step)}" if node.step else ""
        if (lower, upper) == ("", "-1"):
            yield _replaced(source, node, "1:", 1)
        if (lower, upper) == ("1", ""):
            yield _replaced(source, node, ":-1", 1)
        near = [("", upper), (lower, ""), (_plus(lower, 1), upper), (_plus(lower, -1), upper)]
        near += [(lower, _plus(upper, 1)), (lower, _plus(upper, -1)), (upper, lower)]
        for number, (first, last) in enumerate(near):
            if (first, last) != (lower, upper) and (lower or upper):
                yield _replaced(source, node, f"{first}:{last}{step}", 1 if number < 2 else 2)
    elif isinstance(node, ast.Subscript) and _is_whole_number(node.slice):
        start, end = source.span(node.slice)
        for index in ("0", "1", "-1", "-2"):
            if index != source.of(node.slice):
                yield Found(1, start, end, index, source.becomes(node, start, end, index))


def _plus(bound: str, number: int) -> str:
    if re.fullmatch(r"-?\d+", bound):
        moved = int(bound) + number
        return "" if moved == 0 else str(moved)
    return f"{bound} {'+' if number > 0 else '-'} 1" if bound else "1" if number > 0 else ""


def axes_changed(source: Source, node: ast.AST) -> Iterator[Found]:
    """A reduction over another axis, over all of them, or without `keepdim`."""
    if not isinstance(node, ast.Call) or _called(node) not in _REDUCTIONS:
        return
    keywords = [keyword.value for keyword in node.keywords if keyword.arg in ("dim", "axis")]
    for axis in [*node.args[:1], *keywords]:
        if _is_whole_number(axis):
            start, end = source.span(axis)
            for other in ("0", "1", "-1", "-2", "(0, 1)"):
                if other != source.of(axis):
                    yield Found(1, start, end, other, source.becomes(node, start, end, other))
    if len(node.args) == 1 and not node.keywords and _is_whole_number(node.args[0]):
        start, end = source.span(node.args[0])
        yield Found(1, start, end, "", f"the axis of `{source.shown(node)}` is left out")


def functions_exchanged(source: Source, node: ast.AST) -> Iterator[Found]:
    """`mean` for `sum`, `floor` for `ceil`, `log2` for `log`, and what else is taken for one another."""
    if not isinstance(node, ast.Call):
        return
    name, callee = _called(node), node.func
    module = callee.value.id if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name) else ""
    for row in _NEAR_FUNCTIONS:
        for other in sorted(row - {name}) if name in row else []:
            if module == "math" and other in _OF_TENSORS | {"mean", "median"}:
                continue
            if isinstance(callee, ast.Name) and other not in _OF_NUMBERS:
                continue
            new = other if module == "math" and other in ("round", "int") else None
            start, end = source.span(callee)
            if new is None and isinstance(callee, ast.Attribute):
                start = end - len(callee.attr)
            yield Found(1, start, end, new or other, source.becomes(node, start, end, new or other))
    if name == "ceil" and len(node.args) == 1:
        yield _replaced(
            source, node, f"({source.of(node.args[0])}).__floor__() + 1", 2, _ALWAYS_ONE.format(source.shown(node))
        )
    if name == "exp" and len(node.args) == 1:
        yield _replaced(source, node, f"2 ** ({source.of(node.args[0])})", 1)


_ALWAYS_ONE = "`{}` is rounded down and 1 is added, which is one too many where nothing remains"


def calls_left_out(source: Source, node: ast.AST) -> Iterator[Found]:
    """`f(x)` as `x`, `x.f()` as `x`, `min(1.0, x)` as `x`, a keyword left out."""
    if not isinstance(node, ast.Call):
        return
    parent = source.parents.get(node)
    if isinstance(parent, ast.Expr):
        return  # a statement of its own
    name = _called(node)
    if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value):
        yield _replaced(source, node, source.outer(node.func.value), 1, f"`.{_tail(source, node)}` is left out")
    if len(node.args) >= 1 and not isinstance(node.args[0], ast.GeneratorExp | ast.Starred) and not _is_method(node):
        inner = source.in_place_of(node, source.of(node.args[0]))
        if len(node.args) == 1:
            yield _replaced(source, node, inner, 1, f"`{name}` is left out of `{source.shown(node)}`")
        if name in ("min", "max") and len(node.args) == 2:
            for kept, dropped in (node.args, node.args[::-1]):
                words = f"the limit `{source.shown(dropped)}` of `{source.shown(node)}` is left out"
                yield _replaced(source, node, source.operand(kept), 1, words)
    for keyword in node.keywords:
        start, end = source.span(keyword)
        before = source.text[:start].rstrip()
        start = len(before) - 1 if before.endswith(",") else start
        yield Found(2, start, end, "", f"`{source.shown(keyword)}` is left out of `{source.shown(node)}`")


def order_changed(source: Source, node: ast.AST) -> Iterator[Found]:
    """Arguments or results in the other order, two calls of a chain in the other order."""
    if isinstance(node, ast.Call):
        if _called(node) not in ("min", "max"):
            yield from _arguments_exchanged(source, node)
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not _is_module(inner.func.value):
            first, last = _tail(source, inner), _tail(source, node)
            new = f"{source.outer(inner.func.value)}.{last}.{first}"
            yield _replaced(source, node, new, 1, f"`.{shorten(last)}` comes before `.{shorten(first)}`")
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) == 2:
        one, other = (source.of(part) for part in node.elts)
        if not isinstance(source.parents.get(node), ast.Subscript | ast.Assign) and one != other:
            start, end = source.span(node.elts[0])[0], source.span(node.elts[1])[1]
            yield Found(1, start, end, f"{other}, {one}", f"`{shorten(one)}` and `{shorten(other)}` change places")


def _arguments_exchanged(source: Source, node: ast.Call) -> Iterator[Found]:
    for one, other in zip(node.args, node.args[1:]):
        if isinstance(one, ast.Starred) or isinstance(other, ast.Starred):
            continue
        (start, middle), (right, end) = source.span(one), source.span(other)
        new = source.of(other) + source.text[middle:right] + source.of(one)
        if source.of(one) != source.of(other):
            yield Found(2, start, end, new, source.becomes(node, start, end, new))


def scopes_moved(source: Source, node: ast.AST) -> Iterator[Found]:
    """`1 - sqrt(p)` as `sqrt(1 - p)`, and `sqrt(a * b)` as `sqrt(a) * b`: a function of too much or too little."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords and not _is_method(node):
        if isinstance(node.args[0], ast.GeneratorExp | ast.Starred):
            return
        name, inner = source.of(node.func), node.args[0]
        parent = source.parents.get(node)
        if isinstance(parent, ast.BinOp):
            start, end = source.span(node)
            first, last = source.span(parent)
            new = source.text[first:start] + source.operand(inner) + source.text[end:last]
            yield _replaced(source, parent, f"{name}({new})", 2)
        if isinstance(inner, ast.BinOp):
            symbol = _SYMBOLS.get(type(inner.op), "")
            left, right = source.of(inner.left), source.of(inner.right)
            yield _replaced(source, node, f"{name}({left}) {symbol} {source.outer(inner.right)}", 2)
            yield _replaced(source, node, f"{source.outer(inner.left)} {symbol} {name}({right})", 2)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.BinOp):
        inner, power = node.left, source.of(node.right)
        symbol = _SYMBOLS.get(type(inner.op), "")
        left, right = source.operand(inner.left), source.operand(inner.right)
        yield _replaced(source, node, f"{left} ** {power} {symbol} {right}", 2)
        yield _replaced(source, node, f"{left} {symbol} {right} ** {power}", 2)


def ranges_moved(source: Source, node: ast.AST) -> Iterator[Found]:
    """Counting from 1 for 0, one round too many or too few, the first or the last item left out."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        args = [source.of(arg) for arg in node.args]
        name = node.func.id
        if name == "range" and len(args) == 1:
            for new in (f"1, {args[0]} + 1", f"1, {args[0]}", f"{args[0]} - 1", f"{args[0]} + 1"):
                yield _replaced(source, node, f"range({new})", 1)
        elif name == "range" and len(args) >= 2:
            rest = "".join(f", {arg}" for arg in args[2:])
            for new in (f"{args[0]} + 1, {args[1]}", f"{args[0]} - 1, {args[1]}"):
                yield _replaced(source, node, f"range({new}{rest})", 1)
            for new in (f"{args[0]}, {args[1]} + 1", f"{args[0]}, {args[1]} - 1"):
                yield _replaced(source, node, f"range({new}{rest})", 1)
        elif name == "enumerate":
            starts = ("1", "-1") if len(args) + len(node.keywords) == 1 else ("0", "2")
            for new in starts:
                yield _replaced(source, node, f"enumerate({args[0]}, start={new})", 1)
        elif name == "sorted":
            yield _replaced(source, node, f"{source.of(node)}[::-1]", 1, "the order is turned around")
        elif name == "len":
            for new in (" + 1", " - 1"):
                yield _replaced(source, node, f"{source.of(node)}{new}", 2)
    elif isinstance(node, ast.For | ast.comprehension):
        start, end = source.span(node.iter)
        every = source.of(node.iter)
        yield Found(2, start, end, f"list({every})[1:]", f"the first of `{shorten(every)}` is left out")
        yield Found(2, start, end, f"list({every})[:-1]", f"the last of `{shorten(every)}` is left out")
        yield Found(3, start, end, f"list({every})[::-1]", f"`{shorten(every)}` is gone through from its end")


def counts_off_by_one(source: Source, node: ast.AST) -> Iterator[Found]:
    """`k + 1` for `k`, where `k` is the name of a count."""
    parent = source.parents.get(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _STEPS.match(node.id):
        if (
            isinstance(parent, ast.Call)
            and parent.func is not node
            and _called(parent) not in ("zip", "enumerate", "len")
        ):
            ranks = 1
        elif (
            isinstance(parent, ast.BinOp | ast.Compare | ast.Slice | ast.Subscript)
            and parent.__dict__.get("value") is not node
        ):
            ranks = 2
        else:
            return
        for new in (f"{node.id} + 1", f"{node.id} - 1"):
            yield _replaced(source, node, new, ranks)


def results_changed(source: Source, node: ast.AST) -> Iterator[Found]:
    """What is returned: rounded, cut off, with another sign; an argument written over."""
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant | ast.Tuple):
        start, end = source.span(node.value)
        value = source.operand(node.value)
        for new, words in (
            (f"round({value})", "the result is rounded"),
            (f"int({value})", "the result is cut off to a whole number"),
            (f"-{value}", "the result has the wrong sign"),
            (f"1 - {value}", "the result is subtracted from 1"),
        ):
            yield Found(3, start, end, new, words)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _IN_PLACE:
        end = source.span(node)[1]
        if node.value.id in {arg.arg for arg in source.function.args.args}:
            yield Found(2, end, end, "_", f"`{node.value.id}.{node.attr}_` writes into the argument")


_IN_PLACE = {"masked_fill", "clamp", "add", "mul", "div", "sub", "squeeze", "unsqueeze", "exp", "sqrt", "zero", "fill"}


def graphs_cut_off(source: Source, node: ast.AST) -> Iterator[Found]:
    """A part of a loss without its gradient."""
    if isinstance(node, ast.BinOp | ast.Call) and not isinstance(source.parents.get(node), ast.Attribute | ast.Expr):
        value = source.operand(node)
        yield _replaced(source, node, f"{value}.detach()", 2, f"`{source.shown(node)}` is detached from its graph")


def _replaced(source: Source, node: ast.AST, new: str, rank: int, words: str = "") -> Found:
    start, end = source.span(node)
    text = source.in_place_of(node, new)
    return Found(rank, start, end, text, words or source.becomes(node, start, end, text))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _tail(source: Source, node: ast.Call) -> str:
    """The call of a method as it follows the dot."""
    assert isinstance(node.func, ast.Attribute)
    return node.func.attr + source.text[source.span(node.func)[1] : source.span(node)[1]]


def _is_method(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)


def _is_module(node: ast.AST) -> bool:
    names = {"math", "torch", "F", "np", "json", "hashlib", "random", "nn", "statistics"}
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in names


def _is_whole_number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


RULES: tuple[Rule, ...] = (
    parts_left_out,
    operators_exchanged,
    conditions_turned,
    slices_moved,
    axes_changed,
    functions_exchanged,
    calls_left_out,
    ranges_moved,
    counts_off_by_one,
    constants_changed,
    order_changed,
    scopes_moved,
    parentheses_left_out,
    results_changed,
)
RULES_FOR_LOSSES: tuple[Rule, ...] = (graphs_cut_off,)
