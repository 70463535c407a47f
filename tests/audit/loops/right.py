"""Right loops in other guises: what each does is the same to the last digits, and none may be accused."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from course_lm.audit.spec import Batches, Settings

from .plain import IGNORED, Plain


def guises() -> Iterator[type[Plain]]:
    """Every loop of this module, and the plain one."""
    return (kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Plain))


# the mean over a window


class SumThenDivide(Plain):
    def accumulate(self, window: Batches) -> None:
        for batch in window:
            self.loss_sum(batch).backward()
        for gradient in self.gradients():
            gradient /= self.count(*window)


class MeansByTheirShares(Plain):
    def accumulate(self, window: Batches) -> None:
        for batch in window:
            if own := self.count(batch):
                mean = self.token_losses(batch)[self.targets(batch) != IGNORED].mean()
                (mean * (own / self.count(*window))).backward()


class PerTokenWeights(Plain):
    def accumulate(self, window: Batches) -> None:
        tokens = self.count(*window)
        for batch in window:
            losses = self.token_losses(batch)
            weights = (self.targets(batch) != IGNORED).to(losses.dtype) / tokens
            (losses * weights).sum().backward()


class OneBackwardPass(Plain):
    def accumulate(self, window: Batches) -> None:
        torch.stack([self.loss_sum(batch) for batch in window]).sum().div(self.count(*window)).backward()


class OneBigBatch(Plain):
    """The micro-batches of a window as one batch, its rows padded on the right."""

    fills: Mapping[str, int] = {"labels": IGNORED, "document_ids": -1}

    def accumulate(self, window: Batches) -> None:
        width = max(batch["labels"].shape[1] for batch in window)
        joined = {name: torch.cat([self.widened(batch, name, width) for batch in window]) for name in window[0]}
        super().accumulate([joined])

    def widened(self, batch: Mapping[str, Any], name: str, width: int) -> Tensor:
        return F.pad(batch[name], (0, width - batch[name].shape[1]), value=self.fills.get(name, 0))


class RowByRow(Plain):
    """Each row alone, without the pads at its end."""

    def accumulate(self, window: Batches) -> None:
        tokens = self.count(*window)
        for batch in window:
            for row in range(len(batch["labels"])):
                length = int(batch["attention_mask"][row].nonzero().max()) + 1
                (self.loss_sum({name: batch[name][row : row + 1, :length] for name in batch}) / tokens).backward()


class RowsInAnotherOrder(Plain):
    def accumulate(self, window: Batches) -> None:
        super().accumulate([{name: batch[name].flip(0) for name in batch} for batch in reversed(window)])


class LogSoftmaxAndGather(Plain):
    def token_losses(self, batch: Mapping[str, Any]) -> Tensor:
        targets = self.targets(batch)
        shares = torch.log_softmax(self.logits(batch)[:, :-1], dim=2)
        return -shares.gather(2, targets.clamp(min=0)[..., None])[..., 0].masked_fill(targets == IGNORED, 0.0)


class ShiftByIgnoring(Plain):
    """Labels moved by one place, and the last place ignored, instead of logits cut."""

    def token_losses(self, batch: Mapping[str, Any]) -> Tensor:
        labels = F.pad(self.targets(batch), (0, 1), value=IGNORED)
        return F.cross_entropy(self.logits(batch).transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")


class AsksWhenAStepIsDue(Plain):
    """It asks after each micro-batch whether it is the last one of a window."""

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        self.window: list[Mapping[str, Any]] = []
        for batches in epochs:
            for index, batch in enumerate(batches):
                self.window.append(batch)
                if self.is_due(index) or self.is_tail_due(index, len(batches)):
                    self.run_window(self.window)
                    self.window = []
            if self.settings.validation:
                self.validate()
        return {"validation_losses": self.losses, "best_weights": self.best}

    def is_due(self, index: int) -> bool:
        return (index + 1) % self.settings.accumulation_steps == 0

    def is_tail_due(self, index: int, batches: int) -> bool:
        return index + 1 == batches


# the gradient


class FunctionalGrad(Plain):
    """The gradient of a function of the weights, as `torch.func` has it."""

    def accumulate(self, window: Batches) -> None:
        weights: dict[str, Tensor] = dict(self.model.named_parameters())
        tokens = self.count(*window)
        names = ("attention_mask", "document_ids", "position_ids")

        def loss(weights: dict[str, Tensor], batch: Mapping[str, Any]) -> Tensor:
            given = {name: batch[name] for name in names if name in batch}
            logits = functional_call(self.model, weights, (batch["input_ids"],), given)[:, :-1].transpose(1, 2)
            return F.cross_entropy(logits, self.targets(batch), ignore_index=IGNORED, reduction="sum") / tokens

        for batch in window:
            for name, gradient in grad(loss)(weights, batch).items():
                given = weights[name].grad
                weights[name].grad = gradient if given is None else given + gradient


class InferenceModeValidation(Plain):
    def validation_loss(self) -> float:
        with torch.inference_mode():
            return super().validation_loss()


class Checkpointed(Plain):
    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        def forward(input_ids: Tensor) -> Tensor:
            return Plain.logits(self, {**batch, "input_ids": input_ids})

        return checkpoint(forward, batch["input_ids"], use_reentrant=False)


class ZerosInsteadOfNone(Plain):
    def run_window(self, window: Batches) -> None:
        super().run_window(window)
        self.optimizer.zero_grad(set_to_none=False)


class RealGradScaler(Plain):
    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, settings)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=settings.loss_scale, growth_interval=10**6)

    def loss_sum(self, batch: Mapping[str, Any]) -> Tensor:
        loss = super().loss_sum(batch)
        return self.scaler.scale(loss) if self.model.training else loss

    def clip(self) -> None:
        self.scaler.unscale_(self.optimizer)
        super().clip()

    def may_step(self, overflow: bool) -> bool:
        super().may_step(overflow)  # refuses what has to be refused
        before = self.scaler.get_scale()
        self.set_rates()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() == before

    def step(self) -> None:
        """The scaler has made it."""


# the optimizer


class Fused(Plain):
    def optimizer_of(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return super().optimizer_of([group | {"fused": True} for group in groups])


class Closure(Plain):
    """The optimizer asks for the gradient itself; whether it is finite was found out before."""

    def run_window(self, window: Batches) -> None:
        self.window = window
        super().run_window(window)

    def step(self) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            self.accumulate(self.window)
            self.clip()
            return 0.0

        self.optimizer.step(closure)


class FrozenCopies(Plain):
    """Steps made on copies of the weights, which are written back."""

    def step(self) -> None:
        given = [p.data for p in self.parameters]
        for p in self.parameters:
            p.data = p.data.clone()
        super().step()
        for p, old in zip(self.parameters, given):
            p.data = old.copy_(p.data)


class WithLambdaLR(Plain):
    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, settings)
        for group in self.optimizer.param_groups:
            group["lr"] = 1.0
        self.scheduler = LambdaLR(self.optimizer, settings.schedule)

    def set_rates(self) -> None:
        """The scheduler has set them."""

    def step(self) -> None:
        super().step()
        self.scheduler.step()


class OwnAdam(Plain):
    """Every rule by hand, as in the paper: the rate takes the correction, and the epsilon its share of it."""

    @torch.no_grad()
    def step(self) -> None:
        if self.settings.optimizer == "sgd":
            return super().step()
        s, t, rate = self.settings, self.steps + 1, self.rate()
        first, root = 1 - s.beta1**t, math.sqrt(1 - s.beta2**t)
        for p in self.parameters:
            if p.grad is None:
                continue
            state, decay = self.optimizer.state[p], self.decay_of(p)
            gradient = p.grad if s.optimizer == "adamw" else p.grad + decay * p
            m = state["m"] = s.beta1 * state.get("m", 0) + (1 - s.beta1) * gradient
            v = state["v"] = s.beta2 * state.get("v", 0) + (1 - s.beta2) * gradient * gradient
            shrunk = p * (1 - rate * decay) if s.optimizer == "adamw" else p
            p.copy_(shrunk - rate * root / first * m / (v.sqrt() + s.epsilon * root))


# what is returned


class ReturnsNothing(Plain):
    def train(self, epochs: Sequence[Batches]) -> None:
        super().train(epochs)


class ReturnsStateDict(Plain):
    """With the names that tied weights and buffers have, too."""

    def is_best(self, loss: float) -> bool:
        if super().is_best(loss):
            self.state = {name: value.clone() for name, value in self.model.state_dict().items()}
            return True
        return False

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any]:
        self.state: dict[str, Tensor] = {}
        super().train(epochs)
        return {"validation_losses": torch.tensor(self.losses, dtype=torch.float64), "best_weights": self.state or None}


# fewer digits


class InFloat32(Plain):
    precision = "float32"


class FusedInFloat32(Fused):
    precision = "float32"


class Autocast(Plain):
    precision = "bf16"

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().logits(batch).float()


# settings that a loop does not have


class WithoutClipping(Plain):
    lacks = "max_grad_norm"

    def clip(self) -> None:
        """Nothing."""

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any]:
        return {**(super().train(epochs) or {}), "ignores": {"max_grad_norm"}}


class WithoutMomentum(Plain):
    """It does not say so."""

    lacks = "momentum"

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, replace(settings, momentum=0.0))


class WithoutDecay(Plain):
    """It does not say so."""

    lacks = "weight_decay"

    def decay_of(self, weight: Tensor) -> float:
        return 0.0


class NeverRefuses(Plain):
    """It skips where it is asked to raise, and does not say so."""

    lacks = "on_nonfinite=raise"

    def may_step(self, overflow: bool) -> bool:
        return super().may_step(overflow=True)


RIGHT: dict[str, type[Plain]] = {kind.__name__: kind for kind in guises()}
