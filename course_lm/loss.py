"""Next-token cross-entropy, and the counts that go with it.

Labels arrive unshifted, the same length as the logits, and are shifted here and nowhere else: the logits at
position t are scored against the label at t + 1. The shift moves the labels (one integer per token) and not
the logits (a vocabulary per token), so the logits are flattened as a view; the last position gets an
ignored label.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def next_token_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Cross-entropy of each position's prediction of the next token, in nats.

    `logits` (B, T, V); `labels` (B, T) int64, not shifted. Targets equal to `ignore_index` add nothing to
    the loss, the gradient or the count. float16 and bfloat16 logits are scored in float32; float64 stays
    float64.

    `reduction`: "mean" is the sum divided by the number of targets, and nan where there is none (a mean over
    nothing); "sum" is then 0 with a zero gradient; "none" gives (B, T - 1), 0 at ignored targets.

    `label_smoothing` in [0, 1] mixes the target with the uniform distribution (Szegedy et al. 2016, section
    7). `z_loss` adds z_loss * logsumexp(logits)² for each target, which holds the softmax normaliser near 1
    (Chowdhery et al. 2022, PaLM, section 5, with 1e-4).

    Raises ValueError for shapes that do not fit, labels that are not int64, and options outside their range.
    """
    _check_inputs(logits, labels)
    _check_options(reduction, label_smoothing, z_loss)
    batch_size, length, vocab_size = logits.shape
    targets = F.pad(labels[:, 1:], (0, 1), value=ignore_index).reshape(-1)
    scores = logits.reshape(-1, vocab_size)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    losses = F.cross_entropy(
        scores,
        targets,
        ignore_index=ignore_index,
        reduction="none" if reduction == "none" else "sum",
        label_smoothing=label_smoothing,
    )
    if z_loss > 0:
        log_z_squared = scores.logsumexp(-1).square()
        penalties = z_loss * log_z_squared.masked_fill(targets == ignore_index, 0.0)
        losses = losses + (penalties if reduction == "none" else penalties.sum())
    if reduction == "none":
        return losses.view(batch_size, length)[:, :-1]
    if reduction == "mean":
        return losses / count_targets(labels, ignore_index)
    return losses


def count_targets(labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Number of target tokens in unshifted `labels` (B, T): a 0-d int64 tensor on the labels' device.

    The first label of each row is no target, because nothing precedes it.
    """
    return (labels[:, 1:] != ignore_index).sum()


@torch.no_grad()
def count_correct(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Number of targets that have the highest logit: a 0-d int64 tensor.

    `logits` (B, T, V), `labels` (B, T) not shifted; divide by `count_targets` for the accuracy. Raises
    ValueError for shapes that do not fit.
    """
    _check_inputs(logits, labels)
    targets = labels[:, 1:]
    hits = logits.argmax(-1)[:, :-1] == targets
    return (hits & (targets != ignore_index)).sum()


def perplexity(loss: float | Tensor) -> float:
    """exp(loss) for a mean loss in nats per token; inf where that exceeds a float, nan for nan."""
    value = loss.item() if isinstance(loss, Tensor) else loss
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _check_inputs(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            "logits must be (B, T, V) and labels (B, T), "
            f"got logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        )
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64, got {labels.dtype}")


def _check_options(reduction: str, label_smoothing: float, z_loss: float) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"z_loss must be a finite number of at least 0, got {z_loss}")
