"""The stories corpus: short English stories from a grammar that is known to the last weight.

The grammar is data (`data/stories.grammar`, explained at its top). `generate_stories` makes its choices at random,
`story_neg_log_p` recovers them from the text alone, and the tables are all that the two share: that they agree
on every story shows that the stored -log p is right. It is the floor under every loss on this corpus, the loss
that the true distribution itself would have.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SHIPPED_COUNT = 1800


class Story(NamedTuple):
    """A story and its exact -log p under the grammar, in nats."""

    text: str
    neg_log_p: float


class Symbol(NamedTuple):
    """A gap in a template: the table that fills it, the form to show, and whether the row is remembered."""

    table: str
    form: str
    is_fact: bool


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a table: its weight, and its forms by name; a form is text and symbols in order."""

    weight: int
    forms: dict[str, tuple[str | Symbol, ...]]


STORY = Symbol("story", form="", is_fact=False)


def data_file(name: str) -> Path:
    """Where a shipped file lies: inside the installed package, or in `data/` of a checkout."""
    package = Path(__file__).parent
    installed = package / "_data" / name
    return installed if installed.exists() else package.parent / "data" / name


@functools.cache
def story_tables() -> dict[str, list[Row]]:
    """The rows of every fact and phrase of the grammar, by its name."""
    tables: dict[str, list[Row]] = {}
    rows: list[Row] = []
    columns: list[str] = []
    for line in data_file("stories.grammar").read_text(encoding="utf-8").splitlines():
        if not line or line[0] == "#":
            continue
        if line[0] in "{[":
            head, _, line = line.partition(":")
            names, _, forms = head.partition(" (")
            rows, columns = [], forms.rstrip(")").split(", ")
            tables |= {name[1:-1]: rows for name in names.split()}
        rows += [_read_row(row, columns) for row in line.split(" / ") if row.strip()]
    return tables


def _read_row(source: str, columns: list[str]) -> Row:
    weight, template = source.split(maxsplit=1)
    forms = dict(zip(columns, template.strip().split(" | "), strict=True))
    forms |= {name + "!": _capitalised(form) for name, form in forms.items()}
    forms[""] = forms[columns[0]]
    return Row(int(weight), {name: _pieces(form) for name, form in forms.items()})


def _capitalised(template: str) -> str:
    return template.replace("}", "!}", 1) if template[0] == "{" else template[0].upper() + template[1:]


def _pieces(template: str) -> tuple[str | Symbol, ...]:
    pieces: list[str | Symbol] = []
    for part in filter(None, re.split(r"(\{.+?\}|\[.+?\])", template)):
        table, _, form = part[1:-1].partition(".")
        pieces.append(Symbol(table, form, part[0] == "{") if part[0] in "{[" else part)
    return tuple(pieces)


def generate_stories(count: int = SHIPPED_COUNT, seed: int = 0) -> Iterator[Story]:
    """Draws `count` independent stories; the same seed draws the same stories on every machine."""
    rng = random.Random(seed)
    for _ in range(count):
        writer = _Writer(rng)
        text = writer.write(STORY)
        yield Story(text, writer.neg_log_p)


class _Writer:
    """Writes one story from the top down and adds up what its choices cost."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.facts: dict[str, Row] = {}
        self.neg_log_p = 0.0

    def write(self, symbol: Symbol) -> str:
        row = self.facts.get(symbol.table) or self._choose(symbol.table)
        if symbol.is_fact:
            self.facts[symbol.table] = row
        return "".join(piece if isinstance(piece, str) else self.write(piece) for piece in row.forms[symbol.form])

    def _choose(self, table: str) -> Row:
        rows = [row for row in story_tables()[table] if row not in self.facts.values()]
        total = sum(row.weight for row in rows)
        ticket = int(self.rng.random() * total)  # of its methods, only random() never changes between Pythons
        for row in rows:
            ticket -= row.weight
            if ticket < 0:
                break
        self.neg_log_p -= math.log(row.weight / total)
        return row


def story_neg_log_p(text: str) -> float:
    """-log p of a story in nats, from its text alone.

    Raises ValueError for a text that the grammar cannot write.
    """
    costs, furthest = _search_derivations(text)
    if not costs:
        rest = text[furthest:][:30]
        raise ValueError(f"not a story of the grammar: nothing fits from character {furthest} on, {rest!r}")
    return costs[0]


def story_derivations(text: str) -> list[float]:
    """The cost in nats of each way in which the grammar can write exactly this text."""
    return _search_derivations(text)[0]


def _search_derivations(text: str) -> tuple[list[float], int]:
    """Depth first: the cost of each derivation, and the first character that no attempt got past."""
    costs: list[float] = []
    furthest = 0
    attempts: list[_Attempt] = [_Attempt(0, (STORY,), {}, 0.0)]
    while attempts:
        attempt = attempts.pop()
        furthest = max(furthest, attempt.position)
        if attempt.pending:
            attempts += attempt.advance(text)
        elif attempt.position == len(text):
            costs.append(attempt.cost)
    return costs, furthest


class _Attempt(NamedTuple):
    """One way to read the text so far: characters read, pieces still to come, facts learned, nats paid."""

    position: int
    pending: tuple[str | Symbol, ...]
    facts: dict[str, Row]
    cost: float

    def advance(self, text: str) -> list[_Attempt]:
        """The attempts that remain after the next pending piece: none where it is other text."""
        piece, *rest = self.pending
        if isinstance(piece, Symbol):
            return [self._open(piece, row, price) for row, price in self._prices(piece.table)]
        if not text.startswith(piece, self.position):
            return []
        return [self._replace(position=self.position + len(piece), pending=tuple(rest))]

    def _open(self, symbol: Symbol, row: Row, price: float) -> _Attempt:
        return self._replace(
            pending=row.forms[symbol.form] + self.pending[1:],
            facts=self.facts | {symbol.table: row} if symbol.is_fact else self.facts,
            cost=self.cost + price,
        )

    def _prices(self, table: str) -> list[tuple[Row, float]]:
        if table in self.facts:
            return [(self.facts[table], 0.0)]
        weights = {row: row.weight for row in story_tables()[table] if row not in self.facts.values()}
        total = sum(weights.values())
        return [(row, math.log(total / weight)) for row, weight in weights.items()]


def write_stories(path: str | Path, count: int = SHIPPED_COUNT, seed: int = 0) -> None:
    """Writes stories as JSON lines {"text", "neg_log_p"}, in nats to six decimals.

    With the default arguments this is the shipped `data/stories.jsonl`, byte for byte.
    """
    stories = generate_stories(count, seed)
    lines = [json.dumps({"text": text, "neg_log_p": round(cost, 6)}) + "\n" for text, cost in stories]
    Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")
