"""How hard an example is: six ways to give each a score from 0 (easy) to 1 (hard).

A strategy takes one dict of settings; a key that it does not know and a value out of range are refused. An example is a
string, or a mapping with the string under "text". Scores do not depend on the order of the examples, nor on what was
scored before; equal texts have equal scores.
"""

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from course_lm.corpus import load_corpus
from course_lm.curriculum.morphology import count_morphology, words_of
from course_lm.curriculum.pacing import FeedbackThreshold
from course_lm.curriculum.settings import read_settings
from course_lm.validation import Explained, require

Example = str | Mapping[str, Any]
OneExample = TypeVar("OneExample", bound=Example)


def text_of(example: Example) -> str:
    """The text of an example; ValueError where it is neither a string nor a mapping with a string under "text"."""
    text = example.get("text") if isinstance(example, Mapping) else example
    if not isinstance(text, str):
        raise ValueError(f'an example must be a string, or a mapping with a string under "text", got {example!r:.80}')
    return text


def texts_of(examples: Iterable[Example]) -> list[str]:
    """The texts of all examples; ValueError for one text alone, whose characters would be examples."""
    require(not isinstance(examples, str | Mapping), "examples", "a list", examples)
    return [text_of(example) for example in examples]


class Curriculum(Explained):
    """What all strategies share: they have settings, see `settings.SETTINGS`, they score examples, and sort them."""

    name: str  # in a configuration

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.settings = read_settings(self.name, config)

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """A score in [0, 1] for each example, 0 easy and 1 hard."""
        raise NotImplementedError

    def sort_by_difficulty(self, examples: Sequence[OneExample]) -> tuple[list[OneExample], list[float]]:
        """The examples from easy to hard, and their scores; equally hard ones keep their order."""
        scores = self.compute_difficulty(examples)
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return [examples[i] for i in order], [scores[i] for i in order]


class LengthBasedCurriculum(Curriculum):
    """Long is hard: words, on a line from `min_length` (0) to `max_length` (1)."""

    name = "length"

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """Share of the way from the shortest to the longest text, for each example."""
        lengths = [len(words_of(text)) for text in texts_of(examples)]
        low, high = self.settings.min_length, self.settings.max_length
        # Bounds from the examples themselves: then a score depends on what it is scored with.
        low = min(lengths, default=0) if low is None else low
        high = max(lengths, default=0) if high is None else high
        return [_share(length, low, high) for length in lengths]


class FrequencyBasedCurriculum(Curriculum):
    """Rare words are hard: the mean of -log p(word), from the easiest reference text (0) to the hardest (1).

    p counts words in the reference, each once more than it was seen, so that an unseen word has the probability of one
    word more (Laplace). Capital and small letters are one. Source: Platanios et al. 2019, there as a sum.
    """

    name = "frequency"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        source = self.settings.reference
        self.reference = load_corpus(source).documents if isinstance(source, str) else source

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """Share of the way from the commonest wording of the reference to the rarest, for each example."""
        scored = [_lower_words(text) for text in texts_of(examples)]
        reference = scored if self.reference is None else [_lower_words(text) for text in self.reference]
        counts = Counter(word for words in reference for word in words)
        # Laplace: each known word once more than it was seen, and one more for all words that were not.
        total = counts.total() + len(counts) + 1
        costs = {word: math.log(total / (count + 1)) for word, count in counts.items()}

        def mean_cost(words: list[str]) -> float:
            # fsum rounds once, so that texts of the same words in another order score the same.
            return math.fsum(costs.get(word, math.log(total)) for word in words) / len(words)

        known = [mean_cost(words) for words in reference if words]
        low, high = min(known, default=0.0), max(known, default=0.0)
        return [_share(mean_cost(words), low, high) if words else 0.0 for words in scored]


WORDS_UNIT, VERBS_UNIT = 10, 2  # so many words, or verb forms with their inflections, weigh as much as one case marker


class MorphologicalComplexityCurriculum(Curriculum):
    """Much grammar is hard: case markers, inflected verbs, light-verb compounds and words, as Hindi counts them.

    The weighted mean m of these amounts, each in a unit of its own, becomes 1 - exp(-m): no text is too long for
    the scale. In other languages than Hindi words alone are counted; see `count_morphology`.
    """

    name = "morphological"

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """1 - exp(-amount of grammar), for each example."""
        return [self._difficulty(text) for text in texts_of(examples)]

    def _difficulty(self, text: str) -> float:
        counts, weights = count_morphology(text), self.settings
        amount = (
            weights.case_weight * (counts.case_markers + counts.fused_cases)
            + weights.length_weight * counts.words / WORDS_UNIT
            + weights.verb_weight * (counts.verbs + counts.inflections) / VERBS_UNIT
            + weights.compound_weight * counts.compounds
        )
        return 1 - math.exp(-amount / sum(dataclasses.astuple(weights)))


class CombinedCurriculum(Curriculum):
    """The weighted mean of the morphological, the length and the frequency score."""

    name = "combined"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        names, settings = ("morphological", "length", "frequency"), dataclasses.asdict(self.settings)
        self.parts = [create_curriculum_strategy(name, settings[name]) for name in names]
        self.weights = [getattr(self.settings, f"{name}_weight") for name in names]

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """The weighted mean of the three scores, for each example."""
        texts = texts_of(examples)  # an iterator has one pass
        columns = [part.compute_difficulty(texts) for part in self.parts]
        total = sum(self.weights)
        return [
            # Rounding may lift a mean of ones above 1.
            min(1.0, sum(weight * score for weight, score in zip(self.weights, scores)) / total)
            for scores in zip(*columns)
        ]


class DynamicCurriculum(Curriculum):
    """Scores like `base_strategy`, and brings a threshold of its own that follows the validation loss.

    Together with a schedule the smaller of the two thresholds holds. See `FeedbackThreshold`.
    """

    name = "dynamic"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        settings, base = self.settings, self.settings.base_strategy
        self.base = create_curriculum_strategy(base, dataclasses.asdict(settings)[base])
        self.feedback = FeedbackThreshold(
            low=settings.min_threshold,
            high=settings.max_threshold,
            rate=settings.adaptation_rate,
            window=settings.performance_window,
        )

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """The scores of the base strategy."""
        return self.base.compute_difficulty(examples)

    def update_difficulty_threshold(self, val_loss: float) -> float:
        """Take the loss of one validation (nats per token); return the new threshold."""
        self.feedback.report(val_loss)
        return self.feedback.threshold


class RandomCurriculum(Curriculum):
    """The control: scores that have nothing to do with difficulty, uniform in [0, 1), fixed by the text and a seed."""

    name = "random"

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        """A hash of each text."""
        key = str(self.settings.seed).encode()
        digests = (
            hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6, key=key).digest()
            for text in texts_of(examples)
        )
        # A float holds 48 bits exactly; more would be rounded, the highest of them to 1.
        return [int.from_bytes(digest, "big") / 2**48 for digest in digests]


STRATEGIES: dict[str, type[Curriculum]] = {kind.name: kind for kind in Curriculum.__subclasses__()}


def create_curriculum_strategy(name: str, config: Mapping[str, Any] | None = None) -> Curriculum:
    """The strategy of that name; ValueError, in one line, for another name or for settings that it does not take."""
    require(name in STRATEGIES, "strategy", f"one of {', '.join(STRATEGIES)}", name)
    return STRATEGIES[name](config)


def _lower_words(text: str) -> list[str]:
    return [word.lower() for word in words_of(text)]


def _share(value: float, low: float, high: float) -> float:
    """How far `value` lies on the way from `low` (0) to `high` (1); 0 where they are equal."""
    return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0
