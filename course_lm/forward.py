"""How a language model is called on a batch: what its forward takes, and where the logits are in what it returns."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lm.batching import AnyBatch
from course_lm.packed_forward import Parameters, logits_of, packed_inputs, plain_inputs


def forward_logits(model: nn.Module, batch: AnyBatch) -> Tensor:
    """Logits (B, T, V) of any causal language model on one batch, packed or not.

    A forward that takes no `attention_mask` is called without: a causal model does not see PAD at the right of a row.
    Packed rows are given in the first way that keeps documents apart, see `packed_forward`.

    Raises:
        ValueError: the rows are packed and the model mixes their documents, or padded on the left and the model
            takes no mask, or too long; or what the model returns holds no logits of that shape.
    """
    module, ids = unwrap(model), batch["input_ids"]
    takes = Parameters.of_forward(module)  # of the module inside: the forward of a wrapper takes *args and **kwargs
    _check_length(module, ids.size(1))
    if "document_ids" in batch:
        inputs = packed_inputs(module, batch, takes)
    else:
        inputs = plain_inputs(batch.get("attention_mask"), takes)
    try:
        output = model(ids, **inputs)  # the wrapper: DDP prepares its exchange of gradients in its own forward
    except IndexError as error:
        if "out of range in self" not in str(error):  # torch's words for an id beyond an embedding, on the CPU
            raise
        raise ValueError(_too_small_an_embedding(module, ids)) from error
    return _checked_logits(output, ids, module)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives; ValueError where there is none."""
    for parameter in model.parameters():
        return parameter.device
    raise ValueError(f"the model ({type(unwrap(model)).__name__}) has no parameter")


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and `DistributedDataParallel`, in whatever order they were applied."""
    while True:
        # by its class: other models may keep their layers under the name `module`
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # the name that torch.compile gives it
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def move_batch(batch: AnyBatch, device: torch.device) -> dict[str, Any]:
    """The batch with its tensors on `device`; the copy is asynchronous from pinned memory to CUDA."""
    return {
        name: value.to(device, non_blocking=device.type == "cuda" and value.is_pinned())
        if isinstance(value, Tensor)
        else value
        for name, value in batch.items()
    }


def _check_length(module: nn.Module, length: int) -> None:
    """Refuse rows longer than a Hugging Face configuration allows; this package's own model says so itself."""
    config: Any = getattr(module, "config", None)
    if hasattr(config, "get_text_config"):  # a model of text and images keeps the text's settings one level down
        config = config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < length:
        raise ValueError(
            f"{type(module).__name__} takes at most {longest} positions (max_position_embeddings), got {length}"
        )


def _too_small_an_embedding(module: nn.Module, ids: Tensor) -> str:
    rows = sorted({one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)})
    return (
        f"an embedding of {type(module).__name__} is too small for the batch: ids from {int(ids.min())} to "
        f"{int(ids.max())} at {ids.size(1)} positions, embeddings of {' and '.join(map(str, rows)) or 'unknown'} rows"
    )


def _checked_logits(output: object, ids: Tensor, module: nn.Module) -> Tensor:
    logits = logits_of(output)
    if isinstance(logits, Tensor) and logits.ndim == 3 and logits.shape[:2] == ids.shape:
        return logits
    came = f"a tensor {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"{type(logits).__name__}"
    within = "" if logits is output else f" in {type(output).__name__}"
    batch_size, length = ids.shape
    raise ValueError(
        f"{type(module).__name__} must return logits (B, T, V), here ({batch_size}, {length}, V), got {came}{within}"
    )
