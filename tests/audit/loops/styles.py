"""A right loop in eight styles, each as its users write it; `lacking` takes settings away from any of them."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Settings

from .plain import IGNORED, Plain
from .right import FunctionalGrad, WithLambdaLR

Loop = Callable[[nn.Module, Sequence[Batches], Settings], Mapping[str, Any] | None]


def batch_loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Nats of all targets of a batch."""
    inputs = {name: batch[name] for name in ("attention_mask", "document_ids", "position_ids") if name in batch}
    logits = model(batch["input_ids"], **inputs)
    labels = F.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def count(batches: Batches) -> int:
    return sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)


def evaluate(model: nn.Module, batches: Batches) -> float:
    model.eval()
    with torch.no_grad():
        loss = sum(batch_loss(model, batch).item() for batch in batches) / max(count(batches), 1)
    model.train()
    return loss


def new_optimizer(model: nn.Module, s: Settings) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": s.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if s.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=1.0, momentum=s.momentum)
    kind = torch.optim.AdamW if s.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=1.0, betas=(s.beta1, s.beta2), eps=s.epsilon)


def is_finite(model: nn.Module, overflows: bool, s: Settings) -> bool:
    if overflows:
        for p in model.parameters():
            p.grad = None if p.grad is None else torch.full_like(p.grad, math.inf)
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    if not finite and not overflows and s.on_nonfinite == "raise":
        raise FloatingPointError("a gradient is not finite")
    return finite


def nanogpt_like(model: nn.Module, epochs: Sequence[Batches], s: Settings) -> Mapping[str, Any]:
    """One function from top to bottom, with `iter_num` and micro-steps."""
    optimizer, scale = new_optimizer(model, s), s.loss_scale
    iter_num, window_num, val_losses = 0, -1, []
    best_val_loss, best = math.inf, None
    for data in epochs:
        for start in range(0, len(data), s.accumulation_steps):
            window = data[start : start + s.accumulation_steps]
            window_num += 1
            tokens = count(window)
            if tokens == 0:
                continue
            for param_group in optimizer.param_groups:
                param_group["lr"] = s.schedule(iter_num)
            for batch in window:
                (batch_loss(model, batch) / tokens * scale).backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= scale
            if is_finite(model, window_num in s.overflow_steps, s):
                if s.max_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), s.max_grad_norm)
                optimizer.step()
                iter_num += 1
            optimizer.zero_grad(set_to_none=True)
        if s.validation:
            val_losses.append(evaluate(model, s.validation))
            if val_losses[-1] < best_val_loss:
                best_val_loss = val_losses[-1]
                best = {name: value.clone() for name, value in model.state_dict().items()}
    return {"validation_losses": val_losses, "best_weights": best}


@torch.no_grad()
def by_hand(model: nn.Module, epochs: Sequence[Batches], s: Settings) -> Mapping[str, Any]:
    """No optimizer of torch, no clipping of torch: tensors alone."""
    first = {p: torch.zeros_like(p) for p in model.parameters()}
    second = {p: torch.zeros_like(p) for p in model.parameters()}
    steps, windows, losses = 0, 0, []
    best: dict[str, Tensor] | None = None
    for data in epochs:
        for start in range(0, len(data), s.accumulation_steps):
            window = data[start : start + s.accumulation_steps]
            overflows, windows = windows in s.overflow_steps, windows + 1
            model.zero_grad()
            if not count(window):
                continue
            with torch.enable_grad():
                for batch in window:
                    (batch_loss(model, batch) / count(window)).backward()
            if not is_finite(model, overflows, s):
                continue
            gradients = {p: p.grad for p in model.parameters() if p.grad is not None}
            norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
            shrink = 1.0 if s.max_grad_norm is None else min(1.0, s.max_grad_norm / (norm + 1e-6))
            rate, steps = s.schedule(steps), steps + 1
            for p, gradient in gradients.items():
                decay, gradient = s.weight_decay * (p.dim() >= 2), gradient * shrink
                if s.optimizer == "adamw":
                    p.mul_(1 - rate * decay)
                else:
                    gradient += decay * p
                if s.optimizer == "sgd":
                    first[p] = s.momentum * first[p] + gradient
                    p.sub_(rate * first[p])
                else:
                    first[p] = s.beta1 * first[p] + (1 - s.beta1) * gradient
                    second[p] = s.beta2 * second[p] + (1 - s.beta2) * gradient**2
                    root = (second[p] / (1 - s.beta2**steps)).sqrt() + s.epsilon
                    p.sub_(rate * first[p] / (1 - s.beta1**steps) / root)
        if s.validation:
            losses.append(evaluate(model, s.validation))
            if losses[-1] == min(losses):
                best = {name: p.clone() for name, p in model.named_parameters()}
    return {"validation_losses": losses, "best_weights": best}


class Module:
    """What a user of the small trainer below writes: a loss, and an optimizer with its scheduler."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model, self.settings = model, settings

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        return batch_loss(self.model, batch)

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = new_optimizer(self.model, self.settings)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, self.settings.schedule)


def lightning_like(model: nn.Module, epochs: Sequence[Batches], s: Settings) -> Mapping[str, Any]:
    """A trainer that calls the hooks of a module; it returns no best weights."""
    module = Module(model, s)
    (optimizer, scheduler), losses, index = module.configure_optimizers(), [], 0
    for data in epochs:
        for start in range(0, len(data), s.accumulation_steps):
            window = data[start : start + s.accumulation_steps]
            if tokens := count(window):
                for batch in window:
                    (module.training_step(batch) / tokens).backward()
                if is_finite(model, index in s.overflow_steps, s):
                    if s.max_grad_norm is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), s.max_grad_norm)
                    optimizer.step()
                    scheduler.step()
                optimizer.zero_grad()
            index += 1
        losses += [evaluate(model, s.validation)] if s.validation else []
    return {"validation_losses": losses}


class Foreach(Plain):
    def optimizer_of(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return super().optimizer_of([group | {"foreach": True} for group in groups])

    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm, foreach=True)


@torch.compile(backend="eager", dynamic=True)
def compiled_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")


class Compiled(Plain):
    """The loss is compiled once for all runs; the model of each run is another one."""

    def token_losses(self, batch: Mapping[str, Any]) -> Tensor:
        return compiled_loss(self.logits(batch)[:, :-1], self.targets(batch))


STYLES: dict[str, Loop] = {
    "functional": FunctionalGrad.loop,
    "class": Plain.loop,
    "Lightning-like": lightning_like,
    "nanoGPT-like": nanogpt_like,
    "by hand": by_hand,
    "LambdaLR": WithLambdaLR.loop,
    "foreach": Foreach.loop,
    "compiled": Compiled.loop,
}

# What a loop is like that does not read a setting, and the names that the audit has for it.
WITHOUT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "betas": ({"beta1": 0.9, "beta2": 0.999}, ("beta1", "beta2")),
    "epsilon": ({"epsilon": 1e-8}, ("epsilon",)),
    "momentum": ({"momentum": 0.0}, ("momentum",)),
    "weight_decay": ({"weight_decay": 0.0}, ("weight_decay",)),
    "max_grad_norm": ({"max_grad_norm": None}, ("max_grad_norm",)),
    "accumulation_steps": ({"accumulation_steps": 1}, ("accumulation_steps",)),
    "loss_scale": ({"loss_scale": 1.0, "overflow_steps": frozenset()}, ("loss_scale", "overflow_steps")),
    "validation": ({"validation": ()}, ("validation",)),
    "raises": ({"on_nonfinite": "raise"}, ("on_nonfinite",)),
    "skips": ({"on_nonfinite": "skip"}, ("on_nonfinite=raise",)),
    "optimizer": ({"optimizer": "adamw"}, ("optimizer",)),
    "document_ids": ({}, ("document_ids",)),
    "schedule": ({}, ("schedule",)),
}


def lacking(loop: Loop, features: Collection[str], *, declared: bool) -> Loop:
    """The loop without the features of `WITHOUT`, which it declares or not; `schedule` it declares in any case."""
    changes = {name: value for one in features for name, value in WITHOUT[one][0].items()}
    names = {name.partition("=")[0] for one in features for name in WITHOUT[one][1] if declared or one == "schedule"}

    def without_them(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        if "document_ids" in features:
            packed = ("document_ids", "position_ids")
            epochs = [[{key: b[key] for key in b if key not in packed} for b in batches] for batches in epochs]
        if "schedule" in features:
            rate = settings.schedule(0)
            settings = replace(settings, schedule=lambda k: rate)
        returned = loop(model, epochs, replace(settings, **changes)) or {}
        return {**returned, "ignores": names}

    return without_them
