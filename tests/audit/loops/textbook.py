"""A script as a textbook has it: torch's optimizer, cross-entropy, clipping and LambdaLR, top to bottom."""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_lm.audit.spec import Batches, Settings

IGNORED = -100


def train(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = frozenset()
) -> dict[str, Any]:
    faults = frozenset(faults)
    optimizer, rates = make_optimizer(model, settings, faults), Rates(settings.schedule, faults)
    peak = max(map(settings.schedule, range(sum(-(-len(b) // settings.accumulation_steps) for b in epochs))), default=0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    scale, windows_begun = settings.loss_scale, 0
    validation_losses: list[float] = []
    best_loss, best_weights = math.inf, None
    window: list[Loss] = []

    rates.use(optimizer)
    optimizer.zero_grad()
    for epoch, batches in enumerate(epochs):
        if epoch and "optimizer_per_epoch" in faults:
            optimizer = make_optimizer(model, settings, faults)
            rates.use(optimizer)
        rates.at_epoch(epoch)
        for index, batch in enumerate(batches, start=1):
            window.append(batch_loss(model, batch, settings, faults))
            is_last = index == len(batches) and (epoch + 1 == len(epochs) or "windows_across_epochs" not in faults)
            if len(window) < settings.accumulation_steps and not is_last:
                continue
            is_tail = len(window) < settings.accumulation_steps
            overflow = windows_begun in settings.overflow_steps
            windows_begun += 1
            rates.before_window(len(window))

            stepped = False
            has_targets = any(loss.tokens for loss in window) or "steps_on_empty_window" in faults
            if has_targets and not ("tail_dropped" in faults and is_tail):
                backward(window, optimizer, parameters, scale, settings, faults)
                if not ("tail_leaks" in faults and is_tail):
                    unscale_and_clip(parameters, scale, overflow, settings, faults)
                    if overflow:
                        scale /= 2
                    if may_step(parameters, overflow, settings, faults):
                        rates.before_step()
                        if "decay_at_peak_rate" in faults:
                            decay(optimizer, peak, settings)
                        optimizer.step()
                        stepped = True
                    if "missing_zero_grad" not in faults:
                        optimizer.zero_grad()
            rates.after_window(stepped, overflow)
            window = []

        if settings.validation:
            loss = validate(model, settings, faults)
            validation_losses.append(loss)
            if loss < best_loss:
                best_loss = loss
                best_weights = {name: p.detach() for name, p in model.named_parameters()}
                if "best_is_a_reference" not in faults:
                    best_weights = copy.deepcopy(best_weights)
    return {"validation_losses": validation_losses, "best_weights": best_weights}


class Rates:
    """Where the script calls `scheduler.step()`."""

    def __init__(self, schedule: Callable[[int], float], faults: frozenset[str]) -> None:
        self.schedule, self.faults = schedule, faults
        self.each_epoch = "schedule_per_epoch" in faults
        self.each_micro_batch = "schedule_per_micro_batch" in faults and not self.each_epoch
        self.early = "schedule_off_by_one" in faults
        self.warms_up = "first_rate_is_zero" in faults
        self.calls = 0

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        done = self.calls
        self.optimizer, self.scheduler = optimizer, LambdaLR(optimizer, lambda k: self.schedule(done + k))

    def step(self, times: int = 1) -> None:
        if "schedule_never_moves" not in self.faults:
            for _ in range(times):
                self.calls += 1
                self.scheduler.step()

    def at_epoch(self, epoch: int) -> None:
        if self.each_epoch and (epoch or self.early):
            self.step()

    def before_window(self, micro_batches: int) -> None:
        if self.each_micro_batch:
            self.step(micro_batches - 1)

    def before_step(self) -> None:
        if self.early and not self.each_epoch:
            self.step()
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr()):
            group["lr"] = 0.0 if self.warms_up else rate
        self.warms_up = False

    def after_window(self, stepped: bool, overflow: bool) -> None:
        if self.each_epoch or (stepped and self.early):
            return
        counts = "schedule_on_skipped_step" in self.faults or (overflow and "schedule_on_overflow" in self.faults)
        if stepped or self.each_micro_batch or counts:
            self.step()


def make_optimizer(model: nn.Module, settings: Settings, faults: frozenset[str]) -> torch.optim.Optimizer:
    betas = (settings.beta1, settings.beta2)
    if "betas_exchanged" in faults:
        betas = (settings.beta2, settings.beta1)
    decayed = [p for p in model.parameters() if p.ndim >= 2 or "decays_everything" in faults]
    others = [p for p in model.parameters() if not any(p is q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=1.0, momentum=settings.momentum)
    decoupled = settings.optimizer == "adamw" and "coupled_decay" not in faults
    if decoupled and "decay_at_peak_rate" in faults:
        groups = [group | {"peak_decay": group["weight_decay"], "weight_decay": 0.0} for group in groups]
    if "no_bias_correction" in faults:
        return UncorrectedAdam(groups, {"betas": betas, "eps": settings.epsilon, "decoupled": decoupled, "lr": 1.0})
    if decoupled:
        return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=settings.epsilon)
    return torch.optim.Adam(groups, lr=1.0, betas=betas, eps=settings.epsilon)


class UncorrectedAdam(torch.optim.Optimizer):
    """Adam as BERT's first code had it: the moments start at zero, and nothing makes up for it."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyrefly: ignore[bad-override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, rate = p.grad, group["lr"]
                if group["decoupled"]:
                    p.mul_(1 - rate * group["weight_decay"])
                else:
                    grad = grad.add(p, alpha=group["weight_decay"])
                state, (beta1, beta2) = self.state[p], group["betas"]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                state["m"].mul_(beta1).add_(grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                p.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-rate)


@torch.no_grad()
def decay(optimizer: torch.optim.Optimizer, rate: float, settings: Settings) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.mul_(1 - rate * group.get("peak_decay", 0.0))


class Loss(NamedTuple):
    """Of one micro-batch: the sum of its token losses, its tokens, and what its mean divides by."""

    total: Tensor
    tokens: int
    divisor: int

    def mean(self) -> Tensor:
        return self.total / max(self.divisor, 1)


def targets(batch: Mapping[str, Any], settings: Settings, faults: frozenset[str]) -> Tensor:
    """The token that each position is scored against, of as many positions as have one."""
    labels = batch["labels"].clone()
    if "pads_counted" in faults:
        labels = torch.where(batch["attention_mask"] == 0, batch["input_ids"], labels)
    if "eos_masked" in faults:
        labels[labels == settings.eos_id] = IGNORED
    if "unshifted_labels" not in faults:
        labels = labels[:, 1:]
    if "shifted_twice" in faults:
        labels = labels[:, 1:]
    return labels


def batch_loss(
    model: nn.Module, batch: Mapping[str, Any], settings: Settings, faults: frozenset[str], smoothing: float = 0.0
) -> Loss:
    inputs = {name: batch[name] for name in ("attention_mask", "document_ids", "position_ids") if name in batch}
    if "mask_forgotten" in faults:
        inputs.pop("attention_mask")
    output = model(batch["input_ids"], **inputs)
    logits = output.logits if hasattr(output, "logits") else output  # (B, T, V)
    labels = targets(batch, settings, faults)
    losses = F.cross_entropy(
        logits[:, : labels.shape[1]].transpose(1, 2),
        labels,
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    counts = (labels != IGNORED).sum(dim=1)  # (B,)
    tokens = int(counts.sum())
    if "counted_before_shift" in faults and torch.is_grad_enabled():
        unshifted = targets(batch, settings, (faults | {"unshifted_labels"}) - {"shifted_twice"})
        counts = (unshifted != IGNORED).sum(dim=1)
    if "pads_divide" in faults:
        counts = torch.full_like(counts, labels.shape[1])
    if "row_means" in faults:
        return Loss((losses.sum(dim=1) / counts.clamp(min=1)).sum(), tokens, int((counts > 0).sum()))
    return Loss(losses.sum(), tokens, int(counts.sum()))


def backward(
    window: list[Loss],
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    scale: float,
    settings: Settings,
    faults: frozenset[str],
) -> None:
    for micro_batch in window:
        if "zero_grad_per_micro_batch" in faults:
            optimizer.zero_grad()
        if "accumulation_not_divided" in faults:
            loss = micro_batch.mean()
        elif "mean_of_means" in faults:
            loss = micro_batch.mean() / len(window)
        else:
            loss = micro_batch.total / sum(each.divisor for each in window)
        if "divided_twice" in faults:
            loss = loss / settings.accumulation_steps
        if "tail_divided_by_full" in faults:
            loss = loss * len(window) / settings.accumulation_steps
        (loss * scale).backward()
        if "bf16_gradients" in faults:
            for p in parameters:
                if p.grad is not None:
                    p.grad.copy_(p.grad.to(torch.bfloat16))
        if "clip_per_micro_batch" in faults:
            multiply_gradients(parameters, 1 / scale)
            clip(parameters, settings, faults)
            multiply_gradients(parameters, scale)


def unscale_and_clip(
    parameters: list[nn.Parameter], scale: float, overflow: bool, settings: Settings, faults: frozenset[str]
) -> None:
    if overflow:
        for p in parameters:
            if p.grad is not None:
                p.grad.fill_(math.inf)
    if "clip_before_unscale" in faults:
        clip(parameters, settings, faults)
    multiply_gradients(parameters, 1 / scale)
    if not {"clip_before_unscale", "clip_per_micro_batch"} & faults:
        clip(parameters, settings, faults)


def may_step(parameters: list[nn.Parameter], overflow: bool, settings: Settings, faults: frozenset[str]) -> bool:
    if "steps_on_nonfinite" in faults or all(p.grad.isfinite().all() for p in parameters if p.grad is not None):
        return True
    if settings.on_nonfinite == "raise" and not overflow:
        raise FloatingPointError("the gradient is not finite")
    return False


def multiply_gradients(parameters: list[nn.Parameter], factor: float) -> None:
    for p in parameters:
        if p.grad is not None:
            p.grad *= factor


def clip(parameters: list[nn.Parameter], settings: Settings, faults: frozenset[str]) -> None:
    if settings.max_grad_norm is None:
        return
    if "clip_by_value" in faults:
        nn.utils.clip_grad_value_(parameters, settings.max_grad_norm)
    elif "clip_per_tensor" in faults:
        for p in parameters:
            nn.utils.clip_grad_norm_(p, settings.max_grad_norm)
    else:
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)


@torch.no_grad()
def validate(model: nn.Module, settings: Settings, faults: frozenset[str]) -> float:
    if "validation_in_train_mode" not in faults:
        model.eval()
    smoothing = 0.1 if "val_label_smoothing" in faults else 0.0
    losses = [batch_loss(model, batch, settings, faults, smoothing) for batch in settings.validation]
    if "stays_in_eval_mode" not in faults:
        model.train()
    if "val_mean_of_means" in faults:
        means = [loss.mean().item() for loss in losses if loss.tokens]
        return sum(means) / len(means) if means else math.nan
    if "val_weighted_by_rows" in faults:
        seen, rows = 0.0, 0
        for loss, batch in zip(losses, settings.validation):
            seen += (loss.total / loss.divisor).item() * len(batch["input_ids"])
            rows += len(batch["input_ids"])
        return seen / rows
    divisor = sum(loss.divisor for loss in losses)
    return sum(loss.total.item() for loss in losses) / divisor if divisor else math.nan
