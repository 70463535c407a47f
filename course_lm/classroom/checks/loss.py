"""Checks of lesson 03: a stable log-sum-exp, the loss from ids and a mask, perplexity, the loss's gradient."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.batching import IGNORE_INDEX, labels_of
from course_lm.classroom.checks.report import Report, compare
from course_lm.loss import count_targets, next_token_loss, perplexity

_EOS = 0  # the exercise gives <eos> and padding one id
_VOCAB_SIZE = 11


def log_sum_exp(fn: Callable[..., object]) -> Report:
    """The logarithm of the softmax's normaliser: `fn(logits)`, (B, T, V) to (B, T), without overflow."""
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    heights = torch.tensor([0.0, 500.0, -500.0]).view(1, 3, 1)
    return compare(
        fn,
        reference=lambda logits: logits.logsumexp(-1),
        cases={
            "small logits in float64": (logits.double(),),
            "logits times 1000": (logits * 1000,),
            "logits far below zero": (logits - 1000,),
            "positions at different heights": (logits + heights,),
        },
        mistakes={
            "nothing is subtracted before exp, which overflows or vanishes": lambda logits: logits.exp().sum(-1).log(),
            "the maximum is not added back": lambda logits: (logits - logits.amax(-1, keepdim=True)).logsumexp(-1),
            "one maximum is taken over the whole tensor instead of one for each position": lambda logits: (
                (logits - logits.max()).exp().sum(-1).log() + logits.max()
            ),
            "the sum runs over the positions instead of the vocabulary": lambda logits: logits.logsumexp(-2),
            "the mean of the exponentials is taken instead of their sum": lambda logits: (
                logits.logsumexp(-1) - math.log(logits.size(-1))
            ),
            "the logarithm has base 2": lambda logits: logits.logsumexp(-1) / math.log(2),
        },
    )


def loss_from_ids(fn: Callable[..., object]) -> Report:
    """The mean next-token loss from ids: `fn(logits, input_ids, attention_mask)`, rows padded on the right."""
    return compare(
        fn,
        reference=lambda logits, ids, mask: next_token_loss(logits, labels_of(ids, mask)),
        cases={
            "rows of 8, 5 and 3 tokens": _rows([8, 5, 3], seed=0),
            "no padding": _rows([6, 6], seed=1),
            "a short and a long row in float64": _rows([9, 2], seed=2, dtype=torch.float64),
            "logits times 1000": _rows([7, 4], seed=3, scale=1000.0),
        },
        mistakes={
            "there is no shift: position t is scored against token t": _shifted_by(0),
            "the shift goes the wrong way: position t is scored against token t − 1": _shifted_by(-1),
            "the shift is made twice: position t is scored against token t + 2": _shifted_by(2),
            "padding counts as a target": lambda logits, ids, mask: next_token_loss(logits, ids),
            "there is no shift, and padding counts as a target": lambda logits, ids, mask: F.cross_entropy(
                logits.flatten(0, 1), ids.flatten()
            ),
            "ids decide what is padding, so that real <eos> tokens are left out too": lambda logits, ids, mask: (
                next_token_loss(logits, ids.masked_fill(ids == _EOS, IGNORE_INDEX))
            ),
            "the mask is not shifted with the targets": _with_unshifted_mask,
            "every row weighs the same: a mean of means": lambda logits, ids, mask: (
                _row_sums(logits, ids, mask) / mask[:, 1:].sum(1)
            ).mean(),
            "the losses are summed, not averaged": lambda logits, ids, mask: _row_sums(logits, ids, mask).sum(),
            "the mean divides by all positions, ignored ones too": lambda logits, ids, mask: (
                _row_sums(logits, ids, mask).sum() / mask[:, 1:].numel()
            ),
        },
    )


def _row_sums(logits: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    return next_token_loss(logits, labels_of(input_ids, attention_mask), reduction="none").sum(1)


def _shifted_by(offset: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A loss that scores position t against token t + `offset`."""

    def loss(logits: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        length = logits.size(1) - abs(offset)
        scored = logits[:, max(0, -offset) :][:, :length]
        targets = labels_of(input_ids, attention_mask)[:, max(0, offset) :][:, :length]
        return F.cross_entropy(scored.flatten(0, 1), targets.flatten())

    return loss


def _with_unshifted_mask(logits: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    targets = input_ids[:, 1:].masked_fill(attention_mask[:, :-1] == 0, IGNORE_INDEX)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())


def _rows(
    lengths: Sequence[int], *, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, ids and mask of rows that begin and end with <eos>; `lengths` count both."""
    generator = torch.Generator().manual_seed(seed)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()  # (B, T)
    words = torch.randint(1, _VOCAB_SIZE, attention_mask.shape, generator=generator)
    input_ids = words.masked_fill(attention_mask == 0, _EOS)
    input_ids[:, 0] = _EOS
    for row, length in enumerate(lengths):
        input_ids[row, length - 1] = _EOS
    logits = torch.randn(*input_ids.shape, _VOCAB_SIZE, generator=generator, dtype=torch.float64)
    return (logits * scale).to(dtype), input_ids, attention_mask


def corpus_perplexity(fn: Callable[..., object]) -> Report:
    """Perplexity of several batches: `fn(mean_losses, num_targets)`, nats per target and targets of each batch."""

    def mean_loss(losses: Sequence[float], counts: Sequence[int]) -> float:
        return sum(loss * count for loss, count in zip(losses, counts) if count) / sum(counts)

    def finite(losses: Sequence[float]) -> list[float]:
        return [loss for loss in losses if not math.isnan(loss)]

    return compare(
        fn,
        reference=lambda losses, counts: perplexity(mean_loss(losses, counts)),
        cases={
            "a large and a small batch": ([2.0, 5.0], [90, 10]),
            "three batches": ([1.5, 0.5, 3.0], [7, 20, 3]),
            "a batch without targets, whose mean is nan": ([2.0, math.nan, 3.0], [10, 0, 30]),
        },
        mistakes={
            "every batch's mean loss weighs the same, however many targets it has": lambda losses, counts: math.exp(
                sum(finite(losses)) / len(finite(losses))
            ),
            "perplexities are averaged, every batch weighing the same": lambda losses, counts: (
                sum(map(math.exp, finite(losses))) / len(finite(losses))
            ),
            "perplexities are averaged over the tokens: the exponential comes before the mean": lambda losses, counts: (
                mean_loss([math.exp(loss) for loss in losses], counts)
            ),
            "the nan of a batch without targets spreads": lambda losses, counts: math.exp(
                sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)
            ),
            "the power has base 2, but the losses are in nats": lambda losses, counts: 2 ** mean_loss(losses, counts),
            "the exponential is missing": mean_loss,
        },
    )


def logits_gradient(fn: Callable[..., object]) -> Report:
    """The gradient of the mean loss in the logits: `fn(logits, labels)`, (B, T, V), labels not shifted."""
    mistakes: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "the sign is turned around: target minus softmax": lambda logits, labels: -_gradient(logits, labels),
        "it is not divided by the number of targets": lambda logits, labels: (
            _gradient(logits, labels) * count_targets(labels)
        ),
        "it is divided by all positions, ignored ones too": lambda logits, labels: (
            _gradient(logits, labels) * count_targets(labels) / labels[:, 1:].numel()
        ),
        "every row is divided by its own targets: a mean of means": _gradient_of_means,
        "there is no shift: position t is compared with token t": lambda logits, labels: _gradient(
            F.pad(logits, (0, 0, 0, 1)), F.pad(labels, (1, 0))
        )[:, :-1],
        "ignored targets and the last position have a gradient too": lambda logits, labels: (
            _softmax_minus(logits, labels, 1.0) / count_targets(labels)
        ),
        "the softmax stands alone: 1 is not subtracted at the target": lambda logits, labels: (
            _softmax_minus(logits, labels, 0.0) * _has_target(labels) / count_targets(labels)
        ),
    }
    return compare(
        fn,
        reference=_gradient,
        cases={
            "ignored targets in float64": _logits_and_labels(seed=0, dtype=torch.float64),
            "logits times 1000": _logits_and_labels(seed=1, scale=1000.0),
            "float32, a row with one target": _logits_and_labels(seed=2, one_target=True),
        },
        mistakes=mistakes,
    )


def _logits_and_labels(
    *, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, one_target: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (3, 6), generator=generator)
    labels[0, 4:] = IGNORE_INDEX
    labels[1, 2] = IGNORE_INDEX
    if one_target:
        labels[2, 2:] = IGNORE_INDEX
    logits = torch.randn(3, 6, 5, generator=generator, dtype=torch.float64) * scale
    return logits.to(dtype), labels


def _gradient(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    return torch.autograd.grad(next_token_loss(logits, labels), logits)[0]


def _gradient_of_means(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    row_means = [next_token_loss(logits[row : row + 1], labels[row : row + 1]) for row in range(len(labels))]
    return torch.autograd.grad(torch.stack(row_means).mean(), logits)[0]


def _has_target(labels: Tensor) -> Tensor:
    return F.pad(labels[:, 1:] != IGNORE_INDEX, (0, 1)).unsqueeze(-1)  # (B, T, 1)


def _softmax_minus(logits: Tensor, labels: Tensor, height: float) -> Tensor:
    """The softmax at every position, with `height` subtracted at the targets."""
    targets = F.pad(labels[:, 1:], (0, 1)).clamp(min=0).unsqueeze(-1)  # (B, T, 1)
    at_target = torch.zeros_like(logits).scatter_(-1, targets, height) * _has_target(labels)
    return logits.softmax(-1) - at_target
