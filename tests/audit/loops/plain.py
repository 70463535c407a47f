"""A plain right loop in small methods, made to be varied: each of `outside` and many of `right` change one of them."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Settings

IGNORED = -100


class Plain:
    """One run; `Plain.loop` is what the audit calls."""

    part = ""  # what a variation gets wrong, of the parts of a loop
    lacks = ""  # the setting that it does not have
    precision = "float64"  # in which it is right

    def __init_subclass__(cls, part: str = "") -> None:
        if part:
            cls.part = part

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = self.make_optimizer()
        self.steps = self.windows = self.steps_of_epoch = 0
        self.losses: list[float] = []
        self.best: dict[str, Tensor] | None = None

    @classmethod
    def loop(cls, model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any] | None:
        return cls(model, settings).train(epochs)

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        size = self.settings.accumulation_steps
        self.optimizer.zero_grad()
        for batches in epochs:
            self.steps_of_epoch = 0
            for start in range(0, len(batches), size):
                self.run_window(batches[start : start + size])
            if self.settings.validation:
                self.validate()
        return {"validation_losses": self.losses, "best_weights": self.best}

    def run_window(self, window: Batches) -> None:
        overflow = self.windows in self.settings.overflow_steps
        self.windows += 1
        if not self.count(*window):
            return
        self.accumulate(window)
        if overflow:
            for gradient in self.gradients():
                gradient.fill_(math.inf)
        self.clip()
        if self.may_step(overflow):
            self.set_rates()
            self.step()
            self.steps += 1
            self.steps_of_epoch += 1
        self.optimizer.zero_grad()

    def accumulate(self, window: Batches) -> None:
        tokens = self.count(*window)
        for batch in window:
            (self.loss_sum(batch) / tokens).backward()

    def targets(self, batch: Mapping[str, Any]) -> Tensor:
        return batch["labels"][:, 1:]  # (B, T - 1)

    def count(self, *batches: Mapping[str, Any]) -> int:
        return sum(int((self.targets(batch) != IGNORED).sum()) for batch in batches)

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        names = ("attention_mask", "document_ids", "position_ids")
        output = self.model(batch["input_ids"], **{name: batch[name] for name in names if name in batch})
        return output if isinstance(output, Tensor) else output.logits  # (B, T, V)

    def token_losses(self, batch: Mapping[str, Any]) -> Tensor:
        """Nats of each target, (B, T - 1), and 0 where there is none."""
        logits = self.logits(batch)[:, :-1].transpose(1, 2)
        return F.cross_entropy(logits, self.targets(batch), ignore_index=IGNORED, reduction="none")

    def loss_sum(self, batch: Mapping[str, Any]) -> Tensor:
        return self.token_losses(batch).sum()

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)

    def may_step(self, overflow: bool) -> bool:
        finite = all(bool(gradient.isfinite().all()) for gradient in self.gradients())
        if not finite and not overflow and self.settings.on_nonfinite == "raise":
            raise FloatingPointError("a gradient is not finite")
        return finite

    def make_optimizer(self) -> torch.optim.Optimizer:
        return self.optimizer_of([{"params": [p], "weight_decay": self.decay_of(p)} for p in self.parameters])

    def decay_of(self, weight: Tensor) -> float:
        return self.settings.weight_decay if weight.ndim >= 2 else 0.0

    def optimizer_of(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        s = self.settings
        if s.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=s.momentum)
        kind = torch.optim.AdamW if s.optimizer == "adamw" else torch.optim.Adam
        return kind(groups, lr=0.0, betas=(s.beta1, s.beta2), eps=s.epsilon)

    def rate(self) -> float:
        return self.settings.schedule(self.steps)

    def set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()

    def step(self) -> None:
        self.optimizer.step()

    def validate(self) -> None:
        self.model.eval()
        loss = self.validation_loss()
        self.model.train()
        if self.is_best(loss):
            self.best = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.losses.append(loss)

    @torch.no_grad()
    def validation_loss(self) -> float:
        tokens = self.count(*self.settings.validation)
        return sum(self.loss_sum(batch).item() for batch in self.settings.validation) / tokens if tokens else math.nan

    def is_best(self, loss: float) -> bool:
        return loss < min((other for other in self.losses if not math.isnan(other)), default=math.inf)

    def copy(self) -> list[Tensor]:
        return [copy.deepcopy(p.detach()) for p in self.parameters]
