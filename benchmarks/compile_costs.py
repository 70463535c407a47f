"""What `torch.compile` costs, for lesson 15: `python benchmarks/compile_costs.py` fills `compile_costs.json`.

Each run takes steps of one model with and without compilation, in turns, on one thread. All seconds are the
processor's, those of the compiler among them: on one thread that is what a clock shows on a quiet machine, and other
load changes it little. Nothing that an earlier run has compiled is used again.
"""

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from harness import Results, Runs, Settings, load, measure_missing

from course_lm.model import GPT, ModelConfig, count_parameters
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.step import train_step

FILE = "compile_costs.json"
VOCAB_SIZE, LENGTH, WARM_UP, ROUNDS = 1024, 128, 2, 15
SIZES = ((2, 96, 8), (4, 192, 16), (6, 384, 16))  # layers, width, rows: `tiny`, `python-docs`, near `small`
HEAD_WIDTH = 48


def settings_of_runs() -> Runs:
    """Every run: its part and its settings."""
    for n_layer, d_model, rows in SIZES:
        yield "runs", {"n_layer": n_layer, "d_model": d_model, "rows": rows}


def processor_seconds() -> float:
    """Of this process and of the compilers that it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def seconds_of(step: Callable[[], object]) -> float:
    """Of the processor, for one step."""
    begin = processor_seconds()
    step()
    return processor_seconds() - begin


def batch_of(rows: int) -> dict[str, Any]:
    """Random tokens (B, T), all of them targets."""
    ids = torch.randint(VOCAB_SIZE, (rows, LENGTH), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def measure(part: str, settings: Settings) -> Results:
    """One model. "compile_seconds": of its first step, less those of later ones; so too of a step of fewer rows."""
    torch.compiler.reset()
    config = ModelConfig(settings["n_layer"], settings["d_model"] // HEAD_WIDTH, settings["d_model"], dropout=0.0)
    models = [GPT(config, VOCAB_SIZE, LENGTH) for _ in range(2)]
    optimizers = [build_optimizer(model, OptimizerConfig()) for model in models]
    compiled = torch.compile(models[1])
    full, half = batch_of(settings["rows"]), batch_of(settings["rows"] // 2)

    def eager_step() -> None:
        train_step(models[0], [full], optimizers[0], lr=1e-4)

    def compiled_step(batch: dict[str, Any] = full) -> None:
        train_step(compiled, [batch], optimizers[1], lr=1e-4)  # type: ignore[arg-type]

    first = seconds_of(compiled_step)
    for _ in range(WARM_UP):
        eager_step(), compiled_step()
    eager, later = [], []
    for _ in range(ROUNDS):
        eager.append(seconds_of(eager_step))
        later.append(seconds_of(compiled_step))
    other = seconds_of(lambda: compiled_step(half))
    return settings | {
        "parameters": count_parameters(models[0]),
        "compile_seconds": round(first - median(later), 1),
        "other_rows_seconds": round(other - median(later) / 2, 1),
        "eager_step_seconds": round(median(eager), 4),
        "compiled_step_seconds": round(median(later), 4),
    }


if __name__ == "__main__":
    os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    measure_missing(FILE, load(FILE), settings_of_runs(), measure)
