"""A window of micro-batches, shared out among the ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.batching import IGNORE_INDEX, AnyBatch
from course_lm.distributed.ranks import Group


def share(window: Sequence[AnyBatch], group: Group) -> list[AnyBatch]:
    """The micro-batches of a window that this rank computes: of W ranks, rank r takes r, r + W, r + 2W, …

    Every rank gets equally many, for the ranks of a sharded model meet in each pass: where there is none left for a rank,
    it gets one without a target. So with more ranks than micro-batches the surplus ranks work for nothing. Only a rank's
    own micro-batches are looked at, or the first one where it has none: the others may be None.
    """
    mine = list(window[group.rank :: group.world])
    missing = math.ceil(len(window) / group.world) - len(mine)
    if missing:
        mine += [without_targets(mine[0] if mine else window[0])] * missing
    return mine


def without_targets(batch: AnyBatch) -> Mapping[str, Any]:
    """The first row of a batch, with no target."""
    row = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
    return {**row, "labels": torch.full_like(row["labels"], IGNORE_INDEX), "num_bytes": 0}
