"""What lesson 06 tabulates: `python benchmarks/lr_test_lengths.py` stores `data/lr_test_lengths.json`.

Range tests of several lengths, real runs to compare their suggestions with, and trained models that go on with eight
stories in lower case, each on the model, text and loop of the lesson (its cells tagged `loop`). A seed decides the
first weights, the order of the text, and which eight stories.
"""

from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

from harness import Results, Runs, Settings, load, loop_of, measure_missing

from course_lm.lr_finder import find_lr

FILE, LESSON = "lr_test_lengths.json", "06_lr_finder"
SEEDS, LENGTHS = (0, 1, 2), (30, 50, 100, 200, 400)
BATCH_SIZE = 4
TUNING_STEPS, TUNING_RATES = 40, (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
BASE_RATE = 4e-3  # of the model that is tuned
STEPS, RATES = 60, (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def settings_of_all() -> Runs:
    """Every test and every run: its part and its settings."""
    for num_iter, seed in product(LENGTHS, SEEDS):
        yield "tests", {"num_iter": num_iter, "seed": seed}
    for seed in SEEDS:
        yield "fine_tuning", {"seed": seed}
    for lr, seed in product(RATES, SEEDS):
        yield "runs", {"steps": STEPS, "lr": lr, "seed": seed}


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """One range test with the defaults of `find_lr`, one run and its validation loss at the end, or a fine-tuning."""
    seed = settings["seed"]
    model = loop["new_model"](seed)
    loader = loop["loader_of"](loop["stories"], batch_size=BATCH_SIZE, seed=seed)
    if part == "tests":
        found = find_lr(model, loader, loop["adamw"](model), num_iter=settings["num_iter"])
        low, high = found.range or (None, None)
        return settings | {"suggestion": found.suggestion, "low": low, "high": high}
    if part == "fine_tuning":
        return settings | fine_tune(loop, loop["train"](model, loader, lr=BASE_RATE), seed)
    trained = loop["train"](model, loader, lr=settings["lr"], steps=settings["steps"])
    return settings | {"val_loss": round(loop["val_loss"](trained), 3)}


def fine_tune(loop: dict[str, Any], base: Any, seed: int) -> Results:
    """Both suggestions for a trained model on eight stories in lower case, and where real runs end."""
    few = loop["lower_case"](loop["stories"][8 * seed : 8 * seed + 8])
    unseen = loop["lower_case"](loop["held_out"])
    losses = {}
    for lr in TUNING_RATES:
        tuned = loop["train"](deepcopy(base), few, lr=lr, steps=TUNING_STEPS)
        losses[f"{lr:g}"] = round(loop["val_loss"](tuned, unseen), 3)
    return {
        "on_training": find_lr(base, few, loop["adamw"](base)).suggestion,
        "on_held_out": find_lr(base, few, loop["adamw"](base), val_loader=unseen).suggestion,
        "before": round(loop["val_loss"](base, unseen), 3),
        "losses": losses,
    }


if __name__ == "__main__":
    measure_missing(FILE, load(FILE), settings_of_all(), partial(measure, loop_of(LESSON)))
