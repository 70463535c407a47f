"""What lesson 05 compares: `python benchmarks/schedule_runs.py` measures it and stores `data/schedule_runs.json`.

The loop is read from the notebook (its cells tagged `loop`), so the numbers belong to the lines that a learner sees.
Three parts: the schedule that counts micro-batches beside the one that counts steps; a sweep of peak rates for each
length of a warm-up, after which the rate is constant; and a race, each length at its own best peak, with other seeds.
"""

from functools import partial
from itertools import product
from typing import Any

from harness import Results, Runs, Settings, best_rate, load, loop_of, measure_missing

from course_lm.schedules import constant

FILE, LESSON = "schedule_runs.json", "05_schedules"
STEPS, WARM_UPS = 80, (0, 5, 20)
PEAKS = (0.001, 0.002, 0.004, 0.0056, 0.008, 0.016)
SWEEP_SEEDS, RACE_SEEDS = (0, 1, 2), (3, 4, 5)


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings. A race comes after its sweep, whose result it needs."""
    for k_per_step, seed in product((1, 4), SWEEP_SEEDS):
        yield "count", {"k_per_step": k_per_step, "seed": seed}
    for warmup_steps in WARM_UPS:
        for peak_lr, seed in product(PEAKS, SWEEP_SEEDS):
            yield "sweep", {"warmup_steps": warmup_steps, "peak_lr": peak_lr, "seed": seed}
        best = best_rate(results["sweep"], rate="peak_lr", warmup_steps=warmup_steps)
        for seed in RACE_SEEDS:
            yield "race", {"warmup_steps": warmup_steps, "peak_lr": best, "seed": seed}


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """Train once; the loss on held-out stories after the last step, in nats per token."""
    if part == "count":
        run = loop["train"](loop["lr_at"], accumulation_steps=4, **settings)
    else:
        numbers = {key: settings[key] for key in ("peak_lr", "warmup_steps")}
        run = loop["train"](partial(constant, total_steps=STEPS, **numbers), STEPS, seed=settings["seed"])
    return settings | {"val_loss": round(run["val_loss"], 3)}


if __name__ == "__main__":
    loop = loop_of(LESSON)
    results = load(FILE, lambda: {"floor": round(loop["floor"], 4)})
    measure_missing(FILE, results, settings_of_runs(results), partial(measure, loop))
