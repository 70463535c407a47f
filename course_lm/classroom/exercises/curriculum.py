"""Exercises of lesson 13: a threshold that rises by its square, who is admitted, what words cost, how many seeds."""

import math
from statistics import fmean, stdev

from course_lm.classroom.checks import at_each, exercise


@exercise(
    cases={
        "from 0.5, a short rise": (range(8), 0.5, 3, 5),
        "from 0.2 in ten epochs, two of them warm-up": (range(13), 0.2, 2, 10),
        "from 0.01, no warm-up": (range(8), 0.01, 0, 5),
    },
    run=at_each(0),
)
def root_threshold(epoch, start, warmup_epochs, num_epochs):
    """Root pacing with a warm-up: `fn(epoch, start, warmup_epochs, num_epochs)`, 1 at the end."""
    progress = (epoch - warmup_epochs) / (num_epochs - warmup_epochs)
    progress = min(1.0, max(0.0, progress))
    return math.sqrt(start**2 + progress * (1 - start**2))


_SPREAD = [0.9, 0.1, 0.05, 0.3, 0.7, 0.2, 0.15, 1.0, 0.0, 0.25]
_TIES = [0.5, 0.7, 0.5, 0.7, 0.5, 0.5, 0.7, 0.5, 0.7, 0.2]


@exercise(
    cases={
        "a short text": ([0.7, 0.2, 0.9, 0.4], (0.5, 0.4, 0.1, 0.75, 0.9), 2),
        "ten scores, in batches of two": (_SPREAD, (0.5, 0.3, 0.27, 0.1), 2),
        "ten scores, in batches of four": (_SPREAD, (0.1, 0.0, 0.15, 0.6), 4),
        "many equal scores": (_TIES, (0.1, 0.5, 0.6), 3),
        "scores that are whole numbers": ([12, 3, 30, 8, 8, 21], (8, 20, 2), 3),
        "fewer examples than a batch": ([0.6, 0.2, 0.9, 0.2, 0.5], (0.2, 0.95), 8),
    },
    run=at_each(1),
)
def admitted(difficulty, threshold, batch_size):
    """Positions of the admitted examples, in their order: `fn(difficulty, threshold, batch_size)`."""
    easiest = sorted(range(len(difficulty)), key=difficulty.__getitem__)
    number = sum(score <= threshold for score in difficulty)
    return sorted(easiest[: max(number, batch_size)])


_COUNTS = {"the": 50, "cat": 7, "sat": 3, "on": 12, "mat": 1}


@exercise(
    cases={
        "a small reference": (["a", "b", "c", "a"], {"a": 1, "b": 2}),
        "a capital, and a long sentence": (["The", *["cat"] * 2000], {"The": 1, "the": 9, "cat": 20}),
        "words that were seen": (["cat", "sat", "mat"], _COUNTS),
        "a word that stands there twice": (["the", "cat", "on", "the", "mat"], _COUNTS),
        "two unseen words": (["the", "ocelot", "sat", "quietly", "on", "ocelot"], _COUNTS),
    },
)
def word_cost(words, counts):
    """Mean −log p of words, one count added to each and to all unseen ones together: `fn(words, counts)`."""
    total = sum(counts.values()) + len(counts) + 1
    return fmean(-math.log((counts.get(word, 0) + 1) / total) for word in words)


@exercise(
    cases={
        "two seeds, far apart": ([0.9, 1.6], [1.4, 1.5], (4.0, 8.5, 0.4)),
        "three seeds, a worse arm": ([3.2, 3.5, 3.1], [3.0, 3.3, 3.05], (0.5, 1.5, 3.7)),
        "eight seeds that go up and down together": (
            [2.11, 2.31, 2.02, 2.45, 2.27, 2.16, 2.38, 2.09],
            [2.14, 2.35, 2.04, 2.46, 2.33, 2.19, 2.40, 2.15],
            (0.21, 0.4, 1.5),
        ),
    },
    run=at_each(2),
)
def seeds_needed(losses, baseline, half_width):
    """Seeds for an interval of ± `half_width` % on a paired change: `fn(losses, baseline, half_width)`."""
    changes = [100 * (math.exp(a - b) - 1) for a, b in zip(losses, baseline)]
    return math.ceil((2 * stdev(changes) / half_width) ** 2)
