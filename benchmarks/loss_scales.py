"""What lesson 07 draws: `python benchmarks/loss_scales.py` stores `data/loss_scales.json`.

How far the fp16 gradient of one batch lies from fp32's, by loss scale and number of rows; and what six AdamW steps win
in fp16 without a scale. Each is on the models, text and functions of the lesson (its cells tagged `loop`),
at the end of 60 steps. A seed decides the model.

Few CPUs multiply fp16 matrices, and the others take minutes for a large batch. So the products are computed in fp32
and rounded to fp16, as a GPU does it; all else is torch's own fp16.
"""

from copy import deepcopy
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from harness import Results, Runs, Settings, load, loop_of, measure_missing
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

FILE, LESSON = "loss_scales.json", "07_mixed_precision"
SEEDS, ROWS, POWERS = (0, 1, 2), (4, 64, 256), (0, 2, 4, 6, 8, 12, 16, 20, 24)
STEPS, RUN_ROWS, LR = 6, 256, 5e-5
PRODUCTS = tuple(getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm", "addmm_"))


class RoundedProducts(TorchDispatchMode):
    """Compute each product of fp16 matrices in fp32, and round the result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`func`, a product or any other operation."""
        if func not in PRODUCTS or args[0].dtype != torch.float16:
            return func(*args, **(kwargs or {}))
        result = func(*tree_map_only(torch.Tensor, torch.Tensor.float, args), **(kwargs or {})).half()
        return args[0].copy_(result) if func is torch.ops.aten.addmm_.default else result


def settings_of_runs() -> Runs:
    """Every gradient and every run: its part and its settings."""
    for rows, seed in product(ROWS, SEEDS):
        yield "errors", {"rows": rows, "seed": seed}
    yield "runs", {"rows": RUN_ROWS, "steps": STEPS, "seed": SEEDS[0]}


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """The relative errors of one gradient by power of two of the scale and in bf16, or what a run wins."""
    base, state = loop["bases"][settings["seed"]]
    loader = loop["loader_of"](loop["train_corpus"].documents, batch_size=settings["rows"])
    if part == "errors":
        batch = next(iter(loader))
        with RoundedProducts():
            errors = {f"{power}": _error(loop, base, batch, torch.float16, 2.0**power) for power in POWERS}
        return settings | {"fp16": errors, "bf16": _error(loop, base, batch, torch.bfloat16)}
    batches = list(islice(loader, settings["steps"]))
    return settings | {
        name: _won(loop, base, state, batches, dtype)
        for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16))
    }


def _error(loop: dict[str, Any], model: Any, batch: Any, dtype: torch.dtype, scale: float = 1.0) -> float | None:
    error = loop["gradient_error"](model, batch, dtype, scale)
    return float(f"{error:.3g}") if error < float("inf") else None  # an overflow


def _won(loop: dict[str, Any], base: Any, state: Any, batches: Any, dtype: torch.dtype) -> float:
    model = deepcopy(base)
    optimizer = loop["adamw"](model, state)
    for group in optimizer.param_groups:
        group["lr"] = LR
    for batch in batches:
        with RoundedProducts():
            loop["weight_gradient"](model, batch, dtype)
        optimizer.step()
    return round(loop["val_loss"](base) - loop["val_loss"](model), 5)


if __name__ == "__main__":
    measure_missing(FILE, load(FILE), settings_of_runs(), partial(measure, loop_of(LESSON)))
