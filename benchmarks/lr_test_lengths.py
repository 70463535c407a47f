"""What lesson 06 draws: `python benchmarks/lr_test_lengths.py` stores `data/lr_test_lengths.json`.

Range tests of several lengths, on the stories and on tokens drawn at random with their frequencies; real runs to
compare the suggestions with; and trained models that go on with eight stories in lower case. Each is on the model, text
and loop of the lesson (its cells tagged `loop`). A seed decides the first weights, the order of the text or what is
drawn, and which eight stories.
"""

from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

from harness import Results, Runs, Settings, load, loop_of, measure_missing

from course_lm.lr_finder import LRFinderResult, find_lr

FILE, LESSON = "lr_test_lengths.json", "06_lr_finder"
SEEDS, TEXTS, LENGTHS = (0, 1, 2), ("stories", "drawn tokens"), (50, 100, 200, 400)
BATCH_SIZE = 4
TUNING_STEPS, TUNING_RATES = 40, tuple(1.25e-4 * 2**k for k in range(8))
BASE_RATE = 4e-3  # of the model that is tuned
STEPS, RATES = 60, tuple(2.5e-4 * 2**k for k in range(8))


def settings_of_all() -> Runs:
    """Every test and every run: its part and its settings."""
    for text, num_iter, seed in product(TEXTS, LENGTHS, SEEDS):
        yield "tests", {"text": text, "num_iter": num_iter, "seed": seed}
    for seed in SEEDS:
        yield "fine_tuning", {"seed": seed}
    for lr, seed in product(RATES, SEEDS):
        yield "runs", {"steps": STEPS, "lr": lr, "seed": seed}


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """The losses of one range test with the defaults of `find_lr`, the end of one run, or a fine-tuning."""
    seed = settings["seed"]
    model = loop["new_model"](seed)
    loader = loop["loader_of"](loop["stories"], batch_size=BATCH_SIZE, seed=seed)
    if part == "tests":
        steps = settings["num_iter"]
        batches = loader if settings["text"] == "stories" else loop["drawn_batches"](steps, seed)
        found = find_lr(model, batches, loop["adamw"](model), num_iter=steps)
        return settings | {"losses": _rounded(found)}
    if part == "fine_tuning":
        loop["train"](model, loader, lr=BASE_RATE)
        return settings | fine_tune(loop, model, seed)
    loop["train"](model, loader, lr=settings["lr"], steps=settings["steps"])
    return settings | {"val_loss": round(loop["val_loss"](model), 3)}


def fine_tune(loop: dict[str, Any], base: Any, seed: int) -> Results:
    """The losses of both tests of a trained model on eight stories in lower case, and where real runs end."""
    few, unseen = (
        loop["loader_of"]([story.lower() for story in documents], batch_size=BATCH_SIZE)
        for documents in (loop["stories"][8 * seed : 8 * seed + 8], loop["held_out"])
    )
    losses = {}
    for lr in TUNING_RATES:
        tuned = deepcopy(base)
        loop["train"](tuned, few, lr=lr, steps=TUNING_STEPS)
        losses[f"{lr:g}"] = round(loop["val_loss"](tuned, unseen), 3)
    tests = {"on_training": None, "on_held_out": unseen}
    found = {name: find_lr(base, few, loop["adamw"](base), val_loader=loader) for name, loader in tests.items()}
    return {name: _rounded(test) for name, test in found.items()} | {"losses": losses}


def _rounded(test: LRFinderResult) -> list[float]:
    return [round(loss, 3) for loss in test.losses]


if __name__ == "__main__":
    measure_missing(FILE, load(FILE), settings_of_all(), partial(measure, loop_of(LESSON)))
