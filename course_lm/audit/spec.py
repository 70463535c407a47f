"""The training loop once more, written to be obviously right and not to be fast.

All of it is float64 and plain loops, and nothing of it is shared with the package. If you doubt a loop, train
the same model on the same batches with `train` and compare the weights. Each name in `FAULTS` switches on one
mistake, where real loops make it. Out of scope: `lr_scale` of groups and early stopping.
Many processes are in spec_ranks.py, a run that stops and goes on in spec_resume.py.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

FAULTS: Mapping[str, str] = {
    "unshifted_labels": "position t is scored against token t, which it has read, instead of token t+1",
    "shifted_twice": "labels that are shifted already are shifted again: position t is scored against token t+2",
    "pads_counted": "PAD positions are targets like any other",
    "eos_masked": "targets are masked by id, so every real end-of-text token is lost (PAD shares its id)",
    "mask_forgotten": "the model gets no attention_mask, so tokens see the PADs before them",
    "pads_divide": "PAD positions are no targets, but are counted when the loss is divided",
    "counted_before_shift": "labels are counted before the shift: the divisor is one too large for each row",
    "row_means": "rows weigh the same, however many target tokens each one holds",
    "mean_of_means": "micro-batches weigh the same, however many target tokens each one holds",
    "accumulation_not_divided": "the means of the micro-batches are added up, never divided by their number",
    "divided_twice": "the mean over a window is divided by the accumulation steps too",
    "tail_dropped": "the last, smaller window of an epoch is thrown away",
    "tail_leaks": "the last, smaller window makes no step; its gradient is added to the next epoch's first",
    "tail_divided_by_full": "the last, smaller window is divided by the micro-batches of a full one",
    "windows_across_epochs": "a last, smaller window is not closed; the next epoch's first micro-batches fill it",
    "steps_on_empty_window": "a window without a target makes a step of a zero gradient: moments, decay and k go on",
    "bf16_gradients": "the gradient is rounded to bfloat16 after each micro-batch",
    "clip_before_unscale": "clipping acts on gradients that still carry the loss scale",
    "clip_per_micro_batch": "clipping acts after each micro-batch, on the gradient gathered so far",
    "clip_by_value": "each number of the gradient is clipped to ±max_grad_norm, and no norm is",
    "clip_per_tensor": "each weight's gradient is clipped by its own norm, not by that of all of them",
    "missing_zero_grad": "gradients are never cleared, so every step repeats all earlier ones",
    "zero_grad_per_micro_batch": "gradients are cleared before each micro-batch, so only the last one counts",
    "schedule_per_micro_batch": "the schedule advances with each micro-batch instead of each step",
    "schedule_per_epoch": "the schedule advances with each epoch instead of each step",
    "schedule_never_moves": "the schedule never advances: all steps have the first one's rate",
    "schedule_off_by_one": "the schedule advances before the step that it is for: schedule(k + 1)",
    "first_rate_is_zero": "the warm-up begins at a rate of 0, so the first step moves nothing",
    "schedule_on_overflow": "the schedule also counts windows that made no step because the loss scale overflowed",
    "schedule_on_skipped_step": "the schedule also counts windows that made no step",
    "steps_on_nonfinite": "a gradient with inf or NaN reaches the optimizer",
    "optimizer_per_epoch": "each epoch has a new optimizer, whose moments and step count begin at zero",
    "betas_exchanged": "beta1 and beta2 change places",
    "no_bias_correction": "Adam's moments are used as they are, without the correction for their start at zero",
    "coupled_decay": "AdamW's decay is added to the gradient, as Adam's is",
    "decay_at_peak_rate": "AdamW's decay is multiplied by the schedule's largest rate, not by the current one",
    "decays_everything": "weight decay also shrinks biases and norm gains",
    "stays_in_eval_mode": "validation leaves the model in eval mode",
    "validation_in_train_mode": "validation runs in train mode, with dropout",
    "val_label_smoothing": "validation has label_smoothing=0.1: a tenth of each target goes to all tokens alike",
    "val_mean_of_means": "validation batches weigh the same, however many target tokens each one holds",
    "val_weighted_by_rows": "validation batches weigh by their rows, however many target tokens each one holds",
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
    run = Run.before(model, epochs, settings, faults)
    for epoch, batches in enumerate(epochs):
        run.train_epoch(epoch, batches, is_last=epoch == len(epochs) - 1)
        if settings.validation:
            run.validate()
    run.result.weights = run.copied_weights()
    return run.result


@dataclass
class BatchLoss:
    """Of one batch: the sum of its token losses, its number of target tokens, and what a mean divides that sum by."""

    total: Tensor
    tokens: int
    divisor: int  # the number of target tokens; only faults make it another
    rows: int  # read by the fault val_weighted_by_rows alone


@dataclass
class Run:
    """A run that goes on: the model that it trains, and all that it keeps from one window to the next."""

    model: nn.Module
    parameters: dict[str, nn.Parameter] = field(init=False)  # asked for once: a model takes its time to list them
    settings: Settings
    faults: Collection[str]
    windows: int  # read by the fault decay_at_peak_rate alone
    scale: float
    result: SpecResult = field(default_factory=SpecResult)
    window: list[BatchLoss] = field(default_factory=list)
    epoch: int = 0  # read by the fault schedule_per_epoch alone
    micro_batches: int = 0  # read by the fault schedule_per_micro_batch alone
    norm: float = math.nan
    best_loss: float = math.inf

    def __post_init__(self) -> None:
        self.parameters = dict(self.model.named_parameters())
        self.model.zero_grad()

    @classmethod
    def before(cls, model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str]) -> Self:
        """Return the run before its first window, with a float64 copy of `model`."""
        windows = sum(math.ceil(len(batches) / settings.accumulation_steps) for batches in epochs)
        return cls(copy.deepcopy(model).double().train(), settings, faults, windows, settings.loss_scale)

    def train_epoch(self, epoch: int, batches: Batches, is_last: bool) -> None:
        """Make one step of each `accumulation_steps` batches, and one of those that are left over."""
        self.begin_epoch(epoch)
        for batch in batches:
            self.window.append(self.loss(batch))
            if len(self.window) == self.settings.accumulation_steps:
                self.close_window()
        if self.window and (is_last or "windows_across_epochs" not in self.faults):
            self.close_window()

    def begin_epoch(self, epoch: int) -> None:
        """Note the epoch's number, of which only faults make anything."""
        self.epoch = epoch
        if "optimizer_per_epoch" in self.faults:
            self.result.moments.clear()

    def close_window(self) -> None:
        """Make a step of the micro-batches read since the last one, or note that none was made."""
        window, self.window = self.window, []
        if not self.step(window):
            self.result.skipped.append(self.result.k + len(self.result.skipped))  # the window's index

    def step(self, window: Sequence[BatchLoss]) -> bool:
        """Make one optimizer step of the micro-batches in `window`; say whether it was made."""
        self.micro_batches += len(window)
        is_tail = len(window) < self.settings.accumulation_steps
        is_empty = not any(micro_batch.tokens for micro_batch in window)
        if is_empty and "steps_on_empty_window" not in self.faults:
            return False
        if is_tail and "tail_dropped" in self.faults:
            return False
        loss = self.accumulate(window)
        if "tail_leaks" in self.faults and is_tail:  # the gradient is kept for the next window
            return False
        overflow = self.result.k + len(self.result.skipped) in self.settings.overflow_steps
        self.unscale(overflow)
        may_step = self.may_step(overflow, loss)
        if may_step:
            if "clip_before_unscale" not in self.faults and "clip_per_micro_batch" not in self.faults:
                self.clip()
            self.update(self.learning_rate())
            self.result.losses.append(loss)
            self.result.norms.append(self.norm)
            self.result.k += 1
        if "missing_zero_grad" not in self.faults:
            self.model.zero_grad()
        return may_step

    def accumulate(self, window: Sequence[BatchLoss]) -> float:
        """Add up the gradient of the mean loss over all targets of the window; return that loss."""
        loss = 0.0
        for micro_batch in window:
            if "zero_grad_per_micro_batch" in self.faults:
                self.model.zero_grad()
            divisor = self.divisor(micro_batch, window)
            part = micro_batch.total / divisor  # without a target 0 / 0: a loss of NaN, and a gradient of 0
            (part * self.scale).backward()
            if "bf16_gradients" in self.faults:
                for gradient in self.gradients().values():
                    gradient.copy_(gradient.bfloat16())
            if "clip_per_micro_batch" in self.faults:
                self.clip(self.scale)
            loss += part.item()
        return loss

    def divisor(self, micro_batch: BatchLoss, window: Sequence[BatchLoss]) -> float:
        """Return what the token losses of a micro-batch of the window are divided by."""
        # all targets are counted first: one mean over the whole window (docs/contract.md, C3)
        divisor = sum(each.divisor for each in window)
        if "mean_of_means" in self.faults:
            divisor = micro_batch.divisor * len(window)
        if "accumulation_not_divided" in self.faults:
            divisor = micro_batch.divisor
        if "divided_twice" in self.faults:
            divisor *= self.settings.accumulation_steps
        if "tail_divided_by_full" in self.faults:
            return divisor * self.settings.accumulation_steps / len(window)
        return divisor

    def loss(self, batch: Mapping[str, Any], smoothing: float = 0.0) -> BatchLoss:
        """Run the model on a batch and add up its token losses, in nats."""
        inputs = {name: batch[name] for name in ("attention_mask", "document_ids", "position_ids") if name in batch}
        if "mask_forgotten" in self.faults:
            del inputs["attention_mask"]
        output = self.model(batch["input_ids"], **inputs)
        logits = output if isinstance(output, Tensor) else output.logits  # (B, T, V)
        log_probabilities = logits.log_softmax(dim=-1)  # (B, T, V), nats
        if smoothing:
            everywhere = log_probabilities.mean(dim=-1, keepdim=True)  # (B, T, 1)
            log_probabilities = (1 - smoothing) * log_probabilities + smoothing * everywhere
        targets = self.targets(batch)
        divisors = Counter(row for row, _, _ in targets)  # of each row that has a target
        if "counted_before_shift" in self.faults and torch.is_grad_enabled():  # validation is right
            divisors = Counter((self.labels(batch) != -100).nonzero()[:, 0].tolist())
        if "pads_divide" in self.faults:
            rows, positions = batch["labels"][:, self.shift() :].shape
            divisors = dict.fromkeys(range(rows), positions)
        total = log_probabilities[:0].sum()  # an empty sum: 0, and still a function of the weights
        for row, position, target in targets:
            weight = 1 / divisors[row] if "row_means" in self.faults else 1
            total = total - weight * log_probabilities[row, position, target]
        divisor = len(divisors) if "row_means" in self.faults else sum(divisors.values())
        return BatchLoss(total, len(targets), divisor, len(batch["labels"]))

    def targets(self, batch: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """Return (row, position, target id) for each position that has a target."""
        return [
            (row, position, target)
            for row, row_labels in enumerate(self.labels(batch).tolist())
            for position, target in enumerate(row_labels[self.shift() :])
            if target != -100
        ]

    def labels(self, batch: Mapping[str, Any]) -> Tensor:
        """Return a batch's labels (B, T), not shifted."""
        labels = batch["labels"].clone()
        if "pads_counted" in self.faults:
            labels = torch.where(batch["attention_mask"] == 0, batch["input_ids"], labels)
        if "eos_masked" in self.faults:
            labels[labels == self.settings.eos_id] = -100
        return labels

    def shift(self) -> int:
        """Return how many tokens after a position its target stands."""
        return 1 - ("unshifted_labels" in self.faults) + ("shifted_twice" in self.faults)

    def unscale(self, overflow: bool) -> None:
        """Take the loss scale off the gradient."""
        if overflow:
            for gradient in self.gradients().values():
                gradient.fill_(math.inf)
        if "clip_before_unscale" in self.faults:
            self.clip()
        for gradient in self.gradients().values():
            gradient /= self.scale  # in place, as in `clip`: these are the live gradients
        if overflow:
            self.scale /= 2

    def clip(self, scale: float = 1.0) -> None:
        """Note the norm of a gradient that carries `scale`, and shorten it to `max_grad_norm` if it is longer."""
        gradients = self.gradients().values()
        self.norm = _norm(gradients) / scale
        bound = self.settings.max_grad_norm
        if bound is None:
            return
        for gradient in gradients:
            if "clip_by_value" in self.faults:
                gradient.clamp_(-bound * scale, bound * scale)
            else:
                norm = _norm([gradient]) / scale if "clip_per_tensor" in self.faults else self.norm
                gradient *= min(bound / (norm + 1e-6), 1.0)  # 1e-6: as torch does

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
        steps = self.result.k
        if "schedule_on_skipped_step" in self.faults:
            steps += len(self.result.skipped)
        elif "schedule_on_overflow" in self.faults:
            steps += len(set(self.result.skipped) & set(self.settings.overflow_steps))
        if "schedule_per_micro_batch" in self.faults:
            steps = self.micro_batches - 1
        if "schedule_per_epoch" in self.faults:
            steps = self.epoch
        if "schedule_off_by_one" in self.faults:
            steps += 1
        if "schedule_never_moves" in self.faults:
            steps = 0
        if "first_rate_is_zero" in self.faults and self.result.k == 0:
            return 0.0
        return self.settings.schedule(steps)

    def decay_rate(self, lr: float) -> float:
        """Return the rate that AdamW's decay is multiplied by: that of the step."""
        if "decay_at_peak_rate" in self.faults:  # the largest of as many rates as the run has windows
            return max(self.settings.schedule(k) for k in range(self.windows))
        return lr

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """Change the weights in place, as SGD, Adam or AdamW do."""
        self.result.learning_rates.append(lr)
        for name, gradient in self.gradients().items():
            weight = self.parameters[name]
            is_decayed = weight.ndim >= 2 or "decays_everything" in self.faults
            decay = self.settings.weight_decay if is_decayed else 0.0
            if self.settings.optimizer == "adamw" and "coupled_decay" not in self.faults:
                weight -= self.decay_rate(lr) * decay * weight  # Loshchilov and Hutter 2019, algorithm 2
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
        beta1, beta2 = (s.beta2, s.beta1) if "betas_exchanged" in self.faults else (s.beta1, s.beta2)
        step = moments.get("step", 0) + 1  # Kingma and Ba 2015, algorithm 1
        first = beta1 * moments.get("exp_avg", 0.0) + (1 - beta1) * gradient
        second = beta2 * moments.get("exp_avg_sq", 0.0) + (1 - beta2) * gradient**2
        moments.update(step=step, exp_avg=first, exp_avg_sq=second)
        if "no_bias_correction" in self.faults:
            return first / (second.sqrt() + s.epsilon)
        return first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + s.epsilon)

    @torch.no_grad()
    def validate(self) -> None:
        """Record the mean loss of all validation targets; keep the weights where it is the lowest so far."""
        was_training = [module for module in self.model.modules() if module.training]
        if "validation_in_train_mode" not in self.faults:
            self.model.eval()
        smoothing = 0.1 if "val_label_smoothing" in self.faults else 0.0
        losses = [self.loss(batch, smoothing) for batch in self.settings.validation]
        if "val_weighted_by_rows" in self.faults:  # a batch without a target has a mean of NaN
            losses = [replace(each, total=each.total / each.divisor * each.rows, divisor=each.rows) for each in losses]
        if "val_mean_of_means" in self.faults:
            losses = [replace(each, total=each.total / each.divisor, divisor=1) for each in losses if each.tokens]
        divisor = sum(each.divisor for each in losses)
        loss = sum(each.total.item() for each in losses) / divisor if divisor else math.nan
        if "stays_in_eval_mode" not in self.faults:
            for module in was_training:
                module.training = True
        self.result.validation_losses.append(loss)
        if loss < self.best_loss:  # never true of NaN
            self.best_loss = loss
            is_copied = "best_is_a_reference" not in self.faults
            self.result.best_weights = self.copied_weights() if is_copied else self.weights()

    def weights(self) -> dict[str, Tensor]:
        """Return the live weights by name."""
        return {name: weight.data for name, weight in self.parameters.items()}

    def copied_weights(self) -> dict[str, Tensor]:
        """Return a copy of the weights as they are now, by name."""
        return {name: weight.clone() for name, weight in self.weights().items()}

    def gradients(self) -> dict[str, Tensor]:
        """Return the live gradients by name; a weight that no loss depends on has none and is left alone."""
        return {name: w.grad for name, w in self.parameters.items() if w.grad is not None}


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum((tensor**2).sum().item() for tensor in tensors))
