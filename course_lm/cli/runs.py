"""The commands `runs`, `compare` and `plot`: what became of runs, read from their folders; nothing is trained."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lm.cli.output import check_picture
from course_lm.run_records import TOKENIZER
from course_lm.use.run_folder import RunFolder, differing, find_run, read_run
from course_lm.validation import ensure, one_line

Row = dict[str, Any]
# What decides the held-out text and its tokens, and with them what a loss per token is about.
TEXT_KEYS = ("data.corpus", "data.vocab_size", "data.val_fraction", "data.test_fraction", "training.seed")


def list_runs(folder: Path, as_json: bool) -> int:
    """Print a table of all runs in `folder`, and a line for each folder that is none; return 0.

    Raises:
        OSError: the folder cannot be read.
        ValueError: there is no such folder, or it holds no run.
    """
    ensure(folder.is_dir(), f"{folder} is {'no folder' if folder.exists() else 'not there'}: give a folder of runs")
    runs, passed_over = _read_all(folder)
    if not runs:
        hint = "; it is a run itself: give the folder that it is in" if (folder / "config.yaml").exists() else ""
        reason = f" ({passed_over[0]})" if passed_over and not hint else ""
        raise ValueError(f"{folder} holds no run{reason}{hint}")
    keys = differing(runs)
    rows = [row_of(run, keys) for run in runs]
    if as_json:
        print(json.dumps({"runs": plain(rows), "passed_over": passed_over}, indent=1, ensure_ascii=False))
        return 0
    print(columns(rows, keys))
    for reason in passed_over:
        print(f"passed over: {reason}")
    return 0


def compare_runs(names: Sequence[str], png: Path, as_json: bool) -> int:
    """Draw some runs into one picture and print one table, with differences to the first; return 0.

    Raises:
        OSError: a picture that cannot be written.
        ValueError: fewer than two runs, one named twice, or one that holds no record.
    """
    check_picture(png)
    runs = [read_run(find_run(name)) for name in names]
    ensure(len(runs) >= 2, f"compare needs two runs or more, got {len(runs)}; one is shown by course-lm plot")
    folders = [run.folder.resolve() for run in runs]
    twice = next((run for run, folder in zip(runs, folders) if folders.count(folder) > 1), None)
    ensure(twice is None, f"compare needs runs that differ, got {twice.folder if twice else ''} twice")
    for run in runs:
        ensure(bool(run.records), f"{run.folder} holds no record yet: there is nothing to compare")
    keys, unlike = differing(runs), texts_differ_in(runs)
    rows = [row_of(run, keys) for run in runs]
    add_differences(rows, losses=not unlike)
    from course_lm.cli.run_pictures import draw_runs

    draw_runs(_labels(runs), runs, per_byte=bool(unlike)).savefig(png, format="png", dpi=110, bbox_inches="tight")
    if as_json:
        print(json.dumps({"runs": plain(rows), "texts_differ_in": unlike, "png": str(png)}, indent=1))
        return 0
    print(columns(rows, keys))
    if unlike:
        print(
            f"unlike {' and '.join(unlike)}: losses per token are of other tokens and cannot be compared; "
            "bits per byte can, as far as the held-out texts are alike"
        )
    print(f"the curves are drawn in {png}")
    return 0


def plot_run(name: str, png: Path) -> int:
    """Draw one run into the file `png`, from its log; return 0.

    Raises:
        OSError: a picture that cannot be written.
        ValueError: it is no run, or holds no record.
    """
    check_picture(png)
    run = read_run(find_run(name))
    ensure(bool(run.records), f"{run.folder} holds no record yet: there is nothing to draw")
    from course_lm.classroom.live import describe, draw_run
    from course_lm.monitoring import History

    history = History(_whole(record) for record in run.records)
    draw_run(history).savefig(png, format="png", dpi=110, bbox_inches="tight")
    print(f"{run.name}: {describe(history)}\nthe curves are drawn in {png}")
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
    table = [["", "name", *(row["name"] for row in rows)]]
    for key in keys:
        section, _, name = key.rpartition(".")
        table.append([f"{section}." if section else "", name, *(_setting(row, key) for row in rows)])
    for key, above, below, form in _MEASURED:
        if key in rows[0]:
            table.append([above, below, *(_number(row[key], form) for row in rows)])
    widths = [max(map(len, column)) for column in table]
    lines = []
    for cells in zip(*table):
        left, *rest = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths))
        )
        lines.append("  ".join([left, *rest]).rstrip())
    return "\n".join(lines)


def plain(rows: Sequence[Row]) -> list[Row]:
    """The rows as JSON can hold them: what is not finite is null."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]


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
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.folder) for name, run in zip(names, runs)]


def _whole(record: Row) -> Row:
    """The record with nan for what a picture shows and an older or foreign log lacks."""
    return {"grad_norm": math.nan, "lr": math.nan, **record}
