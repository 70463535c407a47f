"""Exercises of lesson 04: a step of SGD, the bytes of a training, which weights decay, a step of AdamW."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.classroom.checks import Refused, exercise
from course_lm.classroom.checks.comparison import is_number
from course_lm.model import GPT, ModelConfig

_SHAPES = [[(30, 50)], [(7,)], [(512, 64), (64,), (256, 64), (256,)], [(6, 6), (5, 1), (1,)], [(8, 4), (8, 4), (32,)]]
_TINY = ModelConfig(n_layer=1, n_head=1, d_model=4, dropout=0.0)


def _drawn(seed: int, *scales: float, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Tensors (2, 3), as many as scales."""
    drawn = torch.randn(len(scales), 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [(one * scale).to(dtype) for one, scale in zip(drawn, scales)]


@exercise(
    cases={
        "one weight": (torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([3.0]), 0.1, 0.75, 0.2),
        "the first step: the velocity is zero": (*_drawn(0, 1.0, 1.0, 0.0), 0.1, 0.9, 0.1),
        "with a velocity and decay, in float32": (*_drawn(2, 1.0, 1.0, 1.0, dtype=torch.float32), 0.5, 0.5, 0.2),
        "a gradient of zero": (*_drawn(3, 1.0, 0.0, 1.0), 0.2, 0.8, 0.1),
    },
)
def sgd_step(weight, gradient, velocity, lr, momentum, weight_decay):
    """One step of SGD: `fn(weight, gradient, velocity, lr, momentum, weight_decay)` gives weight and velocity."""
    gradient = gradient + weight_decay * weight
    velocity = momentum * velocity + gradient
    return weight - lr * velocity, velocity


def _for_each_model(fn: Callable[..., object], optimizer: str) -> list[object]:
    return [fn(shapes, optimizer) for shapes in _SHAPES]


@exercise(
    cases={"adamw": ("adamw",), "sgd with momentum": ("sgd",), "adafactor": ("adafactor",)},
    run=_for_each_model,
)
def training_bytes(shapes, optimizer):
    """Bytes of fp32 weights, gradients and moments: `fn(shapes, optimizer)`, "sgd", "adamw" or "adafactor"."""
    numbers = 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        moments = {"sgd": size, "adamw": 2 * size, "adafactor": sum(shape)}[optimizer]
        numbers += 2 * size + moments
    return 4 * numbers


class _TiedModel(nn.Module):
    """A head that shares the embedding's weight, a norm whose name does not say that it is one, and a lone number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.ln = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 1)  # a matrix of one row
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.0))


_FROZEN = _TiedModel()
_FROZEN.linear.requires_grad_(False)


def _decay_of_each(fn: Callable[..., Any], model: nn.Module, weight_decay: float) -> dict[str, str]:
    """What the groups do with each parameter: its decay, once for each time that it stands there.

    Raises Refused for what no optimizer takes as parameter groups.
    """
    groups = fn(model, weight_decay)
    if isinstance(groups, Optimizer):
        raise Refused("gives an optimizer, not the groups that one is made of: return a list of dicts")
    found: dict[int, list[str]] = {}
    for group in [groups] if isinstance(groups, dict) else groups:
        if not isinstance(group, dict) or "params" not in group:
            got = f"one with the keys {', '.join(map(str, group))}" if isinstance(group, dict) else type(group).__name__
            raise Refused(f'return a list of dicts, each with "params", got {got}')
        if not is_number(group.get("weight_decay", 0.0)):
            raise Refused(f'"weight_decay" is a number, got {group["weight_decay"]!r}')
        decay = f"decay {float(group['weight_decay']):g}" if "weight_decay" in group else "no weight_decay given"
        params = group["params"]
        if isinstance(params, set):
            raise Refused('the "params" of a group are a set, which has no order: optimizers take a list')
        for weight in [params] if isinstance(params, Tensor) else params:
            weight = weight[1] if isinstance(weight, tuple) else weight  # a name may stand before it
            if not isinstance(weight, Tensor):
                raise Refused(f'"params" holds tensors, got a {type(weight).__name__}')
            found.setdefault(id(weight), []).append(decay)
    return {name: " and ".join(found.get(id(weight), ["not there"])) for name, weight in model.named_parameters()}


@exercise(
    cases={
        "a GPT of the course": (GPT(_TINY, vocab_size=5, max_length=3), 0.1),
        "a head tied to the embedding": (_TiedModel(), 0.1),
        "a frozen layer": (_FROZEN, 0.3),
    },
    run=_decay_of_each,
)
def groups_for(model, weight_decay):
    """Parameter groups of which only matrices decay: `fn(model, weight_decay)` gives dicts for an optimizer."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def _where(decays: Callable[[str, Tensor], bool]) -> Callable[..., list[dict[str, Any]]]:
    def groups_for(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return [{"params": [p], "weight_decay": weight_decay if decays(name, p) else 0.0} for name, p in named]

    return groups_for


groups_for.also("only biases are spared: norm gains decay", _where(lambda name, p: not name.endswith("bias")))
groups_for.also(
    "names decide, and a norm whose name lacks `norm` is missed",
    _where(lambda name, p: "norm" not in name and not name.endswith("bias")),
)
groups_for.also(
    "embeddings are spared, although they are matrices",
    _where(lambda name, p: p.ndim >= 2 and "embedding" not in name),
)


def _each_step(fn: Callable[..., object], weight: Tensor, gradients: Sequence[Tensor], *numbers: float) -> list[object]:
    state: dict[str, Any] = {}
    weights: list[object] = []
    new: object = weight
    for gradient in gradients:
        new = fn(new, gradient, state, *numbers)
        if isinstance(new, tuple | dict):  # it would come back as the weight
            raise Refused(f"gives a {type(new).__name__}: return the weight alone")
        weights.append(new.clone() if isinstance(new, Tensor) else new)
    return weights


def _steps(seed: int, *scales: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor]]:
    """A weight (2, 3) and a gradient for each scale."""
    weight, *gradients = _drawn(seed, 1.0, *scales, dtype=dtype)
    return weight, gradients


@exercise(
    cases={
        "one weight, two steps": (
            torch.tensor([2.0]),
            [torch.tensor([0.5]), torch.tensor([-1.0])],
            *(0.1, 0.5, 0.9, 0.01, 0.2),
        ),
        "tiny gradients, where eps counts": (*_steps(1, 1e-3, 1e-3, 1e-3, 1e-3), 0.1, 0.8, 0.99, 1e-3, 0.1),
        "gradients of zero": (*_steps(2, 0.0, 0.0), 0.1, 0.9, 0.999, 1e-8, 0.5),
        "in float32, without decay": (*_steps(3, 1.0, 1.0, 1.0, dtype=torch.float32), 0.01, 0.9, 0.95, 1e-8, 0.0),
    },
    run=_each_step,
)
def adamw_step(weight, gradient, state, lr, beta1, beta2, eps, weight_decay):
    """One step of AdamW: `fn(weight, gradient, state, lr, beta1, beta2, eps, weight_decay)` gives the weight.

    `state` is a dict that is empty at first and handed on from step to step.
    """
    t = state["step"] = state.get("step", 0) + 1
    m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * gradient
    v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * gradient**2
    update = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
    return (1 - lr * weight_decay) * weight - lr * update
