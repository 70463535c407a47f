"""Loops with one mistake that is not among the specification's faults, each with the part that it belongs to."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Settings

from .plain import IGNORED, Plain
from .right import Checkpointed, Closure, OneBigBatch, RowByRow, RowsInAnotherOrder, WithLambdaLR


def variations() -> Iterator[type[Plain]]:
    """Every loop of this module."""
    return (kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Plain) and kind.part)


def rows_of(batch: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in batch.items()}


# data


class DropsLastRow(Plain, part="data"):
    def run_window(self, window: Batches) -> None:
        super().run_window([rows_of(batch, slice(0, max(1, len(batch["labels"]) - 1))) for batch in window])


class EpochsReversed(Plain, part="data"):
    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        return super().train(epochs[::-1])


class RepeatsFirstEpoch(Plain, part="data"):
    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        return super().train([epochs[0] for _ in epochs])


class SkipsLastBatch(Plain, part="data"):
    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        return super().train([batches[: max(1, len(batches) - 1)] for batches in epochs])


# loss


class ZLoss(Plain, part="loss"):
    def token_losses(self, batch: Mapping[str, Any]) -> Tensor:
        scored = self.targets(batch) != IGNORED
        penalty = self.logits(batch)[:, :-1].logsumexp(dim=-1) ** 2
        return super().token_losses(batch) + 1e-2 * penalty * scored


class TrainsInBits(Plain, part="loss"):
    def accumulate(self, window: Batches) -> None:
        super().accumulate(window)
        for gradient in self.gradients():
            gradient /= math.log(2)


# accumulation


class WeighsByRows(Plain, part="accumulation"):
    def accumulate(self, window: Batches) -> None:
        rows = [len(batch["labels"]) for batch in window]
        for batch, own in zip(window, rows):
            (self.loss_sum(batch) / max(1, self.count(batch)) * own / sum(rows)).backward()


class WindowsOfWhatHasTargets(Plain, part="accumulation"):
    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        return super().train([[batch for batch in batches if self.count(batch)] for batches in epochs])


class LastMicroBatchTwice(Plain, part="data"):
    def accumulate(self, window: Batches) -> None:
        super().accumulate([*window, window[-1]] if len(window) > 1 else window)


class WindowsOfOneMore(Plain, part="accumulation"):
    def __init__(self, model: nn.Module, settings: Settings) -> None:
        size = settings.accumulation_steps
        super().__init__(model, replace(settings, accumulation_steps=size + (size > 1)))


class DividesByFullWindowOfTokens(Plain, part="accumulation"):
    """A tail's token losses are divided by as many tokens as the epoch's first window has."""

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        self.full = self.count(*epochs[0][: self.settings.accumulation_steps])
        return super().train(epochs)

    def accumulate(self, window: Batches) -> None:
        is_tail = len(window) < self.settings.accumulation_steps
        tokens = max(1, self.full) if is_tail else self.count(*window)
        for batch in window:
            (self.loss_sum(batch) / tokens).backward()


class KeepsATenth(Plain, part="optimizer"):
    """A tenth of each step's gradient is still there in the next one: a momentum."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: list[Tensor] = []

    def accumulate(self, window: Batches) -> None:
        super().accumulate(window)
        for gradient, old in zip(self.gradients(), self.kept):
            gradient += old
        self.kept = [0.1 * gradient for gradient in self.gradients()]


# clipping


class ClipsByLargestNumber(Plain, part="clipping"):
    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm, norm_type=math.inf)


class AlwaysNormalizes(Plain, part="clipping"):
    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            norm = nn.utils.get_total_norm(self.gradients())
            for gradient in self.gradients():
                gradient *= self.settings.max_grad_norm / (norm + 1e-6)


# optimizer


class LambdaOfAScheduledRate(WithLambdaLR, part="optimizer"):
    """The optimizer's own rate is the schedule's first one, which LambdaLR multiplies by the schedule."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, settings)
        base = settings.schedule(0)
        self.scheduler.base_lrs = [base for _ in self.scheduler.base_lrs]
        for group in self.optimizer.param_groups:
            group["lr"] = base * settings.schedule(0)


class HalfRateForBiases(Plain, part="optimizer"):
    def set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate() / (2 if group["params"][0].ndim == 1 else 1)


class FrozenBias(Plain, part="optimizer"):
    def step(self) -> None:
        biases = [p for p in self.parameters if p.ndim == 1]
        biases[-1].grad = None
        super().step()


class LargeEpsilon(Plain, part="optimizer"):
    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        for group in optimizer.param_groups:
            if "eps" in group:
                group["eps"] += 1e-3
        return optimizer


class Nesterov(Plain, part="optimizer"):
    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        for group in optimizer.param_groups:
            if group.get("momentum"):
                group["nesterov"] = True
        return optimizer


class NoisyGradients(Plain, part="loss"):
    """In one step nothing tells it from a wrong loss."""

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self.steps)
        for gradient in self.gradients():
            gradient += 1e-2 * torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype)
        super().step()


# schedule


class HalfSpeed(Plain, part="schedule"):
    def rate(self) -> float:
        return self.settings.schedule(self.steps // 2)


class RestartsEachEpoch(Plain, part="schedule"):
    def rate(self) -> float:
        return self.settings.schedule(self.steps_of_epoch)


# precision


class HalfWeights(Plain, part="precision"):
    @torch.no_grad()
    def step(self) -> None:
        super().step()
        for p in self.parameters:
            p.copy_(p.half())


class LossInFloat32(Plain, part="precision"):
    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        return super().logits(batch).float()


class HalfLogits(Plain, part="precision"):
    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        logits = super().logits(batch)
        return logits.bfloat16().to(logits.dtype)


# validation


class ValidatesOnFirstBatch(Plain, part="validation"):
    @torch.no_grad()
    def validation_loss(self) -> float:
        first = self.settings.validation[0]
        return self.loss_sum(first).item() / max(1, self.count(first))


class ValidatesInBits(Plain, part="validation"):
    def validation_loss(self) -> float:
        return super().validation_loss() / math.log(2)


class KeepsTheWorst(Plain, part="validation"):
    def is_best(self, loss: float) -> bool:
        return loss > max(self.losses, default=-math.inf)


class KeepsWhatBeatsTheLast(Plain, part="validation"):
    def is_best(self, loss: float) -> bool:
        return not self.losses or loss < self.losses[-1]


class TrainsOnValidation(Plain, part="data"):
    def validate(self) -> None:
        super().validate()
        self.run_window(self.settings.validation)


class ValidatesBeforeTheEpoch(Plain, part="validation"):
    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        if self.settings.validation:
            self.validate()
        returned = super().train(epochs)
        self.losses.pop() if self.settings.validation else None
        return returned


# finite


class SkipsTheNextWindowToo(Plain, part="finite"):
    skipped = False

    def may_step(self, overflow: bool) -> bool:
        finite = super().may_step(overflow)
        allowed = finite and not self.skipped
        self.skipped = not finite
        return allowed


class TakesNaNForZero(Plain, part="finite"):
    def may_step(self, overflow: bool) -> bool:
        for gradient in self.gradients():
            gradient.nan_to_num_(0.0, 0.0, 0.0)
        return True


# mistakes in loops that run the model in another way: the part is the second class's


class RowByRowWithLargeEpsilon(RowByRow, LargeEpsilon): ...


class OneBigBatchAtHalfSpeed(OneBigBatch, HalfSpeed): ...


class ClosureWithNesterov(Closure, Nesterov): ...


class CheckpointedAndClippedByLargestNumber(Checkpointed, ClipsByLargestNumber): ...


class AnotherOrderAndTheWorstKept(RowsInAnotherOrder, KeepsTheWorst): ...


OUTSIDE: dict[str, type[Plain]] = {kind.__name__: kind for kind in variations()}
