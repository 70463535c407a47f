"""Checks of lesson 04: a step of SGD, the bytes of a training, which weights decay, a step of AdamW."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from course_lm.classroom.checks.report import Report, compare
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer, parameter_groups

State = dict[str, Any]


def sgd_step(fn: Callable[..., object]) -> Report:
    """One step of SGD: `fn(weight, gradient, velocity, lr, momentum, weight_decay)` gives weight and velocity."""
    mistakes = {
        "the velocity is kept but never used: the weight moves by the gradient": "moves by gradient",
        "the weight moves by the old velocity, without this step's gradient": "moves by old",
        "the gradient enters the velocity times 1 − momentum, as in a moving average": "averages",
        "the decay is decoupled: it stays out of the velocity": "decoupled",
        "the decay is decoupled and not multiplied by the learning rate": "decoupled, without lr",
        "the decay is left out": "no decay",
        "the learning rate is inside the velocity": "lr inside",
        "the step goes uphill: the velocity is added": "uphill",
        "the decay has the wrong sign and makes weights grow": "grows",
        "the velocity is returned first and the weight second": "swapped",
    }
    return compare(
        fn,
        reference=_torch_sgd,
        cases={
            "the first step: the velocity is zero": (*_tensors(0, velocity=0.0), 0.1, 0.9, 0.0),
            "with a velocity, without decay": (*_tensors(1), 0.1, 0.9, 0.0),
            "with a velocity and decay, in float32": (*_tensors(2, dtype=torch.float32), 0.5, 0.5, 0.2),
            "a gradient of zero": (*_tensors(3, gradient=0.0), 0.2, 0.8, 0.1),
        },
        mistakes={clause: _wrong_sgd(mistake) for clause, mistake in mistakes.items()},
    )


def _tensors(
    seed: int, *, gradient: float = 1.0, velocity: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, a gradient and a velocity, (2, 3); the numbers scale the last two."""
    drawn = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight, gradients, velocities = (drawn * torch.tensor([1.0, gradient, velocity]).view(3, 1, 1)).to(dtype)
    return weight, gradients, velocities


def _torch_sgd(
    weight: Tensor, gradient: Tensor, velocity: Tensor, lr: float, momentum: float, weight_decay: float
) -> tuple[Tensor, Tensor]:
    parameter = nn.Parameter(weight)
    optimizer = SGD([parameter], lr=lr, momentum=momentum, weight_decay=weight_decay)
    optimizer.state[parameter]["momentum_buffer"], parameter.grad = velocity, gradient
    optimizer.step()
    return parameter.detach(), optimizer.state[parameter]["momentum_buffer"]


def _wrong_sgd(mistake: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def step(
        weight: Tensor, gradient: Tensor, velocity: Tensor, lr: float, momentum: float, weight_decay: float
    ) -> tuple[Tensor, Tensor]:
        apart = {"decoupled": lr * weight_decay, "decoupled, without lr": weight_decay}.get(mistake, 0.0)
        joined = {"no decay": 0.0, "grows": -weight_decay}.get(mistake, 0.0 if apart else weight_decay)
        gradient = gradient + joined * weight
        share, rate = {"averages": (1 - momentum, lr), "lr inside": (lr, 1.0), "uphill": (1.0, -lr)}.get(
            mistake, (1.0, lr)
        )
        new = momentum * velocity + share * gradient
        move = {"moves by gradient": gradient, "moves by old": velocity}.get(mistake, new)
        moved = weight - apart * weight - rate * move
        return (new, moved) if mistake == "swapped" else (moved, new)

    return step


def training_bytes(fn: Callable[..., object]) -> Report:
    """Bytes of fp32 weights, gradients and moments: `fn(shapes, optimizer)`, "sgd", "adamw" or "adafactor"."""
    shapes = [(512, 64), (64,), (256, 64), (256,)]

    def wrong(**changes: Any) -> Callable[..., float]:
        return lambda shapes, kind: _bytes(shapes, kind, **changes)

    return compare(
        fn,
        reference=_measured_bytes,
        cases={
            "adamw": (shapes, "adamw"),
            "sgd with momentum": (shapes, "sgd"),
            "adafactor, matrices and vectors": (shapes, "adafactor"),
            "adafactor, one matrix": ([(30, 500)], "adafactor"),
            "adamw, one vector": ([(7,)], "adamw"),
        },
        mistakes={
            "the gradients are left out": wrong(copies=1),
            "only the optimizer's state is counted": wrong(copies=0),
            "Adam's second moment is left out": wrong(adamw=1),
            "SGD keeps nothing, although it has momentum": wrong(sgd=0),
            "Adafactor keeps a whole second moment": wrong(matrix=math.prod),
            "Adafactor keeps nothing for vectors": wrong(vector=lambda shape: 0),
            "Adafactor keeps nothing at all": wrong(vector=lambda shape: 0, matrix=lambda shape: 0),
            "numbers are counted instead of bytes: a float32 has 4": wrong(width=1),
            "bits are counted instead of bytes": wrong(width=32),
        },
    )


def _measured_bytes(shapes: Sequence[tuple[int, ...]], kind: Any) -> int:
    model = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])
    optimizer = build_optimizer(model, OptimizerConfig(type=kind))
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    gradients = [weight.grad for weight in weights]
    return sum(tensor.nbytes for tensor in (*weights, *gradients, *kept) if isinstance(tensor, Tensor))


def _bytes(
    shapes: Sequence[tuple[int, ...]],
    kind: str,
    *,
    copies: int = 2,
    adamw: int = 2,
    sgd: int = 1,
    matrix: Callable[[tuple[int, ...]], int] = sum,
    vector: Callable[[tuple[int, ...]], int] = sum,
    width: int = 4,
) -> int:
    numbers = 0
    for shape in shapes:
        size = math.prod(shape)
        factored = matrix(shape) if len(shape) > 1 else vector(shape)
        numbers += copies * size + {"adamw": adamw * size, "sgd": sgd * size, "adafactor": factored}[kind]
    return numbers * width


def decay_groups(fn: Callable[..., object]) -> Report:
    """Parameter groups of which only matrices decay: `fn(model, weight_decay)` gives dicts for an optimizer."""

    def wrong(decays: Callable[[str, Tensor], bool], **changes: bool) -> Callable[..., list[State]]:
        return lambda model, weight_decay: _groups(model, weight_decay, decays, **changes)

    def matrix(_: str, weight: Tensor) -> bool:
        return weight.ndim >= 2

    tiny = ModelConfig(n_layer=1, n_head=1, d_model=4, dropout=0.0)
    frozen = _TiedModel()
    frozen.linear.requires_grad_(False)
    return compare(
        fn,
        reference=parameter_groups,
        run=_decay_of_each,
        cases={
            "a GPT of the course": (GPT(tiny, vocab_size=5, max_length=3), 0.1),
            "a head tied to the embedding": (_TiedModel(), 0.1),
            "a frozen layer": (frozen, 0.3),
        },
        mistakes={
            "everything decays, biases and norm gains too": wrong(lambda name, weight: True),
            "only biases are spared: norm gains decay": wrong(lambda name, weight: not name.endswith("bias")),
            "names decide, and a norm whose name lacks `norm` is missed": wrong(
                lambda name, weight: "norm" not in name and not name.endswith("bias")
            ),
            "embeddings are spared, although they are matrices": wrong(
                lambda name, weight: weight.ndim >= 2 and "embedding" not in name
            ),
            "the two groups are swapped: vectors decay": wrong(lambda name, weight: weight.ndim < 2),
            "a tied weight stands in the groups twice and is moved twice": wrong(matrix, repeat_tied=True),
            "frozen weights are in the groups too": wrong(matrix, take_frozen=True),
            "what must not decay is left out, and so never trained": wrong(matrix, drop_vectors=True),
        },
    )


class _TiedModel(nn.Module):
    """A head that shares the embedding's weight, and a norm whose name does not say that it is one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.ln = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


def _decay_of_each(fn: Callable[..., Any], model: nn.Module, weight_decay: float) -> dict[str, str] | None:
    """What the groups do with each parameter: its decay, once for each time that it stands there."""
    groups = fn(model, weight_decay)
    if groups is None or groups is ...:
        return None
    found: dict[int, list[str]] = {}
    for group in [groups] if isinstance(groups, dict) else groups:
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f'a parameter group is a dict with "params", got a {type(group).__name__}')
        decay = f"decay {float(group['weight_decay']):g}" if "weight_decay" in group else "no weight_decay given"
        for weight in group["params"]:
            found.setdefault(id(weight), []).append(decay)
    return {name: " and ".join(found.get(id(weight), ["not there"])) for name, weight in model.named_parameters()}


def _groups(
    model: nn.Module,
    weight_decay: float,
    decays: Callable[[str, Tensor], bool],
    *,
    repeat_tied: bool = False,
    take_frozen: bool = False,
    drop_vectors: bool = False,
) -> list[State]:
    named = list(model.named_parameters(remove_duplicate=not repeat_tied))
    named = [(name, weight) for name, weight in named if take_frozen or weight.requires_grad]
    chosen = [weight for name, weight in named if decays(name, weight)]
    rest = [weight for name, weight in named if not decays(name, weight)]
    groups = [{"params": chosen, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return groups[:1] if drop_vectors else groups


def adamw_step(fn: Callable[..., object]) -> Report:
    """One step of AdamW: `fn(weight, gradient, state, lr, beta1, beta2, eps, weight_decay)` gives the weight.

    `state` is a dict that is empty at first and handed on from step to step.
    """
    mistakes = {
        "there is no bias correction": "uncorrected",
        "the corrected moments are kept in the state and corrected again": "keeps corrected",
        "the decay is coupled: it is added to the gradient": "coupled",
        "the decay is not multiplied by the learning rate": "decay without lr",
        "there is no decay": "no decay",
        "eps stands inside the square root": "eps inside",
        "eps is added before the bias correction": "eps early",
        "the square root is missing: the step divides by the second moment itself": "no root",
        "the steps are counted from 0": "from 0",
        "the moments are forgotten after each step": "forgets",
        "beta1 and beta2 are swapped": "swapped",
    }
    return compare(
        fn,
        reference=_torch_adamw,
        run=_five_steps,
        cases={
            "in float64": (*_steps(0), 0.1, 0.9, 0.999, 1e-8, 0.5),
            "tiny gradients, where eps counts": (*_steps(1, scale=1e-3), 0.1, 0.8, 0.99, 1e-3, 0.1),
            "gradients of zero": (*_steps(2, scale=0.0), 0.1, 0.9, 0.999, 1e-8, 0.5),
            "in float32, without decay": (*_steps(3, dtype=torch.float32), 0.01, 0.9, 0.95, 1e-8, 0.0),
        },
        mistakes={clause: _wrong_adamw(mistake) for clause, mistake in mistakes.items()},
    )


def _steps(seed: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor]]:
    """A weight (2, 3) and five gradients."""
    drawn = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return drawn[0], list(drawn[1:] * scale)


def _five_steps(
    fn: Callable[..., object], weight: Tensor, gradients: Sequence[Tensor], *numbers: float
) -> list[object] | None:
    state: State = {}
    weights: list[object] = []
    for gradient in gradients:
        new = fn(weight, gradient, state, *numbers)
        if new is None or new is ...:
            return None
        weights.append(new.clone() if isinstance(new, Tensor) else new)
        weight = new  # type: ignore[assignment]
    return weights


def _torch_adamw(
    weight: Tensor, gradient: Tensor, state: State, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Tensor:
    if not state:
        state["weight"] = nn.Parameter(weight)
        state["optimizer"] = AdamW([state["weight"]], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    state["weight"].grad = gradient
    state["optimizer"].step()
    return state["weight"].detach()


def _wrong_adamw(mistake: str) -> Callable[..., Tensor]:
    def step(
        weight: Tensor, gradient: Tensor, state: State, lr: float, beta1: float, beta2: float, eps: float, decay: float
    ) -> Tensor:
        beta1, beta2 = (beta2, beta1) if mistake == "swapped" else (beta1, beta2)
        gradient = gradient + decay * weight if mistake == "coupled" else gradient
        state = {} if mistake == "forgets" else state
        t = state["step"] = state.get("step", -1 if mistake == "from 0" else 0) + 1
        m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * gradient
        v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * gradient**2
        parts = torch.tensor([1 - beta1**t, 1 - beta2**t], dtype=weight.dtype)  # a tensor: division by 0 gives inf
        part_m, part_v = torch.ones(2, dtype=weight.dtype) if mistake == "uncorrected" else parts
        if mistake == "keeps corrected":
            state["m"], state["v"] = m / part_m, v / part_v
        below = {
            "eps inside": (v / part_v + eps).sqrt(),
            "eps early": (v.sqrt() + eps) / part_v.sqrt(),
            "no root": v / part_v + eps,
        }.get(mistake, (v / part_v).sqrt() + eps)
        shrink = {"coupled": 0.0, "no decay": 0.0, "decay without lr": decay}.get(mistake, lr * decay)
        return (1 - shrink) * weight - lr * (m / part_m) / below

    return step
