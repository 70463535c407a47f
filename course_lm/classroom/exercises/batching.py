"""Exercises of lesson 02: what padding costs, what a label is, who may look at whom."""

from collections.abc import Callable

import torch
from torch import Tensor

from course_lm.batching import IGNORE_INDEX
from course_lm.classroom.checks import Refused, exercise
from course_lm.classroom.checks.comparison import as_tensor


@exercise(
    cases={
        "two batches and a smaller last one": ([9, 4, 7, 2, 5, 3, 8], 3),
        "a last batch of one long row": ([3, 5, 4, 6, 40], 2),
        "rows of one length": ([5, 5, 5, 5], 2),
        "one row in each batch": ([3, 9, 4], 1),
        "a hundred rows": ([3 + 37 * row % 88 for row in range(100)], 16),
    },
)
def padding_share(lengths, batch_size):
    """The share of an epoch's positions that is padding: `fn(lengths, batch_size)`."""
    positions = 0
    for start in range(0, len(lengths), batch_size):
        batch = lengths[start : start + batch_size]
        positions += len(batch) * max(batch)
    return 1 - sum(lengths) / positions


_IDS = torch.tensor([[1, 5, 6, 7, 1, 0], [1, 8, 1, 0, 0, 0]])
_MASK = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
_PACKED = torch.tensor([[1, 5, 6, 1, 1, 7, 1, 0], [1, 8, 1, 9, 9, 5, 1, 0]])
_DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1], [0, 0, 0, 1, 1, 1, 1, -1]])


def _labels_that_count(fn: Callable[..., object], *args: Tensor | None) -> object:
    """The labels with −100 at position 0, which the shift drops."""
    labels = fn(*args)
    made = as_tensor(labels)
    if made is None or args[0] is None or made.shape != args[0].shape:
        return labels
    if isinstance(labels, Tensor) and labels.dtype in (torch.int8, torch.int16, torch.int32):
        raise Refused(f"the labels are {labels.dtype}: a loss takes them as torch.int64 alone")
    after_shift = made.clone()
    after_shift[:, 0] = IGNORE_INDEX if made.dtype != torch.bool else False
    return after_shift


@exercise(
    cases={
        "padding on the left": (torch.tensor([[0, 1, 5, 1]]), torch.tensor([[0, 1, 1, 1]]), None),
        "padding on the right": (_IDS, _MASK, None),
        "PAD and EOS share an id": (_IDS.masked_fill(_IDS == 0, 1).flip(1), _MASK.flip(1), None),
        "packed rows": (_PACKED, (_DOCUMENTS >= 0).long(), _DOCUMENTS),
        "packed rows, padding on the left": (_PACKED.flip(1), (_DOCUMENTS >= 0).long().flip(1), _DOCUMENTS.flip(1)),
        "packed pieces of long documents": (
            torch.tensor([[5, 1, 7, 8, 6, 9], [1, 1, 5, 1, 6, 1]]),
            torch.ones(2, 6, dtype=torch.long),
            torch.tensor([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]]),
        ),
    },
    run=_labels_that_count,
)
def labels_of(input_ids, attention_mask, document_ids=None):
    """Labels (B, T), from ids, a mask and perhaps document_ids, each (B, T)."""
    segments = attention_mask if document_ids is None else document_ids
    ignored = attention_mask == 0
    ignored[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    return input_ids.masked_fill(ignored, -100)


@exercise(
    cases={
        "two documents and padding": (torch.tensor([[0, 0, 0, 1, 1, -1, -1]]),),
        "rows of different documents": (torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 2, -1, -1]]),),
        "one document, no padding": (torch.zeros(1, 4, dtype=torch.int64),),
        "padding on the left": (torch.tensor([[-1, -1, 0, 0, 1]]),),
        "three rows of three": (torch.tensor([[0, 0, -1], [0, 1, 1], [0, 0, 0]]),),
    },
)
def allowed_attention(document_ids):
    """Which position of a packed row may look at which, (B, T, T), from document_ids (B, T)."""
    same = document_ids[:, :, None] == document_ids[:, None, :]  # (B, T, T)
    real = (document_ids >= 0)[:, None, :]  # (B, 1, T), of the key
    itself = torch.eye(document_ids.size(1), dtype=torch.bool)  # (T, T)
    return (same & real).tril() | itself
