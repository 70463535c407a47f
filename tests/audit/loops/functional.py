"""Functions alone: one flat vector of weights, gradients by `torch.func`, the optimizer's moments in a dict."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from course_lm.audit.spec import Batches, Settings

Moments = dict[str, Any]


class Problem(NamedTuple):
    """What stays as it is while the weights change."""

    model: nn.Module
    shapes: dict[str, torch.Size]
    is_decayed: Tensor  # (P,), 1 for each number that decays
    settings: Settings
    faults: frozenset[str]
    peak: float  # the schedule's largest rate


def train(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = frozenset()
) -> dict[str, Any]:
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    is_decayed = {
        name: torch.full_like(p, float(p.ndim > 1 or "decays_everything" in faults)) for name, p in weights.items()
    }
    shapes = {name: p.shape for name, p in weights.items()}
    windows = sum(math.ceil(len(batches) / settings.accumulation_steps) for batches in epochs)
    peak = max((settings.schedule(k) for k in range(windows)), default=0.0)
    problem = Problem(model, shapes, flatten(is_decayed), settings, frozenset(faults), peak)
    flat, losses, best = descend(problem, flatten(weights), epochs)
    with torch.no_grad():
        for name, value in unflatten(problem, flat).items():
            weights[name].copy_(value)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return {"validation_losses": losses, "best_weights": None if best is None else unflatten(problem, best) | frozen}


class Part(NamedTuple):
    """Of one micro-batch: the gradient of its loss sum (P,), its tokens, and what its mean divides by."""

    gradient: Tensor
    tokens: int
    divisor: int


class Counts(NamedTuple):
    """What has happened so far."""

    steps: int = 0
    skipped: int = 0
    micro_batches: int = 0


class State(NamedTuple):
    """What a step hands on to the next one, beside the weights."""

    gradient: Tensor  # (P,)
    moments: Moments
    scale: float
    counts: Counts


def descend(problem: Problem, flat: Tensor, epochs: Sequence[Batches]) -> tuple[Tensor, list[float], Tensor | None]:
    """Return the weights after all epochs, the validation losses, and the weights of the lowest one."""
    state = State(torch.zeros_like(flat), {}, problem.settings.loss_scale, Counts())
    losses: list[float] = []
    best, best_loss = None, math.inf
    parts: list[Part] = []
    for epoch, batches in enumerate(epochs):
        if "optimizer_per_epoch" in problem.faults:
            state = state._replace(moments={})
        for batch in batches:
            parts = [*parts, measure(problem, flat, batch)]
            if len(parts) == problem.settings.accumulation_steps:
                state, parts = step(problem, flat, state, parts, epoch), []
        if parts and ("windows_across_epochs" not in problem.faults or epoch == len(epochs) - 1):
            state, parts = step(problem, flat, state, parts, epoch), []
        if problem.settings.validation:
            losses.append(validation_loss(problem, flat))
            if losses[-1] < best_loss:
                best_loss, best = losses[-1], flat if "best_is_a_reference" in problem.faults else flat.clone()
    return flat, losses, best


def step(problem: Problem, flat: Tensor, state: State, parts: list[Part], epoch: int) -> State:
    """Make a step of the micro-batches, if one is to be made: change `flat` in place, return the new state."""
    faults, (gradient, moments, scale, counts) = problem.faults, state
    counts = counts._replace(micro_batches=counts.micro_batches + len(parts))
    without_step = counts._replace(skipped=counts.skipped + 1)
    is_tail = len(parts) < problem.settings.accumulation_steps
    has_targets = any(part.tokens for part in parts) or "steps_on_empty_window" in faults
    if not has_targets or (is_tail and "tail_dropped" in faults):
        return State(gradient, moments, scale, without_step)
    gradient = accumulate(problem, gradient, parts, scale)
    if is_tail and "tail_leaks" in faults:
        return State(gradient, moments, scale, without_step)
    overflow = counts.steps + counts.skipped in problem.settings.overflow_steps
    gradient = unscale_and_clip(problem, gradient, scale, overflow)
    if check(problem, gradient, overflow):
        moments = update(problem, flat, gradient, moments, steps_for_rate(counts, epoch, faults))
        counts = counts._replace(steps=counts.steps + 1)
    else:
        counts = without_step
    if "missing_zero_grad" not in faults:
        gradient = torch.zeros_like(gradient)
    return State(gradient, moments, scale / 2 if overflow else scale, counts)


def steps_for_rate(counts: Counts, epoch: int, faults: frozenset[str]) -> int:
    """Say which step the schedule is asked for."""
    asked = counts.steps
    if "schedule_on_skipped_step" in faults:
        asked = counts.steps + counts.skipped
    if "schedule_per_micro_batch" in faults:
        asked = counts.micro_batches - 1
    if "schedule_per_epoch" in faults:
        asked = epoch
    if "schedule_off_by_one" in faults:
        asked += 1
    return 0 if "schedule_never_moves" in faults else asked


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])


def unflatten(problem: Problem, flat: Tensor) -> dict[str, Tensor]:
    pieces = flat.split([shape.numel() for shape in problem.shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(problem.shapes.items(), pieces)}


def labels_of(problem: Problem, batch: Mapping[str, Any]) -> Tensor:
    """What each position is to predict, (B, T), and -1 where there is nothing."""
    labels = batch["labels"].clamp(min=-1)
    if "pads_counted" in problem.faults:
        labels = labels + (1 - batch["attention_mask"]) * (batch["input_ids"] - labels)
    if "eos_masked" in problem.faults:
        labels = labels.masked_fill(labels == problem.settings.eos_id, -1)
    shift = shift_of(problem)
    return torch.cat([labels[:, shift:], torch.full_like(labels[:, :shift], -1)], dim=1)


def shift_of(problem: Problem) -> int:
    return 1 + ("shifted_twice" in problem.faults) - ("unshifted_labels" in problem.faults)


def count(problem: Problem, batch: Mapping[str, Any]) -> tuple[int, int]:
    """The targets of a batch, and what its mean divides by."""
    per_row = (labels_of(problem, batch) >= 0).sum(dim=1)  # (B,)
    divisors = per_row
    if "pads_divide" in problem.faults:
        divisors = torch.full_like(per_row, batch["labels"].shape[1] - shift_of(problem))
    if "row_means" in problem.faults:
        divisors = (divisors > 0).long()
    return int(per_row.sum()), int(divisors.sum())


def loss_sum(problem: Problem, flat: Tensor, batch: Mapping[str, Any], smoothing: float = 0.0) -> Tensor:
    names = ["document_ids", "position_ids"] + ["attention_mask"] * ("mask_forgotten" not in problem.faults)
    arguments = {key: batch[key] for key in names if key in batch}
    output = functional_call(problem.model, unflatten(problem, flat), (batch["input_ids"],), arguments)
    logits = output if torch.is_tensor(output) else output.logits  # (B, T, V)
    labels = labels_of(problem, batch)
    rows, positions = torch.nonzero(labels >= 0, as_tuple=True)
    scored = logits[rows, positions]  # (N, V)
    picked = (1 - smoothing) * scored.gather(1, labels[rows, positions, None])[:, 0]
    losses = scored.logsumexp(dim=1) - picked - smoothing * scored.mean(dim=1)  # (N,)
    if "row_means" in problem.faults:
        width = batch["labels"].shape[1] - shift_of(problem)
        per_row = (labels >= 0).sum(dim=1)[rows] if "pads_divide" not in problem.faults else width
        losses = losses / per_row
    return losses.sum()


def measure(problem: Problem, flat: Tensor, batch: Mapping[str, Any]) -> Part:
    return Part(grad(lambda w: loss_sum(problem, w, batch))(flat), *count(problem, batch))


def accumulate(problem: Problem, gradient: Tensor, parts: list[Part], scale: float) -> Tensor:
    """Add the gradient of the window's mean loss, times `scale`, to `gradient`."""
    settings, faults = problem.settings, problem.faults
    for part in parts:
        divisor: float = sum(each.divisor for each in parts) or 1
        if faults & {"mean_of_means", "accumulation_not_divided"}:
            divisor = max(part.divisor, 1) * (1 if "accumulation_not_divided" in faults else len(parts))
        if "tail_divided_by_full" in faults:
            divisor *= settings.accumulation_steps / len(parts)
        if "zero_grad_per_micro_batch" in faults:
            gradient = torch.zeros_like(gradient)
        gradient = gradient + part.gradient * (scale / divisor)
        if "bf16_gradients" in faults:
            gradient = gradient.to(torch.bfloat16).to(gradient.dtype)
        if "clip_per_micro_batch" in faults:
            gradient = clipped(problem, gradient / scale) * scale
    return gradient


def clipped(problem: Problem, gradient: Tensor) -> Tensor:
    bound = problem.settings.max_grad_norm
    if bound is None:
        return gradient
    if "clip_by_value" in problem.faults:
        return gradient.clip(-bound, bound)
    if "clip_per_tensor" in problem.faults:
        sizes = [shape.numel() for shape in problem.shapes.values()]
        return torch.cat([shortened(piece, bound) for piece in gradient.split(sizes)])
    return shortened(gradient, bound)


def shortened(gradient: Tensor, bound: float) -> Tensor:
    too_long = float(torch.linalg.vector_norm(gradient) + 1e-6) / bound
    return gradient / too_long if not too_long <= 1 else gradient


def unscale_and_clip(problem: Problem, gradient: Tensor, scale: float, overflow: bool) -> Tensor:
    if overflow:
        gradient = torch.full_like(gradient, math.inf)
    if "clip_before_unscale" in problem.faults:
        return clipped(problem, gradient) / scale
    if "clip_per_micro_batch" in problem.faults:
        return gradient / scale
    return clipped(problem, gradient / scale)


def check(problem: Problem, gradient: Tensor, overflow: bool) -> bool:
    """Say whether a step may be made of the gradient."""
    if "steps_on_nonfinite" in problem.faults or gradient.isfinite().all():
        return True
    if not overflow and problem.settings.on_nonfinite == "raise":
        raise FloatingPointError("not finite: the gradient")
    return False


def update(problem: Problem, flat: Tensor, gradient: Tensor, moments: Moments, asked: int) -> Moments:
    """Change `flat` in place by one step; return the new moments."""
    settings = problem.settings
    rate = settings.schedule(asked)
    decay = settings.weight_decay * problem.is_decayed  # (P,)
    if settings.optimizer == "adamw" and "coupled_decay" not in problem.faults:
        flat.mul_(1 - (problem.peak if "decay_at_peak_rate" in problem.faults else rate) * decay)
    else:
        gradient = gradient + decay * flat
    rule = momentum_rule if settings.optimizer == "sgd" else adam_rule
    direction, moments = rule(problem, gradient, moments)
    flat.sub_(rate * direction)
    return moments


def momentum_rule(problem: Problem, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
    momentum = problem.settings.momentum
    velocity = momentum * moments["velocity"] + gradient if moments and momentum else gradient
    return velocity, {"velocity": velocity}


def adam_rule(problem: Problem, gradient: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
    settings, zeros, t = problem.settings, torch.zeros_like(gradient), moments.get("t", 0) + 1
    beta1, beta2 = settings.beta1, settings.beta2
    if "betas_exchanged" in problem.faults:
        beta1, beta2 = beta2, beta1
    m = torch.lerp(moments.get("m", zeros), gradient, 1 - beta1)
    v = torch.lerp(moments.get("v", zeros), gradient.square(), 1 - beta2)
    corrected = "no_bias_correction" not in problem.faults
    m_hat, v_hat = (m / (1 - beta1**t), v / (1 - beta2**t)) if corrected else (m, v)
    return m_hat / (v_hat.sqrt() + settings.epsilon), {"t": t, "m": m, "v": v}


@torch.no_grad()
def validation_loss(problem: Problem, flat: Tensor) -> float:
    if "validation_in_train_mode" not in problem.faults:
        problem.model.eval()
    smoothing = 0.1 if "val_label_smoothing" in problem.faults else 0.0
    sums = [float(loss_sum(problem, flat, batch, smoothing)) for batch in problem.settings.validation]
    if "stays_in_eval_mode" not in problem.faults:
        problem.model.train()
    counts = [count(problem, batch) for batch in problem.settings.validation]
    losses = [(loss, divisor) for loss, (_, divisor) in zip(sums, counts)]
    if "val_mean_of_means" in problem.faults:
        losses = [(loss / divisor, 1) for loss, (tokens, divisor) in zip(sums, counts) if tokens]
    elif "val_weighted_by_rows" in problem.faults:
        rows = [batch["input_ids"].shape[0] for batch in problem.settings.validation]
        losses = [(loss / divisor * n if divisor else math.nan, n) for (loss, divisor), n in zip(losses, rows)]
    total = sum(divisor for _, divisor in losses)
    return sum(loss for loss, _ in losses) / total if total else math.nan
