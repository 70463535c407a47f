"""Batch size against steps, for lesson 17: `python benchmarks/batch_sizes.py` stores `data/batch_sizes.json`.

After McCandlish et al. 2018 (arXiv:1812.06162): how many steps, and how many tokens, does a small model need down to
one target loss, at each batch size? Each batch size has a learning rate of its own, constant after a short warm-up. It
is found on one grid, on which the sweep goes on until both neighbours of the best rate are worse. The race repeats the
best rate with other seeds. The noise is the paper's estimate from two batch sizes (appendix A.1), along runs of a
middle batch size.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from statistics import fmean

import torch
from harness import Results, Runs, Settings, load, measure_missing
from story_rows import D_MODEL, LENGTH, N_LAYER, OPTIMIZER, VOCAB_SIZE, batches, held_out_batches, new_model
from torch import Tensor

from course_lm.loss import next_token_loss
from course_lm.model import GPT, count_parameters
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.step import train_step

FILE = "batch_sizes.json"
HELD_OUT = 64  # rows
BATCH_SIZES = (2, 8, 32, 128, 4, 16, 64, 256)  # rows, in the order in which they are measured
SWEEP_SEEDS, RACE_SEEDS = (0, 4), (1, 2, 3)
TARGET_LOSS, WARM_UP = 2.5, 10  # nats per token; steps
FIRST_RATE = 1e-3  # the grid has its powers of two, up and down
MOST_STEPS = 4000
FIRST_LOOK, LOOKS_APART = 20, 1.05  # the held-out loss is looked at after 20 steps, and then 5 % later each time
NOISE_BATCH, NOISE_STEPS, NOISE_ROWS, NOISE_SMALL = 32, (10, 30, 100), 512, 8


def steps_taken(sweep: list[Results], batch_size: int, learning_rate: float) -> float:
    """Mean steps to the target of the sweep's seeds, infinite where one did not come there."""
    same = [run for run in sweep if (run["batch_size"], run["learning_rate"]) == (batch_size, learning_rate)]
    return fmean(run["steps_to_target"] or math.inf for run in same)


def rates_tried(sweep: list[Results], batch_size: int) -> list[float]:
    """The learning rates of the sweep at this batch size, in order."""
    return sorted({run["learning_rate"] for run in sweep if run["batch_size"] == batch_size})


def best_rate(sweep: list[Results], batch_size: int) -> float:
    """The rate of the sweep that came to the target in the fewest steps."""
    return min(rates_tried(sweep, batch_size), key=lambda rate: steps_taken(sweep, batch_size, rate))


def next_trial(sweep: list[Results], batch_size: int, start: float) -> Settings | None:
    """The sweep's next run at this batch size; None when a worse rate is known on each side of the best.

    A rate is tried with a further seed where all seeds before have come to the target.
    """
    tried = rates_tried(sweep, batch_size)
    for rate in tried:
        same = [run for run in sweep if (run["batch_size"], run["learning_rate"]) == (batch_size, rate)]
        if len(same) < len(SWEEP_SEEDS) and all(run["steps_to_target"] for run in same):
            return {"batch_size": batch_size, "learning_rate": rate, "seed": SWEEP_SEEDS[len(same)]}
    best = best_rate(sweep, batch_size) if tried else start
    if tried and tried[0] < best < tried[-1]:
        return None
    rate = best if not tried else best / 2 if best == tried[0] else best * 2
    return {"batch_size": batch_size, "learning_rate": rate, "seed": SWEEP_SEEDS[0]}


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings. What comes later needs the results of what came before."""
    sweep = results["sweep"]
    for batch_size in BATCH_SIZES:
        smaller = {run["batch_size"] for run in sweep if run["batch_size"] < batch_size}
        start = best_rate(sweep, max(smaller)) if smaller else FIRST_RATE
        while (trial := next_trial(sweep, batch_size, start)) is not None:
            yield "sweep", trial
        for seed in RACE_SEEDS:
            best = best_rate(sweep, batch_size)
            yield "race", {"batch_size": batch_size, "learning_rate": best, "seed": seed}
    for seed in RACE_SEEDS:
        for step in NOISE_STEPS:
            yield "noise", {"seed": seed, "step": step}


def looks() -> Iterator[int]:
    """The steps after which the held-out loss is measured: apart by one ratio, and so equally fine for all runs."""
    step = FIRST_LOOK
    while True:
        yield step
        step = max(step + 1, round(step * LOOKS_APART))


def crossing(curve: list[tuple[int, float]]) -> float | None:
    """The step at which the held-out loss, as a mean of three looks, comes down to the target; None where it has not.

    The mean belongs to the look in its middle, so that it comes late for no run. Between two looks the loss is taken to
    be a line over the logarithm of the step.
    """
    smooth = [(curve[i][0], fmean(loss for _, loss in curve[i - 1 : i + 2])) for i in range(1, len(curve) - 1)]
    for (early, above), (late, below) in pairwise(smooth):
        if below <= TARGET_LOSS < above:
            share = (above - TARGET_LOSS) / (above - below)
            return round(early * (late / early) ** share, 1)
    return None


def trained(batch_size: int, learning_rate: float, seed: int) -> Iterator[tuple[int, GPT]]:
    """The number of steps done and the model, after each step."""
    model = new_model(D_MODEL, seed)
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=learning_rate, **OPTIMIZER))
    for step, batch in enumerate(batches(batch_size, seed), start=1):
        train_step(model, [batch], optimizer, lr=learning_rate * min(1.0, step / WARM_UP))
        yield step, model


def patience(sweep: list[Results], part: str, batch_size: int) -> int:
    """Steps after which a run is given up: 1.3 times, in the race twice, the fewest of this and all smaller sizes."""
    known = [run["steps_to_target"] for run in sweep if run["batch_size"] <= batch_size and run["steps_to_target"]]
    factor = {"sweep": 1.3, "race": 2.0}[part]
    return min([MOST_STEPS, *(round(factor * steps) for steps in known)])


def run_to_target(batch_size: int, learning_rate: float, seed: int, most: int) -> tuple[float | None, int]:
    """Steps to the target, None where it was not reached, and the steps that were done."""
    curve: list[tuple[int, float]] = []
    looked_at = looks()
    look = next(looked_at)
    for step, model in trained(batch_size, learning_rate, seed):
        if step == look:
            curve.append((step, evaluate(model, held_out_batches(HELD_OUT))["val_loss"]))
            look = next(looked_at)
        reached = crossing(curve)
        if reached or step == most:
            return reached, step
    raise RuntimeError(f"{batch_size} rows a batch have used up all rows before {most} steps")


def simple_noise_scale(model: GPT, rows: Tensor) -> float:
    """Noise over signal of the gradient in rows, from its length on all rows and on parts (appendix A.1)."""
    small, sums, squares = NOISE_SMALL, [torch.zeros_like(p) for p in model.parameters()], []
    parts = rows.split(small)
    for part in parts:
        model.zero_grad()
        next_token_loss(model(part), part).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        squares.append(float(sum(gradient.square().sum() for gradient in gradients)))
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient / len(parts)
    of_small, of_all, big = fmean(squares), float(sum(total.square().sum() for total in sums)), len(rows)
    signal = (big * of_all - small * of_small) / (big - small)
    noise = (of_small - of_all) / (1 / small - 1 / big)
    return noise / signal


def measure_noise(results: Results, settings: Settings) -> Results:
    """Train up to the step; the noise scale there on rows that the run has not read, and the loss."""
    seed, last = settings["seed"], settings["step"]
    steps = trained(NOISE_BATCH, best_rate(results["sweep"], NOISE_BATCH), seed)
    _, model = next(islice(steps, last - 1, None))
    loss = evaluate(model, held_out_batches(HELD_OUT))["val_loss"]
    unread = [batch["input_ids"] for batch in batches(NOISE_ROWS, seed)][-2]  # the last may be shorter
    scale = simple_noise_scale(model, unread)
    return settings | {"simple_noise_scale": round(scale, 2), "val_loss": round(loss, 4)}


def measure(results: Results, part: str, settings: Settings) -> Results:
    """One run."""
    if part == "noise":
        return measure_noise(results, settings)
    steps, done = run_to_target(**settings, most=patience(results["sweep"], part, settings["batch_size"]))
    tokens = None if steps is None else round(steps * settings["batch_size"] * LENGTH)
    return settings | {"steps_to_target": steps, "tokens_to_target": tokens, "steps": done}


def begin() -> Results:
    """What all runs have in common, and none yet."""
    model = {"parameters": count_parameters(new_model(D_MODEL, 0)), "n_layer": N_LAYER, "d_model": D_MODEL}
    rows = {"vocab_size": VOCAB_SIZE, "targets_per_row": LENGTH, "held_out_rows": HELD_OUT}
    training = {"target_loss": TARGET_LOSS, "warmup_steps": WARM_UP, "optimizer": "adamw", **OPTIMIZER}
    settings = {**model, **rows, **training, "noise_batch_size": NOISE_BATCH}
    return {"settings": settings, "sweep": [], "race": [], "noise": []}


if __name__ == "__main__":
    results = load(FILE, begin)
    measure_missing(FILE, results, settings_of_runs(results), partial(measure, results))
