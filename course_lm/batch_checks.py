"""What a batch must hold before a model is trained on it.

Values are looked at on the host, before a batch moves: on an accelerator an id outside the vocabulary ends the process
with a message that names neither, and looking there would make every step wait.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from course_lm.batching import IGNORE_INDEX
from course_lm.embeddings import embedded_tokens
from course_lm.forward import unwrap
from course_lm.model import positions_of
from course_lm.packed_forward import Parameters

_WHOLE = (torch.int64, torch.int32)
_DTYPES = {  # of each part of a batch
    "input_ids": _WHOLE,
    "labels": (torch.int64,),  # F.cross_entropy takes no int32
    "attention_mask": (*_WHOLE, torch.bool, torch.uint8, torch.int8, torch.float32, torch.float64),
    "document_ids": _WHOLE,
    "position_ids": _WHOLE,
}


def check_batch(model: nn.Module, batch: object) -> None:
    """Refuse a batch that is not a dict of tensors (B, T).

    It must hold `input_ids` and `labels`; `attention_mask`, `document_ids` and `position_ids` are optional. Values on
    an accelerator are not looked at, with one exception: the mask, where the model's forward takes none.

    Raises:
        TypeError: the batch is no dict, or a part of it no tensor.
        ValueError: a missing part, a wrong shape or dtype, an id outside the model's vocabulary, a mask of anything but
            0 and 1, PAD before a token where the model takes no mask, or documents, positions and mask that do not fit.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(f"a batch must be a dict with input_ids and labels, got {_kind(batch)}")
    for name in ("input_ids", "labels"):
        if batch.get(name) is None:
            raise ValueError(f"a batch must hold input_ids and labels, got {', '.join(map(str, batch)) or 'nothing'}")
    parts = {name: batch[name] for name in _DTYPES if batch.get(name) is not None}
    for name, part in parts.items():
        _check_part(name, part, parts["input_ids"])
    vocabulary = vocabulary_size(model)
    _check_ids("input_ids", parts["input_ids"], vocabulary)
    _check_ids("labels", parts["labels"], vocabulary)
    if "attention_mask" in parts:
        _check_mask(parts["attention_mask"], unwrap(model))
    if all(part.device.type == "cpu" for part in parts.values()):
        _check_documents(parts.get("document_ids"), parts.get("attention_mask"))
        _check_positions(parts)


def vocabulary_size(model: nn.Module) -> int | None:
    """Rows of the token embedding, None where there is none.

    It is the one that `get_input_embeddings()` names, as in Hugging Face's models, or else the model's largest.
    """
    return embedded_tokens(unwrap(model))


def _kind(value: object) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def _check_part(name: str, part: object, input_ids: Tensor) -> None:
    if not isinstance(part, Tensor):
        raise TypeError(f"{name} must be a tensor (B, T), got {_kind(part)}")
    if part.dtype not in _DTYPES[name]:
        accepted = " or ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES[name])
        raise ValueError(f"{name} must be {accepted}, got {str(part.dtype).removeprefix('torch.')}")
    if part.ndim != 2:
        raise ValueError(f"{name} must have the shape (B, T), got {tuple(part.shape)}")
    if part.shape != input_ids.shape:
        raise ValueError(f"{name} must have the shape of input_ids {tuple(input_ids.shape)}, got {tuple(part.shape)}")


def _check_ids(name: str, ids: Tensor, vocabulary: int | None) -> None:
    if ids.device.type != "cpu" or not ids.numel():
        return
    values = ids.numpy()  # not by torch, whose reads the tests of hidden waits count
    if name == "labels":
        values = values[values != IGNORE_INDEX]
    if not values.size:
        return
    smallest, largest = int(values.min()), int(values.max())
    if smallest < 0 or (vocabulary is not None and largest >= vocabulary):
        bound = "at least 0" if vocabulary is None else f"from 0 to {vocabulary - 1}, the model's vocabulary"
        also = f" or {IGNORE_INDEX}" if name == "labels" else ""
        raise ValueError(f"{name} must be {bound}{also}, got {smallest if smallest < 0 else largest}")


def _check_mask(mask: Tensor, module: nn.Module) -> None:
    # without a mask a causal model would look at PAD on the left, and nothing later would show it
    needs_right = not Parameters.of_forward(module).accept("attention_mask")
    if mask.is_meta or not mask.numel() or (mask.device.type != "cpu" and not needs_right):
        return
    values = mask.cpu().numpy()
    if values.min() < 0 or values.max() > 1:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"attention_mask must be 1 for a token and 0 for PAD, got {wrong}")
    if needs_right and (values[:, 1:] > values[:, :-1]).any():
        raise ValueError(
            f"{type(module).__name__}.forward takes no attention_mask, so PAD must stand at the right of rows, "
            "got PAD before a token"
        )


def _check_documents(document_ids: Tensor | None, mask: Tensor | None) -> None:
    if document_ids is None:
        return
    documents, width = document_ids.numpy(), document_ids.size(1)
    if mask is not None and ((documents >= 0) != mask.numpy().astype(bool)).any():
        raise ValueError("document_ids must be -1 exactly where attention_mask is 0, got others")
    # A row has as many runs of equal numbers as it has different numbers, unless one comes back after another.
    # Each PAD gets a number of its own, as PAD may stand in several places.
    each_pad_apart = np.where(documents < 0, -1 - np.arange(width), documents)
    pieces, different = ((np.diff(rows) != 0).sum(axis=1) for rows in (each_pad_apart, np.sort(each_pad_apart)))
    if (pieces != different).any():
        raise ValueError("a document's tokens must stand together, got a number of document_ids again after another")


def _check_positions(parts: dict[str, Tensor]) -> None:
    """Models are given positions that are counted here; other ones would be dropped without a word."""
    if "position_ids" not in parts:
        return
    mask, documents = parts.get("attention_mask"), parts.get("document_ids")
    counted = positions_of(parts["input_ids"], mask, documents).numpy()
    # the positions of PAD are free: no token sees them
    real = np.ones(counted.shape, bool) if mask is None else mask.numpy().astype(bool)
    real &= True if documents is None else documents.numpy() >= 0
    if (parts["position_ids"].numpy() != counted)[real].any():
        where = "each row (rows of several documents need document_ids)" if documents is None else "each document"
        raise ValueError(f"position_ids must count from 0 in {where}, got others")
