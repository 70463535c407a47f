"""The crafted runs of the audit: a ladder on which one feature after the other is switched on.

Each run is about one part of a loop. The first run of the ladder that a loop gets wrong is about what it gets wrong:
all that the run needs besides has been right in the runs before.
"""

import copy
import random
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from course_lm.audit import spec
from course_lm.audit.model import EOS, PAD, POISONED_GRADIENT, POISONED_LOSS, TOKENS, make_model

PARTS = ("data", "loss", "accumulation", "clipping", "optimizer", "schedule", "precision", "validation", "finite")

Batch = Mapping[str, Any]
Epochs = list[list[Batch]]


@dataclass(frozen=True)
class Constant:
    """One learning rate for all steps."""

    lr: float

    def __call__(self, k: int) -> float:
        """The rate after `k` completed steps."""
        return self.lr


@dataclass(frozen=True)
class Moving:
    """A learning rate that is another one at each step: it is multiplied by `factor` each time."""

    lr: float
    factor: float = 0.6

    def __call__(self, k: int) -> float:
        """The rate after `k` completed steps."""
        return self.lr * self.factor**k


@dataclass(frozen=True)
class Case:
    """One run, and what it is about.

    Attributes:
        name: what the run has, in a few words.
        part: of a loop, one of `PARTS`.
        promise: the line of the contract that the run is about.
        is_clear: whether a loop breaks that line if this is the first run whose weights it gets wrong; else it may
            break another one, or none.
        seed: of the model's weights.
        tied: the head's weight is that of the token embeddings.
    """

    name: str
    part: str
    promise: str
    epochs: Epochs = field(repr=False)
    settings: spec.Settings
    seed: int = 0
    is_clear: bool = False
    tied: bool = False

    def model(self) -> nn.Module:
        """The model before the run, in float64 and train mode."""
        return copy.deepcopy(make_model(self.seed, self.tied))

    def windows(self) -> list[list[Batch]]:
        """The micro-batches of each optimizer step."""
        size = self.settings.accumulation_steps
        return [epoch[start : start + size] for epoch in self.epochs for start in range(0, len(epoch), size)]

    def has_empty_batch(self) -> bool:
        """Whether there is a batch without a target."""
        return not all(count_targets(batch) for epoch in self.epochs for batch in epoch)

    def describe(self) -> str:
        """The run in one line: batches, targets, and the settings that it switches on."""
        targets = [[count_targets(batch) for batch in epoch] for epoch in self.epochs]
        default = spec.Settings()
        names = [name for name in vars(default) if name not in ("schedule", "validation", "eos_id", "optimizer")]
        changed = [name for name in names if getattr(self.settings, name) != getattr(default, name)]
        targets = reprlib.repr(targets)
        shown = [self.settings.optimizer, str(self.settings.schedule)]
        shown += [f"{name}={_plain(getattr(self.settings, name))}" for name in changed]
        if self.settings.validation:
            shown.append(f"validation on {[count_targets(batch) for batch in self.settings.validation]} targets")
        return f"targets of each batch {targets}; {', '.join(shown)}"


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def count_targets(batch: Batch) -> int:
    """Target tokens of a batch, after the shift."""
    return int((batch["labels"][:, 1:] != -100).sum())


class Rows:
    """Makes batches of random tokens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def tokens(self, length: int) -> list[int]:
        """Random tokens, none of them special."""
        return [self.random.choice(TOKENS) for _ in range(length)]

    def batch(
        self, *lengths: int, eos: bool = False, left: bool = False, pad: int = PAD, ignored: Sequence[int] = ()
    ) -> Batch:
        """Rows of `lengths` tokens, padded to the longest on one side.

        With `eos` a row begins and ends with an end-of-text. Labels at the positions `ignored` of a row are -100.
        """
        documents = [[EOS, *self.tokens(length - 2), EOS] if eos else self.tokens(length) for length in lengths]
        labels = [[-100 if at in ignored else token for at, token in enumerate(row)] for row in documents]
        for row in labels:
            if left and len(row) < max(lengths):
                row[0] = -100  # nothing but PAD precedes it
        return {
            "input_ids": _padded(documents, pad, left),
            "attention_mask": _padded([[1] * length for length in lengths], 0, left),
            "labels": _padded(labels, -100, left),
        }

    def packed(self, *rows: Sequence[int]) -> Batch:
        """Rows that hold several documents of the given lengths, with their document and position ids."""
        made = [[[EOS, *self.tokens(length - 2), EOS] for length in lengths] for lengths in rows]
        return {
            "input_ids": _padded([chain(*row) for row in made], PAD),
            "attention_mask": _padded([[1] * sum(lengths) for lengths in rows], 0),
            "labels": _padded([chain(*([-100, *tokens[1:]] for tokens in row)) for row in made], -100),
            "document_ids": _padded([chain(*([at] * n for at, n in enumerate(lengths))) for lengths in rows], -1),
            "position_ids": _padded([chain(*map(range, lengths)) for lengths in rows], 0),
        }

    def poisoned(self, token: int, *lengths: int) -> Batch:
        """A batch in whose first row stands a poisoned token."""
        batch = self.batch(*lengths)
        batch["input_ids"][0, 1] = batch["labels"][0, 1] = token
        return batch


def _padded(rows: Sequence[Iterable[int]], fill: int, left: bool = False) -> Tensor:
    """The rows as one tensor, as long as the longest."""
    tensors = [torch.tensor(list(row)) for row in rows]
    return pad_sequence(tensors, True, fill, "left" if left else "right")


def without_targets(batch: Batch) -> Batch:
    """The batch with no label left."""
    return {**batch, "labels": torch.full_like(batch["labels"], -100)}


def contradicting(batch: Batch) -> Batch:
    """The batch with another token for each label."""
    others = TOKENS.start + (batch["labels"] - TOKENS.start + 1) % len(TOKENS)
    return {**batch, "labels": torch.where(batch["labels"] == -100, batch["labels"], others)}


def ladder(seed: int = 0, parts: Sequence[str] | None = None) -> list[Case]:
    """All runs in their order, or those about `parts`, with tokens and weights drawn from `seed`.

    Raises:
        ValueError: `parts` names something else than a part, or nothing.
    """
    if parts is not None:
        unknown = [part for part in parts if part not in PARTS]
        if unknown or not parts:
            got = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"parts must be some of {', '.join(PARTS)}, got {got}")
    made = [replace(case, seed=seed) for group in _GROUPS for case in group(Rows(seed))]
    return [case for case in made if parts is None or case.part in parts]


def sgd(lr: float = 0.3, **settings: Any) -> spec.Settings:
    """Settings of SGD at one rate, but for what is given."""
    return replace(spec.Settings(optimizer="sgd", schedule=Constant(lr), eos_id=EOS), **settings)


def adam(optimizer: str = "adamw", lr: float = 0.02, **settings: Any) -> spec.Settings:
    """Settings of AdamW, or of Adam, at one rate, but for what is given."""
    # betas and an epsilon that are not torch's own, so that a loop that does not read them is found
    plain = spec.Settings(optimizer=optimizer, schedule=Constant(lr), beta1=0.8, beta2=0.95, epsilon=1e-3, eos_id=EOS)
    return replace(plain, **settings)


_clear = partial(Case, is_clear=True)


def _one_step(rows: Rows) -> Iterator[Case]:
    yield Case("one SGD step on one row", "loss", "C1", [[rows.batch(6)]], sgd())
    yield Case("rows of equal length", "loss", "C3", [[rows.batch(5, 5, 5)]], sgd())
    yield _clear("labels of -100 on real tokens", "loss", "C2", [[rows.batch(7, 7, ignored=(1, 2, 5))]], sgd())
    yield _clear("rows that end with end-of-text", "data", "C2", [[rows.batch(5, 5, eos=True)]], sgd())
    yield _clear("pads on the right", "data", "C2", [[rows.batch(7, 3)]], sgd())
    yield _clear("pads that share the id of end-of-text", "data", "C2", [[rows.batch(7, 4, eos=True, pad=EOS)]], sgd())
    yield Case("pads on the left", "data", "C2", [[rows.batch(3, 7, left=True)]], sgd())
    yield Case("several documents in a row", "data", "C1", [[rows.packed((4, 3), (3,))]], sgd())


def _several_steps(rows: Rows) -> Iterator[Case]:
    same = rows.batch(6, 6)
    yield Case("two SGD steps", "optimizer", "C10", [[same, same]], sgd())
    yield Case("three SGD steps on batches of their own", "data", "C10", [[rows.batch(6, n) for n in (6, 4, 5)]], sgd())
    first, second = [rows.batch(5), rows.batch(6)], [rows.batch(6), rows.batch(4)]
    yield Case("two epochs", "data", "C10", [first, second], sgd())
    yield Case("two epochs over the same batches", "data", "C10", [first, first], sgd())


def _accumulation(rows: Rows) -> Iterator[Case]:
    def window(*lengths: int) -> list[Batch]:
        return [rows.batch(n) for n in lengths]

    part = "accumulation"
    yield _clear("two equal micro-batches", part, "C3", [window(5, 5)], sgd(accumulation_steps=2))
    yield _clear("micro-batches of unequal tokens", part, "C3", [window(9, 3)], sgd(accumulation_steps=2))
    # neither the rows nor the positions of a micro-batch are in the ratio of its tokens
    rows_apart = [rows.batch(4, 4), rows.batch(9)]
    yield _clear("micro-batches of unequal rows", part, "C3", [rows_apart], sgd(accumulation_steps=2))
    padded = [rows.batch(8, 3, 5), rows.batch(6)]
    yield _clear("micro-batches of unequal rows with pads", part, "C3", [padded], sgd(accumulation_steps=2))
    yield Case("two windows", part, "C10", [window(7, 3, 4, 8)], sgd(accumulation_steps=2))
    yield _clear("a tail of one micro-batch", part, "C4", [window(5, 5, 5)], sgd(accumulation_steps=2))
    yield _clear("a tail of unequal micro-batches", part, "C4", [window(4, 6, 5, 8, 3)], sgd(accumulation_steps=3))
    tails = [window(6, 4, 8), window(3, 7, 5)]
    yield _clear("a tail in each of two epochs", part, "C4", tails, sgd(accumulation_steps=2))
    batches = window(6, 5, 4)
    batches[1] = without_targets(batches[1])
    yield _clear("a micro-batch without a target", part, "C3", [batches], sgd(accumulation_steps=3))
    # windows that are cut after such a micro-batch was taken out are others
    batches = window(5, 6, 3, 4)
    batches[1] = without_targets(batches[1])
    yield Case("a micro-batch without a target in two windows", part, "C3", [batches], sgd(accumulation_steps=2))


def _clipping(rows: Rows) -> Iterator[Case]:
    part, uneven = "clipping", [rows.batch(n) for n in (8, 3, 5)]
    yield _clear("a gradient that is clipped", part, "C6", [[rows.batch(6, 6)]], sgd(2.0, max_grad_norm=0.05))
    yield Case("a gradient that is not", part, "C6", [[rows.batch(6, 6)]], sgd(max_grad_norm=50.0))
    steps = [rows.batch(3), rows.batch(8, 8), rows.batch(5, 4)]
    yield _clear("some gradients that are clipped", part, "C6", [steps], sgd(max_grad_norm=1.5))
    clipped = sgd(2.0, accumulation_steps=3, max_grad_norm=0.05)
    yield _clear("a clipped window of three", part, "C6", [uneven], clipped)
    longer = [rows.batch(n) for n in (8, 3, 5, 6, 4)]
    slack = sgd(1.0, accumulation_steps=2, max_grad_norm=0.9)
    yield _clear("clipped windows and a tail", part, "C6", [longer], slack)
    scaled = sgd(2.0, max_grad_norm=0.05, loss_scale=1024.0)
    yield _clear("a clipped gradient under a loss scale", part, "C6", [[rows.batch(6, 5)]], scaled)
    scaled = replace(scaled, accumulation_steps=2, max_grad_norm=0.9)
    yield _clear("clipped windows under a loss scale", part, "C6", [longer], scaled)


def _optimizers(rows: Rows) -> Iterator[Case]:
    part, steps = "optimizer", [rows.batch(n, 4) for n in (6, 4, 5)]
    yield Case("SGD with momentum", part, "C10", [steps], sgd(0.1, momentum=0.8))
    yield Case("SGD with decay", part, "C9", [steps], sgd(0.1, weight_decay=0.5))
    yield Case("one step of Adam", part, "C10", [steps[:1]], adam("adam"))
    yield Case("Adam", part, "C10", [steps], adam("adam"))
    yield Case("Adam with decay", part, "C9", [steps], adam("adam", weight_decay=0.5))
    yield Case("AdamW", part, "C9", [steps], adam())
    yield Case("AdamW with decay", part, "C9", [steps], adam(weight_decay=0.5))
    two = [[rows.batch(5), rows.batch(6)], [rows.batch(4), rows.batch(7)]]
    yield Case("AdamW in two epochs", part, "C9", two, adam(weight_decay=0.3))
    clipped = adam("adam", weight_decay=0.5, max_grad_norm=0.1)
    yield Case("Adam with decay and clipping", part, "C9", [steps], clipped)
    grouped = adam(weight_decay=0.5, max_grad_norm=0.3, accumulation_steps=2)
    longer = [rows.batch(n) for n in (8, 3, 5, 6, 4)]
    yield Case("AdamW with decay, clipping and accumulation", part, "C9", [longer], grouped)


def _tied(rows: Rows) -> Iterator[Case]:
    steps = [rows.batch(n, 4) for n in (6, 4, 5)]
    clipped, decayed = sgd(2.0, max_grad_norm=0.05), adam(weight_decay=0.5)
    yield _clear("a clipped gradient of tied weights", "clipping", "C6", [steps[:1]], clipped, tied=True)
    yield Case("AdamW with decay of tied weights", "optimizer", "C9", [steps], decayed, tied=True)


def _schedules(rows: Rows) -> Iterator[Case]:
    part, steps = "schedule", [rows.batch(n) for n in (6, 4, 5)]
    yield _clear("rates that move", part, "C8", [steps], sgd(schedule=Moving(0.5)))
    longer = [rows.batch(n) for n in (6, 4, 5, 8, 3)]
    yield _clear(
        "rates that move, with accumulation", part, "C8", [longer], sgd(schedule=Moving(0.5), accumulation_steps=2)
    )
    two = [[rows.batch(5), rows.batch(6)], [rows.batch(4), rows.batch(7)]]
    yield _clear("rates that move in two epochs", part, "C8", two, sgd(schedule=Moving(0.5)))
    decayed = adam(schedule=Moving(0.05), weight_decay=0.8)
    yield Case("decay under rates that move", part, "C8", [steps], decayed)
    rising = adam(schedule=Moving(0.01, 1.8), weight_decay=0.8)
    yield Case("decay under rates that rise", part, "C8", [steps], rising)
    empty = [steps[0], without_targets(rows.batch(5)), *steps[1:]]
    yield _clear("a window without a target", "accumulation", "C5", [empty], sgd(schedule=Moving(0.5), momentum=0.8))
    tails = [longer[:3], [*longer[3:], rows.batch(6)]]
    tailed = adam(schedule=Moving(0.05), weight_decay=0.8, accumulation_steps=2)
    yield Case("decay under rates that move, with tails in two epochs", part, "C8", tails, tailed)


def _loss_scale(rows: Rows) -> Iterator[Case]:
    # None of these clips: whether clipping comes before or after the check for an overflow is left to the loop, and
    # clipping by value makes finite numbers of infinite ones.
    part = "precision"
    steps = [rows.batch(5), rows.poisoned(POISONED_GRADIENT, 6), rows.batch(4), rows.batch(6)]
    scaled = sgd(loss_scale=1024.0, overflow_steps=frozenset({1}), on_nonfinite="skip")
    yield Case("an overflow of the loss scale", part, "C7", [steps], scaled)
    yield _clear("an overflow under rates that move", "schedule", "C8", [steps], replace(scaled, schedule=Moving(0.5)))
    moments = adam(schedule=Moving(0.05), weight_decay=0.5, loss_scale=1024.0, on_nonfinite="skip")
    moments = replace(moments, overflow_steps=frozenset({1}))
    yield Case("an overflow under AdamW", part, "C7", [steps], moments)


def _validation(rows: Rows) -> Iterator[Case]:
    part, uneven = "validation", [rows.batch(8, 8), rows.batch(3)]
    two = [[rows.batch(5), rows.batch(6)], [rows.batch(4), rows.batch(7)]]
    even = [rows.batch(6, 6), rows.batch(6, 6)]
    yield _clear("validation after each epoch", part, "C11", two, sgd(validation=even))
    yield _clear("validation batches of unequal tokens", part, "C11", two, sgd(validation=uneven))
    padded = [rows.batch(8, 4, eos=True), rows.batch(3, 6, left=True), without_targets(rows.batch(4))]
    yield _clear("validation batches with pads", part, "C11", two, sgd(validation=padded))
    learned = rows.batch(7, 7)
    worse = sgd(1.0, validation=[learned])
    contradicted = [[learned] * 3, [contradicting(learned)]]
    yield Case("an epoch that contradicts the first", part, "C12", contradicted, worse)
    worse = sgd(schedule=Moving(0.1, 4.0), validation=uneven)
    yield Case("an epoch that makes the model worse", part, "C12", two, worse)
    back = sgd(1.0, validation=[learned])
    yield Case("an epoch that is better than the last, and not the best", part, "C12", [*contradicted, [learned]], back)


def _finite(rows: Rows) -> Iterator[Case]:
    part, batches = "finite", [rows.batch(n) for n in (5, 6, 4)]
    for what, token in (("gradient", POISONED_GRADIENT), ("loss", POISONED_LOSS)):
        steps = [batches[0], rows.poisoned(token, 5), *batches[1:]]
        skips = adam(schedule=Moving(0.05), weight_decay=0.3, on_nonfinite="skip")
        yield Case(f"a {what} that is not finite, to be skipped", part, "C7", [steps], skips)
        yield Case(
            f"a {what} that is not finite, to be refused", part, "C7", [steps], replace(skips, on_nonfinite="raise")
        )
    grouped = sgd(accumulation_steps=2, on_nonfinite="skip", momentum=0.5)
    window = [rows.batch(5), rows.poisoned(POISONED_GRADIENT, 4), *batches[1:]]
    yield Case("a window that is not finite, to be skipped", part, "C7", [window], grouped)


def _together(rows: Rows) -> Iterator[Case]:
    batches = [rows.batch(n, m, eos=True, left=n < m) for n, m in ((6, 4), (3, 8), (5, 3), (4, 7), (9, 3))]
    validation = [rows.batch(8, 5, eos=True), rows.batch(3)]
    all_on = adam(
        schedule=Moving(0.05),
        weight_decay=0.5,
        accumulation_steps=2,
        max_grad_norm=0.7,
        loss_scale=256.0,
        validation=validation,
    )
    epochs = [batches, [rows.batch(n) for n in (4, 8, 6)]]
    yield Case("all features together", "optimizer", "C10", epochs, all_on)


def _large(rows: Rows) -> Iterator[Case]:
    # for limits of a loop's own, such as max_steps or max_length; last, as each takes as long as ten others
    wide = [rows.batch(1100), rows.batch(*[3] * 70)]
    yield Case("a row of 1100 tokens, and a batch of 70 rows", "data", "C3", [wide], sgd())
    # at a larger rate the steps of a loop that clears no gradient multiply its rounding beyond what equal allows
    many = [[rows.batch(3) for _ in range(10)] for _ in range(12)]
    yield Case("120 steps in twelve epochs", "data", "C3", many, sgd(0.01))


_GROUPS: tuple[Callable[[Rows], Iterator[Case]], ...] = (
    _one_step,
    _several_steps,
    _accumulation,
    _clipping,
    _optimizers,
    _tied,
    _schedules,
    _finite,
    _loss_scale,  # after the runs above: an overflow is a gradient that is not finite
    _validation,
    _together,
    _large,
)
