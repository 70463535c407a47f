"""A right loop in eight styles, each as its users write it; `lacking` takes settings away from any of them."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Settings

from . import textbook
from .plain import IGNORED, Plain
from .right import FunctionalGrad, OwnAdam, RealGradScaler, WithLambdaLR

Loop = Callable[[nn.Module, Sequence[Batches], Settings], Mapping[str, Any] | None]


class ByHand(OwnAdam):
    """No optimizer of torch, no clipping of torch: tensors alone; it keeps no best weights."""

    @torch.no_grad()
    def step(self) -> None:
        if self.settings.optimizer != "sgd":
            return super().step()
        for p in self.parameters:
            if p.grad is not None:
                state, gradient = self.optimizer.state[p], p.grad + self.decay_of(p) * p
                moved = state["moved"] = self.settings.momentum * state.get("moved", 0) + gradient
                p.sub_(self.rate() * moved)

    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in self.gradients()))
            for gradient in self.gradients():
                gradient *= min(1.0, self.settings.max_grad_norm / (norm + 1e-6))

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any]:
        super().train(epochs)
        return {"validation_losses": self.losses}


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
    "GradScaler": RealGradScaler.loop,
    "from top to bottom": textbook.train,
    "by hand": ByHand.loop,
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
