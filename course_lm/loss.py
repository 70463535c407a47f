"""Next-token cross-entropy, and the counts that go with it.

Labels arrive unshifted, the same length as the logits, and are shifted here and nowhere else: the logits at
position t are scored against the label at t + 1. The shift moves the labels (one integer per token) and not
the logits (a vocabulary per token), so the logits are flattened as a view; the last position gets an
ignored label.

`train_step` divides by the number of targets itself, so a loss function of one's own must return the *sum* over the
targets, with a gradient.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from course_lm.batching import IGNORE_INDEX
from course_lm.validation import NotNegative, Section, Within, require

Reduction = Literal["mean", "sum", "none"]


@dataclass(frozen=True)
class LossConfig(Section):
    """What is trained on beside the plain next-token loss; validation has neither.

    Args:
        label_smoothing: share of each target that goes to all tokens alike.
        z_loss: factor of logsumexp(logits)², which is added for each target (PaLM has 1e-4).

    Raises ValueError naming key, value and what is accepted.
    """

    label_smoothing: Annotated[float, Within(0, 1)] = 0.0
    z_loss: NotNegative = 0.0


def next_token_loss(
    logits: Float[Tensor, "B T V"],
    labels: Int64[Tensor, "B T"],
    *,
    ignore_index: int = IGNORE_INDEX,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Float[Tensor, ""] | Float[Tensor, "B T-1"]:
    """Cross-entropy of each position's prediction of the next token, in nats.

    Labels are not shifted. Targets equal to `ignore_index` add nothing to the loss, the gradient or the count.
    float16 and bfloat16 logits are scored in float32; float64 stays float64.

    `reduction`: "mean" is the sum divided by the number of targets, and nan where there is none (a mean over
    nothing); "sum" is then 0 with a zero gradient; "none" gives (B, T - 1), 0 at ignored targets.

    `label_smoothing` in [0, 1] mixes the target with the uniform distribution (Szegedy et al. 2016, section
    7). `z_loss` adds z_loss * logsumexp(logits)² for each target, which holds the softmax normaliser near 1
    (Chowdhery et al. 2022, PaLM, section 5, with 1e-4).

    Raises ValueError for shapes that do not fit, labels that are not int64, and options outside their range; on the
    CPU torch raises IndexError for a label outside [0, V).
    """
    _check_inputs(logits, labels)
    _check_options(reduction, label_smoothing, z_loss)
    targets = F.pad(labels[:, 1:], (0, 1), value=ignore_index).reshape(-1)
    scores = logits.reshape(-1, logits.shape[-1])
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    over_targets = "none" if reduction == "none" else "sum"
    losses = F.cross_entropy(
        scores, targets, ignore_index=ignore_index, reduction=over_targets, label_smoothing=label_smoothing
    )
    if z_loss > 0:
        penalties = z_loss * scores.logsumexp(-1).square().masked_fill(targets == ignore_index, 0.0)
        losses = losses + (penalties if reduction == "none" else penalties.sum())
    if reduction == "none":
        return losses.view(labels.shape)[:, :-1]
    if reduction == "mean":
        return losses / count_targets(labels, ignore_index)
    return losses


def count_targets(labels: Int64[Tensor, "B T"], ignore_index: int = IGNORE_INDEX) -> Int64[Tensor, ""]:
    """Number of target tokens in unshifted `labels` (B, T): a 0-d int64 tensor on the labels' device.

    The first label of each row is no target, because nothing precedes it. Raises ValueError for another shape.
    """
    if labels.ndim != 2:
        raise ValueError(f"labels must be (B, T), got shape {tuple(labels.shape)}")
    return (labels[:, 1:] != ignore_index).sum()


@torch.no_grad()
def count_correct(
    logits: Float[Tensor, "B T V"], labels: Int64[Tensor, "B T"], ignore_index: int = IGNORE_INDEX
) -> Int64[Tensor, ""]:
    """Number of targets that have the highest logit: a 0-d int64 tensor.

    `logits` (B, T, V), `labels` (B, T) not shifted; divide by `count_targets` for the accuracy. Raises
    ValueError for shapes that do not fit.
    """
    _check_inputs(logits, labels)
    targets = labels[:, 1:]
    hits = logits.argmax(-1)[:, :-1] == targets  # (B, T - 1)
    return (hits & (targets != ignore_index)).sum()


def perplexity(loss: float | Tensor) -> float:
    """exp(loss) for a mean loss in nats per token; inf where that exceeds a float, nan for nan."""
    value = loss.item() if isinstance(loss, Tensor) else loss
    try:
        return math.exp(value)
    except OverflowError:  # math.exp raises where torch.exp gives inf
        return math.inf


def build_loss(config: LossConfig) -> Callable[..., Tensor]:
    """`next_token_loss` with the configured numbers; where all of these are 0, the function itself."""
    return next_token_loss if config == LossConfig() else partial(next_token_loss, **asdict(config))


def _check_inputs(logits: Tensor, labels: Tensor) -> None:
    for name, part in (("logits", logits), ("labels", labels)):
        if not isinstance(part, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(part).__name__}")
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            "logits must be (B, T, V) and labels (B, T), "
            f"got logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        )
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64, got {labels.dtype}")


def _check_options(reduction: str, label_smoothing: float, z_loss: float) -> None:
    require(reduction in ("mean", "sum", "none"), "reduction", '"mean", "sum" or "none"', reduction)
    require(0 <= label_smoothing <= 1, "label_smoothing", "in [0, 1]", label_smoothing)
    require(0 <= z_loss < math.inf, "z_loss", "a finite number of at least 0", z_loss)
