"""More steps or a larger model, for lesson 15: `python tests/benchmarks/scaling.py` stores `data/scaling.json`.

Models of four widths are trained at four budgets of FLOPs, counted by torch's counter for a step of each width: at one
budget a wider model makes fewer steps. The schedule spans each run. Each width at each budget has a learning rate of
its own, found on one grid, on which the sweep goes on until both neighbours of the best rate are worse. The runs that
are compared have other seeds.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from kept_runs import Results, Settings, best_rate, load_or_begin, measure_missing, next_rate
from story_rows import LENGTH, N_LAYER, VOCAB_SIZE, batches, held_out_batches, new_model

from course_lm.corpus.shipped import data_file
from course_lm.loss import next_token_loss
from course_lm.model import count_parameters
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.profiling.work import flop_counter
from course_lm.schedules import cosine
from course_lm.step import train_step

FILE = "scaling.json"
HELD_OUT = 512  # rows
WIDTHS, BUDGETS = (16, 32, 64, 128), (3e10, 8e10, 2.2e11, 6e11)  # FLOPs
SWEEP_SEED, SEEDS = 3, (0, 1, 2)
BATCH_SIZE, WARM_UP = 8, 0.1  # rows; share of the steps
OPTIMIZER: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}
FIRST_RATE = 8e-3  # the grid has its powers of two, up and down


@cache
def flops_of_step(d_model: int) -> int:
    """FLOPs of the matrix products of one step, forward and backward."""
    rows = next(batches(BATCH_SIZE, seed=0))["input_ids"]
    with flop_counter() as counter:
        next_token_loss(new_model(d_model, seed=0)(rows), rows).backward()
    return counter.get_total_flops()


def settings_of_runs(results: Results) -> Iterator[tuple[str, Settings]]:
    """Every run: its part and its settings, one budget after the other. A budget's runs need its sweep."""
    sweep = results["sweep"]
    start = dict.fromkeys(WIDTHS, FIRST_RATE)
    for budget in BUDGETS:
        for d_model in WIDTHS:
            arm = {"d_model": d_model, "budget": budget}
            while (rate := next_rate(sweep, start[d_model], **arm)) is not None:
                yield "sweep", {**arm, "learning_rate": rate, "seed": SWEEP_SEED}
            start[d_model] = best_rate(sweep, **arm)
        for seed, d_model in product(SEEDS, WIDTHS):
            yield "runs", {"d_model": d_model, "budget": budget, "learning_rate": start[d_model], "seed": seed}


def measure(part: str, settings: Settings) -> Results:
    """Train once; the held-out loss after the last step, in nats per token."""
    d_model, peak, seed = settings["d_model"], settings["learning_rate"], settings["seed"]
    model = new_model(d_model, seed)
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=peak, **OPTIMIZER))
    steps = round(settings["budget"] / flops_of_step(d_model))
    schedule = partial(cosine, peak_lr=peak, total_steps=steps, warmup_steps=round(WARM_UP * steps))
    for step, batch in zip(range(steps), batches(BATCH_SIZE, seed)):
        train_step(model, [batch], optimizer, lr=schedule(step))
    counts = {
        "n_layer": N_LAYER,
        "parameters": count_parameters(model),
        "steps": steps,
        "tokens": steps * BATCH_SIZE * LENGTH,
        "flops": steps * flops_of_step(d_model),
    }
    return settings | counts | {"val_loss": round(evaluate(model, held_out_batches(HELD_OUT))["val_loss"], 4)}


def shared_settings() -> Results:
    """What all runs have in common."""
    return {
        "n_layer": N_LAYER,
        "vocab_size": VOCAB_SIZE,
        "batch_size": BATCH_SIZE,
        "targets_per_row": LENGTH,
        "held_out_rows": HELD_OUT,
        "warmup_ratio": WARM_UP,
        "schedule": "cosine to 0",
        "optimizer": "adamw",
        **OPTIMIZER,
        "flops_of_step": {str(d_model): flops_of_step(d_model) for d_model in WIDTHS},
    }


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    path = data_file(FILE)
    results = load_or_begin(path, shared_settings(), "sweep", "runs")
    measure_missing(path, results, settings_of_runs(results), measure)


if __name__ == "__main__":
    main()
