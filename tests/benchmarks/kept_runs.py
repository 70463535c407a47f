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


def losses_by_rate(sweep: list[Results], **same: Any) -> dict[float, float]:
    """The held-out loss at each learning rate that the sweep has tried with the settings `same`, rates ascending."""
    tried = [run for run in sweep if same.items() <= run.items()]
    return {run["learning_rate"]: run["val_loss"] for run in sorted(tried, key=lambda run: run["learning_rate"])}


def best_rate(sweep: list[Results], **same: Any) -> float:
    """The learning rate of the sweep that ended lowest with the settings `same`."""
    losses = losses_by_rate(sweep, **same)
    return min(losses, key=losses.__getitem__)


def next_rate(sweep: list[Results], start: float, **same: Any) -> float | None:
    """The next rate to try: `start`, then beyond the edge where the best one lies; None when that is enclosed."""
    tried = list(losses_by_rate(sweep, **same))
    if not tried:
        return start
    best = best_rate(sweep, **same)
    if best == tried[0]:
        return best / 2
    return best * 2 if best == tried[-1] else None


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


def load_or_begin(path: Path, settings: Results, *parts: str) -> Results:
    """The results stored so far, or those of a script that has measured nothing yet: its settings and empty parts."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    return {"settings": settings, **{part: [] for part in parts}}
