"""Every small mistake that a solution offers, made from its syntax tree."""

import ast
from collections import Counter
from dataclasses import replace

from course_lm.classroom.checks.mistakes import expressions, statements
from course_lm.classroom.checks.mistakes.edits import Change, Source, apply, shorten


def small_mistakes(solution: str, *, is_trained: bool = False) -> list[Change]:
    """All edits of a solution that leave it a program and another one; those that lie nearest come first.

    `is_trained`: its result is a loss with a gradient, which can be cut off.
    """
    source = Source(solution)
    rules = (*expressions.RULES, *statements.RULES, *(expressions.RULES_FOR_LOSSES if is_trained else ()))
    found = []
    for node in source.nodes():
        for rule in rules:
            found += rule(source, node)
    same, changes = {_form(solution)}, []
    for one in sorted(found, key=lambda one: (one.rank, one.start)):
        change = Change(one.start, one.end, one.new, one.words)
        form = _form(apply(solution, [change]))
        if form and form not in same:
            same.add(form)
            changes.append(change)
    return _told_apart(source, changes)


def _told_apart(source: Source, changes: list[Change]) -> list[Change]:
    """Changes with the same words name the line that they stand in as well."""
    times = Counter(change.words for change in changes)
    lines = {change: f"{change.words}, in `{shorten(source.line_at(change.start))}`" for change in changes}
    return [replace(change, words=lines[change]) if times[change.words] > 1 else change for change in changes]


def _form(text: str) -> str:
    """What two texts of one program have in common; empty for what is no program."""
    try:
        tree = ast.parse(text)
        compile(tree, "solution", "exec")
    except SyntaxError:
        return ""
    return ast.dump(tree)
