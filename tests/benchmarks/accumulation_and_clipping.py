"""Lessons 08 and 09 with three seeds: `python tests/benchmarks/accumulation_and_clipping.py` measures what they print.

It stores `data/accumulation_and_clipping.json`. The loops are read from the notebooks (their cells tagged `loop`), so
the numbers belong to the lines that a learner sees. Lesson 08: four loops, each at the best of four learning rates,
chosen after 70 steps with a seed that the comparison does not use. Lesson 09: one bad batch, thresholds, and one
gradient that is a thousand times too long.

Runs are kept as they end. Stopped, the script goes on where it was when it is called again; delete the file to measure
everything anew.
"""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import nbformat
import torch

from course_lm.corpus.shipped import data_file

LESSONS = Path(__file__).resolve().parents[2] / "notebooks"
FILE = "accumulation_and_clipping.json"
SEEDS, TUNING_SEED = (0, 1, 2), 3
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)
COLUMNS = ("first", "reported", "stories", "openings")
# The function that makes a micro-batch's part of the loss, and the other arguments of `train`.
LOOPS: dict[str, tuple[str, dict[str, bool]]] = {
    "divided once": ("divided_once", {}),
    "mean of means": ("mean_of_means", {}),
    "not divided": ("not_divided", {}),
    "cleared each time": ("divided_once", {"clear_each": True}),
}
COMPARED = [(70, name) for name in LOOPS]

Results = dict[str, Any]


def loop_of(lesson: str, seed: int = 0) -> dict[str, Any]:
    """The names that the lesson's `loop` cells define, with another `SEED` where they have one."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(LESSONS / f"{lesson}.ipynb", as_version=4).cells:
        if "loop" in cell.metadata.get("tags", []):
            exec(cell.source.replace("SEED = 0", f"SEED = {seed}"), names)
    return names


def measure_accumulation(results: Results) -> None:
    """Lesson 08's loops: `sweep` keeps every run, and `accumulation` what each loop gave at its rate, seed by seed."""
    loop, sweep = loop_of("08_accumulation"), results.setdefault("sweep", [])

    def run(name: str, steps: int, rate: float, seed: int) -> Results:
        settings = {"loop": name, "steps": steps, "rate": rate, "seed": seed}
        for done in sweep:
            if settings.items() <= done.items():
                return done
        part, options = LOOPS[name]
        trained = loop["train"](loop[part], steps=steps, seed=seed, lr=rate, **options)
        losses = {"first": trained["losses"][0], "reported": fmean(trained["losses"][-10:]), **trained["val"]}
        sweep.append(settings | {key: round(loss, 3) for key, loss in losses.items()})
        store(results)
        return sweep[-1]

    rates = {}
    for name in LOOPS:
        if name == "not divided":  # four times the gradient is the same to Adam, and so is the best rate
            rates[name] = rates["mean of means"]
            continue
        tuning = {rate: held_out(run(name, 70, rate, TUNING_SEED), loop["share"]) for rate in RATES}
        rates[name] = min(tuning, key=tuning.__getitem__)
    table: Results = {str(steps): {} for steps, _ in COMPARED}
    for steps, name in COMPARED:
        runs = [run(name, steps, rates[name], seed) for seed in SEEDS]
        table[str(steps)][name] = {"rate": rates[name]} | {column: [run[column] for run in runs] for column in COLUMNS}
    results["accumulation"] = table
    store(results)


def measure_clipping(results: Results) -> None:
    """Lesson 09: the last losses after one bad batch, under several thresholds, and after one long gradient."""
    if "clipping" in results:
        return
    table: dict[str, dict[str, list[float]]] = {"one bad batch": {}, "thresholds": {}, "one long gradient": {}}

    def keep(part: str, name: str, losses: list[float]) -> None:
        table[part].setdefault(name, []).append(round(fmean(losses), 3))

    for seed in SEEDS:
        loop = loop_of("09_clipping", seed)
        train, branch, clean, poisoned = (loop[name] for name in ("train", "branch", "clean", "poisoned"))
        healthy, norms = train(*branch("sgd"), clean, 0.1, None)
        unclipped, _ = train(*branch("sgd"), poisoned, 0.1, None)
        clipped, _ = train(*branch("sgd"), poisoned, 0.1, 1.0)
        keep("one bad batch", "before the broken batch", unclipped[:10])
        for name, losses in {"clean": healthy, "not clipped": unclipped, "clipped": clipped}.items():
            keep("one bad batch", name, losses[-10:])
        usual = torch.tensor(norms).quantile(0.9).item()
        for name, limit in {"0.01": 0.01, "0.1": 0.1, "1": 1.0, "90 %": usual, "10": 10.0, "100": 100.0}.items():
            keep("thresholds", name, train(*branch("sgd"), poisoned[5:35], 0.1, limit)[0][-10:])
        for name, (losses, _) in loop["adam_runs"].items():
            keep("one long gradient", name, losses[-10:])
    results["clipping"] = table
    store(results)


def held_out(run: Results, share: float) -> float:
    """Its loss over all held-out tokens, of which `share` stand in whole stories."""
    return share * run["stories"] + (1 - share) * run["openings"]


def store(results: Results) -> None:
    """Write the results, one run and one list of losses a line."""
    lists = json.dumps(results, indent=1)
    lines = re.sub(r"\[[^][{}]*\]|\{[^][{}]*\}", lambda part: re.sub(r"\s+", " ", part[0]), lists)
    data_file(FILE).write_text(lines + "\n", encoding="utf-8")


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    path = data_file(FILE)
    results: Results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    measure_accumulation(results)
    measure_clipping(results)
    print(json.dumps({part: results[part] for part in ("accumulation", "clipping")}, indent=1))


if __name__ == "__main__":
    main()
