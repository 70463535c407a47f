"""Validation: the plain next-token loss over a whole loader, every target token weighing the same."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from course_lm.accumulation import windows
from course_lm.batching.data import length_of, read_from_start
from course_lm.distributed import Group, share
from course_lm.distributed.sharing import check_same_batches
from course_lm.forward import AnyBatch, device_of, forward_logits, move_batch
from course_lm.guard import check_batch, checked_precision
from course_lm.loss import count_correct, count_targets, next_token_loss, perplexity
from course_lm.model import evaluation_mode
from course_lm.precision import Precision
from course_lm.shards import hold_parts


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[AnyBatch],
    precision: Precision | None = None,
    group: Group | None = None,
    on_batch: Callable[[int], object] | None = None,
) -> dict[str, float]:
    """Loss and accuracy of next-token prediction, the same for every batch size and every number of ranks.

    The loader is read from its start, the same batches at every call, and afterwards stands where it stood: the loader
    that is being trained on may be measured in the middle of an epoch. The CPU's global random generators and
    each module's mode are put back.

    Args:
        group: the ranks that share the batches out; each gets the numbers of all.
        on_batch: called with the number of batches that all ranks have read so far.

    Returns:
        "val_loss" in nats per target token, "perplexity", "bits_per_byte" (nan where batches carry no "num_bytes"),
        "accuracy" in [0, 1], and "tokens", the number of targets.

    Raises:
        ValueError: the loader holds no target token, as one that was read before and cannot be read again.
    """
    device, group = device_of(model), group or Group()
    precision = checked_precision(precision, device)
    # In float64, so that a small loss is not lost beside a huge sum; MPS has none.
    nats = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    tokens = correct = torch.zeros((), dtype=torch.int64, device=device)  # neither is changed in place
    num_bytes = 0.0
    with evaluation_mode(model), read_from_start(loader, group.share_of(group.world)) as batches:
        for number, window in enumerate(windows(batches, group.world)):
            if number == 0:
                check_same_batches(window, group)
            (batch,) = share(window, group)  # one a rank: the ranks of a sharded model take as many forward passes each
            check_batch(model, batch)
            batch = move_batch(batch, device)
            with precision.autocast():
                logits = forward_logits(model, batch)
                # The plain loss whatever the run trains on: no smoothing, no z-loss, one number to compare runs by.
                nats = nats + next_token_loss(logits, batch["labels"], reduction="sum")
            tokens = tokens + count_targets(batch["labels"])
            correct = correct + count_correct(logits, batch["labels"])
            num_bytes += float(batch.get("num_bytes", math.nan))  # nan from one batch stays to the end
            if on_batch is not None:
                on_batch(number * group.world + len(window))
    hold_parts(model)
    nats, tokens, correct = group.sum(nats), group.sum(tokens), group.sum(correct)
    num_bytes = float(group.sum(torch.tensor(num_bytes, dtype=torch.float64)))
    if not tokens:
        raise ValueError("the validation loader holds no target token: is it empty, or an iterator that is used up?")
    return _metrics(float(nats), int(tokens), int(correct), num_bytes)


def check_validation_loader(loader: Any) -> None:
    """Refuse, before training, a loader that cannot be read at every validation; None is no loader.

    Raises:
        ValueError: it is empty, an iterator, or a single batch.
    """
    if isinstance(loader, Mapping):
        raise ValueError("the validation loader must be an iterable of batches, got a single batch: put it in a list")
    if isinstance(loader, Iterator):
        raise ValueError(
            f"the validation loader is an iterator ({type(loader).__name__}), which the first validation would use up: "
            "give a list of its batches, or a loader that can be read again"
        )
    if length_of(loader) == 0:
        raise ValueError("the validation loader is empty: give it batches, or none at all")


def _metrics(nats: float, tokens: int, correct: int, num_bytes: float) -> dict[str, float]:
    loss = nats / tokens
    return {
        "val_loss": loss,
        "perplexity": perplexity(loss),
        "bits_per_byte": nats / math.log(2) / num_bytes if num_bytes else math.nan,
        "accuracy": correct / tokens,
        "tokens": tokens,
    }
