"""Lessons 08 and 09 with three seeds: `python benchmarks/accumulation_and_clipping.py` measures what they print.

It stores `data/accumulation_and_clipping.json`. The loops are read from the notebooks (their cells tagged `loop`), so
the numbers belong to the lines that a learner sees. Lesson 08: four loops, each at the best of six learning rates,
chosen after 70 steps with two seeds that the comparison does not use. Lesson 09: one bad batch at several rates, and
several thresholds.
"""

import json
from statistics import fmean

import torch
from harness import Results, indented, load, loop_of, store

FILE = "accumulation_and_clipping.json"
SEEDS, TUNING_SEEDS = (0, 1, 2), (3, 4)
STEPS, RATES = 70, (2e-3, 2.8e-3, 4e-3, 5.7e-3, 8e-3, 1.13e-2)  # of lesson 08
COLUMNS = ("first", "reported", "stories", "openings")
# Lesson 09: the optimizers and rates that meet one bad batch. At 0.2 SGD (seed 0) ends worse than it began without one.
BAD_BATCH = (("sgd", 0.05), ("sgd", 0.1), ("adamw", 2e-3), ("adamw", 4e-3), ("adamw", 8e-3))
THRESHOLDS_OF = ("sgd", 0.1)
# The function that makes a micro-batch's part of the loss, and the other arguments of `train`.
LOOPS: dict[str, tuple[str, dict[str, bool]]] = {
    "divided once": ("divided_once", {}),
    "mean of means": ("mean_of_means", {}),
    "not divided": ("not_divided", {}),
    "cleared each time": ("divided_once", {"clear_each": True}),
}


def measure_accumulation(results: Results) -> None:
    """Lesson 08's loops: `sweep` keeps every run, and `accumulation` what each loop gave at its rate, seed by seed."""
    loop, sweep = loop_of("08_accumulation"), results.setdefault("sweep", [])

    def run(name: str, rate: float, seed: int) -> Results:
        settings = {"loop": name, "steps": STEPS, "rate": rate, "seed": seed}
        for done in sweep:
            if settings.items() <= done.items():
                return done
        part, options = LOOPS[name]
        trained = loop["train"](loop[part], steps=STEPS, seed=seed, lr=rate, **options)
        losses = {"first": trained["losses"][0], "reported": fmean(trained["losses"][-10:]), **trained["val"]}
        sweep.append(settings | {key: round(loss, 3) for key, loss in losses.items()})
        keep(results)
        return sweep[-1]

    rates = {}
    for name in LOOPS:
        if name == "not divided":  # four times the gradient is the same to Adam, and so is the best rate
            rates[name] = rates["mean of means"]
            continue
        tuning = {rate: fmean(held_out(run(name, rate, s), loop["share"]) for s in TUNING_SEEDS) for rate in RATES}
        rates[name] = min(tuning, key=tuning.__getitem__)
    table = {}
    for name, rate in rates.items():
        runs = [run(name, rate, seed) for seed in SEEDS]
        table[name] = {"rate": rate} | {column: [run[column] for run in runs] for column in COLUMNS}
    results["accumulation"] = {str(STEPS): table}
    keep(results)


def measure_clipping(results: Results) -> None:
    """Lesson 09: the last losses after one bad batch, at several rates and under several thresholds."""
    table = results.setdefault("clipping", {"one bad batch": {}, "thresholds": {}})
    bad, thresholds = table["one bad batch"], table["thresholds"]

    for seed in SEEDS[len(thresholds.get("1", ())) :]:
        loop = loop_of("09_clipping", seed)
        go_on, clean, poisoned = (loop[name] for name in ("go_on", "clean", "poisoned"))
        for kind, rate in BAD_BATCH:
            ends = bad.setdefault(kind, {}).setdefault(f"{rate:g}", {})
            healthy, norms = go_on(kind, clean, rate)
            unclipped, _ = go_on(kind, poisoned, rate)
            clipped, _ = go_on(kind, poisoned, rate, 1.0)
            add(ends, "before", unclipped[:10])
            for name, losses in {"clean": healthy, "not clipped": unclipped, "clipped": clipped}.items():
                add(ends, name, losses[-10:])
            if (kind, rate) != THRESHOLDS_OF:
                continue
            usual = torch.tensor(norms).quantile(0.9).item()
            for name, limit in {"0.01": 0.01, "0.1": 0.1, "1": 1.0, "90 %": usual, "10": 10.0, "100": 100.0}.items():
                add(thresholds, name, go_on(kind, poisoned[5:35], rate, limit)[0][-10:])
        keep(results)


def add(runs: Results, name: str, losses: list[float]) -> None:
    """Put the mean of one seed's losses beside those of the seeds before."""
    runs.setdefault(name, []).append(round(fmean(losses), 3))


def held_out(run: Results, share: float) -> float:
    """Its loss over all held-out tokens, of which `share` stand in whole stories."""
    return share * run["stories"] + (1 - share) * run["openings"]


def keep(results: Results) -> None:
    """Write the results, one run and one list of losses a line."""
    store(FILE, indented(results, one_line=r"\[[^][{}]*\]|\{[^][{}]*\}"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = load(FILE)
    measure_accumulation(results)
    measure_clipping(results)
    print(json.dumps({part: results[part] for part in ("accumulation", "clipping")}, indent=1))
