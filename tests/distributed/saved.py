"""Activations, measured on the CPU: what autograd saves of one micro-batch, and the logits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm import model as model_module
from course_lm.forward import forward_logits
from course_lm.loss import next_token_loss
from course_lm.model import GPT, Mask, ModelConfig
from course_lm.precision import Precision
from tests.distributed.measured import gathered_weights


def batch_of(rows: int, length: int, vocab_size: int, packed: bool) -> dict[str, Tensor]:
    """Random tokens; packed rows hold two documents each, others have PAD behind a text."""
    ids = torch.randint(2, vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    index = torch.arange(length).expand(rows, length)
    if packed:
        documents = (index >= length // 3).long()
        positions = index - documents * (length // 3)
        mask = torch.ones_like(ids)
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": ids,
            "document_ids": documents,
            "position_ids": positions,
        }
    mask = (index < length - 1 - torch.arange(rows)[:, None] % 3).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def measured_activations(
    config: ModelConfig,
    vocab_size: int,
    length: int,
    rows: int,
    precision: str,
    packed: bool,
    shard: Callable[[GPT], object] = id,
) -> int:
    """Bytes at the loss, or, with gradient checkpointing, in the block that is computed again, if those are more.

    Weights that `shard` has the model gather are no activations.
    """
    model = GPT(config, vocab_size, length)
    shard(model)
    batch = batch_of(rows, length, vocab_size, packed)
    forward_logits(model, batch)  # the first call with packed rows tries the model out
    kept, at_loss, scores, masks = Saved(model), Saved(model), [], []
    stages = [kept]
    model.norm.register_forward_pre_hook(lambda *_: stages.append(at_loss))
    inputs: list[Any] = []  # of the last block
    model.blocks[-1].register_forward_pre_hook(lambda _, given: inputs.extend(given))

    def built(allowed: Tensor | None) -> Mask:
        masks.append(Mask(allowed))
        return masks[-1]

    def cross_entropy(given: Tensor, *rest: object, **options: object) -> Tensor:
        scores.append(given)
        return original(given, *rest, **options)  # type: ignore[arg-type]

    original = F.cross_entropy
    with (
        mock.patch.object(F, "cross_entropy", cross_entropy),
        mock.patch.object(model_module, "Mask", built),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: stages[-1].pack(tensor), lambda tensor: tensor),
        Precision(precision, "cpu").autocast(),
    ):
        logits = forward_logits(model, batch)
        next_token_loss(logits, batch["labels"], reduction="sum")
    for tensor in gathered_weights(model):
        kept.remove(tensor)
        at_loss.remove(tensor)
    at_loss.without(kept)
    at_loss.add(logits)
    at_loss.add(scores[0])
    if not config.gradient_checkpointing:
        return kept.bytes + at_loss.bytes
    kept.add(masks[0].allowed)
    if masks[0]._bias is not None:
        kept.add(masks[0]._bias)
    x, mask, rotation = inputs
    if rotation is not None:
        kept.add(rotation.turns)
    again = Saved(model)
    with again.hooked(), Precision(precision, "cpu").autocast():
        model.blocks[-1](x.detach().requires_grad_(), mask, rotation)
    again.without(kept)
    return kept.bytes + max(at_loss.bytes, again.bytes)


class Saved:
    """Storages that are no parameter's, each once."""

    def __init__(self, model: GPT) -> None:
        self.parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.tensors: dict[int, Tensor] = {}  # held, so that no address is given twice

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())

    def add(self, tensor: Tensor) -> None:
        place = tensor.untyped_storage()._cdata
        if place not in self.parameters:
            self.tensors[place] = tensor

    def pack(self, tensor: Tensor) -> Tensor:
        self.add(tensor)
        return tensor

    def remove(self, tensor: Tensor) -> None:
        self.tensors.pop(tensor.untyped_storage()._cdata, None)

    def without(self, other: "Saved") -> None:
        for place in other.tensors:
            self.tensors.pop(place, None)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor):
            yield
