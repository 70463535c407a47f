"""The training loop once more, written to be obviously right and not to be fast.

All of it is float64 and plain loops, and nothing of it is shared with the package. If you doubt a loop, train
the same model on the same batches with `train` and compare the weights. Each name in `FAULTS` switches on one
mistake, where real loops make it. Out of scope: `lr_scale` of groups, early stopping, many processes.
"""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

FAULTS: Mapping[str, str] = {
    "unshifted_labels": "position t is scored against token t, which it has read, instead of token t+1",
    "pads_counted": "PAD positions are targets like any other",
    "eos_masked": "targets are masked by id, so every real end-of-text token is lost (PAD shares its id)",
    "mean_of_means": "micro-batches weigh the same, however many target tokens each one holds",
    "accumulation_not_divided": "the means of the micro-batches are added up, never divided by their number",
    "tail_dropped": "the last, smaller window of an epoch is thrown away",
    "tail_leaks": "the last, smaller window makes no step; its gradient is added to the next epoch's first",
    "tail_divided_by_full": "the last, smaller window is divided by the micro-batches of a full one",
    "clip_before_unscale": "clipping acts on gradients that still carry the loss scale",
    "clip_per_micro_batch": "clipping acts after each micro-batch, on the gradient gathered so far",
    "missing_zero_grad": "gradients are never cleared, so every step repeats all earlier ones",
    "zero_grad_per_micro_batch": "gradients are cleared before each micro-batch, so only the last one counts",
    "schedule_per_micro_batch": "the schedule advances with each micro-batch instead of each step",
    "schedule_off_by_one": "the schedule advances before the step that it is for: schedule(k + 1)",
    "schedule_on_skipped_step": "the schedule also counts windows that made no step",
    "steps_on_nonfinite": "a gradient with inf or NaN reaches the optimizer",
    "coupled_decay": "AdamW's decay is added to the gradient, as Adam's is",
    "decays_everything": "weight decay also shrinks biases and norm gains",
    "stays_in_eval_mode": "validation leaves the model in eval mode",
    "val_mean_of_means": "validation batches weigh the same, however many target tokens each one holds",
    "best_is_a_reference": "the best weights are the live tensors, which training goes on to change",
}

Batches = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Settings:
    """What a run is made of.

    `optimizer` is "sgd", "adam" (both with coupled decay) or "adamw" (decoupled); decay is for matrices only.
    `schedule(k)` is the learning rate after k completed steps. `max_grad_norm=None` does not clip. A window
    overflows if its index, counted from 0 through all epochs, is in `overflow_steps`: it makes no step, and
    `loss_scale` is halved. `on_nonfinite` ("raise" or "skip") is for gradients not finite for another reason.
    `validation` runs after each epoch. `eos_id` serves the fault `eos_masked` alone.
    """

    optimizer: str = "adamw"
    schedule: Callable[[int], float] = lambda k: 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    accumulation_steps: int = 1
    max_grad_norm: float | None = None
    loss_scale: float = 1.0
    overflow_steps: Collection[int] = frozenset()
    on_nonfinite: str = "raise"
    validation: Batches = ()
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for key, accepted in (("optimizer", ("sgd", "adam", "adamw")), ("on_nonfinite", ("raise", "skip"))):
            if getattr(self, key) not in accepted:
                raise ValueError(f"{key} must be one of {', '.join(accepted)}, got {getattr(self, key)!r}")
        if self.accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be at least 1, got {self.accumulation_steps}")


@dataclass
class SpecResult:
    """What a run leaves behind.

    `learning_rates`, `losses` (nats per target) and `norms` (of the whole gradient, before clipping) have one
    entry for each completed step. A window that made no step leaves none there; its index is in `skipped`.
    `moments[name]` has torch's names: "momentum_buffer", or "step", "exp_avg" and "exp_avg_sq".
    `validation_losses` has one entry for each epoch; `best_weights` is None where none of them is a number.
    """

    weights: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, dict[str, Any]] = field(default_factory=dict)
    k: int = 0
    learning_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    best_weights: dict[str, Tensor] | None = None


def train(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = frozenset()
) -> SpecResult:
    """Train a float64 copy of `model` on `epochs`, a list of lists of batches, and leave `model` as it is.

    A batch holds input_ids, attention_mask and labels (not shifted, -100: no target), each (B, T).
    Raises ValueError for an unknown fault, FloatingPointError where `on_nonfinite="raise"` asks for it.
    """
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"unknown fault {unknown[0]!r}; the faults are {', '.join(FAULTS)}")
    if "eos_masked" in faults and settings.eos_id is None:
        raise ValueError("the fault eos_masked needs settings.eos_id, which is None")
    run = _Run(copy.deepcopy(model).double().train(), settings, frozenset(faults), settings.loss_scale)
    run.model.zero_grad()
    for batches in epochs:
        for start in range(0, len(batches), settings.accumulation_steps):
            if not run.step(batches[start : start + settings.accumulation_steps]):
                run.result.skipped.append(run.result.k + len(run.result.skipped))  # the window's index
        if settings.validation:
            run.validate()
    run.result.weights = copy.deepcopy(run.weights())
    return run.result


@dataclass
class _Run:
    model: nn.Module
    settings: Settings
    faults: frozenset[str]
    scale: float
    result: SpecResult = field(default_factory=SpecResult)
    micro_batches: int = 0
    norm: float = math.nan
    best_loss: float = math.inf

    def step(self, window: Batches) -> bool:
        """Make one optimizer step of the micro-batches in `window`; say whether it was made."""
        self.micro_batches += len(window)  # read by the fault schedule_per_micro_batch alone
        is_tail = len(window) < self.settings.accumulation_steps
        tokens = sum(len(self.targets(batch)) for batch in window)
        if tokens == 0 or ("tail_dropped" in self.faults and is_tail):
            return False
        # all targets were counted first: one mean over the whole window (docs/contract.md, C3)
        loss = self.accumulate(window, tokens)
        if "tail_leaks" in self.faults and is_tail:  # the gradient is kept for the next window
            return False
        overflow = self.result.k + len(self.result.skipped) in self.settings.overflow_steps
        self.unscale_and_clip(overflow)
        may_step = self.may_step(overflow, loss)
        if may_step:
            self.update(self.learning_rate())
            self.result.losses.append(loss)
            self.result.norms.append(self.norm)
            self.result.k += 1
        if "missing_zero_grad" not in self.faults:
            self.model.zero_grad()
        return may_step

    def accumulate(self, window: Batches, tokens: int) -> float:
        """Add up the gradient of the mean loss over all `tokens` targets of the window; return that loss."""
        loss = 0.0
        for batch in window:
            if "zero_grad_per_micro_batch" in self.faults:
                self.model.zero_grad()
            total, own_tokens = self.token_loss_sum(batch)
            divisor = tokens
            if "mean_of_means" in self.faults:
                divisor = own_tokens * len(window)
            if "accumulation_not_divided" in self.faults:
                divisor = own_tokens
            if "tail_divided_by_full" in self.faults:
                divisor *= self.settings.accumulation_steps / len(window)
            part = total / divisor
            (part * self.scale).backward()
            if "clip_per_micro_batch" in self.faults:
                self.clip(self.scale)
            loss += part.item()
        return loss

    def targets(self, batch: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """Return (row, position, target id) for each position that has a target."""
        labels = batch["labels"].clone()  # (B, T)
        if "pads_counted" in self.faults:
            labels = torch.where(batch["attention_mask"] == 0, batch["input_ids"], labels)
        if "eos_masked" in self.faults:
            labels[labels == self.settings.eos_id] = -100
        shift = 0 if "unshifted_labels" in self.faults else 1
        return [
            (row, position, target)
            for row, row_labels in enumerate(labels.tolist())
            for position, target in enumerate(row_labels[shift:])
            if target != -100
        ]

    def token_loss_sum(self, batch: Mapping[str, Any]) -> tuple[Tensor, int]:
        """Return the sum of the batch's token losses, in nats, and the number of its target tokens."""
        packed = {name: batch[name] for name in ("document_ids", "position_ids") if name in batch}
        output = self.model(batch["input_ids"], attention_mask=batch["attention_mask"], **packed)
        logits = output if isinstance(output, Tensor) else output.logits  # (B, T, V)
        log_probabilities = logits.log_softmax(dim=-1)  # (B, T, V), nats
        targets = self.targets(batch)
        total = log_probabilities[:0].sum()  # an empty sum: 0, and still a function of the weights
        for row, position, target in targets:
            total = total - log_probabilities[row, position, target]
        return total, len(targets)

    def unscale_and_clip(self, overflow: bool) -> None:
        """Take the loss scale off the gradient, then clip it."""
        if overflow:
            for gradient in self.gradients().values():
                gradient.fill_(math.inf)
        if "clip_before_unscale" in self.faults:
            self.clip()
        for gradient in self.gradients().values():
            gradient /= self.scale  # in place, as in `clip`: these are the live gradients
        if not self.faults & {"clip_before_unscale", "clip_per_micro_batch"}:
            self.clip()
        if overflow:
            self.scale /= 2

    def clip(self, scale: float = 1.0) -> None:
        """Note the norm of a gradient that carries `scale`, and shorten it to `max_grad_norm` if it is longer."""
        gradients = self.gradients().values()
        self.norm = math.sqrt(sum((gradient**2).sum().item() for gradient in gradients)) / scale
        if self.settings.max_grad_norm is not None:
            coefficient = min(self.settings.max_grad_norm / (self.norm + 1e-6), 1.0)  # 1e-6: as torch does
            for gradient in gradients:
                gradient *= coefficient

    def may_step(self, overflow: bool, loss: float) -> bool:
        """Say whether the gradient may reach the optimizer: only a finite one may."""
        if "steps_on_nonfinite" in self.faults:
            return True
        bad = [name for name, gradient in self.gradients().items() if not gradient.isfinite().all()]
        # an overflow of the loss scale is cured by halving it, so it is never an error
        if bad and not overflow and self.settings.on_nonfinite == "raise":
            raise FloatingPointError(f"step {self.result.k}, loss {loss}: {bad[0]} has a non-finite gradient")
        return not bad

    def learning_rate(self) -> float:
        """Return the schedule at the number of completed steps."""
        steps = self.micro_batches - 1 if "schedule_per_micro_batch" in self.faults else self.result.k
        if "schedule_off_by_one" in self.faults:
            steps += 1
        if "schedule_on_skipped_step" in self.faults:
            steps += len(self.result.skipped)
        return self.settings.schedule(steps)

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """Change the weights in place, as SGD, Adam or AdamW do."""
        self.result.learning_rates.append(lr)
        for name, gradient in self.gradients().items():
            weight = self.model.get_parameter(name)
            is_decayed = weight.ndim >= 2 or "decays_everything" in self.faults
            decay = self.settings.weight_decay if is_decayed else 0.0
            if self.settings.optimizer == "adamw" and "coupled_decay" not in self.faults:
                weight -= lr * decay * weight  # Loshchilov and Hutter 2019, algorithm 2
            else:
                gradient = gradient + decay * weight
            weight -= lr * self.direction(gradient, self.result.moments.setdefault(name, {}))

    def direction(self, gradient: Tensor, moments: dict[str, Any]) -> Tensor:
        """Return the direction that the optimizer makes of a gradient; bring its moments up to date."""
        s = self.settings
        if s.optimizer == "sgd":
            if s.momentum:
                # torch's form: a sum of gradients, not a moving average, as the new one has no factor 1 - momentum
                gradient = gradient + s.momentum * moments.get("momentum_buffer", 0.0)
                moments["momentum_buffer"] = gradient
            return gradient
        step = moments.get("step", 0) + 1  # Kingma and Ba 2015, algorithm 1
        first = s.beta1 * moments.get("exp_avg", 0.0) + (1 - s.beta1) * gradient
        second = s.beta2 * moments.get("exp_avg_sq", 0.0) + (1 - s.beta2) * gradient**2
        moments.update(step=step, exp_avg=first, exp_avg_sq=second)
        return first / (1 - s.beta1**step) / ((second / (1 - s.beta2**step)).sqrt() + s.epsilon)

    @torch.no_grad()
    def validate(self) -> None:
        """Record the mean loss of all validation targets; keep the weights where it is the lowest so far."""
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        sums = [self.token_loss_sum(batch) for batch in self.settings.validation]
        if "val_mean_of_means" in self.faults:
            sums = [(total / tokens, 1) for total, tokens in sums if tokens]
        tokens = sum(own_tokens for _, own_tokens in sums)
        loss = sum(total.item() for total, _ in sums) / tokens if tokens else math.nan
        if "stays_in_eval_mode" not in self.faults:
            for module in was_training:
                module.training = True
        self.result.validation_losses.append(loss)
        if loss < self.best_loss:  # never true of NaN
            self.best_loss = loss
            is_copied = "best_is_a_reference" not in self.faults
            self.result.best_weights = copy.deepcopy(self.weights()) if is_copied else self.weights()

    def weights(self) -> dict[str, Tensor]:
        """Return the live weights by name."""
        return {name: weight.data for name, weight in self.model.named_parameters()}

    def gradients(self) -> dict[str, Tensor]:
        """Return the live gradients by name; a weight that no loss depends on has none and is left alone."""
        return {name: w.grad for name, w in self.model.named_parameters() if w.grad is not None}
