"""Validation document by document: the same numbers as `evaluate`, each with an interval over documents.

A measured text is a sample: other documents from the same source would have given another loss. The documents are the
units that are drawn, not the tokens, since tokens of one document are alike. A loss is a ratio of two sums over
documents, nats to tokens, and its standard error is that of a ratio estimator (Cochran 1977, "Sampling Techniques",
section 6.4). The interval says nothing about other seeds or another training text.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lm.batching import IGNORE_INDEX, Loader
from course_lm.display import Bar
from course_lm.forward import device_of, forward_logits, move_batch
from course_lm.guard import check_batch, checked_precision
from course_lm.loss import next_token_loss, perplexity
from course_lm.model import evaluation_mode
from course_lm.precision import Precision

NORMAL = 1.959964  # the normal distribution holds 95 % within so many standard deviations
FEWEST = 3  # documents that give an interval: two say nothing of how documents differ


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its 95 % interval, which are nan where there are too few documents for one."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class DocumentSums:
    """What each of D documents adds to the sums over the whole text.

    Attributes:
        nats: loss, summed over the document's targets, (D,) float64.
        tokens, correct, num_bytes: its target tokens, those that had the highest logit, and the UTF-8 bytes of all of
            them, (D,) int64.
    """

    nats: Tensor
    tokens: Tensor
    correct: Tensor
    num_bytes: Tensor

    def estimates(self) -> dict[str, Estimate]:
        """The loss in nats per target token, its exponential, bits per byte of the text, and the share of hits."""
        loss, share = ratio(self.nats, self.tokens), ratio(self.correct, self.tokens)
        return {
            "loss": loss,
            "perplexity": Estimate(perplexity(loss.value), perplexity(loss.low), perplexity(loss.high)),
            "bits_per_byte": ratio(self.nats / math.log(2), self.num_bytes),
            # the end comes first in max and min, which then leave a nan as it is
            "accuracy": Estimate(share.value, max(share.low, 0.0), min(share.high, 1.0)),
        }


def ratio(above: Tensor, below: Tensor) -> Estimate:
    """The ratio of two sums over documents, `above` and `below` (D,), with its 95 % interval.

    The interval is value ± t * s: s² = D / (D - 1) * the sum of (above - value * below)² / (the sum of `below`)², and t
    is the quantile of Student's distribution with D - 1 degrees of freedom.
    """
    above, below = above.double(), below.double()
    documents, total = len(above), float(below.sum())
    value = float(above.sum()) / total if total else math.nan
    if documents < FEWEST:
        return Estimate(value, math.nan, math.nan)
    error = math.sqrt(documents / (documents - 1) * float((above - value * below).square().sum())) / total
    reach = student_quantile(documents - 1) * error
    return Estimate(value, value - reach, value + reach)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to 1 % from 2 degrees of freedom on (Abramowitz and Stegun 1964, 26.7.5)."""
    z, n = NORMAL, freedom
    terms = (
        z,
        (z**3 + z) / 4 / n,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96 / n**2,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / n**3,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / n**4,
    )
    return sum(terms)


@torch.no_grad()
def evaluate_documents(
    model: nn.Module, loader: Loader, precision: Precision | None = None, *, show_progress: bool = False
) -> DocumentSums:
    """The sums of each document that `loader` holds, over the batches of its epoch 0, on the model's device.

    Documents without text are left out. Each module's mode is put back. `show_progress` draws a bar in a terminal.
    """
    device = device_of(model)
    precision = checked_precision(precision, device)
    exact = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    nats = torch.zeros(loader.num_documents, dtype=torch.float64)
    tokens, correct, num_bytes = torch.zeros(3, loader.num_documents, dtype=torch.int64)
    with evaluation_mode(model):
        # disable=None leaves the bar out where standard error is no terminal
        hidden = None if show_progress else True
        bar = Bar(loader.from_start(), total=len(loader), disable=hidden, leave=False, unit=" batches")
        for batch, rows in zip(bar, loader.order(0)):
            check_batch(model, batch)
            moved = move_batch(batch, device, model)
            with precision.autocast():
                logits = forward_logits(model, moved)
                losses = next_token_loss(logits, moved["labels"], reduction="none")  # (B, T - 1)
            targets = batch["labels"][:, 1:]
            counted = targets != IGNORE_INDEX
            owners = loader.documents_of(rows, batch)[:, 1:][counted]
            hits = (logits.argmax(-1)[:, :-1].cpu() == targets)[counted]
            nats.index_add_(0, owners, losses.to(exact).cpu().double()[counted])
            tokens.index_add_(0, owners, torch.ones_like(owners))
            correct.index_add_(0, owners, hits.long())
            num_bytes.index_add_(0, owners, loader.rows.token_bytes[targets[counted]].long())
    held = tokens > 0
    return DocumentSums(nats[held], tokens[held], correct[held], num_bytes[held])
