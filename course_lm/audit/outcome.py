"""What a run leaves behind, of a loop or of the specification, and how far apart two of them are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Precision:
    """How near a loop must come to the specification.

    Attributes:
        weights: largest distance of the weights: by their norm in float64, by the norm of their change otherwise.
        losses: largest relative distance of a validation loss, which may be held in float32 at any precision.
        clear: a fault is named if the next best explanation is that many times farther away.
    """

    name: str
    dtype: torch.dtype
    weights: float
    losses: float
    clear: float

    @property
    def exact(self) -> bool:
        """Whether equal means equal to ten digits."""
        return self.dtype is torch.float64


PRECISIONS = {
    "float64": Precision("float64", torch.float64, 1e-10, 1e-6, 1.0),
    "float32": Precision("float32", torch.float32, 1e-4, 1e-5, 10.0),
    "bf16": Precision("bf16", torch.float32, 0.05, 0.02, 2.0),
}


@dataclass(frozen=True)
class Outcome:
    """What a run left.

    Attributes:
        weights: all of them in one vector, float64; None where the run raised.
        validation_losses, best: as returned; None where the loop returns none. `best` is one vector like `weights`.
        refused: the run raised, as `on_nonfinite="raise"` asks for.
        seen: names of what was seen of the run that its weights do not show.
    """

    weights: Tensor | None
    validation_losses: Sequence[float] | None = None
    best: Tensor | None = None
    refused: bool = False
    seen: frozenset[str] = frozenset()

    def is_finite(self) -> bool:
        """Whether the run ended, with numbers for weights."""
        return self.weights is not None and bool(self.weights.isfinite().all())


def flat(weights: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named weights in one float64 vector."""
    return torch.cat([weights[name].detach().to("cpu", torch.float64).flatten() for name in names])


def names_of(model: nn.Module) -> list[str]:
    """The names of the model's weights, each tensor once."""
    return [name for name, _ in model.named_parameters()]


def distance(got: Outcome, expected: Outcome, start: Tensor, precision: Precision) -> float:
    """How far `got` is from `expected`, in units of what the precision allows: at most 1 is equal.

    Compared are the weights, and of validation losses and best weights those that `got` has. Weights that are not
    finite are one like the other: how a run is ruined depends on where its infinity began.
    """
    if got.refused or expected.refused:
        return 0.0 if got.refused and expected.refused else math.inf
    if got.seen != expected.seen:
        return math.inf
    assert got.weights is not None and expected.weights is not None
    distances = [_of_weights(got.weights, expected.weights, start, precision)]
    if got.best is not None:
        best = math.inf if expected.best is None else _of_weights(got.best, expected.best, start, precision)
        distances.append(best)
    if got.validation_losses is not None:
        distances.append(_of_losses(got.validation_losses, expected.validation_losses or (), precision))
    return max(distances)


def _of_weights(got: Tensor, expected: Tensor, start: Tensor, precision: Precision) -> float:
    sound = bool(got.isfinite().all()), bool(expected.isfinite().all())
    if not all(sound):
        return math.inf if any(sound) else 0.0
    if got.shape != expected.shape:
        return math.inf
    # in float64 rounding is a share of the weights; in less, where a run is coarse, it is a share of the change
    scale = expected if precision.exact else expected - start
    return float((got - expected).norm() / scale.norm().clamp(min=1e-300)) / precision.weights


def _of_losses(got: Sequence[float], expected: Sequence[float], precision: Precision) -> float:
    if len(got) != len(expected):
        return math.inf
    pairs = [(a, b) for a, b in zip(got, expected) if not (math.isnan(a) and math.isnan(b))]
    if any(math.isnan(a) or math.isnan(b) for a, b in pairs):
        return math.inf
    apart = [0.0 if a == b else abs(a - b) / max(abs(b), 1e-4) for a, b in pairs]  # two infinities are equal
    return max(apart, default=0.0) / precision.losses
