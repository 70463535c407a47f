"""A window of micro-batches, shared out among the ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.batching import IGNORE_INDEX, AnyBatch
from course_lm.batching.data import digest_of
from course_lm.distributed.ranks import Group


def share(window: Sequence[AnyBatch], group: Group) -> list[AnyBatch]:
    """The micro-batches of a window that this rank computes: of W ranks, rank r takes r, r + W, r + 2W, …

    Every rank gets equally many, for the ranks of a sharded model meet in each pass: where there is none left for a
    rank, it gets one without a target. So with more ranks than micro-batches the surplus ranks work for nothing. Only a
    rank's own micro-batches are looked at, or the first one where it has none: the others may be None.
    """
    mine = list(window[group.rank :: group.world])
    missing = math.ceil(len(window) / group.world) - len(mine)
    if missing:
        mine += [without_targets(mine[0] if mine else window[0])] * missing
    return mine


def check_same_batches(window: Sequence[AnyBatch], group: Group) -> None:
    """Raise ValueError, on every rank, where the batches of a rank are not those of rank 0.

    Each rank takes its share of the same window: a loader must not share its data out a second time. Batches of our own
    loaders are not all there, and need no look.
    """
    if group.world == 1 or group.largest(any(batch is None for batch in window)):
        return
    mine = [digest_of(batch) for batch in window]
    if group.largest(group.tell(mine) != mine):
        raise ValueError(
            "the ranks must read the same batches, of which each takes its share, got others on some than on rank 0: "
            "give every rank the same loader with the same seed, and no DistributedSampler"
        )


def without_targets(batch: AnyBatch) -> Mapping[str, Any]:
    """The first row of a batch, with no target."""
    row: dict[str, Any] = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
    return {**row, "labels": torch.full_like(row["labels"], IGNORE_INDEX), "num_bytes": 0}
