"""Validation: the plain next-token loss over held-out text, every target token weighing the same.

A held-out text is a sample: other documents of the same kind would have given another loss. By how much it would
typically differ is its standard error. What is drawn are documents and not tokens, since the tokens of one document are
alike: so the error is that of a ratio of two sums over documents, nats to tokens (Cochran 1977, "Sampling Techniques",
section 6.4). It says nothing about other seeds or another training text.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader

from course_lm.accumulation import windows
from course_lm.batching import EVERYTHING, IGNORE_INDEX, Loader
from course_lm.batching.data import check_holds_batches, length_of, may_hide_state, read_from_start
from course_lm.distributed import Group, check_same_batches, share
from course_lm.forward import AnyBatch, device_of, forward_logits, move_batch
from course_lm.guard import check_batch, check_weights, checked_precision
from course_lm.loss import count_correct, count_targets, next_token_loss, perplexity
from course_lm.model import evaluation_mode
from course_lm.precision import Precision
from course_lm.shards import hold_parts
from course_lm.validation import require_whole


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[AnyBatch],
    precision: Precision | None = None,
    group: Group | None = None,
    on_batch: Callable[[int], object] | None = None,
    max_tokens: int | None = None,
) -> dict[str, float]:
    """Loss and accuracy of next-token prediction, the same for every batch size and every number of ranks.

    The loader is read from its start, the same batches at every call, and afterwards stands where it stood: the loader
    that is being trained on may be measured in the middle of an epoch. The CPU's global random generators and
    each module's mode are put back.

    Args:
        group: the ranks that share the batches out; each gets the numbers of all.
        on_batch: called with the number of batches that all ranks have read so far, on each rank equally often. What it
            raises ends the validation there; where it raises on all ranks at the same batch, they can go on together.
        max_tokens: read the first batches alone, until they hold so many targets; None reads all. See `sample_of`.

    Returns:
        "val_loss" in nats per target token, "val_loss_se", its standard error, "perplexity", "bits_per_byte" (nan where
        batches carry no "num_bytes"), "accuracy" in [0, 1], and "tokens", the number of targets. The standard error is
        over documents; a loader that is no `Loader` does not tell them, and each piece of one in a row counts as one,
        which is too small an error where documents are longer than rows. With fewer than two it is nan.

    Raises:
        ValueError: the loader holds no target token, as one that was read before and cannot be read again.
    """
    device, group = device_of(model), group or Group()
    check_weights(model)
    precision = checked_precision(precision, device)
    if max_tokens is not None:
        require_whole("max_tokens", max_tokens, least=1)
    # In float64, so that a small loss is not lost beside a huge sum; MPS has none.
    exact = torch.float32 if device.type == "mps" else torch.float64
    nats = torch.zeros((), dtype=exact, device=device)
    tokens = correct = torch.zeros((), dtype=torch.int64, device=device)  # neither is changed in place
    num_bytes = 0.0
    clusters = _Clusters(loader, nats)
    mine = group.share_of(group.world) if max_tokens is None else EVERYTHING  # every rank counts all targets
    with ExitStack() as leaving, evaluation_mode(model), read_from_start(loader, mine) as batches:
        leaving.callback(hold_parts, model)
        read = batches if max_tokens is None else _first(batches, max_tokens, model)
        for number, window in enumerate(windows(read, group.world)):
            if number == 0:
                check_same_batches(window, group)
            (batch,) = share(window, group)  # one a rank: the ranks of a sharded model take as many forward passes each
            check_batch(model, batch, first=number == 0)
            owners = clusters.of(batch, number * group.world + group.rank)
            batch = move_batch(batch, device, model)
            with precision.autocast():
                logits = forward_logits(model, batch)
                # The plain loss whatever the run trains on: no smoothing, no z-loss, one number to compare runs by.
                losses = next_token_loss(logits, batch["labels"], reduction="none")
            nats = nats + losses.to(exact).sum()
            tokens = tokens + count_targets(batch["labels"])
            correct = correct + count_correct(logits, batch["labels"])
            num_bytes += float(batch.get("num_bytes", math.nan))  # nan from one batch stays to the end
            clusters.add(owners, batch["labels"], losses)
            if on_batch is not None:
                on_batch(number * group.world + len(window))
    nats, tokens, correct = group.sum(nats), group.sum(tokens), group.sum(correct)
    num_bytes = float(group.sum(torch.tensor(num_bytes, dtype=torch.float64)))
    if not tokens:
        raise ValueError("the validation loader holds no target token: is it empty, or an iterator that is used up?")
    error = clusters.standard_error(float(nats), int(tokens), group)
    return metrics(float(nats), int(tokens), int(correct), num_bytes, error)


def sample_of(loader: Iterable[AnyBatch], num_tokens: int | None, seed: int) -> tuple[Iterable[AnyBatch], int | None]:
    """What a run reads at each of its validations: a loader, and the `max_tokens` that `evaluate` reads of it.

    Of our own loaders it is a sample of documents, drawn by `seed`, of any other its first batches; `num_tokens` None
    is the whole loader.
    """
    if num_tokens is not None and isinstance(loader, Loader):
        return loader.sample(num_tokens, seed), None
    return loader, num_tokens


def check_validation_loader(loader: Any, model: nn.Module | None = None) -> None:
    """Refuse, before training, a loader that cannot be read at every validation; None is no loader.

    Args:
        model: where it is given, the first batch is looked at, unless it cannot be read without a trace.

    Raises:
        TypeError: its batches are none.
        ValueError: it is empty, an iterator, or a single batch; or its first batch cannot be measured.
    """
    if loader is not None:
        check_holds_batches(loader, "validation")
    if isinstance(loader, Iterator):
        raise ValueError(
            f"the validation loader is an iterator ({type(loader).__name__}), which the first validation would use up: "
            "give a list of its batches, or a loader that can be read again"
        )
    if length_of(loader) == 0:
        raise ValueError("the validation loader is empty: give it batches, or none at all")
    # any other may give what it holds only once
    read_again = isinstance(loader, DataLoader) and not may_hide_state(loader)
    if model is None or not (read_again or isinstance(loader, list | tuple | Loader)):
        return
    with read_from_start(loader) as batches:
        for batch in islice(batches, 1):
            try:
                check_batch(model, batch, first=True)
            except (TypeError, ValueError) as error:
                raise type(error)(f"the validation loader: {error}") from None


def _first(batches: Iterable[AnyBatch], num_tokens: int, model: nn.Module) -> Iterator[AnyBatch]:
    """The first batches, until they hold `num_tokens` targets: so many whatever the number of ranks."""
    for batch in batches:
        check_batch(model, batch)
        yield batch
        num_tokens -= int(count_targets(batch["labels"]))
        if num_tokens <= 0:
            return


class _Clusters:
    """The sums over each document of a text, or over each piece of one where a loader does not tell its documents."""

    def __init__(self, loader: Iterable[AnyBatch], zero: Tensor) -> None:
        self.loader, self.rows = (loader, loader.order(0)) if isinstance(loader, Loader) else (None, [])
        # nats and targets of each document (2, D); pieces end with their batch, and only their squares are kept
        self.sums = None if self.loader is None else zero.new_zeros(2, self.loader.num_documents)
        self.squares, self.count = zero.new_zeros(2, 2), zero

    def of(self, batch: AnyBatch, index: int) -> Int64[Tensor, "B T-1"]:
        """The number of the document or piece that each target is from; `index` is the batch's place in the loader."""
        labels = batch["labels"]
        if self.loader is None:
            ids = batch.get("document_ids", torch.zeros_like(labels))
            begun = (ids[:, 1:] != ids[:, :-1]).cumsum(1)  # (B, T - 1) pieces that begin after the first of a row
            return begun + labels.shape[1] * torch.arange(len(labels), device=labels.device)[:, None]
        if index < len(self.rows):
            return self.loader.documents_of(self.rows[index], batch)[:, 1:]
        return torch.zeros_like(labels[:, 1:])  # a rank that has none in the last window got one without a target

    def add(self, owners: Int64[Tensor, "B T-1"], labels: Int64[Tensor, "B T"], losses: Float[Tensor, "B T-1"]) -> None:
        """Count the targets of a batch."""
        targets = labels[:, 1:] != IGNORE_INDEX
        parts = torch.stack([losses.to(self.squares), targets.to(self.squares)]).flatten(1)
        sums = self.squares.new_zeros(2, labels.numel()) if self.sums is None else self.sums
        sums.index_add_(1, owners.flatten().to(sums.device), parts)
        if self.sums is None:
            self._square(sums)

    def standard_error(self, nats: float, tokens: int, group: Group) -> float:
        """Of `nats` / `tokens`, the sums over all ranks; nan where there are fewer than two documents."""
        if self.sums is None:
            self.squares, self.count = group.sum(self.squares), group.sum(self.count)
        else:  # the ranks share out rows, so that one document may lie on several
            self._square(group.sum(self.sums))
        count, loss = int(self.count), nats / tokens
        if count < 2:
            return math.nan
        (nats_squared, both), (_, tokens_squared) = self.squares.tolist()
        # the sum of (nats - loss * tokens)² over documents, which rounding may leave below 0
        residual = max(nats_squared - 2 * loss * both + loss**2 * tokens_squared, 0.0)
        return math.sqrt(count / (count - 1) * residual) / tokens

    def _square(self, sums: Float[Tensor, "2 K"]) -> None:
        self.squares = self.squares + sums @ sums.T
        self.count = self.count + (sums[1] > 0).sum()


def metrics(nats: float, tokens: int, correct: int, num_bytes: float, error: float) -> dict[str, float]:
    """The record of a validation, from sums over all its targets."""
    loss = nats / tokens
    return {
        "val_loss": loss,
        "val_loss_se": error,
        "perplexity": perplexity(loss),
        "bits_per_byte": nats / math.log(2) / num_bytes if num_bytes else math.nan,
        "accuracy": correct / tokens,
        "tokens": tokens,
    }
