"""Runs of a lesson's own loop that are kept as they end: what the scripts that measure for one lesson share."""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat

Results = dict[str, Any]
Settings = dict[str, Any]


def loop_of(lesson: Path) -> dict[str, Any]:
    """The names that the lesson's `loop` cells define."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(lesson, as_version=4).cells:
        if "loop" in cell.metadata.get("tags", []):
            exec(cell.source, names)
    return names


def is_stored(results: Results, part: str, settings: Settings) -> bool:
    """Whether a run with these settings is among the results."""
    return any(all(run[key] == value for key, value in settings.items()) for run in results.get(part, []))


def written(results: Results) -> str:
    """The results as JSON, one run a line."""
    parts = [f'"{name}": {_lines(value)}' for name, value in results.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


def measure_missing(
    path: Path,
    results: Results,
    runs: Iterable[tuple[str, Settings]],
    measure: Callable[[str, Settings], Results],
) -> None:
    """Measure the runs that are not stored yet, for at most about `--seconds`, and write each as it ends."""
    parser = argparse.ArgumentParser(description=measure_missing.__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    deadline = time.perf_counter() + parser.parse_args().seconds
    for part, settings in runs:
        if is_stored(results, part, settings):
            continue
        if time.perf_counter() > deadline:
            print(f"stopped before {part} {settings}; call again to go on")
            return
        results.setdefault(part, []).append(measure(part, settings))
        path.write_text(written(results), encoding="utf-8")
    print("everything is measured")
