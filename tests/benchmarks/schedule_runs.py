"""What lesson 05 compares: `python tests/benchmarks/schedule_runs.py` measures it and stores `data/schedule_runs.json`.

The loop is read from the notebook (its cells tagged `loop`), so the numbers belong to the lines that a learner sees.
Three parts: the schedule that counts micro-batches beside the one that counts steps; a sweep of peak rates for each of
`ARMS`; and a race of the arms, each at its own best peak, with other seeds.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from kept_runs import Results, Settings, loop_of, measure_missing

from course_lm.corpus.shipped import data_file
from course_lm.schedules import ScheduleConfig, build_schedule

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "05_schedules.ipynb"
PARTS = ("count", "sweep", "race")
STEPS = 80
PEAKS = (0.001, 0.002, 0.004, 0.0056, 0.008, 0.016)
SWEEP_SEEDS, RACE_SEEDS = (0, 1, 2), (3, 4, 5)
ARMS = {
    "no warm-up": ScheduleConfig("constant", warmup_steps=0),
    "warm-up": ScheduleConfig("constant", warmup_steps=20),
    "warm-up, cosine": ScheduleConfig("cosine", warmup_steps=20),
}


def best_peak(sweep: list[Results], arm: str) -> float:
    """The peak with the lowest validation loss, averaged over the sweep's seeds."""

    def score(peak_lr: float) -> float:
        return mean(run["val_loss"] for run in sweep if (run["arm"], run["peak_lr"]) == (arm, peak_lr))

    return min(PEAKS, key=score)


def settings_of_runs(results: Results) -> Iterator[tuple[str, Settings]]:
    """Every run: its part and its settings. An arm's race comes after its sweep, whose result it needs."""
    for k_per_step in (1, 4):
        for seed in SWEEP_SEEDS:
            yield "count", {"k_per_step": k_per_step, "seed": seed}
    for arm in ARMS:
        for peak_lr in PEAKS:
            for seed in SWEEP_SEEDS:
                yield "sweep", {"arm": arm, "peak_lr": peak_lr, "seed": seed}
        for seed in RACE_SEEDS:
            yield "race", {"arm": arm, "peak_lr": best_peak(results["sweep"], arm), "seed": seed}


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """Train once; the loss on held-out stories after the last step, in nats per token."""
    if part == "count":
        run = loop["train"](loop["lr_at"], accumulation_steps=4, **settings)
    else:
        schedule = build_schedule(ARMS[settings["arm"]], peak_lr=settings["peak_lr"], total_steps=STEPS)
        run = loop["train"](schedule, total_steps=STEPS, seed=settings["seed"])
    return settings | {"val_loss": round(run["val_loss"], 3)}


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    path, loop = data_file("schedule_runs.json"), loop_of(LESSON)
    results: Results = {"floor": round(loop["floor"], 4), **{part: [] for part in PARTS}}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    measure_missing(path, results, settings_of_runs(results), partial(measure, loop))


if __name__ == "__main__":
    main()
