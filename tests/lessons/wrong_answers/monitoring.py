"""Answers to the exercises of lesson 10: wrong ones, each with the mistake that must be named, and right ones."""

import contextlib
import json
import math
from itertools import pairwise

import numpy as np
import torch

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("monitoring", "classroom.atlas")
SABOTAGE = (
    "monitoring/stopping.py",
    "improved = value < self.best - self.min_delta",
    "improved = not value >= self.best - self.min_delta",
)


def perplexity_with_equal_weights(records):
    return float(np.exp(np.nanmean([record["loss"] for record in records])))


def perplexity_by_running_totals(records):
    losses = np.array([record["loss"] for record in records])
    totals = np.where(np.isnan(losses), 0, [record["tokens"] for record in records])
    return float(np.exp((np.nan_to_num(losses) * totals).sum() / totals.sum()))


def mean_of_perplexities(records):
    total, before = 0.0, 0
    for record in records:
        if record["tokens"] > before:
            total += math.exp(record["loss"]) * (record["tokens"] - before)
        before = record["tokens"]
    return total / before


def perplexity_with_nan(records):
    new = np.diff([0, *(record["tokens"] for record in records)])
    return float(np.exp(np.dot(new, [record["loss"] for record in records]) / new.sum()))


def perplexity_at_the_end(records):
    return math.e ** records[-1]["loss"]


def loss_instead_of_perplexity(records):
    return math.log(perplexity_by_numpy(records))


def perplexity_by_numpy(records):
    new = np.diff([0, *(record["tokens"] for record in records)])
    losses = np.array([record["loss"] for record in records])
    return float(np.exp(np.average(losses[new > 0], weights=new[new > 0])))


def ratios(*, by="old", change="difference", power=1, vectors=False):
    """Update ratios with numpy, right unless told otherwise."""

    def update_ratios(before, after):
        result = {}
        for name in before:
            old, new = before[name].double().numpy(), after[name].double().numpy()
            if old.ndim < 2 and not vectors:
                continue
            moved = np.sqrt(np.sum((new - old) ** 2))
            if change == "norms":
                moved = np.sqrt(np.sum(new**2)) - np.sqrt(np.sum(old**2))
            base = {"old": np.sqrt(np.sum(old**2)), "new": np.sqrt(np.sum(new**2)), "one": 1.0}[by]
            result[name] = float((moved / base) ** power)
        return result

    return update_ratios


def ratios_by_element(before, after):
    return {name: (after[name] / before[name] - 1).abs().mean() for name in before if before[name].dim() > 1}


def ratios_of_the_largest(before, after):
    return {
        name: float(torch.amax((after[name] - before[name]).abs()) / torch.amax(before[name].abs()))
        for name in before
        if before[name].dim() > 1
    }


def ratios_as_tensors(before, after):
    matrices = [name for name in before if before[name].ndim > 1]
    return {name: torch.dist(after[name], before[name]) / torch.linalg.norm(before[name]) for name in matrices}


def records_without_the_last(text):
    lines = text.strip().split("\n") if text.strip() else []
    return [json.loads(line, object_hook=nulls_to_nan) for line in lines[:-1]]


def nulls_to_nan(record, instead=math.nan):
    for key in record:
        if record[key] is None:
            record[key] = instead
    return record


def complete_lines(text):
    """The lines that end; what follows the last line end is torn."""
    return text.split("\n")[:-1]


def records_with_none(text):
    return [json.loads(line) for line in complete_lines(text)]


def records_with_zeros(text):
    return [nulls_to_nan(json.loads(line), 0) for line in complete_lines(text)]


def records_without_nulls(text):
    records = map(json.loads, complete_lines(text))
    return [record for record in records if all(value is not None for value in record.values())]


def records_by_splitlines(text):
    records = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(nulls_to_nan(json.loads(line)))
    return records


def records_by_complete_lines(text):
    return [nulls_to_nan(json.loads(line)) for line in complete_lines(text)]


def stops(*, nan="bad", min_delta_used=True, equal=False, in_a_row=True, previous=False, late=0):
    """Early stopping over positions instead of a running state, right unless told otherwise."""

    def stopping_point(values, patience, min_delta):
        reference, kept, bad = None, None, []
        for position in range(len(values)):
            value = values[position]
            if math.isnan(value) and nan == "skipped":
                continue
            limit = math.inf if reference is None else reference - min_delta * min_delta_used
            if math.isnan(limit) or math.isnan(value):
                better = nan == "better"
            else:
                better = value <= limit if equal else value < limit
            if better:
                kept, bad = position, bad if not in_a_row else []
            else:
                bad.append(position)
            reference = value if better or previous else reference
            if len(bad) == patience + late:
                return position + 1, kept
        return len(values), kept

    return stopping_point


def stopping_point_with_numpy(values, patience, min_delta):
    best, kept = np.inf, None
    for position, value in enumerate(np.asarray(values)):
        if best - value > min_delta:
            best, kept = value, position
        if position - (-1 if kept is None else kept) >= patience:
            return [position + 1, kept]
    return [len(values), kept]


def perplexity_without_the_first(records):
    nats = tokens = 0
    for before, after in pairwise(records):
        new = after["tokens"] - before["tokens"]
        nats, tokens = nats + (after["loss"] * new if new else 0), tokens + new
    return math.exp(nats / tokens)


def perplexity_up_to_nan(records):
    nats = total = 0
    for record in records:
        if math.isnan(record["loss"]):
            break
        nats += record["loss"] * (record["tokens"] - total)
        total = record["tokens"]
    return math.exp(nats / total)


def perplexity_in_bits(records):
    return 2 ** loss_instead_of_perplexity(records)


def perplexity_as_a_tensor(records):
    totals = torch.tensor([0.0] + [record["tokens"] for record in records], dtype=torch.float64)
    losses = torch.tensor([record["loss"] for record in records], dtype=torch.float64).nan_to_num(0)
    return ((losses * totals.diff()).sum() / totals[-1]).exp()


def ratios_of_two_dimensions(before, after):
    return {
        name: float((after[name] - old).square().sum().sqrt() / old.square().sum().sqrt())
        for name, old in before.items()
        if len(old.shape) == 2
    }


def ratios_by_name(before, after):
    return {
        name: float((after[name] - old).norm() / old.norm()) for name, old in before.items() if name.endswith("weight")
    }


def ratios_as_numpy_numbers(before, after):
    return {
        name: np.linalg.norm((after[name] - before[name]).numpy().ravel())
        / np.linalg.norm(before[name].numpy().ravel())
        for name in reversed(before)
        if before[name].dim() > 1
    }


def records_with_replaced_text(text):
    return [json.loads(line.replace("null", "NaN")) for line in complete_lines(text)]


def records_with_zeros_lost(text):
    return [{key: value or float("nan") for key, value in json.loads(line).items()} for line in complete_lines(text)]


def records_with_the_loss_mended(text):
    records = [json.loads(line) for line in complete_lines(text)]
    for record in records:
        if "loss" in record and record["loss"] is None:
            record["loss"] = math.nan
    return records


def records_one_by_one(text):
    while "\n" in text:
        line, text = text.split("\n", 1)
        yield json.loads(line, object_hook=nulls_to_nan)


def stopping_point_turned(values, patience, min_delta):
    return stops()(values, patience, min_delta)[::-1]


def stopping_point_from_the_first(values, patience, min_delta):
    best, kept, bad = values[0], 0, 0
    for position in range(1, len(values)):
        if values[position] < best - min_delta:
            best, kept, bad = values[position], position, 0
        else:
            bad += 1
            if bad >= patience:
                return position + 1, kept
    return len(values), kept


def stopping_point_of_the_smallest(values, patience, min_delta):
    read, _ = stops()(values, patience, min_delta)
    there = [position for position in range(len(values)) if not math.isnan(values[position])]
    return read, min(there, key=values.__getitem__) if there else None


WRONG_ANSWERS = {
    "logged_perplexity": [
        (perplexity_with_equal_weights, "every record weighs the same, however many tokens it covers"),
        (perplexity_by_running_totals, "the running total is taken for the tokens of the record itself"),
        (mean_of_perplexities, "perplexities are averaged: the exponential comes before the mean"),
        (perplexity_without_the_first, "the first record is left out: only differences between records count"),
        (perplexity_up_to_nan, "the loop ends at the first record without tokens"),
        (perplexity_in_bits, "the power has base 2, but the losses are in nats"),
        (perplexity_with_nan, "the nan of a record without tokens spreads"),
        (perplexity_at_the_end, "only the last record is read"),
        (loss_instead_of_perplexity, "the exponential is missing"),
    ],
    "update_ratios": [
        (ratios(by="new"), "the change is divided by the new weights, not by the old ones"),
        (ratios(change="norms"), "norms are subtracted, not weights"),
        (ratios_by_element, "the ratio is taken element by element and then averaged"),
        (ratios(power=2), "the squares are not rooted"),
        (ratios(vectors=True), "vectors are measured too"),
        (ratios_of_two_dimensions, "only tensors of exactly two dimensions are measured"),
        (ratios_by_name, "names decide what is measured, not dimensions: all that ends in weight"),
        (ratios(by="one"), "the change is not divided by anything"),
        (ratios_of_the_largest, "the largest change is divided by the largest weight"),
    ],
    "read_records": [
        (records_without_the_last, "the last line is left out, whole or torn"),
        (records_with_none, "null stays None"),
        (records_with_zeros, "null becomes 0, a loss that was never measured"),
        (records_with_replaced_text, "the word null is replaced in the text, within notes too"),
        (records_with_zeros_lost, "0 becomes nan as well"),
        (records_with_the_loss_mended, "only the loss becomes nan where it is null, other entries stay None"),
        (records_without_nulls, "records with a null are left out"),
        (
            records_by_splitlines,
            "splitlines() cuts at every separator that Unicode knows, not only at the end of a line",
        ),
    ],
    "stopping_point": [
        (stops(nan="better"), "nan counts as an improvement, because it is not greater or equal"),
        (stops(nan="skipped"), "nan costs no patience"),
        (stops(min_delta_used=False), "min_delta is forgotten"),
        (stops(equal=True), "an equal value counts as an improvement"),
        (stops(in_a_row=False), "the values that do not improve are counted over the whole run, not in a row"),
        (stops(previous=True), "each value is compared with the one before, not with the best"),
        (stopping_point_turned, "the two numbers come in the other order"),
        (stopping_point_from_the_first, "the first value is the best one from the start, even nan"),
        (
            stopping_point_of_the_smallest,
            "the smallest value of the whole list is kept, even one that is not read",
        ),
        (stops(late=1), "one value more is read than patience allows"),
    ],
}

EQUIVALENT = {
    "logged_perplexity": [perplexity_by_numpy, perplexity_as_a_tensor],
    "update_ratios": [ratios(), ratios_as_tensors, ratios_as_numpy_numbers],
    "read_records": [records_by_complete_lines, records_one_by_one],
    "stopping_point": [stops(), stopping_point_with_numpy],
}
