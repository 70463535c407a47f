"""How long to train? `python tests/benchmarks/training_lengths.py` stores `data/training_lengths.json`.

For lesson 12. One model on two texts, a fourth apart in size, each read 1 to 32 times. Every length is a run of its
own with a schedule that ends with it, and at a learning rate of its own: the rates have one grid of powers of two, on
which the sweep goes on until both neighbours of the best one are worse. The runs that are compared have other seeds.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import torch
from kept_runs import Results, Settings, best_rate, load_or_begin, measure_missing, next_rate
from story_rows import LENGTH, N_LAYER, VOCAB_SIZE, batch_of, held_out_batches, new_model, training_rows

from course_lm.batching import AnyBatch
from course_lm.corpus.shipped import data_file
from course_lm.model import count_parameters
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.schedules import cosine
from course_lm.step import train_step

FILE = "training_lengths.json"
ROWS, PASSES = (400, 1600), (1, 2, 4, 8, 16, 32)  # rows of a text, and how often a run reads each
D_MODEL, BATCH_SIZE = 64, 8  # width, rows of a step
HELD_OUT, READ = 512, 400  # rows that validate, and rows of the text itself on which a run ends
WARM_UP = 0.1  # of the steps
SWEEP_SEED, SEEDS = 3, (0, 1, 2)
OPTIMIZER: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1}
FIRST_RATE = 8e-3


def settings_of_runs(results: Results) -> Iterator[tuple[str, Settings]]:
    """Every run: its part and its settings, the short ones first. The runs of a length need its sweep."""
    sweep = results["sweep"]
    for rows in ROWS:
        start = FIRST_RATE
        for passes in PASSES:
            length = {"rows": rows, "passes": passes}
            while (rate := next_rate(sweep, start, **length)) is not None:
                yield "sweep", {**length, "learning_rate": rate, "seed": SWEEP_SEED}
            start = best_rate(sweep, **length)
            for seed in SEEDS:
                yield "runs", {**length, "learning_rate": start, "seed": seed}


def batches(rows: int, seed: int) -> Iterator[AnyBatch]:
    """Batches of the first `rows` rows, in a new order at each pass."""
    text = training_rows()[:rows]
    generator = torch.Generator().manual_seed(seed)
    for _ in count():
        for chosen in torch.randperm(rows, generator=generator).split(BATCH_SIZE):
            yield batch_of(text[chosen])


def measure(part: str, settings: Settings) -> Results:
    """Train once; losses in nats per token, held-out and of the text that was read, after the last step."""
    rows, peak, seed = settings["rows"], settings["learning_rate"], settings["seed"]
    steps = settings["passes"] * rows // BATCH_SIZE
    model = new_model(D_MODEL, seed)
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=peak, **OPTIMIZER))
    lr_at = partial(cosine, peak_lr=peak, total_steps=steps, warmup_steps=round(WARM_UP * steps))
    for step, batch in zip(range(steps), batches(rows, seed)):
        train_step(model, [batch], optimizer, lr=lr_at(step))
    read = [batch_of(part) for part in training_rows()[:READ].split(64)]
    losses = {"val_loss": held_out_batches(HELD_OUT), "train_loss": read}
    return settings | {name: round(evaluate(model, some)["val_loss"], 4) for name, some in losses.items()}


def shared_settings() -> Results:
    """What all runs have in common."""
    return {
        "n_layer": N_LAYER,
        "d_model": D_MODEL,
        "parameters": count_parameters(new_model(D_MODEL, 0)),
        "vocab_size": VOCAB_SIZE,
        "batch_size": BATCH_SIZE,
        "targets_per_row": LENGTH,
        "held_out_rows": HELD_OUT,
        "warmup_ratio": WARM_UP,
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
