"""One optimizer step: some micro-batches in, one update out.

The loss of a step is the mean over all target tokens of all its micro-batches and ranks, so the count comes first and
each micro-batch contributes its *sum*, divided once. Then: unscale, clip, check, update. The check is the last thing
before the update: whatever made the loss or the gradient NaN, it reaches neither the weights, nor the buffers, nor the
optimizer's state.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.accumulation import count_window_targets
from course_lm.clipping import clip_gradients
from course_lm.forward import AnyBatch, device_of, forward_logits, move_batch
from course_lm.guard import StepOptions, check_gradients, check_window, checked_options, loss_sum, name_of
from course_lm.loss import next_token_loss
from course_lm.optim import group_rates, set_learning_rate
from course_lm.precision import Precision
from course_lm.reproducibility import LARGEST_SEED, seed_generators
from course_lm.shards import hold_parts, is_expanded, is_sharded, part_of
from course_lm.validation import require, require_whole


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
            ratios of their rates (see `optim`). None keeps what is set.
        loss_fn: called as `loss_fn(logits, labels, reduction="sum")`, see `guard.loss_sum`; a `CrossEntropyLoss` stands
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
    options = checked_options(
        model,
        optimizer,
        loss_fn=loss_fn,
        max_grad_norm=max_grad_norm,
        clip=clip,
        precision=precision,
        on_nonfinite=on_nonfinite,
        process_group=process_group,
    )
    if lr is not None:
        group_rates(optimizer, lr)  # a step without a target sets no rate, and would not refuse it
    check_window(model, micro_batches, options.process_group)
    if seeds is not None:
        fit = isinstance(seeds, Sequence) and len(seeds) == len(micro_batches)
        require(fit, "seeds", f"one for each of {len(micro_batches)} micro-batches", seeds)
        seeds = [require_whole("a seed", seed, least=0, most=LARGEST_SEED) for seed in seeds]
    return take_step(model, micro_batches, optimizer, options, lr=lr, seeds=seeds)


def take_step(
    model: nn.Module,
    micro_batches: Sequence[AnyBatch],
    optimizer: Optimizer,
    options: StepOptions,
    *,
    lr: float | None,
    seeds: Sequence[int] | None = None,
) -> StepResult:
    """`train_step` after its look at what it is given; `guard.checked_options` has looked at the options."""
    device, ranks, precision = device_of(model), options.process_group, options.precision
    tokens = count_window_targets(micro_batches)
    if ranks is not None:
        hold_parts(model)
        tokens = _total(tokens.to(device), ranks)
    if tokens.device.type == "cpu" and not tokens:
        warnings.warn("skipped a step: its micro-batches hold no target token", stacklevel=3)
        loss, tokens, norm = (torch.tensor(value, device=device) for value in (math.nan, 0, 0.0))
        return StepResult(loss, tokens, norm, skipped=torch.tensor(True), bad_parameter=torch.tensor(-1))
    tokens = tokens.to(device, non_blocking=True)
    if lr is not None:
        set_learning_rate(optimizer, lr)
    model.zero_grad(set_to_none=True)
    optimizer.zero_grad(set_to_none=True)  # a loss may have weights of its own
    with precision.alone(), _buffers_of(model) as put_buffers_back:
        loss = _accumulate_gradients(model, micro_batches, tokens, options, seeds)
        held = held_parameters(optimizer)
        check_gradients(held, model, ranks)
        trained = [parameter for parameter in held if parameter.grad is not None]
        precision.scaler.unscale_(optimizer)
        # a clip of the caller's own follows: before it the gradients are only measured
        own_clip = options.clip is not clip_gradients
        norm = clip_gradients(trained, None if own_clip else options.max_grad_norm)
        finite = norm.isfinite()  # a NaN or an infinity in any gradient shows in the norm
        if own_clip:
            options.clip(trained, options.max_grad_norm)
            finite = finite & clip_gradients(trained, None).isfinite()
        result = _update(optimizer, precision, loss, tokens, norm, finite)
    if _defers(optimizer, precision, device):
        put_buffers_back(result.skipped, False)
    elif result.skipped:
        put_buffers_back(result.skipped, True)
        if options.on_nonfinite == "raise":
            raise_if_nonfinite(result, model, optimizer, precision)
    return result


def held_parameters(optimizer: Optimizer) -> list[Tensor]:
    """All parameters that the optimizer holds, group after group."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def all_parameters(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Those of the model, and those that only the optimizer knows: a loss may have weights of its own."""
    return list({id(one): one for one in (*model.parameters(), *held_parameters(optimizer))}.values())


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


def _accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[AnyBatch],
    tokens: Tensor,
    options: StepOptions,
    seeds: Sequence[int] | None,
) -> Tensor:
    """Backward through every micro-batch; return the step's mean loss."""
    precision, ranks = options.precision, options.process_group
    world = 1 if ranks is None else dist.get_world_size(ranks)
    # the ranks average their gradients, a step sums them; in fp16 that waits, or more ranks would overflow sooner
    factor = 1 if precision.scales else world
    divisor = tokens.clamp(min=1)  # a count of 0 that lies on an accelerator shows only at the update, which is skipped
    total = torch.zeros((), dtype=torch.float32, device=tokens.device)  # of a float64 model it becomes float64
    for index, batch in enumerate(micro_batches):
        batch = move_batch(batch, tokens.device, model)
        if seeds is not None:
            seed_generators(seeds[index], options.generators)
        # The forward pass is inside too: DDP settles there whether the backward pass exchanges gradients.
        with nullcontext() if ranks is None else _gradient_exchange(model, last=index == len(micro_batches) - 1):
            # not around backward(): autograd takes each forward operation's type by itself
            with precision.autocast():
                loss = loss_sum(options.loss_fn, forward_logits(model, batch), batch["labels"])
            precision.scaler.scale(loss * factor / divisor).backward()
        total = total + loss.detach()  # else the graph of each micro-batch would stay in memory
    if world > factor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(world)
    return (total if ranks is None else _total(total, ranks)) / divisor


def _total(value: Tensor, ranks: dist.ProcessGroup) -> Tensor:
    """The sum over all ranks: a collective call, which a rank without a target makes too, or the others would wait."""
    dist.all_reduce(value, group=ranks)
    return value


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
    skipped, held = ~(finite & loss.isfinite()) | (tokens == 0), held_parameters(optimizer)
    if _defers(optimizer, precision, norm.device):
        # what GradScaler sets for its fused optimizers: where found_inf is 1, the kernel changes no weight, moment or
        # step count. Left behind, the flag would decide the next step too.
        optimizer.grad_scale, optimizer.found_inf = None, skipped.float()  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        bad = _first_nonfinite(held)
    else:
        skipped = skipped.cpu()  # the one wait of a step that cannot be deferred
        bad = _first_nonfinite(held) if skipped else torch.tensor(-1)
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


@contextmanager
def _buffers_of(model: nn.Module) -> Iterator[Callable[[Tensor, bool], None]]:
    """Yield what puts the model's buffers back, or if the host has not `looked`, where the step is `skipped`.

    An error in the body puts them back too.

    A forward pass changes some, such as the running means of a BatchNorm, and may put another tensor in their place.
    """
    before = [
        # an expanded one cannot be written into: it is its own copy
        (module, name, buffer, buffer if is_expanded(buffer) else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    @torch.no_grad()
    def put_back(skipped: Tensor, looked: bool) -> None:
        for module, name, buffer, value in before:
            now = module._buffers[name]
            if looked:
                module._buffers[name] = buffer if value is buffer else buffer.copy_(value)
            elif now is value:
                continue
            elif now is buffer:  # the host does not know: the choice is made on the device
                buffer.copy_(torch.where(skipped, value, buffer))
            # torch.where cannot choose between two shapes, so a buffer of a new shape stays
            elif now is not None and now.shape == value.shape:
                module._buffers[name] = torch.where(skipped, value, now)

    try:
        yield put_back
    except BaseException:
        put_back(torch.tensor(True), True)
        raise
