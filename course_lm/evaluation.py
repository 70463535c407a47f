"""Validation: the plain next-token loss over a whole loader, every target token weighing the same."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from course_lm.batch_checks import check_batch
from course_lm.forward import Batch, device_of, forward_logits, move_batch
from course_lm.loss import count_correct, count_targets, next_token_loss, perplexity
from course_lm.model import evaluation_mode
from course_lm.precision import Precision


@torch.no_grad()
def evaluate(model: nn.Module, loader: Iterable[Batch], precision: Precision | None = None) -> dict[str, float]:
    """Loss and accuracy of next-token prediction, the same for every batch size.

    Returns:
        "val_loss" in nats per target token, "perplexity", "bits_per_byte" (nan where batches carry no "num_bytes"),
        "accuracy" in [0, 1], and "tokens", the number of targets. All but the last are nan for no targets.
    """
    device = device_of(model)
    precision = precision or Precision("fp32", device)
    nats = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    tokens = correct = torch.zeros((), dtype=torch.int64, device=device)
    num_bytes = 0.0
    with evaluation_mode(model), torch.random.fork_rng(devices=[]):  # a plain DataLoader draws a seed
        for batch in loader:
            check_batch(model, batch)
            batch = move_batch(batch, device)
            with precision.autocast():
                logits = forward_logits(model, batch)
                nats = nats + next_token_loss(logits, batch["labels"], reduction="sum")
            tokens = tokens + count_targets(batch["labels"])
            correct = correct + count_correct(logits, batch["labels"])
            num_bytes += float(batch.get("num_bytes", math.nan))
    return _metrics(float(nats), int(tokens), int(correct), num_bytes)


def _metrics(nats: float, tokens: int, correct: int, num_bytes: float) -> dict[str, float]:
    loss = nats / tokens if tokens else math.nan
    return {
        "val_loss": loss,
        "perplexity": perplexity(loss),
        "bits_per_byte": nats / math.log(2) / num_bytes if tokens and num_bytes else math.nan,
        "accuracy": correct / tokens if tokens else math.nan,
        "tokens": tokens,
    }
