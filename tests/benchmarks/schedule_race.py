"""Which schedule for a language model? `python tests/benchmarks/schedule_race.py` stores `data/schedule_race.json`.

For lesson 05. Four schedules at three lengths of a run, each with the same warm-up and each at a learning rate of its
own: the rates have one grid of powers of two, on which the sweep goes on until both neighbours of the best one are
worse. The runs that are compared have other seeds. No run reads a row twice.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from kept_runs import Results, Settings, best_rate, load_or_begin, measure_missing, next_rate
from story_rows import LENGTH, N_LAYER, VOCAB_SIZE, batches, held_out_batches, new_model

from course_lm.corpus.shipped import data_file
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.step import train_step

FILE = "schedule_race.json"
STEPS = (100, 400, 1600)
D_MODEL, BATCH_SIZE, HELD_OUT = 64, 8, 512  # width, rows of a step, rows that validate
WARM_UP, DECAY = 0.1, 0.2  # shares of the steps; the decay is that of WSD: warm-up, stable, decay
ARMS = {
    "constant": ScheduleConfig("constant_with_warmup", warmup_ratio=WARM_UP),
    "linear": ScheduleConfig("linear_with_warmup", warmup_ratio=WARM_UP),
    "cosine": ScheduleConfig("cosine_with_warmup", warmup_ratio=WARM_UP),
    "WSD": ScheduleConfig("warmup_stable_decay", warmup_ratio=WARM_UP, decay_ratio=DECAY),
}
SWEEP_SEED, SEEDS = 3, (0, 1, 2)
OPTIMIZER: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
FIRST_RATE = 8e-3


def settings_of_runs(results: Results) -> Iterator[tuple[str, Settings]]:
    """Every run: its part and its settings, one length after the other. An arm's runs need its sweep."""
    sweep = results["sweep"]
    start = dict.fromkeys(ARMS, FIRST_RATE)
    for steps in STEPS:
        for name in ARMS:
            arm = {"schedule": name, "steps": steps}
            while (rate := next_rate(sweep, start[name], **arm)) is not None:
                yield "sweep", {**arm, "learning_rate": rate, "seed": SWEEP_SEED}
            start[name] = best_rate(sweep, **arm)
        for seed, name in product(SEEDS, ARMS):
            yield "runs", {"schedule": name, "steps": steps, "learning_rate": start[name], "seed": seed}


def measure(part: str, settings: Settings) -> Results:
    """Train once; the held-out loss after the last step, in nats per token."""
    steps, peak, seed = settings["steps"], settings["learning_rate"], settings["seed"]
    model = new_model(D_MODEL, seed)
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=peak, **OPTIMIZER))
    schedule = build_schedule(ARMS[settings["schedule"]], peak_lr=peak, total_steps=steps)
    for step, batch in zip(range(steps), batches(BATCH_SIZE, seed)):
        train_step(model, [batch], optimizer, lr=schedule(step))
    return settings | {"val_loss": round(evaluate(model, held_out_batches(HELD_OUT))["val_loss"], 4)}


def shared_settings() -> Results:
    """What all runs have in common."""
    return {
        "n_layer": N_LAYER,
        "d_model": D_MODEL,
        "vocab_size": VOCAB_SIZE,
        "batch_size": BATCH_SIZE,
        "targets_per_row": LENGTH,
        "held_out_rows": HELD_OUT,
        "warmup_ratio": WARM_UP,
        "decay_ratio": DECAY,
        "optimizer": "adamw",
        **OPTIMIZER,
    }


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    path = data_file(FILE)
    results = load_or_begin(path, shared_settings(), "sweep", "runs")
    measure_missing(path, results, settings_of_runs(results), measure)


if __name__ == "__main__":
    main()
