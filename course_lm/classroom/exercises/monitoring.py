"""Exercises of lesson 10: perplexity from a log, update ratios, reading a torn log, and when to stop early."""

import json
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_lm.classroom.checks import exercise

Weights = Mapping[str, Tensor]


def _train_records(losses: Sequence[float], totals: Sequence[int]) -> list[dict[str, object]]:
    return [
        {"event": "train", "step": 5 * number * (number + 1), "loss": loss, "tokens": total}
        for number, (loss, total) in enumerate(zip(losses, totals), 1)
    ]


@exercise(
    cases={
        "two records": ([{"loss": 3.0, "tokens": 100}, {"loss": 1.0, "tokens": 400}],),
        "records of unequal length": (_train_records([2.75, 3.0, 1.5, 1.75], [100, 900, 950, 1150]),),
        "no step was completed between two records": (
            # another object than math.nan, as a number that was computed or read is
            _train_records([4.0, float("nan"), 2.5, 3.0], [50, 50, 51, 420]),
        ),
    },
)
def logged_perplexity(records):
    """Perplexity of a whole run from its training records, whose "tokens" is a running total: `fn(records)`."""
    nats, total = 0.0, 0
    for record in records:
        new = record["tokens"] - total
        if new > 0:
            nats += record["loss"] * new
        total = record["tokens"]
    return math.exp(nats / total)


def _by_name(fn: Callable[..., object], before: Weights, after: Weights) -> object:
    """What `fn` gives; a key that is no name is shown by its type."""
    found = fn(before, after)
    if not isinstance(found, Mapping):
        return found
    return {name if isinstance(name, str) else f"a {type(name).__name__}": one for name, one in found.items()}


def _step(
    seed: int, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float32, scale: float = 0.1
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before and after a step; a `scale` below zero multiplies them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(2, *shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    before = {name: pair[0].to(dtype) for name, pair in drawn.items()}
    if scale < 0:
        return before, {name: part * scale for name, part in before.items()}
    return before, {name: (part + scale * drawn[name][1]).to(dtype) for name, part in before.items()}


def _turned(step: tuple[dict[str, Tensor], dict[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights after the step in the opposite order."""
    return step[0], dict(reversed(step[1].items()))


@exercise(
    cases={
        "a matrix and a bias": (
            {"w": torch.tensor([[3.0, 0.0], [0.0, 4.0]]), "b": torch.tensor([1.0])},
            {"w": torch.tensor([[3.0, 0.5], [0.0, 3.0]]), "b": torch.tensor([2.0])},
        ),
        "two matrices, a bias and a norm": _step(
            0, {"wte.weight": (6, 4), "mlp.weight": (4, 8), "mlp.bias": (8,), "norm.weight": (4,)}
        ),
        "two of one shape, in another order after the step": _turned(_step(4, {"w.1": (2, 3), "w.2": (2, 3)})),
        "a convolution of three dimensions": _step(3, {"conv.weight": (3, 2, 4), "scale": ()}),
        "float64, a step that turns a matrix around": _step(1, {"head.weight": (3, 5)}, torch.float64, -2.0),
    },
    run=_by_name,
)
def update_ratios(before, after):
    """Norm of a step's update over the norm of the weights, for each matrix: `fn(before, after)`, dicts of tensors."""
    matrices = {name: part for name, part in before.items() if part.ndim >= 2}
    return {name: float((after[name] - part).norm() / part.norm()) for name, part in matrices.items()}


@exercise(
    cases={
        "two whole lines, one null": ('{"step": 5, "loss": null}\n{"step": 10, "loss": 2.5}\n',),
        "the last line is torn": (
            '{"step": 5, "loss": 3.5}\n{"step": 10, "loss": null, "norm": null}\n'
            '{"step": 15, "loss": 0.0}\n{"step": 20, "lo',
        ),
        "a note with an unusual line separator": ('{"step": 5, "note": "a: null\u2028b"}\n{"step": 10, "no',),
        "nothing but a torn line": ('{"ste',),
        "torn between the last brace and the line end": ('{"step": 5}\n{"step": 10}',),
        "an empty log": ("",),
    },
)
def read_records(text):
    """The records of a log that may end in a torn line: `fn(text)`, JSON lines in which null stands for nan."""
    records = []
    for line in text.split("\n")[:-1]:
        record = json.loads(line)
        records.append({k: math.nan if v is None else v for k, v in record.items()})
    return records


def _for_each_patience(
    fn: Callable[..., object], values: Sequence[float], patiences: Sequence[int], min_delta: float
) -> list[object]:
    return [fn(list(values), patience, min_delta) for patience in patiences]


_NAN = math.nan


@exercise(
    cases={
        "down and up": ([3.0, 2.0, 1.5, 1.75, 1.5, 1.625, 1.875, 1.0], [1, 2, 3, 4, 9], 0.0),
        "small steps down": (
            [2.0, 1.625, 1.5, 1.75, 1.625, 1.75, 1.0, 0.875, 0.5, 0.75, 0.625, 0.5],
            [1, 2, 3, 4, 5],
            0.25,
        ),
        "many small steps down": ([2.0, 1.875, 1.75, 1.625, 1.5, 1.75, 1.0], [2, 3, 4], 0.25),
        "nan in between": ([3.0, 3.5, _NAN, 3.25, _NAN, _NAN, 1.0, _NAN, 1.5, 1.625, 1.75], [1, 2, 3, 4], 0.0),
        "nan at first": ([_NAN, _NAN, 2.0, 3.0, 1.0, 4.0], [2, 3, 4], 0.0),
    },
    run=_for_each_patience,
)
def stopping_point(values, patience, min_delta):
    """Early stopping: `fn(values, patience, min_delta)` gives the values read and the position of the one kept."""
    best, kept, bad = math.inf, None, 0
    for position, value in enumerate(values):
        if value < best - min_delta:
            best, kept, bad = value, position, 0
        else:
            bad += 1
        if bad >= patience:
            return position + 1, kept
    return len(values), kept
