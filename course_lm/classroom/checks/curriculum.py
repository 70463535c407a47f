"""Checks of lesson 13: a threshold that rises by its square, who is admitted, what words cost, and how many seeds."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev, stdev, variance
from typing import Any

from course_lm.classroom.checks.report import Report, compare
from course_lm.curriculum import linear, progress_at, root


def root_threshold(fn: Callable[..., object]) -> Report:
    """Root pacing with a warm-up: `fn(epoch, start, warmup_epochs, num_epochs)`, 1 at the end."""

    def paced(shape: Callable[[float, float], float]) -> Callable[..., float]:
        """`shape(progress, start)`, with the right progress."""
        return lambda epoch, start, warmup, total: shape(progress_at(epoch, warmup=warmup, total=total), start)

    def squares_by(progress: Callable[[int, int, int], float]) -> Callable[..., float]:
        """The right shape over another progress."""
        return lambda epoch, start, *epochs: math.sqrt(start**2 + progress(epoch, *epochs) * (1 - start**2))

    return compare(
        fn,
        reference=paced(lambda p, start: root(p, start=start, end=1.0)),
        cases={
            "from 0.2 in ten epochs, two of them warm-up": (0.2, 2, 10),
            "from 0.01, no warm-up": (0.01, 0, 5),
            "from 0.5, nearly all of it warm-up": (0.5, 3, 4),
        },
        mistakes={
            "the threshold rises on a straight line: the root is missing": paced(
                lambda p, start: linear(p, start=start, end=1.0)
            ),
            "the square rises as it should, but no root is taken of it": paced(lambda p, s: s**2 + p * (1 - s**2)),
            "the root is taken of progress alone: start + (1 − start) · sqrt(p)": paced(
                lambda p, start: start + (1 - start) * math.sqrt(p)
            ),
            "start is not squared under the root": paced(lambda p, start: math.sqrt(start + p * (1 - start))),
            "1 − start is squared, instead of start taken as a square from 1": paced(
                lambda p, start: math.sqrt(start**2 + p * (1 - start) ** 2)
            ),
            "the schedule is one epoch ahead": squares_by(
                lambda epoch, warmup, total: progress_at(epoch + 1, warmup=warmup, total=total)
            ),
            "there is no warm-up: the threshold rises from epoch 0 on": squares_by(
                lambda epoch, warmup, total: min(1.0, epoch / total)
            ),
            "the rise takes num_epochs after the warm-up, instead of what the warm-up leaves of them": squares_by(
                lambda epoch, warmup, total: min(1.0, max(0.0, (epoch - warmup) / total))
            ),
            "the threshold goes on above 1 after num_epochs": squares_by(
                lambda epoch, warmup, total: max(0.0, (epoch - warmup) / (total - warmup))
            ),
        },
        run=_at_every_epoch,
    )


def _at_every_epoch(fn: Callable[..., Any], start: float, warmup: int, total: int) -> list[float] | None:
    thresholds = [fn(epoch, start, warmup, total) for epoch in range(total + 3)]
    return None if thresholds[0] in (None, ...) else thresholds


def admitted(fn: Callable[..., object]) -> Report:
    """Positions of the admitted examples, in their order: `fn(difficulty, threshold, batch_size)`."""

    def up_to(scores: Sequence[float], threshold: float) -> int:
        return sum(score <= threshold for score in scores)

    def first_of(order: Sequence[int], count: int) -> list[int]:
        return sorted(order[:count])

    def right(scores: Sequence[float], threshold: float, size: int) -> list[int]:
        return first_of(_easiest(scores), max(size, up_to(scores, threshold)))

    def or_else(other: Callable[[Sequence[float], int], Sequence[int]]) -> Callable[..., list[int]]:
        """Right where a batch is admitted, else what `other(scores, size)` gives."""

        def answer(scores: Sequence[float], threshold: float, size: int) -> list[int]:
            enough = up_to(scores, threshold) >= size
            return right(scores, threshold, size) if enough else sorted(other(scores, size))

        return answer

    spread = [0.9, 0.1, 0.05, 0.3, 0.7, 0.2, 0.15, 1.0, 0.0, 0.25]
    ties = [0.5, 0.7, 0.5, 0.7, 0.5, 0.5, 0.7, 0.5, 0.7, 0.7]
    return compare(
        fn,
        reference=right,
        cases={
            "a threshold between two scores": (spread, 0.5, 2),
            "a score that is the threshold": (spread, 0.3, 2),
            "fewer below the threshold than a batch": (spread, 0.1, 4),
            "nothing below the threshold, and many equal scores": (ties, 0.1, 3),
            "fewer examples than a batch": ([0.6, 0.2, 0.9, 0.2, 0.5], 0.2, 8),
        },
        mistakes={
            "an example exactly at the threshold is left out": lambda scores, threshold, size: first_of(
                _easiest(scores), max(size, sum(score < threshold for score in scores))
            ),
            "nobody makes sure of a full batch": lambda scores, threshold, size: first_of(
                _easiest(scores), up_to(scores, threshold)
            ),
            "a batch that is not full is filled with the first examples, not with the easiest": or_else(
                lambda scores, size: range(min(size, len(scores)))
            ),
            "all that are as hard as the last one of a batch come in with it": or_else(
                lambda scores, size: [i for i, score in enumerate(scores) if score <= sorted(scores)[:size][-1]]
            ),
            "the threshold is not used: there are always batch_size examples": lambda scores, threshold, size: first_of(
                _easiest(scores), size
            ),
            "everything is admitted where the threshold admits less than a batch": or_else(
                lambda scores, size: range(len(scores))
            ),
            "of equally hard examples the last are taken, not the first": or_else(
                lambda scores, size: sorted(range(len(scores)), key=lambda i: (scores[i], -i))[:size]
            ),
            "positions come from easy to hard, not in the order of the text": lambda scores, threshold, size: _easiest(
                scores
            )[: max(size, up_to(scores, threshold))],
            "the threshold is taken as a share of the examples, not as a score": lambda scores, threshold, size: (
                first_of(_easiest(scores), max(size, round(threshold * len(scores))))
            ),
        },
    )


def _easiest(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=scores.__getitem__)


def word_cost(fn: Callable[..., object]) -> Report:
    """Mean −log p of words, one count added to each and to all unseen ones together: `fn(words, counts)`."""

    def mean_cost(extra: Callable[[Mapping[str, int]], int] = lambda counts: len(counts) + 1) -> Callable[..., float]:
        """The right mean where `extra(counts)` is what the added counts add to the total."""

        def cost(words: Sequence[str], counts: Mapping[str, int]) -> float:
            total = sum(counts.values()) + extra(counts)
            return fmean(math.log(total / (counts.get(word, 0) + 1)) for word in words)

        return cost

    def seen(words: Sequence[str], counts: Mapping[str, int]) -> list[str]:
        return [word for word in words if word in counts]

    right = mean_cost()
    counts = {"the": 50, "cat": 7, "sat": 3, "on": 12, "mat": 1}
    return compare(
        fn,
        reference=right,
        cases={
            "words that were seen": (["cat", "sat", "mat"], counts),
            "a word that stands there twice": (["the", "cat", "on", "the", "mat"], counts),
            "an unseen word": (["the", "ocelot", "sat"], counts),
            "a small reference": (["a", "b", "c", "a"], {"a": 1, "b": 2}),
        },
        mistakes={
            "the costs are added up, not averaged": lambda words, counts: right(words, counts) * len(words),
            "unseen words are left out of the mean": lambda words, counts: right(seen(words, counts), counts),
            "unseen words cost nothing": lambda words, counts: (
                right(seen(words, counts), counts) * len(seen(words, counts)) / len(words)
            ),
            "the added counts are missing in the total": mean_cost(lambda counts: 0),
            "the total has no count for the unseen words": mean_cost(len),
            "the total grows by one, not by one for each different word": mean_cost(lambda counts: 1),
            "each different word counts once": lambda words, counts: right(sorted(set(words)), counts),
            "words are counted in the sentence, not in the reference": lambda words, counts: right(
                words, Counter(words)
            ),
            "the logarithm has base 2: bits instead of nats": lambda words, counts: right(words, counts) / math.log(2),
            "the logarithm has base 10": lambda words, counts: right(words, counts) / math.log(10),
            "the sign is missing: this is mean log p": lambda words, counts: -right(words, counts),
            "the probabilities are averaged, and the logarithm is taken of their mean": lambda words, counts: (
                -math.log(fmean(math.exp(-right([word], counts)) for word in words))
            ),
        },
    )


def seeds_needed(fn: Callable[..., object]) -> Report:
    """Seeds for an interval of ± `half_width` % on a paired change: `fn(losses, baseline, half_width)`."""

    def from_changes(
        change: Callable[[float, float], float] = lambda loss, base: math.exp(loss - base) - 1,
        spread: Callable[[list[float]], float] = stdev,
        seeds: Callable[[float], float] = lambda ratio: math.ceil(ratio**2),
        unit: float = 100.0,
    ) -> Callable[..., float]:
        """The right answer, unless told otherwise; `seeds` takes 2 · spread / half_width."""

        def needed(losses: Sequence[float], baseline: Sequence[float], half_width: float) -> float:
            changes = [unit * change(loss, base) for loss, base in zip(losses, baseline, strict=True)]
            return seeds(2 * spread(changes) / half_width)

        return needed

    right = from_changes()
    return compare(
        fn,
        reference=right,
        cases={
            "eight seeds that go up and down together": (
                [2.11, 2.31, 2.02, 2.45, 2.27, 2.16, 2.38, 2.09],
                [2.14, 2.35, 2.04, 2.46, 2.33, 2.19, 2.40, 2.15],
                0.21,
            ),
            "three seeds, a worse arm": ([3.2, 3.5, 3.1], [3.0, 3.3, 3.05], 0.5),
            "two seeds, far apart": ([0.9, 1.6], [1.4, 1.5], 4.0),
        },
        mistakes={
            "each loss is held against the baseline's mean: nothing is paired": lambda losses, baseline, width: right(
                losses, [fmean(baseline)] * len(losses), width
            ),
            "the standard deviation divides by n, not by n − 1": from_changes(spread=pstdev),
            "the square is missing: the interval shrinks with √n, not with n": from_changes(seeds=math.ceil),
            "the spread is the standard error of these seeds, not the standard deviation": from_changes(
                spread=lambda changes: stdev(changes) / math.sqrt(len(changes))
            ),
            "the spread is the variance, not its root": from_changes(spread=variance),
            "the number is not rounded up to whole seeds": from_changes(seeds=lambda ratio: ratio**2),
            "the number is rounded down, and the interval is too wide": from_changes(
                seeds=lambda ratio: math.floor(ratio**2)
            ),
            "half_width is taken for the whole interval, both sides together": from_changes(
                seeds=lambda ratio: math.ceil((2 * ratio) ** 2)
            ),
            "the factor 2 is missing": from_changes(seeds=lambda ratio: math.ceil((ratio / 2) ** 2)),
            "the changes are fractions, and half_width is per cent": from_changes(unit=1.0),
            "arm and baseline are swapped": lambda losses, baseline, width: right(baseline, losses, width),
            "losses are subtracted, and perplexities never compared": from_changes(lambda loss, base: loss - base),
        },
    )
