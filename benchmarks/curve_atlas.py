"""The curve atlas: `python benchmarks/curve_atlas.py` measures it and stores `data/curve_atlas.json`.

The model, the text and the healthy run are those of lesson 00: they are read from the notebook (its cells tagged
`loop`). Each illness changes one thing. Every run has one thread; two run side by side.
"""

import argparse
import contextlib
import io
import json
import time
from collections.abc import Mapping
from functools import partial
from itertools import islice, product
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
from harness import Results, Settings, load, loop_of, measure_side_by_side, store
from torch import Tensor
from torch.optim import SGD, AdamW

from course_lm.loss import next_token_loss
from course_lm.monitoring import copy_weights, update_ratios
from course_lm.step import train_step

FILE, LESSON = "curve_atlas.json", "00_the_whole_loop"
SEEDS = (1, 2, 3, 4, 5)
LOG_EVERY, EVAL_EVERY = 5, 10
HELD_OUT, FEW = 64, 96  # stories
SGD_RATE = 100  # times the learning rate of AdamW: what SGD with momentum trains well with

ILLNESSES: dict[str, Settings] = {
    "healthy": {},
    "learning rate too high": {"lr_factor": 10},
    "learning rate too low": {"lr_factor": 1 / 30},
    "no shift": {"shift": False},
    "leak into validation": {"text": "few with the held-out"},
    "dead from clipping": {"optimizer": "sgd", "lr_factor": SGD_RATE, "max_grad_norm": 2.0**-16},
    "over-fitting": {"text": "few"},
}


def loss_without_shift(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Each position is asked for its own token."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)


def text_of(loop: Mapping[str, Any], text: str) -> list[list[int]]:
    """The documents to train on: "all", "few", or "few with the held-out" among them."""
    ids, held_out = loop["ids"], loop["val_ids"]
    texts = {"all": ids, "few": ids[:FEW], "few with the held-out": ids[: FEW - HELD_OUT] + held_out}
    return texts[text]


def train(
    loop: Mapping[str, Any],
    seed: int,
    lr_factor: float = 1.0,
    max_grad_norm: float = 1.0,
    shift: bool = True,
    text: str = "all",
    optimizer: str = "adamw",
) -> dict[str, list[float]]:
    """Lesson 00's run with one thing changed. A loss is the mean of the steps since the last log point."""
    model = loop["new_model"](seed)
    moved = AdamW(model.parameters(), weight_decay=0.0) if optimizer == "adamw" else SGD(model.parameters(), 1.0, 0.9)
    stream = loop["batches"](text_of(loop, text), 16, torch.Generator().manual_seed(seed))
    step_of = partial(
        train_step, model, max_grad_norm=max_grad_norm, loss_fn=next_token_loss if shift else loss_without_shift
    )
    curves: dict[str, list[float]] = {"loss": [], "grad_norm": [], "update_ratio": [], "val_loss": []}
    losses: list[float] = []
    for step, batch in enumerate(islice(stream, loop["total_steps"])):
        before = copy_weights(model) if (step + 1) % LOG_EVERY == 0 else {}
        result = step_of([batch], moved, lr=loop["lr_at"](step) * lr_factor)
        losses.append(float(result.loss))
        if before:
            curves["loss"].append(mean(losses[-LOG_EVERY:]))
            curves["grad_norm"].append(float(result.grad_norm))
            curves["update_ratio"].append(median(update_ratios(model, before).values()))
        if (step + 1) % EVAL_EVERY == 0:
            curves["val_loss"].append(loop["validate"](model))
    return curves


def lesson_loop() -> dict[str, Any]:
    """Lesson 00's names; it prints while it defines them. Only the first `HELD_OUT` stories are validated on."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        loop = loop_of(LESSON)
    loop["val_ids"] = loop["val_ids"][:HELD_OUT]
    loop["val_targets"] = sum(len(document) - 1 for document in loop["val_ids"])
    return loop


def measure(run: tuple[str, int]) -> Results:
    """One run, given by illness and seed, with the CPU seconds that it took."""
    (name, seed), started = run, time.process_time()
    curves = train(lesson_loop(), seed, **ILLNESSES[name])
    rounded = {key: [float(f"{value:.4g}") for value in values] for key, values in curves.items()}
    return {"seed": seed, "cpu_seconds": round(time.process_time() - started)} | rounded


def missing(atlas: Results) -> list[tuple[str, int]]:
    """The runs that are not stored yet; a healthy one first."""
    stored = {(name, run["seed"]) for name, runs in atlas["runs"].items() for run in runs}
    return [run for run in product(ILLNESSES, SEEDS) if run not in stored]


def keep(atlas: Results, run: tuple[str, int], measured: Results) -> None:
    """Add a run to its illness and write the atlas."""
    atlas["runs"].setdefault(run[0], []).append(measured)
    store(FILE, written(atlas))


def written(atlas: Results) -> str:
    """The atlas as JSON, one run a line."""
    parts = []
    for name in ILLNESSES:
        runs = sorted(atlas["runs"].get(name, []), key=lambda run: run["seed"])
        parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs) + "\n]")
    head = json.dumps({key: value for key, value in atlas.items() if key != "runs"})
    return head[:-1] + ', "runs": {\n' + ",\n".join(parts) + "\n}}\n"


def begin() -> Results:
    """The floor of the stories that the runs are validated on, nats per token, and no run yet."""
    loop = lesson_loop()
    floor = sum(loop["val_corpus"].neg_log_p[:HELD_OUT]) / loop["val_targets"]
    return {"floor": round(floor, 4), "log_every": LOG_EVERY, "eval_every": EVAL_EVERY, "runs": {}}


def main() -> None:
    """Measure what is missing for at most about `--seconds`, then say how much time it took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    started, atlas = time.perf_counter(), load(FILE, begin)
    wanted = partial(missing, atlas)
    measure_side_by_side(wanted, measure, partial(keep, atlas), arguments.workers, arguments.seconds)
    cpu_seconds = [run["cpu_seconds"] for runs in atlas["runs"].values() for run in runs]
    left = len(missing(atlas))
    print(f"{len(cpu_seconds)} runs, {sum(cpu_seconds)} s of CPU time; {time.perf_counter() - started:.0f} s now")
    print(f"{left} runs are missing: call again to go on" if left else "everything is measured")


if __name__ == "__main__":
    main()
