"""Answers to the exercises of lesson 13: wrong ones, each with the mistake that must be named, and right ones."""

import heapq
import math
import statistics
from fractions import Fraction

import numpy as np
import torch

from course_lm.curriculum import CurriculumConfig, build_pacing

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("curriculum",)
SABOTAGE = (
    "curriculum/pacing.py",
    "(1 - progress) * start**2 + progress",
    "(1 - progress) * start + progress",
)


def threshold(*, power=2, warm=True, hold=True, length=lambda warmup, total: total - warmup, rooted=True):
    """Root pacing, right unless told otherwise."""

    def root_threshold(epoch, start, warmup_epochs, num_epochs):
        if not warm:
            warmup_epochs = 0
        if epoch <= warmup_epochs:
            return start if rooted else start**power
        progress = (epoch - warmup_epochs) / length(warmup_epochs, num_epochs)
        if hold and progress > 1:
            progress = 1
        raised = (1 - progress) * start**power + progress
        return raised ** (1 / power) if rooted else raised

    return root_threshold


def root_of_progress(epoch, start, warmup_epochs, num_epochs):
    progress = np.clip((epoch - warmup_epochs) / (num_epochs - warmup_epochs), 0, 1)
    return float(start + np.sqrt(progress) * (1 - start))


def unsquared_start(epoch, start, warmup_epochs, num_epochs):
    progress = np.interp(epoch, [warmup_epochs, num_epochs], [0, 1])
    return float(np.interp(progress, [0, 1], [start, 1]) ** 0.5)


def threshold_of_the_package(epoch, start, warmup_epochs, num_epochs):
    config = CurriculumConfig(
        schedule="root", start_threshold=start, warmup_epochs=warmup_epochs, num_epochs=num_epochs
    )
    return build_pacing(config)(epoch)


def threshold_by_interpolation(epoch, start, warmup_epochs, num_epochs):
    return math.sqrt(np.interp(epoch, [warmup_epochs, num_epochs], [start * start, 1]))


def choose(*, strict=False, fill=heapq.nsmallest, in_order=True):
    """Positions below the threshold, filled up to a batch by `fill(size, pairs)`; right unless told otherwise."""

    def admitted(difficulty, threshold, batch_size):
        pairs = [(score, position) for position, score in enumerate(difficulty)]
        chosen = [pair for pair in pairs if (pair[0] < threshold if strict else pair[0] <= threshold)]
        if len(chosen) < batch_size:
            chosen = fill(batch_size, pairs) or chosen
        if not in_order:
            chosen = sorted(chosen)
        else:
            chosen = sorted(chosen, key=lambda pair: pair[1])
        return [position for _, position in chosen]

    return admitted


def last_of_equals(size, pairs):
    flipped = heapq.nsmallest(size, [(score, -position) for score, position in pairs])
    return [(score, -position) for score, position in flipped]


def no_filling(difficulty, threshold, batch_size):
    return (torch.tensor(difficulty) <= threshold).nonzero().flatten().tolist()


def share_of_examples(difficulty, threshold, batch_size):
    count = max(batch_size, round(len(difficulty) * threshold))
    return sorted(np.argsort(difficulty, kind="stable")[:count].tolist())


def admitted_by_torch(difficulty, threshold, batch_size):
    scores = torch.tensor(difficulty, dtype=torch.float64)
    order = scores.argsort(stable=True)
    count = max(batch_size, int((scores <= threshold).sum()))
    return order[:count].sort().values.tolist()


def cost(
    *,
    words_of: type[list | set] = list,
    extra=lambda counts: len(counts) + 1,
    mean=True,
    free=False,
    log=math.log,
    own=False,
):
    """The cost of words, right unless told otherwise."""

    def word_cost(words, counts):
        table = {word: words.count(word) for word in words} if own else dict(counts)
        total = extra(table) + sum(table.values())
        added = 0.0
        for word in words_of(words):
            if word not in table and free:
                continue
            added -= log((table.get(word, 0) + 1) / total)
        return added / len(words_of(words)) if mean else added

    return word_cost


def without_unseen(words, counts):
    known = [word for word in words if counts.get(word)]
    return cost()(known, counts)


def cost_by_probabilities(words, counts):
    raised = {word: count + 1 for word, count in counts.items()}
    total = sum(raised.values()) + 1
    mean = statistics.fmean(math.log2(raised.get(word, 1) / total) for word in words)
    return -math.log(2.0**mean)


def seeds(*, paired=True, ddof=1, rounded=math.ceil, power=2, factor=2.0, sign=1, unit=100, of=np.expm1):
    """How many seeds, right unless told otherwise."""

    def seeds_needed(losses, baseline, half_width):
        one, other = np.array(losses), np.array(baseline)
        if not paired:
            other = np.full_like(other, other.mean())
        changes = unit * of(sign * (one - other))
        return rounded((factor * changes.std(ddof=ddof) / half_width) ** power)

    return seeds_needed


def seeds_by_torch(losses, baseline, half_width):
    ratio = torch.tensor(losses, dtype=torch.float64).exp() / torch.tensor(baseline, dtype=torch.float64).exp()
    return int(((100 * ratio).var() * 4 / half_width**2).ceil())


def seeds_by_trying(losses, baseline, half_width):
    changes = [100 * math.exp(loss - base) for loss, base in zip(losses, baseline)]
    number = 1
    while 2 * statistics.stdev(changes) / math.sqrt(number) > half_width:
        number += 1
    return number


def squared_way(epoch, start, warmup_epochs, num_epochs):
    done = np.clip((epoch - warmup_epochs) / (num_epochs - warmup_epochs), 0, 1)
    return float(np.hypot(start, np.sqrt(done) * (1 - start)))


def one_ahead(epoch, start, warmup_epochs, num_epochs):
    return threshold()(epoch + 1, start, warmup_epochs, num_epochs)


def with_ties(difficulty, threshold, batch_size):
    scores = np.array(difficulty)
    bar = np.partition(scores, min(batch_size, len(scores)) - 1)[min(batch_size, len(scores)) - 1]
    return np.flatnonzero(scores <= max(bar, threshold)).tolist()


def batch_only(difficulty, threshold, batch_size):
    return sorted(np.argsort(difficulty, kind="stable")[:batch_size].tolist())


def of_mean_probability(words, counts):
    total = sum(counts.values()) + len(counts) + 1
    return -math.log(np.mean([(counts.get(word, 0) + 1) / total for word in words]))


def by_standard_error(losses, baseline, half_width):
    changes = 100 * np.expm1(np.array(losses) - baseline)
    return math.ceil((2 * changes.std(ddof=1) / half_width) ** 2 / len(changes))


def by_variance(losses, baseline, half_width):
    changes = 100 * np.expm1(np.array(losses) - baseline)
    return math.ceil((2 * changes.var(ddof=1) / half_width) ** 2)


def upside_down(epoch, start, warmup_epochs, num_epochs):
    done = np.clip((epoch - warmup_epochs) / (num_epochs - warmup_epochs), 0, 1)
    return 1 - (1 - start) * math.sqrt(1 - done)


def root_alone(epoch, start, warmup_epochs, num_epochs):
    done = np.clip((epoch - warmup_epochs) / (num_epochs - warmup_epochs), 0, 1)
    return max(start, math.sqrt(done))


def threshold_by_fractions(epoch, start, warmup_epochs, num_epochs):
    done = Fraction(max(0, min(epoch, num_epochs) - warmup_epochs), num_epochs - warmup_epochs)
    return math.sqrt(Fraction(start) ** 2 + done * (1 - Fraction(start) ** 2))


def up_to_the_hardest_of_a_batch(difficulty, threshold, batch_size):
    chosen = [i for i, score in enumerate(difficulty) if score <= threshold]
    if len(chosen) < batch_size:
        hardest = sorted(difficulty)[:batch_size][-1]
        chosen = [i for i, score in enumerate(difficulty) if score <= hardest][:batch_size]
    return chosen


def filled_at_the_end(difficulty, threshold, batch_size):
    chosen = [i for i, score in enumerate(difficulty) if score <= threshold]
    for i in np.argsort(difficulty, kind="stable").tolist():
        if len(chosen) < batch_size and i not in chosen:
            chosen.append(i)
    return chosen


def admitted_as_array(difficulty, threshold, batch_size):
    scores = np.asarray(difficulty)
    chosen = np.flatnonzero(scores <= threshold)
    return chosen if len(chosen) >= batch_size else np.sort(np.argsort(scores, kind="stable")[:batch_size])


def cost_by_fractions(words, counts):
    total = sum(count + 1 for count in counts.values()) + 1
    return statistics.mean(-math.log(Fraction(counts.get(word, 0) + 1, total)) for word in words)


WRONG_ANSWERS = {
    "root_threshold": [
        (threshold(power=1), "the threshold rises on a straight line: the root is missing"),
        (threshold(rooted=False), "the square rises as it should, but no root is taken of it"),
        (root_of_progress, "the root is taken of progress alone: start + (1 − start) · sqrt(p)"),
        (unsquared_start, "start is not squared under the root"),
        (threshold(warm=False), "there is no warm-up: the threshold rises from epoch 0 on"),
        (
            threshold(length=lambda warmup, total: total),
            "the rise takes num_epochs after the warm-up, instead of what the warm-up leaves of them",
        ),
        (threshold(hold=False), "the threshold goes on above 1 after num_epochs"),
        (squared_way, "1 − start is squared, instead of start taken as a square from 1"),
        (one_ahead, "the schedule is one epoch ahead"),
        (upside_down, "the root stands upside down, slow at first: 1 − (1 − start) · sqrt(1 − p)"),
        (root_alone, "the larger of start and sqrt(p) is taken"),
    ],
    "admitted": [
        (choose(strict=True), "an example exactly at the threshold is left out"),
        (no_filling, "nobody makes sure of a full batch"),
        (
            choose(fill=lambda size, pairs: pairs[:size]),
            "a batch that is not full is filled with the first examples, not with the easiest",
        ),
        (
            choose(fill=lambda size, pairs: pairs),
            "everything is admitted where the threshold admits less than a batch",
        ),
        (choose(fill=last_of_equals), "of equally hard examples the last are taken, not the first"),
        (choose(in_order=False), "positions come from easy to hard, not in the order of the text"),
        (with_ties, "all that are as hard as the last one of a batch come in with it"),
        (batch_only, "the threshold is not used: there are always batch_size examples"),
        (
            up_to_the_hardest_of_a_batch,
            "of those up to the hardest score of a batch the first in the text are taken, not the easiest",
        ),
        (filled_at_the_end, "the examples that fill a batch stand at the end, not in the order of the text"),
        (share_of_examples, "the threshold is taken as a share of the examples, not as a score"),
    ],
    "word_cost": [
        (cost(mean=False), "the costs are added up, not averaged"),
        (without_unseen, "unseen words are left out of the mean"),
        (cost(free=True), "unseen words cost nothing"),
        (cost(extra=lambda counts: 0), "the added counts are missing in the total"),
        (cost(extra=lambda counts: len(set(counts))), "the total has no count for the unseen words"),
        (cost(extra=lambda counts: 1), "the total grows by one, not by one for each different word"),
        (cost(words_of=set), "each different word counts once"),
        (cost(own=True), "words are counted in the sentence, not in the reference"),
        (cost(log=math.log2), "the logarithm has base 2: bits instead of nats"),
        (cost(log=math.log10), "the logarithm has base 10"),
        (cost(log=lambda p: -math.log(p)), "the sign is missing: this is mean log p"),
        (of_mean_probability, "the probabilities are averaged, and the logarithm is taken of their mean"),
    ],
    "seeds_needed": [
        (seeds(paired=False), "each loss is held against the baseline's mean: nothing is paired"),
        (seeds(ddof=0), "the standard deviation divides by n, not by n − 1"),
        (by_standard_error, "the spread is the standard error of these seeds, not the standard deviation"),
        (by_variance, "the spread is the variance, not its root"),
        (seeds(rounded=float), "the number is not rounded up to whole seeds"),
        (seeds(power=1), "the square is missing: the interval shrinks with √n, not with n"),
        (seeds(rounded=int), "the number is rounded down, and the interval is too wide"),
        (seeds(factor=4), "half_width is taken for the whole interval, both sides together"),
        (seeds(factor=1), "the factor 2 is missing"),
        (seeds(factor=1.96), "the factor for t is 1.96, not 2"),
        (seeds(rounded=round), "the number is rounded to the nearest, and the interval may be too wide"),
        (seeds(unit=1), "the changes are fractions, and half_width is per cent"),
        (seeds(sign=-1), "arm and baseline are swapped"),
        (seeds(of=lambda difference: difference), "losses are subtracted, and perplexities never compared"),
    ],
}

EQUIVALENT = {
    "root_threshold": [threshold(), threshold_of_the_package, threshold_by_interpolation, threshold_by_fractions],
    "admitted": [choose(), admitted_by_torch, admitted_as_array],
    "word_cost": [cost(), cost_by_probabilities, cost_by_fractions],
    "seeds_needed": [seeds(), seeds_by_torch, seeds_by_trying],
}
