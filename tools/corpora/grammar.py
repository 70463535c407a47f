"""Weighted grammars: a text drawn from one comes with its exact -log p, and reading the text gives the same number.

A grammar is tables of rows. A row has a weight and some forms; a form is text and symbols, and a symbol stands for
a row of another table. `Writer` chooses rows at random and adds up what the choices cost. `search_derivations` finds
the choices again from the text alone. The tables are all that the two share.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import NamedTuple


class Symbol(NamedTuple):
    """A gap in a form: the table that fills it, the form to show, and whether the row is remembered.

    With a `controller`, a fact, the name of the form goes on with that fact's key: "perfective" becomes
    "perfective_3fs" where the fact is feminine singular. All agreement comes about in this way.
    """

    table: str
    form: str = ""
    is_fact: bool = False
    controller: str = ""

    def form_name(self, facts: dict[str, Row]) -> str:
        """The form to show, given the facts."""
        return f"{self.form}_{facts[self.controller].key}" if self.controller else self.form


class Form(NamedTuple):
    """Text and symbols in order; and a letter for each thing in the text that is to be counted."""

    pieces: tuple[str | Symbol, ...]
    tags: str = ""


# Compared by identity: two rows with the same forms and weight are still two choices.
@dataclass(frozen=True, eq=False)
class Row:
    """One row of a table: its weight, its forms by name, and the key that shapes what agrees with it.

    While a row is remembered as a fact, no table offers a row with the same `word` for another fact or phrase.
    """

    weight: int
    forms: dict[str, Form]
    key: str = ""
    word: str | None = None


Tables = dict[str, list[Row]]


def split_symbols(template: str) -> tuple[str | Symbol, ...]:
    """The pieces of a template: {fact.form}, [phrase.form], either with @controller before the bracket, and text."""
    parts = filter(None, re.split(r"(\{.+?\}|\[.+?\])", template))  # re.split leaves an empty string between neighbours
    return tuple(read_symbol(part) if part[0] in "{[" else part for part in parts)


def read_symbol(source: str) -> Symbol:
    """The symbol written as {table.form@controller} (a fact) or with square brackets (chosen anew each time)."""
    name, _, controller = source[1:-1].partition("@")
    table, _, form = name.partition(".")
    return Symbol(table, form, source[0] == "{", controller)


def _offers(rows: list[Row], facts: dict[str, Row]) -> list[Row]:
    taken = {fact.word for fact in facts.values()} - {None}  # a row without a word is never taken
    return [row for row in rows if row.word not in taken]


class Writer:
    """Writes one text from the top down; adds up what its choices cost, in nats, and the tags of what it wrote."""

    def __init__(self, tables: Tables, rng: random.Random) -> None:
        self.tables = tables
        self.rng = rng
        self.facts: dict[str, Row] = {}
        self.neg_log_p = 0.0
        self.tags = ""

    def write(self, symbol: Symbol) -> str:
        """The text of one symbol."""
        # The order of choices is part of the grammar, since a fact takes its word away from later tables.
        if symbol.controller and symbol.controller not in self.facts:
            self.facts[symbol.controller] = self._choose(symbol.controller)
        row = self.facts.get(symbol.table) or self._choose(symbol.table)
        if symbol.is_fact:
            self.facts[symbol.table] = row
        form = row.forms[symbol.form_name(self.facts)]
        self.tags += form.tags
        return "".join(piece if isinstance(piece, str) else self.write(piece) for piece in form.pieces)

    def _choose(self, table: str) -> Row:
        rows = _offers(self.tables[table], self.facts)
        total = sum(row.weight for row in rows)
        ticket = int(self.rng.random() * total)  # of its methods, only random() never changes between Pythons
        for row in rows:
            ticket -= row.weight
            if ticket < 0:
                break
        # Against the weights on offer, not all of the table: taken words cannot come again.
        self.neg_log_p -= math.log(row.weight / total)
        return row


def search_derivations(tables: Tables, start: Symbol, text: str) -> tuple[list[float], int]:
    """The cost in nats of each way to derive exactly this text, and the first character that no attempt got past."""
    # All ways are searched for, and not the first alone: only so a second one would be noticed.
    costs: list[float] = []
    furthest = 0
    attempts = [_Attempt(0, (start,), {}, 0.0)]
    while attempts:  # depth first
        position, pending, facts, cost = attempts.pop()
        furthest = max(furthest, position)
        if not pending:
            costs += [cost] * (position == len(text))
            continue
        piece, rest = pending[0], pending[1:]
        if isinstance(piece, str):
            if text.startswith(piece, position):
                attempts.append(_Attempt(position + len(piece), rest, facts, cost))
        elif piece.controller and piece.controller not in facts:
            # The text has not shown the controller yet, so each of its rows is tried.
            for row, price in _priced(tables[piece.controller], facts):
                attempts.append(_Attempt(position, pending, facts | {piece.controller: row}, cost + price))
        elif piece.table in facts:  # remembered: nothing is chosen
            pieces = facts[piece.table].forms[piece.form_name(facts)].pieces
            attempts.append(_Attempt(position, pieces + rest, facts, cost))
        else:
            for row, price in _priced(tables[piece.table], facts):
                pieces = row.forms[piece.form_name(facts)].pieces
                if _fits(text, position, pieces):
                    learned = facts | {piece.table: row} if piece.is_fact else facts
                    attempts.append(_Attempt(position, pieces + rest, learned, cost + price))
    return costs, furthest


class _Attempt(NamedTuple):
    """One way to read the text so far."""

    position: int  # characters read
    pending: tuple[str | Symbol, ...]  # pieces still to come
    facts: dict[str, Row]  # learned so far
    cost: float  # nats paid


def _priced(rows: list[Row], facts: dict[str, Row]) -> list[tuple[Row, float]]:
    """The rows that are on offer, each with what its choice costs."""
    offers = _offers(rows, facts)
    total = sum(row.weight for row in offers)
    return [(row, math.log(total / row.weight)) for row in offers]


def _fits(text: str, position: int, pieces: tuple[str | Symbol, ...]) -> bool:
    """Whether the text goes on as the pieces begin and holds each of their texts; few attempts get past this."""
    if pieces and isinstance(pieces[0], str) and not text.startswith(pieces[0], position):
        return False
    return all(text.find(piece, position) >= 0 for piece in pieces if isinstance(piece, str))
