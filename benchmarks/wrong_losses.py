"""What lesson 03 compares: `python benchmarks/wrong_losses.py` measures it and stores `data/wrong_losses.json`.

The right loss and six wrong ones, each in the lesson's own loop with five seeds. A seed fixes the first weights and the
order of the batches, so that runs of one seed differ in their loss alone.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

import torch
from harness import Results, Runs, Settings, load, loop_of, measure_missing

from course_lm.loss import next_token_loss

FILE = "wrong_losses.json"
SEEDS = (0, 1, 2, 3, 4)
FUNCTIONS = {
    "A": "loss_a",
    "wrong way (B)": "loss_b",
    "no shift": "no_shift",
    "shifted twice": "shifted_twice",
    "padding counted": "padding_counted",
    "<eos> masked": "eos_masked",
    "mean of means": "mean_of_means",
}


@cache
def lesson(seed: int) -> dict[str, Any]:
    """The names of lesson 03 with this seed."""
    return loop_of("03_loss", seed)


def measure(part: str, settings: Settings) -> Results:
    """Train once, as the lesson does; the losses at the end, and the highest training loss after the warm-up."""
    names = lesson(settings["seed"])
    model, losses, honest = names["train"](names[FUNCTIONS[settings["loss"]]])
    (batch,) = names["val_loader"]
    with torch.no_grad():
        logits = model(batch["input_ids"], batch["attention_mask"])  # (B, T, V)
    each = next_token_loss(logits, batch["labels"], reduction="none")  # (B, T - 1)
    at_eos = each[batch["labels"][:, 1:] == names["eos"]].mean().item()
    found = {"training": fmean(losses[-10:]), "honest": honest[-1], "at_eos": at_eos, "highest": max(losses[20:])}
    return settings | {name: round(value, 4) for name, value in found.items()}


def settings_of_runs() -> Runs:
    """Every run: its part and its settings."""
    for seed, loss in product(SEEDS, FUNCTIONS):
        yield "runs", {"loss": loss, "seed": seed}


if __name__ == "__main__":
    results = load(FILE)
    measure_missing(FILE, results, settings_of_runs(), measure)
