"""Muon for the hidden matrices of a model and AdamW for all its other weights, as one optimizer.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") makes the update of a matrix nearly
orthogonal, so that all its singular values are about 1. Embeddings, the output head and vectors are left to AdamW.
Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2, scale the update by 0.2 sqrt(max(rows, columns)): its
root mean square is then that of AdamW's, and one learning rate and one weight decay serve both.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from course_lm.model import embedded_tokens
from course_lm.precision import fast_bf16


class MuonWithAdamW(Optimizer):
    """Muon over the groups that say "use_muon", and torch's AdamW over the others.

    The numbers that Muon's paper fixes (Nesterov's momentum, five Newton-Schulz steps and their coefficients) are the
    defaults of `torch.optim.Muon`, and so is the update. But torch iterates in bfloat16 on every device, and a CPU that
    has no such unit takes about fifty times as long for it as for float32: there the iteration is in float32.

    Args:
        groups: dicts with "params", "use_muon" (by default False) and any other key of their rule.
        lr, weight_decay: of all groups that do not say otherwise.
        momentum: for Muon: how much of the mean gradient stays from step to step.
        betas, eps, fused: as for `torch.optim.AdamW`.

    Raises ValueError where a parameter for Muon has not two dimensions, or no group says whether it is for Muon.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float = 3e-4,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool | None = None,
    ) -> None:
        groups = list(groups)
        if not any("use_muon" in group for group in groups if isinstance(group, dict)):
            raise ValueError('groups must say by "use_muon" which of them Muon is for, as `muon_groups` does, got none')
        shared = {"lr": lr, "weight_decay": weight_decay}
        self._muon = {**shared, "momentum": momentum, "adjust_lr_fn": "match_rms_adamw"}
        self._adamw = {**shared, "betas": betas, "eps": eps, "fused": fused}
        super().__init__(groups, shared)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: torch's forgets what it does not know."""
        return {**super().__getstate__(), "_muon": self._muon, "_adamw": self._adamw}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group and give it the numbers of its rule; torch's own constructor of that rule checks them."""
        uses_muon = param_group.setdefault("use_muon", False)
        build: Callable[..., Optimizer] = Muon if uses_muon else AdamW
        numbers: dict[str, Any] = self._muon if uses_muon else self._adamw
        super().add_param_group(build([param_group], **numbers).param_groups[0])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient, each by its rule; return what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["use_muon"]:
                self._update_by_muon(group)
                continue
            part: Any = object.__new__(AdamW)  # this optimizer, seen as one of torch's over one of its groups
            vars(part).update(vars(self) | {"param_groups": [group]})
            inspect.unwrap(AdamW.step)(part)  # without the hooks on steps, which would be told of several optimizers
        return loss

    def _update_by_muon(self, group: dict[str, Any]) -> None:
        rate, momentum = float(group["lr"]), group["momentum"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            mean = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
            ahead = parameter.grad.lerp(mean, momentum)  # Nesterov's
            update = orthogonalised(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
            parameter.mul_(1 - rate * group["weight_decay"])
            parameter.add_(update, alpha=-rate * (0.2 * math.sqrt(max(parameter.shape))))


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """About the nearest orthogonal matrix, with singular values from 0.7 to 1.2: Newton-Schulz iteration (R, C).

    float32 is iterated in bfloat16 where the device multiplies that in hardware, anything else in its own type.
    Source: Jordan et al. 2024; the operations are those of `torch.optim.Muon`.
    """
    a, b, c = coefficients
    wide = matrix.mH if matrix.shape[0] > matrix.shape[1] else matrix
    if matrix.dtype == torch.float32 and fast_bf16(matrix.device):
        wide = wide.bfloat16()
    x = wide / wide.norm().clamp(min=eps)  # so that no singular value is above 1
    for _ in range(steps):
        square = x @ x.mH
        polynomial = torch.addmm(square, square, square, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.mH if matrix.shape[0] > matrix.shape[1] else x


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The weights that Muon is for: of two dimensions, and neither embedding nor output head.

    An embedding is the weight of an `nn.Embedding`, or one that is tied to it. The output head has as many rows as the
    token embedding, and lies outside the lists of layers (`nn.ModuleList`). A parameter whose name does not say
    "weight", such as a table of positions, is none of a layer.
    """
    tokens = embedded_tokens(model)
    in_layers = {one for part in model.modules() if isinstance(part, nn.ModuleList) for one in part.modules()}
    found: dict[int, nn.Parameter] = {}
    outer: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim != 2 or "weight" not in name:
                continue
            found[id(parameter)] = parameter
            is_head = parameter.shape[0] == tokens and module not in in_layers
            if is_head or isinstance(module, nn.Embedding | nn.EmbeddingBag):
                outer.add(id(parameter))
    return [parameter for place, parameter in found.items() if place not in outer]
