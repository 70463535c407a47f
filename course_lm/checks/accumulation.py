"""Checks of lesson 08: windows, the targets of each step, factors for means, and a whole accumulated gradient."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.checks.report import Report, compare
from course_lm.loss import count_targets, next_token_loss
from course_lm.step import train_step

_VOCAB_SIZE = 7

Batch = Mapping[str, Tensor]


def group_batches(fn: Callable[..., object]) -> Report:
    """Windows as a generator: `fn(batches, accumulation_steps)` yields lists and reads no further than it has to."""
    return compare(
        fn,
        reference=windows,
        cases={
            "a shorter last window": (list("abcdefg"), 3),
            "no rest": (list("abcdef"), 2),
            "fewer batches than a window holds": (list("ab"), 5),
            "windows of one": (list("abc"), 1),
            "no batches at all": ([], 4),
        },
        mistakes={
            "the last, shorter window is dropped": lambda batches, n: (w for w in windows(batches, n) if len(w) == n),
            "the rest is added to the window before it": _with_rest_in_the_last,
            "all batches are read before the first window is given out": lambda batches, n: list(windows(batches, n)),
            "the first batch of the next window is read before a window is given out": _with_look_ahead,
            "there are accumulation_steps windows, not windows of accumulation_steps batches": _as_many_windows,
            "an empty window follows the last one": lambda batches, n: (w for w in [*windows(batches, n), []]),
            "the last window is filled up with earlier batches": _filled_up,
        },
        run=_with_batches_read,
    )


def _with_batches_read(fn: Callable[..., Any], batches: Sequence[str], accumulation_steps: int) -> object:
    """Each window, with the number of batches that had been read when it came; None for a stub."""
    read = 0

    def loader() -> Iterator[str]:
        nonlocal read
        for batch in batches:
            read += 1
            yield batch

    groups = fn(loader(), accumulation_steps)
    return None if groups in (None, ...) else [(list(group), read) for group in groups]


def _with_rest_in_the_last(batches: Iterable[str], n: int) -> Iterator[list[str]]:
    groups = list(windows(batches, n))
    if len(groups) > 1 and len(groups[-1]) < n:
        groups[-2:] = [groups[-2] + groups[-1]]
    yield from groups


def _with_look_ahead(batches: Iterable[str], n: int) -> Iterator[list[str]]:
    group: list[str] = []
    for batch in batches:
        if len(group) == n:
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def _as_many_windows(batches: Iterable[str], n: int) -> Iterator[list[str]]:
    everything = list(batches)
    yield from windows(everything, max(1, -(-len(everything) // n)))


def _filled_up(batches: Iterable[str], n: int) -> Iterator[list[str]]:
    everything = list(batches)
    for window in windows(everything, n):
        yield (window + everything * n)[:n]


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


def accumulate_gradient(fn: Callable[..., object]) -> Report:
    """A whole step's gradient: `fn(model, micro_batches)` leaves it in the model and returns the mean loss."""
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
            "a window without targets clears the gradients": _accumulation(clear="always"),
        },
        run=_gradient_and_loss,
    )


def _gradient_and_loss(
    fn: Callable[..., Any], model: nn.Module, micro_batches: Sequence[Batch], before: float | None
) -> object:
    """What is left in the model whose gradients were `before`, and the loss; None for a stub."""
    for parameter in model.parameters():
        parameter.grad = None if before is None else torch.full_like(parameter, before)
    loss = fn(model, micro_batches)
    if loss is None or loss is ...:
        return None
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"loss": loss.item() if isinstance(loss, Tensor) else loss, **gradients}


def _by_train_step(model: nn.Module, micro_batches: Sequence[Batch]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a window without targets
        still = torch.optim.SGD(model.parameters(), lr=0.0)
        return float(train_step(model, micro_batches, still, max_grad_norm=None).loss)


def _accumulation(
    *, divisor: str = "window", means: bool = False, clear: str = "step"
) -> Callable[[nn.Module, Sequence[Batch]], float]:
    """The exercise's answer with one mistake; `means` divides by the number of micro-batches as well."""

    def accumulate(model: nn.Module, micro_batches: Sequence[Batch]) -> float:
        tokens = int(count_window_targets(micro_batches))
        if clear == "always":
            model.zero_grad()
        if not tokens:
            return math.nan
        if clear == "step":
            model.zero_grad()
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
