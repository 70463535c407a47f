"""`torch.compile` for a run that may be stopped: what computes a batch follows from its shape alone.

torch makes kernels for the first shape that it meets, and at the second one kernels for all shapes, in the form that
suits this one best. So the bits of a batch would hang on the batches before it, and a process that goes on in the
middle of a run has met others. Only batches of one shape are compiled here, and all others computed as they are.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn


def compile_model(model: nn.Module, shape: tuple[int, int], deterministic: bool) -> nn.Module:
    """The model, compiled for batches of `shape` (B, T) at the first of them."""
    compiled = _compiled(model, deterministic)
    compiled.forward = _for_shape(compiled.forward, model, shape)
    return compiled


def compile_loss(loss_fn: Any, shape: tuple[int, int], deterministic: bool) -> Callable[..., Tensor]:
    """The same of `next_token_loss`, which then reads the logits as they are: no copy in float32 is written."""
    plain = getattr(loss_fn, "func", loss_fn)
    compiled = _compiled(plain, deterministic)
    # wraps: with the name of the loss that torch.compile leaves, by which it is known
    return partial(wraps(compiled)(_for_shape(compiled, plain, shape)), **getattr(loss_fn, "keywords", {}))


def _compiled(what: Any, deterministic: bool) -> Any:
    # on CUDA torch pads products of odd shapes where that was faster in a trial, which may come out otherwise later
    return torch.compile(what, dynamic=False, options={"shape_padding": not deterministic})


def _for_shape(compiled: Callable[..., Any], plain: Callable[..., Any], shape: tuple[int, int]) -> Callable[..., Any]:
    """Call `compiled` where the first tensor is (B, T, …) of this shape, else `plain`."""

    def call(first: Tensor, *others: Any, **named: Any) -> Any:
        return (compiled if first.shape[:2] == shape else plain)(first, *others, **named)

    return call
