"""One optimizer step: some micro-batches in, one update out.

The loss of a step is the mean over all target tokens of all its micro-batches and ranks, so the count comes first and
each micro-batch contributes its *sum*, divided once. Then: unscale, clip, check, update. The check is the last thing
before the update: whatever made the loss or the gradient NaN, it reaches neither the weights, nor the buffers, nor the
optimizer's state.
"""

import math
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_lm.accumulation import count_window_targets
from course_lm.batch_checks import check_batch
from course_lm.clipping import check_max_norm, clip_gradients
from course_lm.forward import AnyBatch, device_of, forward_logits, move_batch
from course_lm.loss import adapt_loss, loss_sum, next_token_loss
from course_lm.optim import check_gradients, check_optimizer, name_of
from course_lm.precision import Precision
from course_lm.rates import check_rates, set_learning_rate
from course_lm.reproducibility import seed_generators
from course_lm.shards import hold_parts, is_sharded, part_of
from course_lm.validation import require

ON_NONFINITE = ("raise", "skip")


class NonFiniteGradientError(FloatingPointError):
    """The loss or a gradient is NaN or infinite. Weights, buffers and optimizer state are as they were."""


class StepResult(NamedTuple):
    """What one step did, as 0-d tensors. Reading one that lives on an accelerator waits for it.

    Attributes:
        loss: mean over the step's target tokens, nats per token; nan when there is none.
        tokens: target tokens of the step, over all ranks.
        grad_norm: global norm of the gradient before clipping.
        skipped: True when the weights were left as they were.
        bad_parameter: index among the optimizer's parameters of the first whose gradient is not finite; -1 for none.
    """

    loss: Tensor
    tokens: Tensor
    grad_norm: Tensor
    skipped: Tensor
    bad_parameter: Tensor


def train_step(
    model: nn.Module,
    micro_batches: Sequence[AnyBatch],
    optimizer: Optimizer,
    *,
    lr: float | None = None,
    loss_fn: Callable[..., Tensor] = next_token_loss,
    max_grad_norm: float | None = 1.0,
    clip: Callable[..., object] = clip_gradients,
    precision: Precision | None = None,
    on_nonfinite: str = "raise",
    process_group: dist.ProcessGroup | None = None,
    seeds: Sequence[int] | None = None,
) -> StepResult:
    """Update the weights once from all micro-batches together.

    Args:
        model: any module `model(input_ids, attention_mask=...)` that returns logits (B, T, V) or an object with
            `.logits`. Its mode (train or eval) is left to the caller.
        micro_batches: dicts with `input_ids`, `attention_mask` and `labels`, each (B, T); packed ones also
            `document_ids` and `position_ids`.
        lr: learning rate of this step; each group gets `lr` times its `lr_scale`, and groups that have none keep the
            ratios of their rates (see `rates`). None keeps what is set.
        loss_fn: called as `loss_fn(logits, labels, reduction="sum")`, see `loss.loss_sum`; a `CrossEntropyLoss` stands
            for `next_token_loss`.
        max_grad_norm: bound on the global gradient norm; None measures the norm without clipping.
        clip: called as `clip(parameters, max_grad_norm)` on unscaled gradients, changes them in place. One of your own
            needs a number to clip to.
        on_nonfinite: "raise" or "skip". An fp16 overflow is always skipped: the scaler then lowers its scale.
        process_group: sum tokens and loss over its ranks. The model must average gradients over the same ranks: one in
            `DistributedDataParallel` or after `fully_shard` does, and its ranks are taken where no group is given.
        seeds: one for each micro-batch, with which the global generators are seeded before its forward pass: so
            dropout does not depend on which rank computes it. By default they go on as they are.

    Raises:
        NonFiniteGradientError: the loss or the gradient is not finite and `on_nonfinite` is "raise"; with an Adam on an
            accelerator the step is skipped without waiting, and `raise_if_nonfinite` raises when results are read.
        TypeError, ValueError: an argument that cannot train the model, in one line; weights, buffers and optimizer
            state are as they were.
    """
    _check_arguments(micro_batches, max_grad_norm, clip, precision, on_nonfinite)
    hold_parts(model)
    check_optimizer(optimizer, model)
    loss_fn = adapt_loss(loss_fn)
    check_rates(optimizer, lr)
    process_group = process_group or group_of(model)
    if process_group is not None and not micro_batches:
        raise ValueError("micro_batches must hold a batch on every rank, be it one without a target, got an empty list")
    for batch in micro_batches:
        check_batch(model, batch)
    device = device_of(model)
    precision = precision or Precision("fp32", device)
    _check_precision(precision, device)
    tokens = _total(count_window_targets(micro_batches), device, process_group)
    if tokens.device.type == "cpu" and not tokens:
        warnings.warn("skipped a step: its micro-batches hold no target token", stacklevel=2)
        return _empty_step(device)
    tokens = tokens.to(device, non_blocking=True)
    if lr is not None:
        set_learning_rate(optimizer, lr)
    model.zero_grad(set_to_none=True)
    optimizer.zero_grad(set_to_none=True)  # a loss may have weights of its own
    with _Buffers(model) as buffers:
        loss = _accumulate_gradients(model, micro_batches, tokens, loss_fn, precision, process_group, seeds)
        parameters = trained_parameters(optimizer)
        check_gradients(parameters, model)
        _check_same_gradients(optimizer, process_group)
        precision.scaler.unscale_(optimizer)
        grad_norm, finite = _clip(parameters, max_grad_norm, clip)
        result = _update(optimizer, precision, loss, tokens, grad_norm, finite)
    if _defers(optimizer, precision, device):
        buffers.put_back_where(result.skipped)
    elif result.skipped:
        buffers.put_back()
        if on_nonfinite == "raise":
            raise_if_nonfinite(result, model, optimizer, precision)
    return result


def group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """The ranks over which a model averages its gradients; None for a model of one process.

    Raises:
        ValueError: it is sharded over some of the ranks only, so that the others would train without it.
    """
    inside = model
    while not isinstance(inside, DistributedDataParallel):
        if not hasattr(inside, "_orig_mod"):  # the name that torch.compile gives what it wraps
            break
        inside = inside._orig_mod
    if isinstance(inside, DistributedDataParallel):
        return inside.process_group
    mesh = next((parameter.device_mesh for parameter in model.parameters() if is_sharded(parameter)), None)
    if mesh is None:
        return None
    if mesh.size() != dist.get_world_size():
        raise ValueError(f"the model is sharded over {mesh.size()} of {dist.get_world_size()} ranks; give all of them")
    return dist.group.WORLD


def held_parameters(optimizer: Optimizer) -> list[Tensor]:
    """All parameters that the optimizer holds, group after group."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def all_parameters(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Those of the model, and those that only the optimizer knows: a loss may have weights of its own."""
    return list({id(one): one for one in (*model.parameters(), *held_parameters(optimizer))}.values())


def trained_parameters(optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's parameters that have a gradient."""
    return [p for p in held_parameters(optimizer) if p.grad is not None]


def raise_if_nonfinite(
    result: StepResult, model: nn.Module, optimizer: Optimizer, precision: Precision | None = None
) -> None:
    """Raise when a step met a loss or a gradient that is not finite and that no smaller loss scale can cure.

    Raises:
        NonFiniteGradientError: names the loss and the first parameter whose gradient is not finite.
    """
    if not result.skipped or not result.tokens:
        return
    scaling = precision if precision is not None and precision.scales else None
    overflowed = not torch.isfinite(result.grad_norm)  # else the loss, or a clip of the caller's own, is to blame
    if scaling is not None and overflowed and not scaling.was_at_minimum:
        return
    index = int(result.bad_parameter)
    # "none alone": each gradient is finite, and it is their norm that overflows, or the loss that is to blame
    guilty = name_of(held_parameters(optimizer)[index], model) if index >= 0 else "none alone"
    at_scale = f" at the lowest loss scale {scaling.minimum_scale:g}" if scaling is not None and overflowed else ""
    what = "gradient" if overflowed else "loss" if index < 0 else "gradient after clip"
    raise NonFiniteGradientError(
        f"{what} is not finite{at_scale}: loss {float(result.loss):g}, norm {float(result.grad_norm):g}, "
        f"first bad parameter {guilty}; the weights are unchanged"
    )


def _check_arguments(
    micro_batches: object, max_grad_norm: object, clip: object, precision: object, on_nonfinite: str
) -> None:
    require(on_nonfinite in ON_NONFINITE, "on_nonfinite", f"one of {', '.join(ON_NONFINITE)}", on_nonfinite)
    if isinstance(micro_batches, Mapping):
        raise TypeError("micro_batches must be a list of batches, got a single batch: put it in a list")
    # a generator would be empty after the first reading, and the targets are counted before the model runs
    if not isinstance(micro_batches, Sequence):
        raise TypeError(f"micro_batches must be a list of batches, got {type(micro_batches).__name__}")
    if precision is not None and not isinstance(precision, Precision):
        raise TypeError(f"precision must be a Precision(name, device) or None, got {precision!r}")
    if not callable(clip):
        raise TypeError(f"clip must be callable as clip(parameters, max_grad_norm), got {clip!r}")
    check_max_norm(max_grad_norm, "max_grad_norm")
    if max_grad_norm is None and clip is not clip_gradients:
        raise ValueError(
            "max_grad_norm None means no clipping, got it beside a clip of your own: give the norm, or inf"
        )


def _check_precision(precision: Precision, device: torch.device) -> None:
    """Autocast for another device would do nothing, and the step would compute in fp32 without a word."""
    fits = precision.name == "fp32" or precision.device.type == device.type
    require(fits, "precision", f"for the model's device {device.type}", str(precision.device))


def _total(count: Tensor, device: torch.device, process_group: dist.ProcessGroup | None) -> Tensor:
    if process_group is None:
        return count
    count = count.to(device)
    # a collective call: each rank makes it, also one without a target, or the others would wait for it
    dist.all_reduce(count, group=process_group)
    return count


def _empty_step(device: torch.device) -> StepResult:
    loss, tokens, norm = (torch.tensor(value, device=device) for value in (math.nan, 0, 0.0))
    return StepResult(loss, tokens, norm, skipped=torch.tensor(True), bad_parameter=torch.tensor(-1))


def _accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[AnyBatch],
    tokens: Tensor,
    loss_fn: Callable[..., Tensor],
    precision: Precision,
    process_group: dist.ProcessGroup | None,
    seeds: Sequence[int] | None,
) -> Tensor:
    """Backward through every micro-batch; return the step's mean loss."""
    device = device_of(model)
    ranks = 1 if process_group is None else dist.get_world_size(process_group)
    # the ranks average their gradients, a step sums them; in fp16 that waits, or more ranks would overflow sooner
    factor = 1 if precision.scales else ranks
    divisor = tokens.clamp(min=1)  # a count of 0 that lies on an accelerator shows only in `_update`, which skips
    total = torch.zeros((), device=device)
    for index, batch in enumerate(micro_batches):
        batch = move_batch(batch, device)
        last = index == len(micro_batches) - 1
        if seeds is not None:
            seed_generators(seeds[index])
        # The forward pass is inside too: DDP settles there whether the backward pass exchanges gradients.
        with _gradient_exchange(model, last):
            # not around backward(): autograd takes each forward operation's type by itself
            with precision.autocast():
                loss = loss_sum(loss_fn, forward_logits(model, batch), batch["labels"])
            precision.scaler.scale(loss * factor / divisor).backward()
        total = total + loss.detach()  # else the graph of each micro-batch would stay in memory
    if ranks > factor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(ranks)
    return _total(total, device, process_group) / divisor


def _check_same_gradients(optimizer: Optimizer, process_group: dist.ProcessGroup | None) -> None:
    """Refuse a step in which the ranks of a sharded model have used other weights than one another.

    Each rank sends the gradients that it has, one after the other: what was added up may belong to different weights.
    """
    held = held_parameters(optimizer)
    if not any(is_sharded(parameter) for parameter in held):
        return
    digest = zlib.crc32(bytes(parameter.grad is not None for parameter in held))
    # on the CPU where that group can, and the host waits for no accelerator
    device = "cpu" if "cpu" in dist.get_backend_config(process_group) else held[0].device
    extremes = torch.tensor([digest, -digest], device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=process_group)
    if int(extremes[0]) != -int(extremes[1]):
        raise ValueError(
            "the ranks of a sharded model must all use the same of its weights in a step, got gradients of others on "
            'some: take distributed.strategy "ddp"'
        )


def _clip(parameters: list[Tensor], max_norm: float | None, clip: Callable[..., object]) -> tuple[Tensor, Tensor]:
    """Clip; return the true norm before, and whether the gradients are finite now, whatever the caller's clip does."""
    # a clip of the caller's own follows below: here the gradients are only measured
    norm = clip_gradients(parameters, max_norm if clip is clip_gradients else None)
    if clip is clip_gradients:
        return norm, norm.isfinite()  # a NaN or an infinity in any gradient shows in the norm
    clip(parameters, max_norm)
    return norm, norm.isfinite() & clip_gradients(parameters, None).isfinite()


def _gradient_exchange(model: nn.Module, last: bool) -> AbstractContextManager:
    """Exchange gradients between ranks only after the last micro-batch."""
    choose = getattr(model, "set_requires_gradient_sync", None)  # of a model after fully_shard
    if choose is not None:
        choose(last)
        return nullcontext()
    no_sync = getattr(model, "no_sync", None)  # of DistributedDataParallel
    return nullcontext() if last or no_sync is None else no_sync()


def _defers(optimizer: Optimizer, precision: Precision, device: torch.device) -> bool:
    """Whether the update can be skipped on the accelerator itself, without the host looking.

    Fused SGD is left out: told to skip its very first step, it keeps uninitialised momentum (torch 2.13).
    """
    # a CPU has nothing to wait for, and the fp16 scaler reads its flag there anyway; AdamW is a subclass of Adam
    if device.type == "cpu" or precision.scales or not isinstance(optimizer, torch.optim.Adam):
        return False
    return all(group["fused"] for group in optimizer.param_groups)


def _update(
    optimizer: Optimizer, precision: Precision, loss: Tensor, tokens: Tensor, norm: Tensor, finite: Tensor
) -> StepResult:
    """Step the optimizer unless the loss or the gradient is not finite."""
    # ~, & and | stay on the device; `not`, `and` and `or` would wait for the value
    skipped = ~(finite & loss.isfinite()) | (tokens == 0)
    if _defers(optimizer, precision, norm.device):
        # what GradScaler sets for its fused optimizers: where found_inf is 1, the kernel changes no weight, moment or
        # step count. Left behind, the flag would decide the next step too.
        optimizer.grad_scale, optimizer.found_inf = None, skipped.float()  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        bad = _first_nonfinite(held_parameters(optimizer))
    else:
        skipped = skipped.cpu()  # the one wait of a step that cannot be deferred
        bad = _first_nonfinite(held_parameters(optimizer)) if skipped else torch.tensor(-1)
        if not skipped:
            precision.scaler.step(optimizer)  # outside fp16 plain optimizer.step()
    precision.update_scale()  # after a skip too: unscale_ has noted the overflow that lowers the scale
    return StepResult(torch.where(tokens == 0, math.nan, loss), tokens, norm, skipped, bad)  # a mean over nothing


def _first_nonfinite(parameters: list[Tensor]) -> Tensor:
    """Index of the first parameter whose gradient is not finite, -1 for none."""
    gradients = [part_of(p.grad) if p.grad is not None and p.numel() else None for p in parameters]
    held = [gradient for gradient in gradients if gradient is not None]
    if not held:
        return torch.tensor(-1)
    zero = held[0].new_zeros(())  # in place of no gradient, so that an index holds for later steps with other gradients
    # The largest magnitude: NaN passes through it, and it cannot overflow as a sum of squares can.
    norms = torch.stack([zero if g is None or not g.numel() else g.norm(p=math.inf) for g in gradients])  # (P,)
    bad = (~torch.isfinite(norms)).int()
    if any(is_sharded(parameter) for parameter in parameters):  # a rank sees its own parts alone
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return torch.where(bad.any(), bad.argmax(), -1)  # argmax gives the first of equal values


class _Buffers:
    """The model's buffers before a step: a forward pass changes some, such as the running means of a BatchNorm.

    An error inside the context puts them back.
    """

    def __init__(self, model: nn.Module) -> None:
        self.before = [
            (module, name, buffer, buffer.clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def __enter__(self) -> "_Buffers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.put_back()

    @torch.no_grad()
    def put_back(self) -> None:
        for module, name, buffer, value in self.before:
            module._buffers[name] = buffer.copy_(value)  # the forward pass may have put another tensor in its place

    @torch.no_grad()
    def put_back_where(self, skipped: Tensor) -> None:
        """Put them back if `skipped`, a 0-d tensor that the host does not read: the choice is made on the device."""
        for module, name, buffer, value in self.before:
            now = module._buffers[name]
            if now is buffer:
                buffer.copy_(torch.where(skipped, value, buffer))
            # torch.where cannot choose between two shapes, so a buffer of a new shape stays
            elif now is not None and now.shape == value.shape:
                module._buffers[name] = torch.where(skipped, value, now)
