"""What a batch holds: `Batch` is what the loaders make, `AnyBatch` what the step, the trainer and validation take."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import torch
from jaxtyping import Int64
from torch import Tensor


class Batch(TypedDict):
    """B rows of T tokens."""

    input_ids: Int64[Tensor, "B T"]
    attention_mask: Int64[Tensor, "B T"]  # 1 for a token, 0 for PAD
    labels: Int64[Tensor, "B T"]  # not shifted: the token itself, or -100 where it is no target
    document_ids: NotRequired[Int64[Tensor, "B T"]]  # of packed rows: 0, 1, … in each row, -1 at PAD
    position_ids: NotRequired[Int64[Tensor, "B T"]]  # of packed rows: from 0 in each document, 0 at PAD
    num_bytes: NotRequired[int]  # UTF-8 bytes of the targets' text, for bits per byte


# A loader of one's own may give another mapping with these keys, such as Hugging Face's BatchEncoding. It needs no
# attention mask where no row is padded, and may hold more. `guard.check_batch` says what is accepted.
AnyBatch = Batch | Mapping[str, Any]


def with_own_memory(batch: Any) -> Any:
    """The batch in memory of its own, pinned where it was: a loader may fill one buffer, or one dict, with each."""
    if not isinstance(batch, Mapping):  # no batch, and refused when its step comes
        return batch
    return {
        name: torch.empty_like(value, pin_memory=value.is_pinned()).copy_(value) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
