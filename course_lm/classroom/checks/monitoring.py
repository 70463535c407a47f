"""Checks of lesson 10: perplexity from a log, update ratios, reading a torn log, and when to stop early."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare
from course_lm.loss import perplexity
from course_lm.monitoring import EarlyStopping

Records = Sequence[Mapping[str, Any]]
Weights = Mapping[str, Tensor]
NAN = math.nan


def logged_perplexity(fn: Callable[..., object]) -> Report:
    """Perplexity of a whole run from its training records, whose "tokens" is a running total: `fn(records)`."""
    new, added, moved = 'record["tokens"] - total', 'nats += record["loss"] * new', 'total = record["tokens"]'
    result = "math.exp(nats / total)"

    def mean(records: Records, weights: Iterable[float]) -> float:
        """The weighted mean of the losses that are there."""
        pairs = [(r["loss"], weight) for r, weight in zip(records, weights) if not math.isnan(r["loss"])]
        return sum(loss * weight for loss, weight in pairs) / sum(weight for _, weight in pairs)

    def of_losses(pick: Callable[[list[float]], float]) -> Callable[[Records], float]:
        return lambda records: math.exp(pick([r["loss"] for r in records if not math.isnan(r["loss"])]))

    return compare(
        fn,
        reference=lambda records: perplexity(mean(records, _new_tokens(records))),
        cases={
            "two records": ([{"loss": 3.0, "tokens": 100}, {"loss": 1.0, "tokens": 400}],),
            "records of unequal length": (_train_records([2.75, 3.0, 1.5, 1.75], [100, 900, 950, 1150]),),
            "no step was completed between two records": (
                # another object than math.nan, as a number that was computed or read is
                _train_records([4.0, float("nan"), 2.5, 3.0], [50, 50, 51, 420]),
            ),
        },
        shown=["two records"],
        mistakes={
            "every record weighs the same, however many tokens it covers": lambda records: perplexity(
                mean(records, [1.0] * len(records))
            ),
            "every record weighs the same, one without tokens as a loss of 0": lambda records: perplexity(
                mean(records, [1.0] * len(records)) * sum(r["loss"] == r["loss"] for r in records) / len(records)
            ),
            "every record weighs the same, and the nan spreads": lambda records: perplexity(
                sum(r["loss"] for r in records) / len(records)
            ),
            "the running total is taken for the tokens of the record itself": AnyOf(
                lambda records: perplexity(mean(records, (r["tokens"] for r in records))),
                lambda records: perplexity(
                    sum(r["loss"] * r["tokens"] for r in records) / sum(r["tokens"] for r in records)
                ),
                lambda records: perplexity(
                    sum(r["loss"] * r["tokens"] for r in records if r["loss"] == r["loss"])
                    / sum(r["tokens"] for r in records)
                ),
            ),
            "running totals weigh the losses, and the last total divides": Edit(
                new, 'record["tokens"] * (record["loss"] == record["loss"])'
            ),
            "the tokens of each record weigh its loss, but the sum of running totals divides": lambda records: (
                perplexity(_nats(records) / sum(r["tokens"] for r in records))
            ),
            "the number of steps weighs a record, not its tokens": lambda records: perplexity(
                mean(records, _differences([r.get("step", 10 * i) for i, r in enumerate(records, 1)]))
            ),
            "perplexities are averaged: the exponential comes before the mean": (
                Edit('record["loss"]', 'math.exp(record["loss"])'),
                Edit("math.exp(nats", "(nats"),
            ),
            "perplexities are averaged, every record weighing the same": lambda records: (
                sum(math.exp(r["loss"]) for r in records if r["loss"] == r["loss"])
                / sum(r["loss"] == r["loss"] for r in records)
            ),
            "the nan of a record without tokens spreads": Edit("if new > 0:", "if new >= 0:"),
            "the first record is left out: only differences between records count": (
                lambda records: perplexity(mean(records[1:], _new_tokens(records)[1:]))
            ),
            "the first record is left out above, but its tokens divide": lambda records: perplexity(
                (_nats(records) - (records[0]["loss"] * records[0]["tokens"] if records[0]["tokens"] else 0))
                / records[-1]["tokens"]
            ),
            "each loss is weighted by the tokens of the record after it": lambda records: perplexity(
                mean(records, _new_tokens(records)[1:])
            ),
            "each loss is weighted by the tokens of the record before it": lambda records: perplexity(
                mean(records[1:], _new_tokens(records))
            ),
            "the loop ends at the first record without tokens": Edit(
                f"        {moved}", f"        else:\n            break\n        {moved}"
            ),
            "only the last record is read": of_losses(lambda losses: losses[-1]),
            "only the first record is read": of_losses(lambda losses: losses[0]),
            "only the smallest loss is read": of_losses(min),
            "only the largest loss is read": of_losses(max),
            "the median of the losses is taken": of_losses(lambda losses: sorted(losses)[len(losses) // 2]),
            "the exponential is missing": Edit("math.exp", ""),
            "the sum of the nats is not divided": lambda records: _nats(records),
            "the mean is divided by the number of records, not of tokens": lambda records: _exp(
                _nats(records) / len(records)
            ),
            "the losses are added without weights and divided by the tokens": Edit(" * new", ""),
            "the losses are divided by the tokens of the last record alone": lambda records: _exp(
                _nats(records) / _new_tokens(records)[-1]
            ),
            "the power has base 2, but the losses are in nats": Edit("math.exp(", "2 ** ("),
            "the power has base 10, but the losses are in nats": Edit("math.exp(", "10 ** ("),
            "the sign is wrong: the exponential of minus the mean loss": Edit("math.exp(nats", "math.exp(-nats"),
        },
        hints={
            new: "The tokens of one record are its total less the total before it, 0 before the first.",
            added: "Each record weighs as much as it has tokens.",
            "if new > 0": "0 × nan is nan: leave out a record without tokens.",
            result: "One mean over all tokens; the exponential comes last.",
        },
    )


def _nats(records: Records) -> float:
    return sum(r["loss"] * new for r, new in zip(records, _new_tokens(records)) if new)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _train_records(losses: Sequence[float], totals: Sequence[int]) -> list[dict[str, Any]]:
    rows = enumerate(zip(losses, totals), 1)
    return [
        {"event": "train", "step": 5 * number * (number + 1), "loss": loss, "tokens": total}
        for number, (loss, total) in rows
    ]


def _differences(totals: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *totals], totals)]


def _new_tokens(records: Records) -> list[int]:
    return _differences([record["tokens"] for record in records])


def update_ratios(fn: Callable[..., object]) -> Report:
    """Norm of a step's update over the norm of the weights, for each matrix: `fn(before, after)`, dicts of tensors."""
    change, size, matrices = "(after[name] - part).norm()", "part.norm()", "part.ndim >= 2"
    ratio = f"{change} / {size}"

    def is_measured(condition: str) -> Edit:
        return Edit(matrices, condition)

    def norm_is(form: str) -> tuple[Edit, Edit]:
        """Another measure of both; `form` has a place for the tensor."""
        return Edit(change, form.format("(after[name] - part)")), Edit(f"/ {size}", f"/ {form.format('part')}")

    return compare(
        fn,
        reference=lambda before, after: {
            name: float(torch.dist(after[name], part) / part.norm()) for name, part in before.items() if part.ndim > 1
        },
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
        shown=["a matrix and a bias"],
        mistakes={
            "the change is divided by the new weights, not by the old ones": Edit(f"/ {size}", "/ after[name].norm()"),
            "tensors are paired by their place in the dicts, not by name": lambda before, after: {
                name: float((new - old).norm() / old.norm())
                for (name, old), new in zip(before.items(), after.values())
                if old.ndim > 1
            },
            "norms are subtracted, not weights": AnyOf(
                Edit(change, "(after[name].double().norm() - part.double().norm())"),
                Edit(change, "abs(after[name].double().norm() - part.double().norm())"),
            ),
            "the ratio is taken element by element and then averaged": Edit(
                ratio, "((after[name] - part) / part).abs().mean()"
            ),
            "the ratio is taken element by element, and its norm is returned": Edit(
                ratio, "((after[name] - part) / part).norm()"
            ),
            "the squares are not rooted": Edit(ratio, f"({ratio}) ** 2"),
            "the root is taken of the ratio": Edit(ratio, f"({ratio}) ** 0.5"),
            "vectors are measured too": AnyOf(is_measured("part.ndim >= 1"), is_measured("True")),
            "only vectors are measured": AnyOf(is_measured("part.ndim == 1"), is_measured("part.ndim < 2")),
            "only tensors of exactly two dimensions are measured": is_measured("part.ndim == 2"),
            "only tensors of more than two dimensions are measured": is_measured("part.ndim > 2"),
            "names decide what is measured, not dimensions: all that ends in weight": is_measured(
                'name.endswith("weight")'
            ),
            "names decide what is measured, not dimensions: all but biases": is_measured('"bias" not in name'),
            "the change is not divided by anything": Edit(f" / {size}", ""),
            "the change is divided by the number of weights": Edit(f"/ {size}", "/ part.numel()"),
            "the norm after is divided by the norm before": Edit(change, "after[name].norm()"),
            "the ratio is turned around: the weights by their change": Edit(ratio, f"{size} / {change}"),
            "the largest change is divided by the largest weight": norm_is("{}.abs().max()"),
            "absolute values are added or averaged for both, instead of squares": norm_is("{}.abs().sum()"),
            "plain means or sums are compared, in which changes cancel": norm_is("{}.sum()"),
            "the absolute mean change is divided by the absolute mean weight": norm_is("{}.sum().abs()"),
            "standard deviations are compared, not norms": norm_is("{}.std()"),
            "variances are compared, not norms": norm_is("{}.var()"),
            "spectral norms are compared: the largest singular values": norm_is("{}.flatten(1).double().svd().S[0]"),
            "the norms of the rows are added, for both": norm_is("{}.norm(dim=-1).sum()"),
            "a ratio is taken for each row, and they are averaged": Edit(
                ratio, "((after[name] - part).norm(dim=-1) / part.norm(dim=-1)).mean()"
            ),
            "a ratio is taken for each column, and they are averaged": Edit(
                ratio, "((after[name] - part).norm(dim=0) / part.norm(dim=0)).mean()"
            ),
            "the change is divided by the norm of all matrices together": Edit(
                f"/ {size}", "/ sum(one.square().sum() for one in matrices.values()).sqrt()"
            ),
            "the change is divided by the mean size of a weight": Edit(f"/ {size}", "/ part.abs().mean()"),
            "the mean size of a change is divided by the norm": Edit(change, "(after[name] - part).abs().mean()"),
            "the logarithm of the ratio is given": Edit(ratio, f"({ratio}).log10()"),
            "the ratio is given in percent": Edit(ratio, f"100 * {ratio}"),
            "one ratio for all matrices together is given": lambda before, after: (
                _joined(before, after).norm() / _joined(before).norm()
            ),
            "the ratios are averaged over the matrices": lambda before, after: _mean_ratio(before, after),
            "a list is given, without the names": lambda before, after: [
                float((after[name] - part).norm() / part.norm()) for name, part in before.items() if part.ndim > 1
            ],
        },
        hints={
            change: "Subtract first, then take the norm: a matrix can turn around without its norm changing much.",
            f"/ {size}": "The weights before the step are the measure.",
            matrices: "Two dimensions or more: biases and the weights of norms are vectors.",
        },
    )


def _by_name(fn: Callable[..., object], before: Weights, after: Weights) -> object:
    """What `fn` gives; a key that is no name is shown by its type."""
    found = fn(before, after)
    if not isinstance(found, Mapping):
        return found
    return {name if isinstance(name, str) else f"a {type(name).__name__}": one for name, one in found.items()}


def _joined(before: Weights, after: Weights | None = None) -> Tensor:
    """All matrices as one vector, or their changes."""
    parts = [(after[name] - part if after else part) for name, part in before.items() if part.ndim > 1]
    return torch.cat([part.flatten() for part in parts])


def _mean_ratio(before: Weights, after: Weights) -> float:
    ratios = [float((after[name] - part).norm() / part.norm()) for name, part in before.items() if part.ndim > 1]
    return sum(ratios) / len(ratios)


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


def read_records(fn: Callable[..., object]) -> Report:
    """The records of a log that may end in a torn line: `fn(text)`, JSON lines in which null stands for nan."""
    lines, load, value = 'text.split("\\n")[:-1]', "json.loads(line)", "math.nan if v is None else v"
    entry = "{k: math.nan if v is None else v for k, v in record.items()}"
    keep = f"        records.append({entry})"
    tried = f"        try:\n            record = {load}\n        except ValueError:\n            continue"

    def whole_lines(lines_read: str) -> tuple[Edit, Edit]:
        """Reads other lines, and leaves out those that are no records."""
        return Edit(lines, lines_read), Edit(f"        record = {load}", tried)

    whole = '{"step": 5, "loss": 3.5}\n{"step": 10, "loss": null, "norm": null}\n{"step": 15, "loss": 0.0}\n'
    return compare(
        fn,
        reference=_records,
        cases={
            "two whole lines, one null": ('{"step": 5, "loss": null}\n{"step": 10, "loss": 2.5}\n',),
            "the last line is torn": (whole + '{"step": 20, "lo',),
            "a note with an unusual line separator": ('{"step": 5, "note": "a: null\u2028b"}\n{"step": 10, "no',),
            "nothing but a torn line": ('{"ste',),
            "torn between the last brace and the line end": ('{"step": 5}\n{"step": 10}',),
            "an empty log": ("",),
        },
        shown=["two whole lines, one null", "an empty log"],
        mistakes={
            "the last line is left out, whole or torn": AnyOf(
                Edit(lines, '[line for line in text.split("\\n") if line][:-1]'),
                Edit(lines, "text.splitlines()[:-1]"),
            ),
            "null stays None": Edit(f"records.append({entry})", "records.append(record)"),
            "null becomes 0, a loss that was never measured": Edit(value, "0.0 if v is None else v"),
            "null becomes the text nan": Edit(value, "'nan' if v is None else v"),
            "null becomes infinity": Edit(value, "math.inf if v is None else v"),
            "0 becomes nan as well": Edit(value, "v or math.nan"),
            "entries that are null are left out of their record": Edit(
                entry, "{k: v for k, v in record.items() if v is not None}"
            ),
            "records with a null are left out": Edit(keep, f"        if None not in record.values():\n    {keep}"),
            "only the loss becomes nan where it is null, other entries stay None": Edit(
                value, "math.nan if v is None and k == 'loss' else v"
            ),
            "the word null is replaced in the text, within notes too": Edit(
                lines, "text.replace('null', 'NaN').split('\\n')[:-1]"
            ),
            "splitlines() cuts at every separator that Unicode knows, not only at the end of a line": whole_lines(
                "text.splitlines()"
            ),
            "splitlines() cuts at every separator that Unicode knows, so that a piece of a line is read": (
                Edit(lines, "(text.splitlines() if text.endswith('\\n') else text.splitlines()[:-1])")
            ),
            "a last line without its line end is kept where it can be read": whole_lines('text.split("\\n")'),
            "a torn line gives an empty record": lambda text: [
                *_records(text),
                *([{}] if text and not text.endswith("\n") else []),
            ],
            "an empty line gives an empty record": lambda text: [
                *_records(text),
                *([{}] if text.endswith("\n") or not text else []),
            ],
            "the first line is left out": Edit(lines, 'text.split("\\n")[1:-1]'),
            "only the last whole record is given": lambda text: _records(text)[-1:],
            "only the first record is given": lambda text: _records(text)[:1],
            "one record is given, not a list of them": lambda text: (_records(text) or [{}])[-1],
            "nothing is given where the last line is torn": lambda text: _records(text) if text.endswith("\n") else [],
            "the lines are given as text: `json.loads` is missing": lambda text: text.split("\n")[:-1],
            "the values are given without their names": lambda text: [list(one.values()) for one in _records(text)],
            "the records come in the opposite order": lambda text: _records(text)[::-1],
            "a column is given for each name, not a record for each line": lambda text: {
                key: [one[key] for one in _records(text) if key in one] for one in _records(text) for key in one
            },
        },
        hints={
            lines: 'A whole line ends with "\\n": what comes after the last one is torn, or empty.',
            value: "`math.nan if value is None else value`, for every entry of a record.",
        },
    )


def _records(text: str) -> list[dict[str, Any]]:
    whole = text[: text.rfind("\n") + 1]
    return [_with_nan(json.loads(line)) for line in whole.split("\n") if line]


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    return {key: NAN if value is None else value for key, value in record.items()}


def stopping_point(fn: Callable[..., object]) -> Report:
    """Early stopping: `fn(values, patience, min_delta)` gives the values read and the position of the one kept."""
    test, better = "value < best - min_delta", "best, kept, bad = value, position, 0"
    stop = "bad >= patience"
    leave = f"        if {stop}:\n            return position + 1, kept\n"
    loop = "    for position, value in enumerate(values):\n"

    def changed(how: Callable[[Sequence[float], int, Any], object]) -> Callable[..., object]:
        """The right pair, `how` it is given: from the values, the number read and the position kept."""
        return lambda values, patience, delta: how(values, *_stopped(values, patience, delta))

    return compare(
        fn,
        reference=_stopped,
        run=_for_each_patience,
        cases={
            "down and up": ([3.0, 2.0, 1.5, 1.75, 1.5, 1.625, 1.875, 1.0], [1, 2, 3, 4, 9], 0.0),
            "small steps down": (
                [2.0, 1.625, 1.5, 1.75, 1.625, 1.75, 1.0, 0.875, 0.5, 0.75, 0.625, 0.5],
                [1, 2, 3, 4, 5],
                0.25,
            ),
            "many small steps down": ([2.0, 1.875, 1.75, 1.625, 1.5, 1.75, 1.0], [2, 3, 4], 0.25),
            "nan in between": ([3.0, 3.5, NAN, 3.25, NAN, NAN, 1.0, NAN, 1.5, 1.625, 1.75], [1, 2, 3, 4], 0.0),
            "nan at first": ([NAN, NAN, 2.0, 3.0, 1.0, 4.0], [2, 3, 4], 0.0),
        },
        mistakes={
            "nan counts as an improvement, because it is not greater or equal": Edit(
                test, "not value >= best - min_delta"
            ),
            "nan costs no patience": Edit(loop, f"{loop}        if math.isnan(value):\n            continue\n"),
            "nan sets the count back to 0": Edit(
                "            bad += 1", "            bad = 0 if math.isnan(value) else bad + 1"
            ),
            "training stops at the first nan": Edit(stop, f"{stop} or math.isnan(value)"),
            "nan ends the list: what comes after it is not read": Edit(
                loop, f"{loop}        if math.isnan(value):\n            return position, kept\n"
            ),
            "min_delta is forgotten": Edit(test, "value < best"),
            "min_delta is added to the best value: slightly worse ones count as improvements": Edit(
                "best - min_delta", "best + min_delta"
            ),
            "min_delta is a share of the best value": Edit("best - min_delta", "best * (1 - min_delta)"),
            "an equal value counts as an improvement": Edit("value < best", "value <= best"),
            "every lower value becomes the best one, so that small steps never add up to min_delta": Edit(
                "            bad += 1", "            bad += 1\n            best = min(best, value)"
            ),
            "every lower value is kept, though only those lower by min_delta set the count back": Edit(
                "            bad += 1",
                "            bad += 1\n            if value < best:\n                best, kept = value, position",
            ),
            "every lower value sets the count back, though only those lower by min_delta are kept": Edit(
                "            bad += 1", "            bad = 0 if value < best else bad + 1"
            ),
            "the values that do not improve are counted over the whole run, not in a row": Edit(
                better, "best, kept = value, position"
            ),
            "each value is compared with the one before, not with the best": Edit(
                leave, f"        best = value\n{leave}"
            ),
            "the best value is never remembered: each is compared with the first": Edit(
                better, "best, kept, bad = min(best, values[0]), position, 0"
            ),
            "one value more is read than patience allows": Edit(stop, "bad > patience"),
            "training stops one value too early": Edit(stop, "bad >= patience - 1"),
            "the position of the last value is given instead of the number of values read": AnyOf(
                (Edit("return position + 1", "return position"), Edit("return len(values)", "return len(values) - 1")),
                Edit("return position + 1", "return position"),
            ),
            "the two numbers come in the other order": changed(lambda values, count, kept: (kept, count)),
            "the position of the last value read is given for the one kept": changed(
                lambda values, count, kept: (count, count - 1)
            ),
            "the position kept is counted from 1": changed(
                lambda values, count, kept: (count, None if kept is None else kept + 1)
            ),
            "the value itself is given, not its position": changed(
                lambda values, count, kept: (count, None if kept is None else values[kept])
            ),
            "the position is 0 where no value improved": Edit("math.inf, None, 0", "math.inf, 0, 0"),
            "the position is −1 where no value improved": Edit("math.inf, None, 0", "math.inf, -1, 0"),
            "the first value is the best one from the start, even nan": Edit(
                "best, kept, bad = math.inf, None, 0\n", "best, kept, bad = values[0], 0, -1\n"
            ),
            "the smallest value of the whole list is kept, even one that is not read": lambda values, patience, delta: (
                _stopped(values, patience, delta)[0],
                _position_of_smallest(values),
            ),
            "the smallest value that was read is kept, whatever min_delta says": lambda values, patience, delta: (
                _stopped(values, patience, delta)[0],
                _position_of_smallest(values[: _stopped(values, patience, delta)[0]]),
            ),
            "patience is not asked: all values are read": Edit(leave, ""),
            "the values after the one kept are not counted as read": changed(
                lambda values, count, kept: (count if kept is None else kept + 1, kept)
            ),
            "larger values count as improvements": (
                Edit("math.inf, None", "-math.inf, None"),
                Edit(test, "value > best + min_delta"),
            ),
            "the number of bad values is given instead of those read": Edit(
                "return position + 1, kept", "return bad, kept"
            ),
        },
        hints={
            test: "An improvement is lower than the best value by more than min_delta; nan is none.",
            better: "An improvement becomes the best value, is kept, and sets the count back to 0.",
            stop: "It stops as soon as `patience` values in a row have not improved.",
            "return position": "The number of values read is the position of the last one plus 1.",
        },
    )


def _stopped(values: Sequence[float], patience: int, min_delta: float) -> tuple[int, int | None]:
    stopper, kept = EarlyStopping(patience, min_delta), None
    for position, value in enumerate(values):
        if stopper.update(value):
            kept = position
        if stopper.should_stop:
            return position + 1, kept
    return len(values), kept


def _position_of_smallest(values: Sequence[float]) -> int | None:
    there = [position for position, value in enumerate(values) if value == value]
    return min(there, key=lambda position: values[position], default=None)


def _for_each_patience(
    fn: Callable[..., Any], values: Sequence[float], patiences: Sequence[int], min_delta: float
) -> list[Any]:
    return [fn(list(values), patience, min_delta) for patience in patiences]
