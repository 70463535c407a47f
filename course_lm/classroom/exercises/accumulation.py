"""Exercises of lesson 08: targets of each step, factors for means, a gradient divided last."""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.batching import AnyBatch
from course_lm.classroom.checks import Refused, Report, exercise
from course_lm.loss import next_token_loss

_VOCAB_SIZE = 7


def _labels(widths: Sequence[int], *, seed: int) -> list[Tensor]:
    """Labels (B, T) of these widths with one to three rows; about a quarter is ignored."""
    generator = torch.Generator().manual_seed(seed)
    every = []
    for number, width in enumerate(widths):
        labels = torch.randint(0, _VOCAB_SIZE, (1 + number % 3, width), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < 0.25] = -100
        labels[:, 0], labels[:, 1], labels[0, 2] = 1, 2, -100  # a first label, a target and an ignored one
        labels[1:2, 0] = -100  # a first label that is ignored
        every.append(labels)
    return every


_THREE = ([[4, 0, 5, -100], [-100, 6, 5, 1]], [[3, -100, 2]], [[1, 4, 0, 6, 2, -100]])


@exercise(
    cases={
        "three micro-batches in windows of two": ([torch.tensor(one) for one in _THREE], 2),
        "five in windows of three": (_labels([5, 11, 6, 3, 8], seed=1), 3),
        "one micro-batch a step, one without a target": ([*_labels([6, 4], seed=2), torch.full((2, 5), -100)], 1),
        "the last, shorter window has no target": ([*_labels([3, 5], seed=3), torch.full((1, 3), -100)], 2),
    },
)
def tokens_per_step(labels, accumulation_steps):
    """Targets of each optimizer step: `fn(labels, accumulation_steps)`, a list of labels (B, T), one a micro-batch."""
    counts = [int((one[:, 1:] != -100).sum()) for one in labels]
    return [sum(window) for window in windows(counts, accumulation_steps)]


@exercise(
    cases={
        "four and one targets": ([torch.tensor([[5, 0, 4, 1, 6]]), torch.tensor([[2, 3, -100]])],),
        "three micro-batches of different width": (_labels([9, 4, 12], seed=0),),
        "one without a target": ([*_labels([5, 8, 7], seed=1), torch.full((2, 6), -100)],),
    },
)
def mean_factors(labels):
    """Factors of the micro-batches' mean losses: `fn(labels)`, a list of labels (B, T), gives a float for each."""
    counts = [int((one[:, 1:] != -100).sum()) for one in labels]
    return [count / sum(counts) for count in counts]


class _Model(nn.Module):
    """Scores the next token by the current one alone."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.scores = nn.Parameter(torch.randn(_VOCAB_SIZE, _VOCAB_SIZE, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(_VOCAB_SIZE, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return F.embedding(input_ids, self.scores) + self.bias


def _window(lengths: Sequence[Sequence[int]], *, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    window = []
    for rows in lengths:
        mask = (torch.arange(max(rows)) < torch.tensor(rows)[:, None]).long()  # (B, T)
        ids = torch.randint(0, _VOCAB_SIZE, mask.shape, generator=generator)
        window.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return window


def _gradient_and_loss(
    fn: Callable[..., Any], micro_batches: Sequence[AnyBatch], before: float | None
) -> dict[str, object]:
    """The loss that `fn` gives and the gradients that it leaves where they were `before`.

    Raises Refused where the weights have changed.
    """
    model, untouched = _Model(), _Model()
    for parameter in model.parameters():
        parameter.grad = None if before is None else torch.full_like(parameter, before)
    loss = fn(model, iter(micro_batches))
    if not all(torch.equal(one, other) for one, other in zip(model.parameters(), untouched.parameters())):
        raise Refused("the weights have changed: only their `.grad` is to be filled, the step comes later")
    gradients = {
        name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in model.named_parameters()
    }
    loss = loss.detach() if isinstance(loss, Tensor) else loss
    return {"the loss": loss, **{f"the gradient of {name}": one for name, one in gradients.items()}}


def _one_at_a_time(fn: Callable[..., Any], report: Report) -> Report:
    """Refuse a right answer that holds several batches: in a list, or in a graph, which keeps their ids."""
    given: list[weakref.ref[Tensor]] = []
    most = 0

    def batches() -> Iterator[dict[str, Tensor]]:
        nonlocal most
        for _ in range(5):
            (batch,) = _window([[5, 3]], seed=0)
            given.append(weakref.ref(batch["input_ids"]))
            yield batch
            del batch
            most = max(most, sum(one() is not None for one in given))

    if report.passed:
        fn(_Model(), batches())
    words = "this is what you get when several batches are held at a time; read one, use it, and let it go"
    return replace(report, status="wrong", message=words) if most > 2 else report


_TARGETS = _window([[9, 3], [12, 12], [4, 2]], seed=0)
_EMPTY = {**_TARGETS[2], "labels": torch.full_like(_TARGETS[2]["labels"], -100)}


@exercise(
    cases={
        "two ragged micro-batches": (_TARGETS[:2], None),
        "gradients left over from before": (_TARGETS, 1.0),
        "one micro-batch without a target": ([_TARGETS[0], _EMPTY, _TARGETS[1]], None),
        "the first and the last micro-batch without a target": ([_EMPTY, _TARGETS[0], _EMPTY], None),
        "no target in the whole window": ([_EMPTY, _EMPTY], 1.0),
    },
    run=_gradient_and_loss,
    judge=_one_at_a_time,
)
def accumulate_gradient(model, micro_batches):
    """A step's gradient from an iterator: `fn(model, micro_batches)` leaves it in the model, returns the mean loss."""
    model.zero_grad()
    nats = tokens = 0
    for batch in micro_batches:
        logits = model(batch["input_ids"], batch["attention_mask"])
        loss = next_token_loss(logits, batch["labels"], reduction="sum")
        loss.backward()
        nats, tokens = nats + loss.item(), tokens + int(count_window_targets([batch]))
    if tokens == 0:
        model.zero_grad()
        return math.nan
    for parameter in model.parameters():
        parameter.grad /= tokens
    return nats / tokens
