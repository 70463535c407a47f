"""Checks of lesson 10: perplexity from a log, update ratios, reading a torn log, and when to stop early."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks.report import Report, compare
from course_lm.loss import perplexity
from course_lm.monitoring import EarlyStopping

Records = Sequence[Mapping[str, Any]]
Weights = Mapping[str, Tensor]
NAN = math.nan


def logged_perplexity(fn: Callable[..., object]) -> Report:
    """Perplexity of a whole run from its training records, whose "tokens" is a running total: `fn(records)`."""

    def weighted(records: Records, weights: Sequence[float], value: Callable[[float], float] = float) -> float:
        pairs = [(value(r["loss"]), weight) for r, weight in zip(records, weights) if not math.isnan(r["loss"])]
        return sum(loss * weight for loss, weight in pairs) / sum(weight for _, weight in pairs)

    def totals(records: Records) -> list[float]:
        return [record["tokens"] for record in records]

    return compare(
        fn,
        reference=lambda records: perplexity(weighted(records, _new_tokens(records))),
        cases={
            "records of unequal length": (_train_records([3.0, 2.0, 1.0], [100, 1000, 1050]),),
            "no step was completed between two records": (_train_records([4.0, NAN, 2.5], [50, 50, 400]),),
            "a single record": (_train_records([2.0], [70]),),
        },
        mistakes={
            "every record weighs the same, however many tokens it covers": lambda records: perplexity(
                weighted(records, [1.0] * len(records))
            ),
            "the running total is taken for the tokens of the record itself": lambda records: perplexity(
                weighted(records, totals(records))
            ),
            "perplexities are averaged: the exponential comes before the mean": lambda records: weighted(
                records, _new_tokens(records), math.exp
            ),
            "the nan of a record without tokens spreads": lambda records: perplexity(
                sum(r["loss"] * new for r, new in zip(records, _new_tokens(records))) / records[-1]["tokens"]
            ),
            "only the last record is read": lambda records: perplexity(records[-1]["loss"]),
            "the exponential is missing": lambda records: weighted(records, _new_tokens(records)),
        },
    )


def _train_records(losses: Sequence[float], totals: Sequence[int]) -> list[dict[str, Any]]:
    rows = enumerate(zip(losses, totals), 1)
    return [{"event": "train", "step": 10 * number, "loss": loss, "tokens": total} for number, (loss, total) in rows]


def _new_tokens(records: Records) -> list[int]:
    return [after["tokens"] - before["tokens"] for before, after in zip([{"tokens": 0}, *records], records)]


def update_ratios(fn: Callable[..., object]) -> Report:
    """Norm of a step's update over the norm of the weights, for each matrix: `fn(before, after)`, dicts of tensors."""

    def each(ratio: Callable[[Tensor, Tensor], Tensor], least: int = 2) -> Callable[[Weights, Weights], dict]:
        """`ratio` of each tensor that has `least` dimensions, as floats by name."""
        return lambda before, after: {
            name: float(ratio(part, after[name])) for name, part in before.items() if part.ndim >= least
        }

    def right(old: Tensor, new: Tensor) -> Tensor:
        return (new - old).norm() / old.norm()

    return compare(
        fn,
        reference=each(right),
        cases={
            "two matrices and a bias": _step(0, {"wte.weight": (6, 4), "mlp.weight": (4, 8), "mlp.bias": (8,)}),
            "float64, a step that turns a matrix around": _step(1, {"head.weight": (3, 5)}, torch.float64, -2.0),
            "a matrix that stood still": _step(2, {"wte.weight": (4, 4), "norm.weight": (4,)}, scale=0.0),
        },
        mistakes={
            "the change is divided by the new weights, not by the old ones": each(
                lambda old, new: (new - old).norm() / new.norm()
            ),
            "norms are subtracted, not weights": each(lambda old, new: (new.norm() - old.norm()) / old.norm()),
            "the ratio is taken element by element and then averaged": each(
                lambda old, new: ((new - old) / old).abs().mean()
            ),
            "the squares are not rooted": each(lambda old, new: right(old, new) ** 2),
            "vectors are measured too": each(right, least=1),
            "the change is not divided by anything": each(lambda old, new: (new - old).norm()),
            "the largest change is divided by the largest weight": each(
                lambda old, new: (new - old).abs().max() / old.abs().max()
            ),
        },
    )


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


def read_records(fn: Callable[..., object]) -> Report:
    """The records of a log that may end in a torn line: `fn(text)`, JSON lines in which null stands for nan."""

    def reader(null: Callable[[dict[str, Any]], dict[str, Any] | None], ends: str = "\n", drop: int = 0) -> Callable:
        """Reads what can be read; `null` treats each record, the last `drop` lines are left out unread."""

        def read(text: str) -> list[dict[str, Any]]:
            lines = [line for line in (text.split(ends) if ends else text.splitlines()) if line.strip()]
            records = [_parsed(line) for line in lines[: len(lines) - drop]]
            return [kept for record in records if record is not None and (kept := null(record)) is not None]

        return read

    def with_nan(record: dict[str, Any], instead: float | None = NAN) -> dict[str, Any]:
        return {key: instead if value is None else value for key, value in record.items()}

    whole = '{"step": 5, "loss": 3.5}\n{"step": 10, "loss": null}\n{"step": 15, "loss": 2.5}\n'
    return compare(
        fn,
        reference=reader(with_nan),
        cases={
            "three whole lines, one null": (whole,),
            "the last line is torn": (whole + '{"step": 20, "lo',),
            "a note with an unusual line separator": ('{"step": 5, "note": "a\u2028b"}\n{"step": 10, "no',),
            "an empty log": ("",),
        },
        mistakes={
            "the last line is left out, whole or torn": reader(with_nan, drop=1),
            "null stays None": reader(dict),
            "null becomes 0, a loss that was never measured": reader(lambda record: with_nan(record, 0.0)),
            "records with a null are left out": reader(
                lambda record: None if None in record.values() else dict(record)
            ),
            "splitlines() cuts at every separator that Unicode knows, not only at the end of a line": reader(
                with_nan, ends=""
            ),
        },
    )


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def stopping_point(fn: Callable[..., object]) -> Report:
    """Early stopping: `fn(values, patience, min_delta)` gives the values read and the position of the one kept."""

    def by_package(values: Sequence[float], patience: int, min_delta: float) -> tuple[int, int | None]:
        stopper, kept = EarlyStopping(patience, min_delta), None
        for position, value in enumerate(values):
            if stopper.update(value):
                kept = position
            if stopper.should_stop:
                return position + 1, kept
        return len(values), kept

    return compare(
        fn,
        reference=by_package,
        cases={
            "down and up": ([3.0, 2.0, 1.5, 1.6, 1.7, 1.8, 1.9], 3, 0.0),
            "nan in between": ([3.0, 2.0, NAN, NAN, 1.0, NAN, 1.5, 1.6, 1.7], 3, 0.0),
            "small steps down": ([2.0, 1.96, 1.92, 1.88, 1.84, 1.8, 1.76], 2, 0.1),
            "equal values": ([2.0, 2.0, 2.0, 1.0], 2, 0.0),
            "bad values that are not in a row": ([3.0, 3.1, 2.5, 2.7, 2.4, 2.6, 2.2], 2, 0.0),
            "nan from the first on": ([NAN, NAN, 2.0], 2, 0.0),
        },
        mistakes={
            "nan counts as an improvement, because it is not greater or equal": _stopper(
                improves=lambda value, best, delta: not value >= best - delta
            ),
            "nan costs no patience": _stopper(skip=math.isnan),
            "min_delta is forgotten": _stopper(improves=lambda value, best, delta: value < best),
            "an equal value counts as an improvement": _stopper(
                improves=lambda value, best, delta: value <= best - delta
            ),
            "the values that do not improve are counted over the whole run, not in a row": _stopper(reset=False),
            "each value is compared with the one before, not with the best": _stopper(compare_last=True),
            "one value more is read than patience allows": _stopper(extra=1),
        },
    )


def _stopper(
    improves: Callable[[float, float, float], bool] = lambda value, best, delta: value < best - delta,
    skip: Callable[[float], bool] = lambda value: False,
    reset: bool = True,
    compare_last: bool = False,
    extra: int = 0,
) -> Callable[[Sequence[float], int, float], tuple[int, int | None]]:
    """Early stopping with a part exchanged."""

    def stopping_point(values: Sequence[float], patience: int, min_delta: float) -> tuple[int, int | None]:
        best, kept, bad = math.inf, None, 0
        for position, value in enumerate(values):
            if skip(value):
                continue
            better = improves(value, best, min_delta)
            if better:
                kept, bad = position, 0 if reset else bad
            if better or compare_last:
                best = value
            bad += not better
            if bad >= patience + extra:
                return position + 1, kept
        return len(values), kept

    return stopping_point
