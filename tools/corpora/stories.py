"""Write the corpus `stories`: short English stories from a grammar that is known to the last weight.

The grammar is data (`data/stories.grammar`, explained at its top). `generate_stories` makes its choices at random,
`story_neg_log_p` recovers them from the text alone, and the tables are all that the two share: that they agree
on every story shows that the stored -log p is right. Over held-out stories it is the floor of the loss: what the true
distribution itself pays, and no model that has not seen them pays less on average.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from grammar import Form, Row, Symbol, Tables, Writer, search_derivations, split_symbols

DATA = Path(__file__).parents[2] / "data"
SHIPPED_COUNT = 1800


class Story(NamedTuple):
    """A story and its exact -log p under the grammar, in nats."""

    text: str
    neg_log_p: float


STORY = Symbol("story")


@functools.cache
def story_tables() -> Tables:
    """The rows of every fact and phrase of the grammar, by its name."""
    tables: Tables = {}
    rows: list[Row] = []
    names, columns = "", [""]
    for line in (DATA / "stories.grammar").read_text(encoding="utf-8").splitlines():
        if not line or line[0] == "#":
            continue
        if line[0] in "{[":
            head, _, line = line.partition(":")
            names, _, forms = head.partition(" (")
            # Names in one head share one list of rows, which more lines may follow.
            rows, columns = [], forms.rstrip(")").split(", ")
            tables |= {name[1:-1]: rows for name in names.split()}
        rows += [_read_row(names, row, columns) for row in line.split(" / ") if row.strip()]
    return tables


def _read_row(names: str, source: str, columns: list[str]) -> Row:
    weight, template = source.split(maxsplit=1)
    forms = dict(zip(columns, template.strip().split(" | "), strict=True))
    forms |= {name + "!": _capitalised(form) for name, form in forms.items()}
    forms[""] = forms[columns[0]]  # {fact} alone shows its first form
    pieces = {name: Form(split_symbols(form)) for name, form in forms.items()}
    # The word is the line itself, so that two facts that share a table never take the same row.
    return Row(int(weight), pieces, word=f"{names}: {source}")


def _capitalised(template: str) -> str:
    # A form that begins with a fact asks that fact for its capitalised form.
    return template.replace("}", "!}", 1) if template[0] == "{" else template[0].upper() + template[1:]


def generate_stories(count: int = SHIPPED_COUNT, seed: int = 0) -> Iterator[Story]:
    """Draw `count` independent stories; the same seed draws the same stories on every machine."""
    rng = random.Random(seed)
    for _ in range(count):
        writer = Writer(story_tables(), rng)
        text = writer.write(STORY)
        yield Story(text, writer.neg_log_p)


def story_neg_log_p(text: str) -> float:
    """-log p of a story in nats, from its text alone.

    Raises ValueError for a text that the grammar cannot write.
    """
    costs, furthest = search_derivations(story_tables(), STORY, text)
    if not costs:
        rest = text[furthest:][:30]
        raise ValueError(f"not a story of the grammar: nothing fits from character {furthest} on, {rest!r}")
    return costs[0]  # the only one, as a test shows


def write_stories(path: str | Path, count: int = SHIPPED_COUNT, seed: int = 0) -> None:
    """Write stories as JSON lines {"text", "neg_log_p"}, in nats to six decimals.

    With the default arguments this is the shipped `data/stories.jsonl`, byte for byte.
    """
    stories = generate_stories(count, seed)
    lines = [json.dumps({"text": text, "neg_log_p": round(cost, 6)}) + "\n" for text, cost in stories]
    Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write stories of the corpus stories; by default the shipped ones.")
    parser.add_argument("path", nargs="?", type=Path, default=DATA / "stories.jsonl")
    parser.add_argument("--count", type=int, default=SHIPPED_COUNT, help="how many stories (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other stories (%(default)s)")
    asked = parser.parse_args()
    write_stories(asked.path, asked.count, asked.seed)
