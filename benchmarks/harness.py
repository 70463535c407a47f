"""What the scripts share: runs that are kept as they end, rates that are tuned, child processes that take turns.

A script stores its results in `data/`, a run as it ends. Stopped, by hand or by `--seconds`, it goes on where it was
when it is called again; delete its file to measure everything anew.

Nothing heavy is imported here: the peak memory of a child process begins with that of the process that starts it.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice, product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

from course_lm.display import table

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
SWEEP_SEED, SEEDS, FIRST_RATE = 3, (0, 1, 2), 8e-3  # of `tuned_runs`: seeds that tune and that compare

Results = dict[str, Any]
Settings = dict[str, Any]
Runs = Iterator[tuple[str, Settings]]  # a part of the results, and the settings of one run of it
Run = TypeVar("Run")
Result = Mapping[str, float]  # what a child process has measured
Specs = dict[str, dict[str, Any]]


def loop_of(lesson: str, seed: int = 0) -> dict[str, Any]:
    """The names that the lesson's `loop` cells define, with another `SEED` where they have one."""
    names: dict[str, Any] = {}
    for cell in json.loads((ROOT / "notebooks" / f"{lesson}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if "loop" in cell["metadata"].get("tags", []):
            exec("".join(cell["source"]).replace("SEED = 0", f"SEED = {seed}"), names)
    return names


def without_end(loader: Any) -> Iterator[Any]:
    """The batches of a loader, one epoch after the other."""
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def load(file: str, begin: Callable[[], Results] = dict) -> Results:
    """The results stored so far, or those with which a script begins that has measured nothing yet."""
    path = DATA / file
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else begin()


def store(file: str, text: str) -> None:
    """Write results, as one of the functions below has written them out."""
    (DATA / file).write_text(text, encoding="utf-8")


def written(results: Results) -> str:
    """The results as JSON, one run a line."""
    parts = [f'"{name}": {_lines(value)}' for name, value in results.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if isinstance(value, list) else json.dumps(value)


def indented(results: Results, one_line: str = r"\[[^][{}]*\]") -> str:
    """The results as indented JSON, but what matches `one_line` in one line: by default lists of numbers."""
    lines = re.sub(one_line, lambda part: re.sub(r"\s+", " ", part[0]), json.dumps(results, indent=1))
    return lines + "\n"


def is_stored(results: Results, part: str, settings: Settings) -> bool:
    """Whether a run with these settings is among the results."""
    return any(settings.items() <= run.items() for run in results.get(part, []))


def measure_missing(
    file: str, results: Results, runs: Iterable[tuple[str, Settings]], measure: Callable[[str, Settings], Results]
) -> None:
    """Measure the runs that are not stored yet, on one thread, for at most about `--seconds`; keep each as it ends."""
    import torch  # which is heavy

    torch.set_num_threads(1)
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
        store(file, written(results))
    print("everything is measured")


def measure_side_by_side(
    missing: Callable[[], Iterable[Run]],
    measure: Callable[[Run], Results],
    keep: Callable[[Run, Results], None],
    workers: int,
    seconds: float = math.inf,
) -> None:
    """Measure what is missing, `workers` runs at a time, each in a process; for `seconds`, then those begun end.

    `missing` is asked again whenever a run has been kept: which runs are wanted may hang on that.
    """
    deadline, running = time.perf_counter() + seconds, dict[Future[Results], Run]()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        while True:
            todo = (run for run in missing() if run not in running.values())
            for run in islice(todo, workers - len(running) if time.perf_counter() < deadline else 0):
                running[pool.submit(measure, run)] = run
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                keep(running.pop(done), done.result())


def losses_by_rate(
    sweep: list[Results], *, rate: str = "learning_rate", loss: str = "val_loss", **same: Any
) -> dict[float, float]:
    """The mean loss at each rate that the sweep has tried with the settings `same`, rates ascending."""
    tried = [run for run in sweep if same.items() <= run.items()]
    rates = sorted({run[rate] for run in tried})
    return {value: mean(run[loss] for run in tried if run[rate] == value) for value in rates}


def best_rate(sweep: list[Results], *, rate: str = "learning_rate", loss: str = "val_loss", **same: Any) -> float:
    """The rate of the sweep that ended lowest with the settings `same`."""
    losses = losses_by_rate(sweep, rate=rate, loss=loss, **same)
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


def tuned_runs(sweep: list[Results], groups: Iterable[Sequence[Settings]]) -> Runs:
    """Every run of one group of arms after the other: the sweep of each arm, then the arms at their best rates.

    The sweep of an arm begins at the best rate of the arm that had its place in the group before.
    """
    start: dict[int, float] = {}
    for group in groups:
        for place, arm in enumerate(group):
            while (rate := next_rate(sweep, start.get(place, FIRST_RATE), **arm)) is not None:
                yield "sweep", {**arm, "learning_rate": rate, "seed": SWEEP_SEED}
            start[place] = best_rate(sweep, **arm)
        for seed, (place, arm) in product(SEEDS, enumerate(group)):
            yield "runs", {**arm, "learning_rate": start[place], "seed": seed}


def markdown(heads: Sequence[str], rows: Iterable[Iterable[str]], numbers: str = "---") -> str:
    """A table whose first column has no head; `numbers` aligns the others."""
    lines = [f"| | {' | '.join(heads)} |", "|---" + f"|{numbers}" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def take_turns(specs: Specs, rounds: int, measure: Callable[[dict[str, Any]], Result]) -> dict[str, list[Result]]:
    """Measure every spec once a round, every second round in reverse order; results by name, round after round."""
    results: dict[str, list[Result]] = {name: [] for name in specs}
    for number in range(rounds):
        for name in list(specs) if number % 2 == 0 else list(reversed(specs)):
            results[name].append(measure(specs[name]))
    return results


def in_child(script: str, spec: dict[str, Any], seconds: float | None = None) -> Result:
    """What `script` prints for a spec in a fresh process with the allocator's own defaults.

    Raises RuntimeError with its last words if it fails, and TimeoutExpired after `seconds`.
    """
    environment = {name: value for name, value in os.environ.items() if not _changes_allocator(name)}
    environment |= {"OMP_NUM_THREADS": str(spec["threads"]), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(Path(__file__).with_name(script)), json.dumps(spec)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"{spec} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _changes_allocator(name: str) -> bool:
    """Whether an environment variable of this name would replace or tune malloc."""
    return name.startswith("MALLOC_") or name in ("LD_PRELOAD", "GLIBC_TUNABLES")


def ratios(results: Sequence[Result], baseline: Sequence[Result]) -> list[float]:
    """Tokens/s divided by the baseline's in the same round."""
    key = "tokens_per_second"
    return [ours[key] / theirs[key] for ours, theirs in zip(results, baseline)]


def middle(results: Sequence[Result], key: str, form: str = ",.0f") -> str:
    """The median over rounds."""
    return format(median(row[key] for row in results), form)


def spread(numbers: Sequence[float], form: str = ".2f") -> list[str]:
    """Their median, the lowest and the highest."""
    return [format(number, form) for number in (median(numbers), min(numbers), max(numbers))]


def print_columns(heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """A table for the eye, with the name of each row before its numbers."""
    print(table([("", *heads), *((name, *cells) for name, cells in rows.items())]), flush=True)
