"""A trainer of objects: callbacks say what happens at each moment, and the optimizer is built by parameter groups."""

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Settings


def train(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = frozenset()
) -> dict[str, Any]:
    trainer = Trainer(model, settings, frozenset(faults))
    trainer.fit(epochs)
    return {"validation_losses": trainer.validator.losses, "best_weights": trainer.validator.best}


class Objective:
    """Measures a batch: its token losses, each with its weight, and what they are divided by."""

    def __init__(self, settings: Settings, faults: frozenset[str]) -> None:
        self.settings, self.faults = settings, faults

    def __call__(self, model: nn.Module, batch: Mapping[str, Any], smoothing: float = 0.0) -> "Measured":
        answer = model(**{name: batch[name] for name in batch if name in self.inputs})
        logits = getattr(answer, "logits", answer)  # (B, T, V)
        scored, labels = self.scored(batch)
        chosen = logits[:, : labels.size(1)][scored]  # (N, V)
        losses = nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing)(chosen, labels[scored])
        shares = torch.ones_like(scored, dtype=torch.int64) if "pads_divide" in self.faults else scored.long()
        if "row_means" not in self.faults:
            return Measured(losses.sum(), int(scored.sum()), int(shares.sum()))
        per_row = shares.sum(dim=1, keepdim=True)  # (B, 1)
        weights = (1 / per_row.to(losses.dtype)).expand(scored.shape)[scored]
        return Measured(losses @ weights, int(scored.sum()), int((per_row > 0).sum()))

    @property
    def inputs(self) -> set[str]:
        forgotten = {"attention_mask"} if "mask_forgotten" in self.faults else set()
        return {"input_ids", "attention_mask", "document_ids", "position_ids"} - forgotten

    def scored(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Which positions are scored, and the labels of all, shifted."""
        labels = batch["labels"]
        if "pads_counted" in self.faults:
            labels = labels.where(batch["attention_mask"].bool(), batch["input_ids"])
        shifts = 1 + ("shifted_twice" in self.faults) - ("unshifted_labels" in self.faults)
        labels = labels[:, shifts:]
        scored = labels >= 0
        if "eos_masked" in self.faults:
            scored = scored & (labels != self.settings.eos_id)
        return scored, labels


@dataclass
class Measured:
    """Of a batch: the weighted sum of its token losses, its tokens, and what a mean divides that sum by."""

    total: Tensor
    tokens: int
    divisor: int


class Window:
    """The micro-batches of one step, and how far it has come."""

    def __init__(self, parts: list[Measured], index: int, size: int) -> None:
        self.parts, self.index, self.is_tail = parts, index, len(parts) < size
        self.stepped = False


class Callback:
    """What may be done at each moment of a window; most callbacks do one thing."""

    def before_micro_batch(self, trainer: "Trainer", window: Window) -> None: ...

    def after_backward(self, trainer: "Trainer", window: Window) -> None: ...

    def after_window(self, trainer: "Trainer", window: Window) -> None: ...


class ClearGradients(Callback):
    """Clear the gradients once the window is over, and before each micro-batch if asked to."""

    def __init__(self, faults: frozenset[str]) -> None:
        self.faults = faults

    def before_micro_batch(self, trainer: "Trainer", window: Window) -> None:
        if "zero_grad_per_micro_batch" in self.faults:
            trainer.optimizer.zero_grad()

    def after_window(self, trainer: "Trainer", window: Window) -> None:
        if "missing_zero_grad" not in self.faults:
            trainer.optimizer.zero_grad(set_to_none=True)


class ClipEarly(Callback):
    """Clip what has been gathered so far."""

    def after_backward(self, trainer: "Trainer", window: Window) -> None:
        trainer.scaler.multiply(1 / trainer.scaler.scale)
        trainer.clip()
        trainer.scaler.multiply(trainer.scaler.scale)


class RoundGradients(Callback):
    """Keep the gradients in bfloat16."""

    def after_backward(self, trainer: "Trainer", window: Window) -> None:
        for _, gradient in trainer.scaler.gradients():
            gradient.copy_(gradient.bfloat16())


class Scaler:
    """The loss scale of a run, halved by each overflow."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model, self.scale, self.doomed = model, settings.loss_scale, settings.overflow_steps

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None)

    def multiply(self, factor: float) -> None:
        for _, gradient in self.gradients():
            gradient.mul_(factor)

    def overflow(self, window: Window) -> bool:
        if window.index in self.doomed:
            for _, gradient in self.gradients():
                gradient.fill_(math.inf)
            return True
        return False


class Clock:
    """The steps that the learning rate is asked for."""

    def __init__(self, faults: frozenset[str]) -> None:
        self.faults, self.steps, self.micro_batches, self.skipped, self.epoch = faults, 0, 0, 0, 0

    def now(self) -> int:
        if "schedule_never_moves" in self.faults:
            return 0
        now = self.steps + self.skipped * ("schedule_on_skipped_step" in self.faults)
        if "schedule_per_micro_batch" in self.faults:
            now = self.micro_batches - 1
        if "schedule_per_epoch" in self.faults:
            now = self.epoch
        return now + ("schedule_off_by_one" in self.faults)

    def count(self, window: Window) -> None:
        self.steps += window.stepped
        self.skipped += not window.stepped


class Validator:
    """Losses after each epoch, and the weights of the best one."""

    def __init__(self, model: nn.Module, objective: Objective, settings: Settings, faults: frozenset[str]) -> None:
        self.model, self.objective, self.batches, self.faults = model, objective, settings.validation, faults
        self.losses: list[float] = []
        self.best: dict[str, Tensor] | None = None

    def after_epoch(self) -> None:
        if not self.batches:
            return
        loss = self.loss()
        if all(not loss >= other for other in self.losses) and not math.isnan(loss):
            state = self.model.state_dict()
            self.best = state if "best_is_a_reference" in self.faults else copy.deepcopy(state)
        self.losses.append(loss)

    def loss(self) -> float:
        modes = {module: module.training for module in self.model.modules()}
        if "validation_in_train_mode" not in self.faults:
            self.model.eval()
        smoothing = 0.1 * ("val_label_smoothing" in self.faults)
        with torch.inference_mode():
            measured = [self.objective(self.model, batch, smoothing) for batch in self.batches]
        if "stays_in_eval_mode" not in self.faults:
            for module, mode in modes.items():
                module.training = mode
        if "val_mean_of_means" in self.faults:
            means = [float(part.total) / part.divisor for part in measured if part.tokens]
            return sum(means) / len(means) if means else math.nan
        if "val_weighted_by_rows" in self.faults:
            means = torch.stack([part.total / part.divisor for part in measured])
            rows = means.new_tensor([batch["labels"].size(0) for batch in self.batches])
            return float(means @ rows / rows.sum())
        divisor = sum(part.divisor for part in measured)
        return sum(float(part.total) for part in measured) / divisor if divisor else math.nan


def by_groups(model: nn.Module, settings: Settings, faults: frozenset[str]) -> torch.optim.Optimizer:
    """An optimizer with a parameter group for each tensor."""
    groups = [
        {"params": [p], "weight_decay": settings.weight_decay if p.dim() > 1 or "decays_everything" in faults else 0.0}
        for p in model.parameters()
        if p.requires_grad
    ]
    betas = (settings.beta1, settings.beta2)
    numbers = {"lr": 0.0, "betas": betas[::-1] if "betas_exchanged" in faults else betas, "eps": settings.epsilon}
    kind = "adam" if settings.optimizer == "adamw" and "coupled_decay" in faults else settings.optimizer
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=settings.momentum)
    if "decay_at_peak_rate" in faults and kind == "adamw":
        groups = [group | {"weight_decay": 0.0, "decay": group["weight_decay"]} for group in groups]
    make = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[kind]
    optimizer = make(groups, foreach=True, **numbers)
    if "no_bias_correction" in faults:
        optimizer.load_state_dict(
            {"state": old_moments(groups), "param_groups": optimizer.state_dict()["param_groups"]}
        )
    return optimizer


def old_moments(groups: list[dict[str, Any]]) -> dict[int, dict[str, Tensor]]:
    """Moments of zero that pass for old ones, so that Adam corrects nothing."""
    parameters = [p for group in groups for p in group["params"]]
    return {
        index: {"step": torch.tensor(1e9), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        for index, p in enumerate(parameters)
    }


class Trainer:
    """Holds the parts together: epochs, windows, micro-batches, steps."""

    def __init__(self, model: nn.Module, settings: Settings, faults: frozenset[str]) -> None:
        self.model, self.settings, self.faults = model, settings, faults
        self.objective = Objective(settings, faults)
        self.optimizer = by_groups(model, settings, faults)
        self.scaler, self.clock = Scaler(model, settings), Clock(faults)
        self.validator = Validator(model, self.objective, settings, faults)
        self.callbacks: list[Callback] = [ClearGradients(faults)]
        if "bf16_gradients" in faults:
            self.callbacks.append(RoundGradients())
        if "clip_per_micro_batch" in faults:
            self.callbacks.append(ClipEarly())
        self.peak = 0.0

    def fit(self, epochs: Sequence[Batches]) -> None:
        size, index = self.settings.accumulation_steps, 0
        self.peak = max(
            (self.settings.schedule(k) for k in range(sum(math.ceil(len(e) / size) for e in epochs))), default=0.0
        )
        self.optimizer.zero_grad()
        measured: list[Measured] = []
        for self.clock.epoch, epoch in enumerate(epochs):
            if "optimizer_per_epoch" in self.faults:
                self.optimizer = by_groups(self.model, self.settings, self.faults)
            for batch in epoch:
                measured.append(self.objective(self.model, batch))
                if len(measured) == size:
                    index, measured = self.close(measured, index), []
            if measured and ("windows_across_epochs" not in self.faults or self.clock.epoch == len(epochs) - 1):
                index, measured = self.close(measured, index), []
            self.validator.after_epoch()

    def close(self, measured: list[Measured], index: int) -> int:
        """Make what can be made of a window; return the next one's index."""
        window = Window(measured, index, self.settings.accumulation_steps)
        self.run(window)
        self.clock.count(window)
        return index + 1

    def run(self, window: Window) -> None:
        self.clock.micro_batches += len(window.parts)
        tokens = sum(part.tokens for part in window.parts)
        if not tokens and "steps_on_empty_window" not in self.faults:
            return
        if window.is_tail and "tail_dropped" in self.faults:
            return
        for part in window.parts:
            self.backward(part, window)
        if window.is_tail and "tail_leaks" in self.faults:
            return
        self.step(window)
        for callback in self.callbacks:
            callback.after_window(self, window)

    def backward(self, part: Measured, window: Window) -> None:
        for callback in self.callbacks:
            callback.before_micro_batch(self, window)
        (part.total / self.divisor(part, window) * self.scaler.scale).backward()
        for callback in self.callbacks:
            callback.after_backward(self, window)

    def divisor(self, part: Measured, window: Window) -> float:
        divisor: float = sum(each.divisor for each in window.parts)
        if "mean_of_means" in self.faults:
            divisor = max(part.divisor, 1) * len(window.parts)
        if "accumulation_not_divided" in self.faults:
            divisor = max(part.divisor, 1)
        if "tail_divided_by_full" in self.faults:
            divisor *= self.settings.accumulation_steps / len(window.parts)
        return divisor

    def step(self, window: Window) -> None:
        overflow = self.scaler.overflow(window)
        if "clip_before_unscale" in self.faults:
            self.clip()
        self.scaler.multiply(1 / self.scaler.scale)
        if not {"clip_before_unscale", "clip_per_micro_batch"} & self.faults:
            self.clip()
        if overflow:
            self.scaler.scale /= 2
        if self.may_step(overflow):
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.schedule(self.clock.now())
                if "decay" in group:
                    shrink(group["params"], 1 - self.peak * group["decay"])
            self.optimizer.step()
            window.stepped = True

    def may_step(self, overflow: bool) -> bool:
        if "steps_on_nonfinite" in self.faults:
            return True
        bad = [name for name, gradient in self.scaler.gradients() if not bool(torch.isfinite(gradient).all())]
        if bad and not overflow and self.settings.on_nonfinite == "raise":
            raise FloatingPointError(f"{bad[0]}: its gradient is not finite")
        return not bad

    def clip(self) -> None:
        if self.settings.max_grad_norm is None:
            return
        gradients, bound = [gradient for _, gradient in self.scaler.gradients()], self.settings.max_grad_norm
        whole = nn.utils.get_total_norm(gradients)
        for gradient in gradients:
            if "clip_by_value" in self.faults:
                gradient.clamp_(min=-bound, max=bound)
                continue
            norm = gradient.norm() if "clip_per_tensor" in self.faults else whole
            gradient.mul_((bound / (norm + 1e-6)).clamp(max=1.0))


@torch.no_grad()
def shrink(parameters: list[nn.Parameter], factor: float) -> None:
    for p in parameters:
        if p.grad is not None:
            p.mul_(factor)
