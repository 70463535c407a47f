"""What lesson 05 compares: `python benchmarks/schedule_runs.py` measures it and stores `data/schedule_runs.json`.

The loop is read from the notebook (its cells tagged `loop`), so the numbers belong to the lines that a learner sees.
Three parts: the schedule that counts micro-batches beside the one that counts steps; a sweep of peak rates for each of
`ARMS`; and a race of the arms, each at its own best peak, with other seeds.
"""

from functools import partial
from itertools import product
from typing import Any

from harness import Results, Runs, Settings, best_rate, load, loop_of, measure_missing

from course_lm.schedules import ScheduleConfig, build_schedule

FILE, LESSON = "schedule_runs.json", "05_schedules"
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
    return best_rate(sweep, rate="peak_lr", arm=arm)


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings. An arm's race comes after its sweep, whose result it needs."""
    for k_per_step, seed in product((1, 4), SWEEP_SEEDS):
        yield "count", {"k_per_step": k_per_step, "seed": seed}
    for arm in ARMS:
        for peak_lr, seed in product(PEAKS, SWEEP_SEEDS):
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


if __name__ == "__main__":
    loop = loop_of(LESSON)
    results = load(FILE, lambda: {"floor": round(loop["floor"], 4)})
    measure_missing(FILE, results, settings_of_runs(results), partial(measure, loop))
