"""The table of the stored results, as docs/trainers.md has it."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.conformance.decide import ASKED

RESULTS = Path(__file__).parent / "results"
CONFIRM = Path(__file__).parent / "confirm"
WORDS = {"kept": "kept", "broken": "**broken**", "not offered": "–", "not tried": "not tried"}
COLUMNS = [*ASKED, "C13"]


def text() -> str:
    """The table, a line for each loop, and below it what each broken promise means."""
    rows = [(name, json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))) for name in names()]
    head = [f"| trainer | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    body = [line for name, row in rows for line in table_lines(row)]
    return "\n".join([*head, *body, "", *(line for name, row in rows for line in said(row))])


def names() -> list[str]:
    """The rows that are stored."""
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def table_lines(row: dict[str, Any]) -> Iterator[str]:
    """A line for each loop of a row."""
    for label, line in row["lines"].items():
        found = [WORDS.get(line["promises"][promise]["status"], "departs") for promise in ASKED]
        yield f"| {title(row, label)} | {' | '.join([*found, 'not tried'])} |"


def title(row: dict[str, Any], label: str) -> str:
    return f"{row['package']} {row['version']}" + (f", {label}" if label else "")


def said(row: dict[str, Any]) -> Iterator[str]:
    """A sentence for each broken promise: the smallest run, and what the scripts say that confirm it."""
    for label, line in row["lines"].items():
        for promise, cell in line["promises"].items():
            if cell["status"] == "broken":
                faults = f" ({', '.join(f'`{fault}`' for fault in cell['faults'])})" if cell["faults"] else ""
                words = " ".join(
                    f"{words_of(script, promise)} `{script}` prints: {out}" for script, out in cell["confirmed"].items()
                )
                yield f"- **{title(row, label)}, {promise}**{faults}, first in the run “{cell['run']}”: {words}"
            if cell["status"] == "not confirmed":
                yield f"- {title(row, label)}, {promise}: departs in the run “{cell['run']}”; no script confirms it."


def words_of(script: str, promise: str) -> str:
    """What a script's docstring says of a promise, in one line: its paragraph that begins with "C5:", or all."""
    text = ast.get_docstring(ast.parse((CONFIRM / script).read_text(encoding="utf-8"))) or ""
    own = [part.partition(": ")[2] for part in text.split("\n\n") if part.startswith(f"{promise}: ")]
    return " ".join((own or [text])[0].split())
