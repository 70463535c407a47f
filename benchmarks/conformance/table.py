"""The table of the stored results, as docs/trainers.md has it."""

import ast
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.conformance.decide import ASKED

RESULTS = Path(__file__).parent / "results"
COLUMNS = [*ASKED, "C13"]
UNTRIED = {"status": "not tried"}  # C13 of a row that was stored before it was asked
CONFIRM = Path(__file__).parent / "confirm"
WORDS = {
    "kept": "kept",
    "broken": "**broken**",
    "not guarded": "not guarded",
    "differs by choice": "by choice",
    "not offered": "–",
    "not tried": "not tried",
    "not confirmed": "departs",
}
SHARED = {  # what a departure is where its row says nothing else
    "C3": "Each micro-batch counts the same, however many targets it has.",
    "C4": "The loss of the last, smaller window of an epoch is divided as that of a full one is.",
    "C5": "The loss is NaN and the gradient 0; a step is made, and the momentum or the moments move the weights.",
    "C7": "A loss or a gradient that is not finite reaches the weights.",
    "C9": "The decay shrinks biases and norm gains too, as torch's optimizers do where all weights are in one group.",
    "C11": "A validation batch weighs by something else than its targets.",
}


def text() -> str:
    """The table, a line for each loop, and below it a paragraph for each promise that a loop departs from."""
    rows = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names()]
    head = [f"| trainer | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    body = [line for row in rows for line in table_lines(row)]
    return "\n".join([*head, *body, *(line for promise in COLUMNS for line in said(promise, rows))])


def names() -> list[str]:
    """The rows that are stored."""
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def table_lines(row: dict[str, Any]) -> Iterator[str]:
    """A line for each loop of a row."""
    for label, line in row["lines"].items():
        found = [WORDS[line["promises"].get(promise, UNTRIED)["status"]] for promise in COLUMNS]
        yield f"| {title(row, label)} | {' | '.join(found)} |"


def title(row: dict[str, Any], label: str) -> str:
    return f"{row['package']} {row['version']}" + (f", {label}" if label else "")


def said(promise: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What departs from one promise: what most loops share, then a line for each thing that is found, with its loops.

    In brackets are the faults and the smallest run; a loop whose words an earlier one had has its numbers alone.
    """
    lines = [
        (title(row, label), line["promises"].get(promise, UNTRIED))
        for row in rows
        for label, line in row["lines"].items()
    ]
    departing = [(name, cell) for name, cell in lines if "faults" in cell]
    if not departing:
        return
    usual = Counter(smallest(cell) for _, cell in departing).most_common(1)[0][0]
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, cell in departing:
        scripts = cell.get("confirmed", {})
        words = " ".join(words_of(script, promise) for script in scripts)
        shown = " ".join(f"`{script}`: {out}." for script, out in scripts.items())
        own = "" if smallest(cell) == usual else f" {smallest(cell)}"
        key, name = ((own, words, shown), name) if shown else (("", "", "No script confirms it."), name + own)
        found.setdefault(key, []).append(name)
    yield from ["", " ".join(part for part in (f"**{promise}**", f"{usual}.", SHARED.get(promise)) if part), ""]
    told = {""}
    for (own, words, shown), titles in found.items():
        yield f"- {'; '.join(titles)}{own}: {'' if words in told else words + ' '}{shown}"
        told.add(words)


def smallest(cell: dict[str, Any]) -> str:
    """The faults of a cell that departs and the smallest run that shows it, in brackets."""
    return f"({''.join(f'`{fault}`, ' for fault in cell['faults'])}“{cell['run']}”)"


def words_of(script: str, promise: str) -> str:
    """What a script's docstring says of a promise, in one line: its paragraph that begins with "C5:", or all."""
    text = ast.get_docstring(ast.parse((CONFIRM / script).read_text(encoding="utf-8"))) or ""
    own = [part.partition(": ")[2] for part in text.split("\n\n") if part.startswith(f"{promise}: ")]
    return " ".join((own or [text])[0].split())
