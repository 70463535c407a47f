"""Checks of lesson 08: targets of each step, factors for means, windows by tokens, a gradient divided last."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.batching import AnyBatch
from course_lm.classroom.checks.report import Report, compare
from course_lm.loss import count_targets, next_token_loss
from course_lm.step import train_step

_VOCAB_SIZE = 7


def tokens_per_step(fn: Callable[..., object]) -> Report:
    """Targets of each optimizer step: `fn(labels, accumulation_steps)`, a list of labels (B, T), one a micro-batch."""

    def totals(count: Callable[[Tensor], int]) -> Callable[..., list[int]]:
        return lambda labels, n: [sum(map(count, window)) for window in windows(labels, n)]

    def count(labels: Tensor) -> int:
        return int(count_targets(labels))

    return compare(
        fn,
        reference=totals(count),
        cases={
            "seven micro-batches in windows of three": (_labels([9, 4, 12, 5, 7, 3, 6], seed=0), 3),
            "four in windows of two": (_labels([5, 11, 6, 3], seed=1), 2),
            "one micro-batch a step, one without a target": ([*_labels([6, 4], seed=2), torch.full((2, 5), -100)], 1),
        },
        mistakes={
            "the first label of each row is counted: there is no shift": totals(lambda one: int((one != -100).sum())),
            "ignored labels are counted too": totals(lambda one: one[:, 1:].numel()),
            "all positions are counted, the first and the ignored ones too": totals(lambda one: one.numel()),
            "rows are counted instead of targets": totals(len),
            "the last, shorter window is dropped": lambda labels, n: [
                sum(map(count, window)) for window in windows(labels, n) if len(window) == n
            ],
            "each micro-batch is taken for a step": lambda labels, n: [count(one) for one in labels],
            "the targets are averaged over the micro-batches, not summed": lambda labels, n: [
                sum(map(count, window)) / len(window) for window in windows(labels, n)
            ],
        },
    )


def mean_factors(fn: Callable[..., object]) -> Report:
    """Factors of the micro-batches' mean losses: `fn(labels)`, a list of labels (B, T), gives a float for each."""

    def counts(labels: Sequence[Tensor]) -> list[int]:
        return [int(count_targets(one)) for one in labels]

    def shares(amounts: Sequence[int]) -> list[float]:
        return [amount / sum(amounts) for amount in amounts]

    return compare(
        fn,
        reference=lambda labels: shares(counts(labels)),
        cases={
            "three micro-batches of different width": (_labels([9, 4, 12], seed=0),),
            "one without a target": ([*_labels([5, 8], seed=1), torch.full((2, 6), -100)],),
            "one micro-batch": (_labels([7], seed=2),),
        },
        mistakes={
            "every micro-batch weighs the same: a mean of means": lambda labels: [1 / len(labels)] * len(labels),
            "the first label of each row is counted: there is no shift": lambda labels: shares(
                [int((one != -100).sum()) for one in labels]
            ),
            "ignored labels are counted too": lambda labels: shares([one[:, 1:].numel() for one in labels]),
            "rows are counted instead of targets": lambda labels: shares([len(one) for one in labels]),
            "a micro-batch's own count is missing: its mean is not turned back into a sum": lambda labels: (
                [1 / sum(counts(labels))] * len(labels)
            ),
            "the division by all targets of the window is missing": lambda labels: [float(n) for n in counts(labels)],
            "the factor is multiplied by the number of micro-batches": lambda labels: [
                len(labels) * share for share in shares(counts(labels))
            ],
        },
    )


def token_windows(fn: Callable[..., object]) -> Report:
    """Windows by tokens: `fn(micro_batches, min_tokens)` yields lists that hold at least so many targets."""

    def count(labels: Tensor) -> int:
        return int(count_targets(labels))

    ragged = _batches(_labels([9, 4, 12, 5, 7, 3, 6, 11, 4], seed=3))
    exact = _batches([torch.ones(1, 6, dtype=torch.int64)] * 5)  # five targets each
    return compare(
        fn,
        reference=_windows_by(count),
        cases={
            "nine ragged micro-batches": (ragged, 20),
            "windows that hold exactly enough": (exact, 10),
            "each micro-batch is enough": (ragged[:3], 1),
            "all together are too few": (ragged[:4], 1000),
            "no micro-batches": ([], 5),
        },
        mistakes={
            "the last window is dropped where it holds too few targets": _windows_by(count, tail=False),
            "a window ends before the micro-batch that would complete it": _windows_by(count, early=True),
            "a window that holds exactly min_tokens goes on": lambda batches, least: _windows_by(count)(
                batches, least + 1
            ),
            "the count is not set back to 0 for the next window": _windows_by(count, reset=False),
            "rows are counted instead of targets": _windows_by(len),
            "the first label of each row is counted: there is no shift": _windows_by(
                lambda labels: int((labels != -100).sum())
            ),
            "ignored labels are counted too": _windows_by(lambda labels: labels[:, 1:].numel()),
            "an empty window follows the last one": lambda batches, least: [*_windows_by(count)(batches, least), []],
        },
        run=_numbers_of_windows,
    )


def _windows_by(
    count: Callable[[Tensor], int], *, tail: bool = True, early: bool = False, reset: bool = True
) -> Callable[..., Iterator[list[AnyBatch]]]:
    """The exercise's answer with another count or one mistake."""

    def group(batches: Iterable[AnyBatch], min_tokens: int) -> Iterator[list[AnyBatch]]:
        window, tokens = [], 0
        for batch in batches:
            own = count(batch["labels"])
            if early and window and tokens + own > min_tokens:
                yield window
                window, tokens = [], 0
            window.append(batch)
            tokens += own
            if not early and tokens >= min_tokens:
                yield window
                window, tokens = [], 0 if reset else tokens
        if window and tail:
            yield window

    return group


def _numbers_of_windows(fn: Callable[..., Any], batches: Sequence[AnyBatch], min_tokens: int) -> list[list[int]] | None:
    """The micro-batches of each window by number; None for a stub."""
    groups = fn(iter(batches), min_tokens)
    return None if groups in (None, ...) else [[int(batch["number"]) for batch in group] for group in groups]


def accumulate_gradient(fn: Callable[..., object]) -> Report:
    """A step's gradient from an iterator: `fn(model, micro_batches)` leaves it in the model, returns the mean loss."""
    window, model = _window([[9, 3], [12, 12], [4, 2]], seed=0), _Model()
    clean, left_over = None, 1.0
    empty = {**window[2], "labels": torch.full_like(window[2]["labels"], -100)}
    return compare(
        fn,
        reference=_by_train_step,
        cases={
            "three ragged micro-batches": (model, window, clean),
            "gradients left over from before": (model, window[:2], left_over),
            "one micro-batch without a target": (model, [window[0], empty, window[1]], clean),
            "no target in the whole window": (model, [empty], left_over),
        },
        mistakes={
            "each micro-batch's mean is divided by the number of micro-batches: a mean of means": _accumulation(
                divisor="own", means=True
            ),
            "each micro-batch is divided by its own targets, and the means are added up": _accumulation(divisor="own"),
            "the sums are not divided": _accumulation(divisor="nothing"),
            "the sums are divided by all positions, padding too": _accumulation(divisor="positions"),
            "the sums are divided by all labels that are not −100: the divisor is not shifted": _accumulation(
                divisor="unshifted"
            ),
            "gradients are cleared before every micro-batch, so that the last one alone remains": _accumulation(
                clear="micro-batch"
            ),
            "gradients from before the step are not cleared": _accumulation(clear="never"),
            "a window without targets is divided by 0": _accumulation(divides_by_zero=True),
        },
        run=_gradient_and_loss,
    )


def _gradient_and_loss(
    fn: Callable[..., Any], model: nn.Module, micro_batches: Sequence[AnyBatch], before: float | None
) -> object:
    """Gradients that were `before` and are then what `fn` leaves, with the loss; None for a stub."""
    for parameter in model.parameters():
        parameter.grad = None if before is None else torch.full_like(parameter, before)
    loss = fn(model, iter(micro_batches))
    if loss is None or loss is ...:
        return None
    parameters = dict(model.named_parameters())
    gradients = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in parameters.items()}
    return {"loss": loss.item() if isinstance(loss, Tensor) else loss, **gradients}


def _by_train_step(model: nn.Module, micro_batches: Iterable[AnyBatch]) -> float:
    model.zero_grad()  # train_step leaves the gradients of before where there is no target
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a window without targets
        still = torch.optim.SGD(model.parameters(), lr=0.0)
        return float(train_step(model, list(micro_batches), still, max_grad_norm=None).loss)


def _accumulation(
    *, divisor: str = "window", means: bool = False, clear: str = "step", divides_by_zero: bool = False
) -> Callable[[nn.Module, Iterable[AnyBatch]], float]:
    """The exercise's answer with one mistake; `means` divides by the number of micro-batches as well."""

    def accumulate(model: nn.Module, batches: Iterable[AnyBatch]) -> float:
        micro_batches = list(batches)
        tokens = int(count_window_targets(micro_batches))
        if clear == "step" or not tokens:
            model.zero_grad()
        if not tokens and divides_by_zero:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, math.nan)
        if not tokens:
            return math.nan
        divisors = {
            "window": tokens,
            "nothing": 1,
            "positions": sum(batch["labels"].numel() for batch in micro_batches),
            "unshifted": sum(int((batch["labels"] != -100).sum()) for batch in micro_batches),
        }
        total = 0.0
        for batch in micro_batches:
            if clear == "micro-batch":
                model.zero_grad()
            own = int(count_targets(batch["labels"])) or math.nan  # a mean over nothing
            logits = model(batch["input_ids"], batch["attention_mask"])
            loss = next_token_loss(logits, batch["labels"], reduction="sum") / divisors.get(divisor, own)
            loss = loss / len(micro_batches) if means else loss
            loss.backward()
            total += float(loss.detach())
        return total

    return accumulate


class _Model(nn.Module):
    """Scores the next token by the current one alone."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.scores = nn.Parameter(torch.randn(_VOCAB_SIZE, _VOCAB_SIZE, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(_VOCAB_SIZE, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return F.embedding(input_ids, self.scores) + self.bias  # (B, T, V)


def _labels(widths: Sequence[int], *, seed: int) -> list[Tensor]:
    """Labels (B, T) of these widths with one to three rows; about a quarter is ignored."""
    generator = torch.Generator().manual_seed(seed)
    every = []
    for number, width in enumerate(widths):
        labels = torch.randint(0, _VOCAB_SIZE, (1 + number % 3, width), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < 0.25] = -100
        labels[:, 0], labels[:, 1], labels[0, 2] = 1, 2, -100  # a first label, a target and an ignored one
        every.append(labels)
    return every


def _window(lengths: Sequence[Sequence[int]], *, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    window = []
    for rows in lengths:
        mask = (torch.arange(max(rows)) < torch.tensor(rows)[:, None]).long()  # (B, T)
        ids = torch.randint(0, _VOCAB_SIZE, mask.shape, generator=generator)
        window.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return window


def _batches(labels: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"labels": one, "number": number} for number, one in enumerate(labels)]
