"""Checks of lesson 13: a threshold that rises by its square, who is admitted, what words cost, and how many seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare
from course_lm.curriculum import progress_at, root


def root_threshold(fn: Callable[..., object]) -> Report:
    """Root pacing with a warm-up: `fn(epoch, start, warmup_epochs, num_epochs)`, 1 at the end."""
    passed, rise = "(epoch - warmup_epochs) / (num_epochs - warmup_epochs)", "(num_epochs - warmup_epochs)"
    held, curve = "min(1.0, max(0.0, progress))", "math.sqrt(start**2 + progress * (1 - start**2))"

    def right(epoch: int, start: float, warmup: int, total: int) -> float:
        return root(progress_at(epoch, warmup=warmup, total=total), start=start, end=1.0)

    return compare(
        fn,
        reference=right,
        cases={
            "from 0.5, a short rise": (0.5, 3, 5),
            "from 0.2 in ten epochs, two of them warm-up": (0.2, 2, 10),
            "from 0.01, no warm-up": (0.01, 0, 5),
        },
        shown=["from 0.5, a short rise", "from 0.2 in ten epochs, two of them warm-up", "from 0.01, no warm-up"],
        mistakes={
            "the threshold rises on a straight line: the root is missing": Edit(
                curve, "start + progress * (1 - start)"
            ),
            "the square rises as it should, but no root is taken of it": Edit("math.sqrt", ""),
            "the root is taken of progress alone: start + (1 − start) · sqrt(p)": Edit(
                curve, "start + (1 - start) * math.sqrt(progress)"
            ),
            "start is not squared under the root": Edit(curve, "math.sqrt(start + progress * (1 - start))"),
            "start is squared where it is added, but not where it is subtracted from 1": Edit(
                "(1 - start**2)", "(1 - start)"
            ),
            "start is squared where it is subtracted from 1, but not where it is added": Edit(
                "start**2 + progress", "start + progress"
            ),
            "1 − start is squared, instead of start taken as a square from 1": Edit(
                "(1 - start**2)", "(1 - start) ** 2"
            ),
            "progress is not multiplied by 1 − start², and the result not held at 1": Edit(" * (1 - start**2)", ""),
            "start is left out: sqrt(p), from 0 to 1": Edit(curve, "math.sqrt(progress)"),
            "the larger of start and sqrt(p) is taken": Edit(curve, "max(start, math.sqrt(progress))"),
            "the larger of start and p is taken": Edit(curve, "max(start, progress)"),
            "sqrt(p) is added to start, and the sum held at 1": Edit(curve, "min(1.0, start + math.sqrt(progress))"),
            "the straight line is squared": Edit(curve, "(start + progress * (1 - start)) ** 2"),
            "the root stands upside down, slow at first: 1 − (1 − start) · sqrt(1 − p)": Edit(
                curve, "1 - (1 - start) * math.sqrt(1 - progress)"
            ),
            "the square stands for the root: start + (1 − start) · p²": Edit(
                curve, "start + (1 - start) * progress**2"
            ),
            "the root is cubic": Edit(
                "math.sqrt(start**2 + progress * (1 - start**2))", "(start**3 + progress * (1 - start**3)) ** (1 / 3)"
            ),
            "the threshold rises by the same factor each epoch: start^(1 − p)": Edit(curve, "start ** (1 - progress)"),
            "a cosine rises from start to 1": Edit(
                curve, "start + (1 - start) * 0.5 * (1 - math.cos(math.pi * progress))"
            ),
            "the schedule is one epoch ahead": Edit("(epoch - warmup", "(epoch + 1 - warmup"),
            "the schedule is one epoch late": Edit("(epoch - warmup", "(epoch - 1 - warmup"),
            "the rise ends one epoch early, at num_epochs − 1": Edit(rise, "(num_epochs - 1 - warmup_epochs)"),
            "there is no warm-up: the threshold rises from epoch 0 on": Edit(passed, "epoch / num_epochs"),
            "start holds through the warm-up, but the progress counts from epoch 0: then it jumps": AnyOf(
                Edit(passed, "epoch / num_epochs if epoch > warmup_epochs else 0.0"),
                Edit(passed, "epoch / num_epochs if epoch >= warmup_epochs else 0.0"),
            ),
            "the rise takes num_epochs after the warm-up, instead of what the warm-up leaves of them": Edit(
                rise, "num_epochs"
            ),
            "the warm-up is subtracted below and not above": Edit("(epoch - warmup_epochs)", "epoch"),
            "the threshold goes on above 1 after num_epochs": Edit(held, "max(0.0, progress)"),
            "the threshold falls below start during the warm-up: its progress is negative": Edit(
                held, "min(1.0, progress)"
            ),
            "progress is not held between 0 and 1": Edit(held, "progress"),
            "the threshold is 0 during the warm-up, not start": Edit(
                "    return", "    if epoch < warmup_epochs:\n        return 0.0\n    return"
            ),
            "the threshold is 1 during the warm-up, not start": Edit(
                "    return", "    if epoch < warmup_epochs:\n        return 1.0\n    return"
            ),
            "the threshold stays at start, and is 1 from num_epochs on: it does not rise between": Edit(
                held, "float(progress >= 1)"
            ),
            "the threshold is start again after num_epochs": Edit(held, "max(0.0, progress) if progress < 1 else 0.0"),
        },
        run=_at_every_epoch,
        hints={
            "progress = (epoch": "Progress is 0 at `warmup_epochs` and 1 at `num_epochs`.",
            "progress = min": "Hold the progress between 0 and 1.",
            "return math": "The square runs from start² to 1 on a straight line; the root of it comes last.",
        },
    )


def _at_every_epoch(fn: Callable[..., Any], start: float, warmup: int, total: int) -> list[Any]:
    return [fn(epoch, start, warmup, total) for epoch in range(total + 3)]


def admitted(fn: Callable[..., object]) -> Report:
    """Positions of the admitted examples, in their order: `fn(difficulty, threshold, batch_size)`."""
    easiest, number = "key=difficulty.__getitem__", "sum(score <= threshold for score in difficulty)"
    most, result = "max(number, batch_size)", "return sorted(easiest[: max(number, batch_size)])"

    def right(scores: Sequence[float], threshold: float, size: int) -> list[int]:
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return sorted(order[: max(size, sum(score <= threshold for score in scores))])

    def or_else(other: Callable[[Sequence[float], int], Iterable[int]]) -> Callable[..., list[int]]:
        """Right where a batch is admitted, else what `other(scores, size)` gives."""

        def answer(scores: Sequence[float], threshold: float, size: int) -> list[int]:
            enough = sum(score <= threshold for score in scores) >= size
            return right(scores, threshold, size) if enough else list(other(scores, size))

        return answer

    def below(scores: Sequence[float], threshold: float) -> list[int]:
        return [i for i, score in enumerate(scores) if score <= threshold]

    def filled_up(scores: Sequence[float], threshold: float, size: int) -> list[int]:
        found = below(scores, threshold)
        rest = [i for i in sorted(range(len(scores)), key=scores.__getitem__) if i not in found]
        return found + rest[: max(0, size - len(found))]

    def filled_from_the_front(scores: Sequence[float], threshold: float, size: int) -> list[int]:
        found = below(scores, threshold)
        rest = [i for i in range(len(scores)) if i not in found]
        return sorted(found + rest[: max(0, size - len(found))])

    spread = [0.9, 0.1, 0.05, 0.3, 0.7, 0.2, 0.15, 1.0, 0.0, 0.25]
    ties = [0.5, 0.7, 0.5, 0.7, 0.5, 0.5, 0.7, 0.5, 0.7, 0.2]
    return compare(
        fn,
        reference=right,
        cases={
            "a short text": ([0.7, 0.2, 0.9, 0.4], (0.5, 0.4, 0.1, 0.9), 2),
            "ten scores, in batches of two": (spread, (0.5, 0.3, 0.27, 0.1), 2),
            "ten scores, in batches of four": (spread, (0.1, 0.0, 0.15, 0.6), 4),
            "many equal scores": (ties, (0.1, 0.5, 0.6), 3),
            "scores that are whole numbers": ([12, 3, 30, 8, 8, 21], (8, 20, 2), 3),
            "fewer examples than a batch": ([0.6, 0.2, 0.9, 0.2, 0.5], (0.2, 0.95), 8),
        },
        shown=["a short text", "ten scores, in batches of two"],
        mistakes={
            "an example exactly at the threshold is left out": Edit("<= threshold", "< threshold"),
            "nobody makes sure of a full batch": Edit(most, "number"),
            "a batch that is not full is filled with the first examples, not with the easiest": or_else(
                lambda scores, size: range(min(size, len(scores)))
            ),
            "those below the threshold stay, and the first of the others fill the batch, not the easiest": (
                filled_from_the_front
            ),
            "all that are as hard as the last one of a batch come in with it": or_else(
                lambda scores, size: [i for i, score in enumerate(scores) if score <= sorted(scores)[:size][-1]]
            ),
            "of those up to the hardest score of a batch the first in the text are taken, not the easiest": or_else(
                lambda scores, size: [i for i, score in enumerate(scores) if score <= sorted(scores)[:size][-1]][:size]
            ),
            "of those below the threshold only the first batch_size in the text are taken": (
                lambda scores, threshold, size: (
                    below(scores, threshold)[:size]
                    if len(below(scores, threshold)) >= size
                    else right(scores, threshold, size)
                )
            ),
            "examples above the threshold are admitted, and the easiest where they are too few": (
                lambda scores, threshold, size: (
                    [i for i, score in enumerate(scores) if score >= threshold]
                    if sum(score >= threshold for score in scores) >= size
                    else right(scores, -math.inf, size)
                )
            ),
            "the threshold is not used: there are always batch_size examples": Edit(most, "batch_size"),
            "there are never more than batch_size examples": Edit("max(", "min("),
            "everything is admitted where the threshold admits less than a batch": Edit(
                most, "(number if number >= batch_size else len(difficulty))"
            ),
            "nothing is admitted where the threshold admits less than a batch": Edit(
                most, "(number if number >= batch_size else 0)"
            ),
            "nothing is admitted where the text has fewer examples than a batch": Edit(
                most, "(max(number, batch_size) if len(difficulty) >= batch_size else 0)"
            ),
            "batch_size is not looked at where the text has fewer examples than a batch": Edit(
                most, "(max(number, batch_size) if len(difficulty) >= batch_size else number)"
            ),
            "of equally hard examples the last are taken, not the first": Edit(
                easiest, "key=lambda i: (difficulty[i], -i)"
            ),
            "positions come from easy to hard, not in the order of the text": Edit(
                result, "return easiest[: max(number, batch_size)]"
            ),
            "the positions that fill a batch come from easy to hard, not in the order of the text": or_else(
                lambda scores, size: sorted(range(len(scores)), key=scores.__getitem__)[:size]
            ),
            "the examples that fill a batch stand at the end, not in the order of the text": filled_up,
            "the threshold is taken as a share of the examples, not as a score": Edit(
                number, "round(threshold * len(difficulty))"
            ),
            "the threshold is taken as a share of the highest score": Edit(
                "<= threshold", "<= threshold * max(difficulty)"
            ),
            "the hardest examples are admitted, not the easiest": Edit(easiest, f"{easiest}, reverse=True"),
            "examples above the threshold are admitted, as if a high score were easy": (
                Edit(easiest, f"{easiest}, reverse=True"),
                Edit("<= threshold", ">= threshold"),
            ),
            "a batch that is not full is filled with the hardest": or_else(
                lambda scores, size: sorted(sorted(range(len(scores)), key=scores.__getitem__)[::-1][:size])
            ),
            "scores are given, not positions": Edit(
                result, f"return [difficulty[i] for i in sorted(easiest[: {most}])]"
            ),
            "scores are given from low to high, not positions": Edit(result, f"return sorted(difficulty)[: {most}]"),
            "the position of a score is looked up, which gives equal scores the first one's": Edit(
                result, f"return sorted(difficulty.index(score) for score in sorted(difficulty)[: {most}])"
            ),
            "the position of a score is looked up, and each position given once": Edit(
                result, f"return sorted({{difficulty.index(score) for score in sorted(difficulty)[: {most}]}})"
            ),
            "the positions are counted from 1": Edit(result, f"return [i + 1 for i in sorted(easiest[: {most}])]"),
            "a batch is added to those below the threshold": Edit(most, "number + batch_size"),
            "the number is rounded up to full batches": Edit(
                most, "max(batch_size, -(-number // batch_size) * batch_size)"
            ),
            "the number is rounded down to full batches": Edit(
                most, "max(batch_size, number // batch_size * batch_size)"
            ),
            "the order in the text is asked before the threshold: the first examples are admitted": Edit(
                result, f"return list(range(len(difficulty)))[: {most}]"
            ),
        },
        run=_for_each_threshold,
        hints={
            "easiest = sorted": "Positions sorted by their score; equal scores keep the order of the text.",
            "number = sum": "A score that is the threshold is admitted as well.",
            "return sorted": "Never fewer than `batch_size` of the easiest; cut first, then sort by position.",
        },
    )


def _for_each_threshold(
    fn: Callable[..., object], scores: Sequence[float], thresholds: Iterable[float], size: int
) -> Any:
    return [fn(scores, threshold, size) for threshold in thresholds]


def word_cost(fn: Callable[..., object]) -> Report:
    """Mean −log p of words, one count added to each and to all unseen ones together: `fn(words, counts)`."""
    raised = "counts.get(word, 0) + 1"
    cost, mean = "-math.log((counts.get(word, 0) + 1) / total)", "fmean("

    def right(words: Sequence[str], counts: Mapping[str, int]) -> float:
        whole = sum(counts.values()) + len(counts) + 1
        return fmean(math.log(whole / (counts.get(word, 0) + 1)) for word in words)

    def of_each_kind(words: Sequence[str], counts: Mapping[str, int]) -> float:
        whole = sum(counts.values()) + len(counts) + 1
        kinds = sorted({word if word in counts else "" for word in words})
        return fmean(math.log(whole / (counts.get(word, 0) + 1)) for word in kinds)

    def weighted(words: Sequence[str], counts: Mapping[str, int]) -> float:
        weights = [counts.get(word, 0) + 1 for word in words]
        return sum(right([word], counts) * weight for word, weight in zip(words, weights)) / sum(weights)

    counts = {"the": 50, "cat": 7, "sat": 3, "on": 12, "mat": 1}
    return compare(
        fn,
        reference=right,
        cases={
            "a small reference": (["a", "b", "c", "a"], {"a": 1, "b": 2}),
            "a capital, and a long sentence": (["The", *["cat"] * 2000], {"The": 1, "the": 9, "cat": 20}),
            "words that were seen": (["cat", "sat", "mat"], counts),
            "a word that stands there twice": (["the", "cat", "on", "the", "mat"], counts),
            "two unseen words": (["the", "ocelot", "sat", "quietly", "on", "ocelot"], counts),
        },
        shown=[
            "a capital, and a long sentence",
            "a small reference",
            "words that were seen",
            "a word that stands there twice",
        ],
        mistakes={
            "the costs are added up, not averaged": Edit(mean, "sum("),
            "unseen words are left out of the mean": Edit("in words)", "in words if word in counts)"),
            "unseen words cost nothing": Edit(cost, f"({cost} if word in counts else 0)"),
            "the added counts are missing in the total": Edit(" + len(counts) + 1", ""),
            "the total has no count for the unseen words": Edit("len(counts) + 1", "len(counts)"),
            "the total grows by one, not by one for each different word": Edit(" + len(counts)", ""),
            "the total grows by two for the unseen words": Edit("len(counts) + 1", "len(counts) + 2"),
            "the total grows by one for each unseen word of the sentence": Edit(
                "len(counts) + 1", "len(counts) + sum(word not in counts for word in words)"
            ),
            "the total grows by one for each different unseen word of the sentence": Edit(
                "len(counts) + 1", "len(counts) + len(set(words) - set(counts))"
            ),
            "the total grows by one for each word of the sentence": Edit("len(counts) + 1", "len(words)"),
            "the total grows by one for each different word of the sentence": Edit(
                "len(counts) + 1", "len(set(words))"
            ),
            "the total grows by two for each different word": Edit("len(counts)", "2 * len(counts)"),
            "the total is the number of different words, without their counts": Edit("sum(counts.values()) + ", ""),
            "seen words get no count added: only unseen ones count as 1": Edit(raised, "counts.get(word, 1)"),
            "seen words get no count added, nor does the total for them": (
                Edit(raised, "counts.get(word, 1)"),
                Edit(" + len(counts)", ""),
            ),
            "unseen words get two counts": Edit("counts.get(word, 0)", "counts.get(word, 1)"),
            "nothing is added to the counts, nor to the total: unseen words are left out": lambda words, counts: fmean(
                math.log(sum(counts.values()) / counts[word]) for word in words if word in counts
            ),
            "each different word counts once": Edit("in words)", "in set(words))"),
            "all unseen words together, and each different word, count once": of_each_kind,
            "words are counted in the sentence, not in the reference": (
                Edit("    total = ", "    counts = {word: words.count(word) for word in words}\n    total = ")
            ),
            "the costs are divided by the number of different words": Edit(
                "return fmean(" + cost + " for word in words)",
                f"return sum({cost} for word in words) / len(set(words))",
            ),
            "each different word is added once, but the sum divided by all words": Edit(
                "return fmean(" + cost + " for word in words)",
                f"return sum({cost} for word in set(words)) / len(words)",
            ),
            "the costs are divided by the number of words in the reference": Edit(
                "return fmean(" + cost + " for word in words)", f"return sum({cost} for word in words) / len(counts)"
            ),
            "the costs are divided by the number of seen words": Edit(
                "return fmean(" + cost + " for word in words)",
                f"return sum({cost} for word in words) / sum(word in counts for word in words)",
            ),
            "the costs are weighted by the counts": weighted,
            "the median of the costs is taken": lambda words, counts: sorted(right([word], counts) for word in words)[
                len(words) // 2
            ],
            "the highest cost is taken": Edit(mean, "max("),
            "the logarithm has base 2: bits instead of nats": Edit("math.log(", "math.log2("),
            "the logarithm has base 10": Edit("math.log(", "math.log10("),
            "1 is added under the logarithm: log(1 + p)": Edit("math.log(", "math.log1p("),
            "the sign is missing: this is mean log p": Edit("-math", "math"),
            "the logarithm is missing: this is the mean probability": Edit("-math.log", ""),
            "the probabilities are averaged, and the logarithm is taken of their mean": Edit(
                "fmean(-math.log((counts.get(word, 0) + 1) / total) for word in words)",
                "-math.log(fmean((counts.get(word, 0) + 1) / total for word in words))",
            ),
            "the exponential is taken: this is the perplexity": Edit(
                "fmean(-math.log((counts.get(word, 0) + 1) / total) for word in words)",
                "math.exp(fmean(-math.log((counts.get(word, 0) + 1) / total) for word in words))",
            ),
        },
        hints={
            "total = ": "The total is all counts, one more for each word of the reference, one for the unseen.",
            "return fmean": "The cost of a word is −log of (its count + 1) / total; an unseen word has the count 0.",
        },
    )


def seeds_needed(fn: Callable[..., object]) -> Report:
    """Seeds for an interval of ± `half_width` % on a paired change: `fn(losses, baseline, half_width)`."""
    change, spread = "(math.exp(a - b) - 1)", "stdev(changes)"
    seeds = "math.ceil((2 * stdev(changes) / half_width) ** 2)"

    def right(losses: Sequence[float], baseline: Sequence[float], width: float) -> int:
        return math.ceil((2 * stdev(_changes(losses, baseline)) / width) ** 2)

    def of_mean(losses: Sequence[float], baseline: Sequence[float], width: float) -> int:
        return right(losses, [fmean(baseline)] * len(losses), width)

    def of_perplexities(losses: Sequence[float], baseline: Sequence[float], width: float) -> int:
        base = fmean(map(math.exp, baseline))
        return math.ceil((2 * stdev(100 * (math.exp(loss) / base - 1) for loss in losses) / width) ** 2)

    def unpaired(losses: Sequence[float], baseline: Sequence[float], width: float) -> int:
        one, other = ([100 * math.exp(loss - fmean(baseline)) for loss in arm] for arm in (losses, baseline))
        return math.ceil(4 * (stdev(one) ** 2 + stdev(other) ** 2) / width**2)

    def in_half_steps(round_by: Callable[[float], float]) -> Callable[..., float]:
        return lambda losses, baseline, width: round_by((2 * stdev(_changes(losses, baseline)) / width) ** 2)

    return compare(
        fn,
        reference=right,
        cases={
            "two seeds, far apart": ([0.9, 1.6], [1.4, 1.5], (4.0, 8.5, 0.4)),
            "three seeds, a worse arm": ([3.2, 3.5, 3.1], [3.0, 3.3, 3.05], (0.5, 1.5, 3.7)),
            "eight seeds that go up and down together": (
                [2.11, 2.31, 2.02, 2.45, 2.27, 2.16, 2.38, 2.09],
                [2.14, 2.35, 2.04, 2.46, 2.33, 2.19, 2.40, 2.15],
                (0.21, 0.4, 1.5),
            ),
        },
        shown=["two seeds, far apart", "three seeds, a worse arm", "eight seeds that go up and down together"],
        mistakes={
            "each loss is held against the baseline's mean: nothing is paired": of_mean,
            "each perplexity is held against the baseline's mean one: nothing is paired": of_perplexities,
            "the spreads of arm and baseline are added: nothing is paired": unpaired,
            "the standard deviation divides by n, not by n − 1": Edit(
                spread, "__import__('statistics').pstdev(changes)"
            ),
            "the square is missing: the interval shrinks with √n, not with n": Edit(" ** 2", ""),
            "the spread is the standard error of these seeds, not the standard deviation": Edit(
                spread, "stdev(changes) / math.sqrt(len(changes))"
            ),
            "the spread is the variance, not its root": Edit(spread, "stdev(changes) ** 2"),
            "the number is not rounded up to whole seeds": Edit("math.ceil", ""),
            "the number is rounded down, and the interval is too wide": Edit("math.ceil", "math.floor"),
            "the number is rounded to the nearest, and the interval may be too wide": in_half_steps(round),
            "the root of the number is rounded up, before it is squared": Edit(
                seeds, "math.ceil(2 * stdev(changes) / half_width) ** 2"
            ),
            "half_width is taken for the whole interval, both sides together": Edit(
                "/ half_width", "/ (half_width / 2)"
            ),
            "the factor 2 is missing": Edit("2 * stdev", "stdev"),
            "the factor for t is 1.96, not 2": Edit("(2 *", "(1.96 *"),
            "the factor for t is 2.571, that of six seeds, not 2": Edit("(2 *", "(2.571 *"),
            "the factor 2 is not squared: it stands before the square": Edit(
                "(2 * stdev(changes) / half_width) ** 2", "2 * (stdev(changes) / half_width) ** 2"
            ),
            "the changes are fractions, and half_width is per cent": Edit("100 * ", ""),
            "arm and baseline are swapped": Edit("a - b", "b - a"),
            "losses are subtracted, and perplexities never compared": Edit(change, "(a - b)"),
            "losses are divided, and perplexities never compared": Edit(change, "(a / b - 1)"),
            "perplexities are subtracted, not divided: this is no share of the baseline": Edit(
                change, "(math.exp(a) - math.exp(b))"
            ),
            "the power has base 2, but the losses are in nats": Edit("math.exp(a - b)", "2 ** (a - b)"),
            "the spread of the arm's losses is taken, without the baseline": Edit(change, "a"),
            "the spread of the arm's perplexities is taken, without the baseline": Edit(change, "math.exp(a)"),
            "the mean change stands for the spread": Edit(spread, "abs(sum(changes) / len(changes))"),
            "the range of the changes stands for their standard deviation": Edit(
                spread, "(max(changes) - min(changes))"
            ),
            "the spread is not divided by half_width, but multiplied": Edit("/ half_width", "* half_width"),
            "half_width is divided by the spread, upside down": Edit(
                "2 * stdev(changes) / half_width", "half_width / (2 * stdev(changes))"
            ),
            "the number is multiplied by the seeds that there are": Edit(seeds, f"{seeds} * len(changes)"),
            "the seeds that there are already are subtracted": Edit(seeds, f"{seeds} - len(changes)"),
            "there are never fewer seeds than those that there are already": Edit(seeds, f"max(len(changes), {seeds})"),
            "one seed more than needed is given": Edit(seeds, f"{seeds} + 1"),
            "the root of the number is taken": Edit(" ** 2", " ** 0.5"),
        },
        run=_for_each_width,
        hints={
            "changes = ": "One change for each seed: the ratio of the two perplexities, less 1, in per cent.",
            "return math.ceil": "2 · s / √n ≤ half_width, solved for n: the square of 2 · s / half_width, rounded up.",
        },
    )


def _changes(losses: Sequence[float], baseline: Sequence[float]) -> list[float]:
    return [100 * math.expm1(loss - base) for loss, base in zip(losses, baseline, strict=True)]


def _for_each_width(
    fn: Callable[..., object], losses: Sequence[float], baseline: Sequence[float], widths: Iterable[float]
) -> list[object]:
    return [fn(losses, baseline, width) for width in widths]
