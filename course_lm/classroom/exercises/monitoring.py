"""Exercises of lesson 10: perplexity from a log, how often a healthy run leaves a band, and when to stop early."""

import math
from collections.abc import Sequence

from course_lm.classroom.checks import at_each, exercise


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


@exercise(
    cases={
        "the third run is low": ([[3.0, 2.0], [3.5, 2.5], [2.5, 1.0]],),
        "on the edge is not outside": ([[3.0, 2.0, 1.0], [3.0, 2.5, 1.5], [3.5, 2.5, 1.25]],),
        "far from the mean, inside the band": ([[1.0], [2.0], [3.0], [2.95]],),
        "two runs that are equal": ([[2.0, 2.0], [2.0, 2.0], [1.0, 3.0]],),
        "four runs that cross": (
            [[4.0, 3.0, 2.0, 1.0], [4.5, 3.5, 2.25, 0.5], [4.25, 2.5, 2.5, 1.5], [5.0, 3.25, 2.125, 1.25]],
        ),
    },
)
def outside_shares(runs):
    """For each run, the share of its points outside the band of all the others: `fn(runs)`, lists of one length."""
    shares = []
    for number, run in enumerate(runs):
        others = list(zip(*runs[:number], *runs[number + 1 :]))
        outside = [not min(rest) <= value <= max(rest) for value, rest in zip(run, others)]
        shares.append(sum(outside) / len(run))
    return shares


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
    run=at_each(1),
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
