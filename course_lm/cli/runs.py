"""The commands `runs` and `plot`: what became of runs, read from their folders; nothing is trained."""

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lm.cli.output import as_json, check_picture, save_picture
from course_lm.display import table
from course_lm.run_records import TOKENIZER
from course_lm.use.run_folder import RunFolder, differing, find_run, read_run
from course_lm.validation import ensure, one_line

Row = dict[str, Any]
# What decides the held-out text and its tokens, and with them what a loss per token is about.
TEXT_KEYS = (*(f"data.{key}" for key in ("corpus", "validation", "vocab_size", "val_fraction", "test_fraction")),)
TEXT_KEYS += ("training.seed",)


def list_runs(options: Namespace) -> int:
    """Print a table of all runs in a `folder`, and a line for each folder that is none; return 0.

    Raises:
        OSError: the folder cannot be read.
        ValueError: there is no such folder, or it holds no run.
    """
    folder = options.folder
    ensure(folder.is_dir(), f"{folder} is {'no folder' if folder.exists() else 'not there'}: give a folder of runs")
    runs, passed_over = _read_all(folder)
    if not runs:
        hint = "; it is a run itself: give the folder that it is in" if (folder / "config.yaml").exists() else ""
        reason = f" ({passed_over[0]})" if passed_over and not hint else ""
        raise ValueError(f"{folder} holds no run{reason}{hint}")
    keys = differing(runs)
    rows = [row_of(run, keys) for run in runs]
    if options.json:
        print(as_json({"runs": rows, "passed_over": passed_over}))
        return 0
    print(columns(rows, keys))
    for reason in passed_over:
        print(f"passed over: {reason}")
    return 0


def plot_runs(options: Namespace) -> int:
    """Draw `runs` from their logs into the file `png` and print one table, with differences to the first; return 0.

    One run alone has its gradient norm and learning rate drawn beside its losses.

    Raises:
        OSError: a picture that cannot be written.
        ValueError: a run that is named twice, or one that holds no record.
    """
    check_picture(options.png)
    runs = [read_run(find_run(name)) for name in options.runs]
    folders = [run.folder.resolve() for run in runs]
    for run, folder in zip(runs, folders):
        ensure(folders.count(folder) == 1, f"each run must be named once, got {run.folder} twice")
        ensure(bool(run.records), f"{run.folder} holds no record yet: there is nothing to draw")
    keys, unlike = differing(runs), texts_differ_in(runs)
    rows = [row_of(run, keys) for run in runs]
    from course_lm.cli.run_pictures import draw_runs  # only now: a table of runs does without torch

    save_picture(draw_runs(_labels(runs), runs, per_byte=bool(unlike)), options.png)
    if len(runs) > 1:
        add_differences(rows, losses=not unlike)
    if options.json:
        print(as_json({"runs": rows, "texts_differ_in": unlike, "png": str(options.png)}))
        return 0
    print(columns(rows, keys))
    if unlike:
        print(
            f"unlike {' and '.join(unlike)}: losses per token are of other tokens and cannot be compared; "
            "bits per byte can, as far as the held-out texts are alike"
        )
    print(f"the curves are drawn in {options.png}")
    return 0


def texts_differ_in(runs: Sequence[RunFolder]) -> list[str]:
    """What tells that runs have unlike held-out texts or tokens: keys of their settings, or their tokenizers."""
    keys = [key for key in differing(list(runs)) if key in TEXT_KEYS]
    if keys:
        return keys
    files = [run.folder / TOKENIZER for run in runs if (run.folder / TOKENIZER).is_file()]
    return [TOKENIZER] if len({file.read_bytes() for file in files}) > 1 else []


def row_of(run: RunFolder, keys: Sequence[str]) -> Row:
    """One run as a row of the table: names of columns and plain values."""
    best = run.best or {}
    seconds = run.seconds()
    return {
        "name": run.name,
        "folder": str(run.folder),
        "settings": {key: run.settings[key] for key in keys if key in run.settings},
        "steps": run.steps,
        "val_loss": best.get("val_loss", math.nan),
        "val_step": best.get("step"),
        "bits_per_byte": best.get("bits_per_byte", math.nan),
        "seconds": seconds[-1] if seconds else math.nan,
        "state": run.state,
    }


def add_differences(rows: Sequence[Row], *, losses: bool) -> None:
    """Add to each row what it has more than the first one: of the loss only where losses can be compared."""
    first = rows[0]
    for row in rows:
        if losses:
            row["val_loss_difference"] = row["val_loss"] - first["val_loss"]
        row["bits_per_byte_difference"] = row["bits_per_byte"] - first["bits_per_byte"]
        row["seconds_difference"] = row["seconds"] - first["seconds"]


# Columns after the settings: key of the row, both lines of the heading, and the form of a value.
_MEASURED = (
    ("steps", "", "steps", "{:,}"),
    ("val_loss", "best", "val loss", "{:.4f}"),
    ("val_loss_difference", "against", "the first", "{:+.4f}"),
    ("val_step", "at", "step", "{:,}"),
    ("bits_per_byte", "bits", "per byte", "{:.4f}"),
    ("bits_per_byte_difference", "against", "the first", "{:+.4f}"),
    ("seconds", "", "seconds", "{:,.1f}"),
    ("seconds_difference", "against", "the first", "{:+,.1f}"),
    ("state", "", "state", "{}"),
)


def columns(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """A table with a line for each row, under a heading of two lines: section over key."""
    shown = [["", "name", *(one_line(row["name"]) for row in rows)]]
    for key in keys:
        section, _, name = key.rpartition(".")
        shown.append([f"{section}." if section else "", name, *(_setting(row, key) for row in rows)])
    for key, above, below, form in _MEASURED:
        if key in rows[0]:
            shown.append([above, below, *(_number(row[key], form) for row in rows)])
    return table(list(zip(*shown)))


def _setting(row: Row, key: str) -> str:
    if key not in row["settings"]:
        return "-"
    value = row["settings"][key]
    return one_line(value if isinstance(value, str) else json.dumps(value, default=str))


def _number(value: Any, form: str) -> str:
    return "-" if value is None or (isinstance(value, float) and math.isnan(value)) else form.format(value)


def _read_all(folder: Path) -> tuple[list[RunFolder], list[str]]:
    """The runs in a folder by name, and why each other folder is none."""
    runs, passed_over = [], []
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        try:
            runs.append(read_run(path))
        except (OSError, ValueError) as error:
            passed_over.append(one_line(str(error)))
    return runs, passed_over


def _labels(runs: Sequence[RunFolder]) -> list[str]:
    """Names of the runs; runs of one name in several folders by their paths."""
    names = [one_line(run.name) for run in runs]
    return [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs)]
