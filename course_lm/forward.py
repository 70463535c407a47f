"""How a language model is called on a batch: what its forward takes, and where the logits are in what it returns."""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lm.model import allowed_attention

Batch = Mapping[str, Any]


def forward_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits (B, T, V) of any causal language model on one batch, packed or not.

    Packed rows reach the model as `document_ids` where its forward names that parameter, else as a 4-D additive mask
    with `position_ids`.

    Raises:
        ValueError: the batch is packed and the model can be told of it in neither way.
    """
    names = _forward_parameters(type(unwrap(model)))
    inputs = {"attention_mask": batch.get("attention_mask")}
    if "use_cache" in names:
        inputs["use_cache"] = False  # Hugging Face models would keep keys and values that training never reads
    if "document_ids" in batch:
        inputs |= _packed_inputs(names, batch, next(model.parameters()))
    output = model(batch["input_ids"], **inputs)
    return output if isinstance(output, Tensor) else output.logits


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next(model.parameters()).device


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and `DistributedDataParallel`, in whatever order they were applied."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def move_batch(batch: Batch, device: torch.device) -> dict[str, Any]:
    """The batch with its tensors on `device`; the copy is asynchronous from pinned memory to CUDA."""
    return {
        name: value.to(device, non_blocking=device.type == "cuda" and value.is_pinned())
        if isinstance(value, Tensor)
        else value
        for name, value in batch.items()
    }


@lru_cache
def _forward_parameters(kind: type[nn.Module]) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)


def _packed_inputs(names: frozenset[str], batch: Batch, like: Tensor) -> dict[str, Tensor]:
    inputs = {"position_ids": batch["position_ids"]} if "position_ids" in names else {}
    if "document_ids" in names:
        return inputs | {"document_ids": batch["document_ids"]}
    if not inputs:
        raise ValueError(
            "a packed batch needs a model whose forward takes document_ids, or position_ids and a 4-D attention_mask; "
            f"this one takes {', '.join(sorted(names - {'self'}))}"
        )
    allowed = allowed_attention(batch.get("attention_mask"), batch["document_ids"])
    assert allowed is not None
    bias = torch.zeros_like(allowed, dtype=like.dtype).masked_fill_(~allowed, torch.finfo(like.dtype).min)
    return inputs | {"attention_mask": bias[:, None]}  # (B, 1, T, T)
