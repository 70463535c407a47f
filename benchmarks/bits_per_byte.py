"""What the run `python-docs` learns in equal time: `python benchmarks/bits_per_byte.py`.

It makes a table of `docs/measurements.md`.

An arm changes some keys of the shipped configuration, and has as many steps as fit into `SECONDS` by the lower quartile
of what its steps take: all arms take turns in one process, with two threads on a machine that does nothing else
(`--time`). These seconds are stored, so the runs themselves, of one thread each and two at a time, may be made at any
load. The rates of every arm are tried on the grid of its optimizer, in half the time, with a seed that does not
compare. A seed decides the split of the text too, so arms are compared seed by seed.

Runs are kept as they end in `data/bits_per_byte.json`; `--table` prints.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import mean, quantiles
from typing import Any

import torch
from harness import Results, Settings, best_rate, is_stored, load, markdown, measure_side_by_side, store, written

from course_lm.accumulation import windows
from course_lm.cli.preparation import prepare
from course_lm.config import TrainingConfig
from course_lm.optim import build_optimizer
from course_lm.precision import Precision
from course_lm.step import train_step
from course_lm.trainer import Trainer
from course_lm.trainer.allocator import tune_allocator

FILE = "bits_per_byte.json"
SECONDS = 120.0
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3), "muon": (5e-3, 1e-2, 2e-2, 4e-2)}
ADAMW = {"type": "adamw", "weight_decay": 1.0}
MUON = {"type": "muon", "weight_decay": 0.1}
ROTARY = {"positions": "rotary"}
Arm = dict[str, dict[str, Any]]  # section, key and value
BASE = "AdamW, learned positions"
ARMS: dict[str, Arm] = {
    BASE: {"optimizer": ADAMW, "model": {"positions": "learned"}},
    "Muon, learned positions": {"optimizer": MUON, "model": {"positions": "learned"}},
    "AdamW, rotary positions": {"optimizer": ADAMW, "model": ROTARY},
    "Muon, rotary positions": {"optimizer": MUON, "model": ROTARY},
}
SWEEP_SEED, SEEDS = 100, (0, 1, 2)
TIMED_STEPS, WARM_UP = 50, 5


def configured(arm: str, rate: float, seed: int) -> TrainingConfig:
    """The shipped configuration with an arm's changes."""
    config = TrainingConfig.from_yaml("python-docs")
    changes = {section: replace(getattr(config, section), **keys) for section, keys in ARMS[arm].items()}
    changed = replace(config, **changes)
    loop = replace(changed.training, seed=seed, precision="bf16", device="cpu", eval_steps=None, output_dir=None)
    return replace(changed, optimizer=replace(changed.optimizer, learning_rate=rate), training=loop)


def rates_of(arm: str) -> tuple[float, ...]:
    """The grid of an arm's optimizer."""
    return RATES[ARMS[arm]["optimizer"]["type"]]


def time_steps(arms: Iterable[str]) -> list[Results]:
    """Seconds of each arm's step, the lower quartile; the arms take turns, so what else happens falls on all alike."""
    tune_allocator()
    work = {}
    for arm in arms:
        config = configured(arm, rates_of(arm)[0], SWEEP_SEED)
        run = prepare(config)
        steps = list(islice(windows(run.train_loader, 1), TIMED_STEPS))
        work[arm] = (run.model.train(), build_optimizer(run.model, config.optimizer), steps)
    precision, seconds = Precision("bf16", "cpu"), {arm: [] for arm in work}
    for number in range(TIMED_STEPS):
        for arm, (model, optimizer, steps) in work.items():
            started = time.perf_counter()
            train_step(model, steps[number], optimizer, precision=precision)
            seconds[arm].append(time.perf_counter() - started)
    return [{"arm": arm, "seconds_per_step": quantiles(times[WARM_UP:])[0]} for arm, times in seconds.items()]


def steps_of(results: Results, arm: str) -> int:
    """How many steps of an arm fit into `SECONDS`."""
    (timed,) = (one for one in results["timed"] if one["arm"] == arm)
    return round(SECONDS / timed["seconds_per_step"])


def settings_of(results: Results, arms: Iterable[str], part: str) -> Iterator[Settings]:
    """Every run of a part: of "sweep", or of "runs", which need the whole sweep."""
    for arm in arms:
        steps = steps_of(results, arm)
        if part == "sweep":
            for rate in rates_of(arm):
                yield {"arm": arm, "learning_rate": rate, "seed": SWEEP_SEED, "steps": steps // 2}
        else:
            for seed in SEEDS:
                yield {"arm": arm, "learning_rate": rate_of(results, arm), "seed": seed, "steps": steps}


def rate_of(results: Results, arm: str) -> float:
    """The rate of the sweep's run with the fewest bits per byte."""
    return best_rate(results["sweep"], loss="bits_per_byte", arm=arm)


def measure(settings: Settings) -> Results:
    """Train on one thread; the last weights are validated."""
    torch.set_num_threads(1)
    config = configured(settings["arm"], settings["learning_rate"], settings["seed"])
    config = replace(config, training=replace(config.training, max_steps=settings["steps"], time_budget=None))
    run = prepare(config)
    trainer = Trainer(run.model, config)
    trainer.train(run.train_loader)
    found = trainer.evaluate(run.val_loader)
    return {**settings, "bits_per_byte": found["bits_per_byte"], "val_loss": found["val_loss"]}


def missing(results: Results) -> list[Settings]:
    """The runs that are not stored yet; those that compare when the sweep is whole."""
    for part in ("sweep", "runs"):
        if left := [one for one in settings_of(results, ARMS, part) if not is_stored(results, part, one)]:
            return left
    return []


def keep(results: Results, settings: Settings, measured: Results) -> None:
    """Add a run to its part and write all of them."""
    results.setdefault("sweep" if settings["seed"] == SWEEP_SEED else "runs", []).append(measured)
    store(FILE, written(results))
    print(measured, flush=True)


def table(results: Results) -> str:
    """Bits per byte of each arm and its difference from the first, seed by seed, as Markdown."""
    base = of_seeds(results, BASE)
    rows = []
    for arm in ARMS:
        bits = of_seeds(results, arm)
        gains = [bits[seed] - base[seed] for seed in SEEDS]
        difference = "–" if arm == BASE else f"{mean(gains):+.3f} ({min(gains):+.3f} to {max(gains):+.3f})"
        numbers = f"{steps_of(results, arm):,}", f"{rate_of(results, arm):g}", f"{mean(bits.values()):.3f}"
        rows.append([arm, *numbers, difference.replace("-", "−")])
    return markdown(["steps", "rate", "bits per byte", "difference (range)"], rows)


def of_seeds(results: Results, arm: str) -> dict[int, float]:
    """Bits per byte of an arm at its best rate, by seed."""
    return {run["seed"]: run["bits_per_byte"] for run in results["runs"] if run["arm"] == arm}


def main() -> None:
    """Time the arms, measure what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--time", action="store_true", help="time the steps of all arms, on a machine at rest")
    parser.add_argument("--table", action="store_true", help="print the stored table")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, of one thread each")
    options = parser.parse_args()
    results = load(FILE)
    if options.time:
        results["timed"] = time_steps(ARMS)
        store(FILE, written(results))
    elif not options.table:
        measure_side_by_side(partial(missing, results), measure, partial(keep, results), options.processes)
    if "runs" in results:
        print(table(results))


if __name__ == "__main__":
    main()
