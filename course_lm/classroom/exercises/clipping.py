"""Exercises of lesson 09: the global norm, the clip coefficient, the first bad parameter, unscaling before clipping."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_lm.classroom.checks import at_each, exercise

_Gradients = Sequence[Tensor | None]
_Named = Mapping[str, Tensor | None]


def _random(seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((4, 3), (5,), (2, 2))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) * scale for shape in shapes]


@exercise(
    cases={
        "3 and 4 in two parameters": ([torch.tensor([3.0]), torch.tensor([-4.0])],),
        "matrices, a vector and a None among them": ([_random(0)[0], None, *_random(0)[1:]],),
        "float64, a parameter of one number": ([*_random(1, torch.float64), torch.tensor(0.5).double()],),
        "no gradient at all": ([None, None],),
    },
)
def global_norm_of(gradients):
    """The norm of all gradients as one vector: `fn(gradients)`, a list in which None stands for no gradient."""
    return math.sqrt(sum(float(g.square().sum()) for g in gradients if g is not None))


def _present(gradients: _Gradients) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _before_none(gradients: _Gradients) -> list[Tensor]:
    return _present(gradients[: [*(gradient is None for gradient in gradients), True].index(True)])


def _spectral(gradient: Tensor) -> float:
    return float(torch.linalg.matrix_norm(gradient, 2) if gradient.ndim > 1 else gradient.norm())


global_norm_of.also(
    "the parameters after the first None are left out",
    lambda gradients: math.hypot(*(float(g.norm()) for g in _before_none(gradients))),
)
global_norm_of.also(
    "a matrix counts by its spectral norm, its largest singular value",
    lambda gradients: math.hypot(*map(_spectral, _present(gradients))),
    lambda gradients: math.hypot(*(float(torch.linalg.norm(g, 2)) for g in _present(gradients))),  # none of a number
)
global_norm_of.also(
    "the norms of all rows are added",
    lambda gradients: sum(float(g.norm(dim=-1).sum() if g.ndim else g.abs()) for g in _present(gradients)),
)


@exercise(
    cases={
        "norms 5 and 2, at most 1": ([5.0, 2.0], 1.0),
        "norms from 0 to 1, at most 1": ([0.0, 0.5, 1.0], 1.0),
        "norms from 0.25 to 30, at most 3": ([0.25, 2.0, 3.0, 7.0, 30.0], 3.0),
        "no clipping": ([0.5, 7.0], None),
        "norm inf": ([float("inf")], 0.5),  # a norm that was computed is not the object `math.inf`
        "norm nan": ([float("nan")], 0.5),
        "norm inf and nan, no clipping": ([float("inf"), float("nan")], None),
    },
    run=at_each(0),
)
def clip_coefficient(norm, max_norm):
    """The factor of all gradients: `fn(norm, max_norm)`, 1 where nothing is to be done; `max_norm` may be None."""
    if max_norm is None or not math.isfinite(norm) or norm <= max_norm:
        return 1.0
    return max_norm / norm


_FINE, _LARGE = torch.tensor([1.0, -2.0]), torch.tensor([3e38, 3e38])
_NAN, _INF, _MINUS = (torch.tensor([1.0, value]) for value in (math.nan, math.inf, -math.inf))


@exercise(
    cases={
        "nan, then inf": ({"wte": _FINE, "attn": None, "mlp": _NAN, "head": _INF},),
        "minus inf, then inf": ({"wte": None, "mlp": _MINUS, "head": _INF},),
        "all finite": ({"wte": _FINE, "mlp": _FINE * 0},),
        "finite, though their norm is not": ({"wte": _FINE, "mlp": _LARGE, "norm": _FINE, "head": _NAN},),
        "inf and minus inf in a matrix, and more to come": (
            {
                "wte": torch.tensor([[math.inf, 1.0], [-math.inf, 2.0]]),
                "mlp": torch.tensor([math.nan, 1.0]),
                "attn": torch.full((2, 2), math.nan),
                "head": _INF,
            },
        ),
        "all of a vector is inf, then all of a matrix is nan": (
            {"wte": _FINE, "attn": torch.tensor([math.inf, math.inf]), "mlp": torch.full((2, 2), math.nan)},
        ),
    },
)
def first_bad_parameter(gradients):
    """The name of the first gradient that holds nan or ±inf, or "": `fn(gradients)`, a dict of tensors and None."""
    for name, gradient in gradients.items():
        if gradient is not None and not gradient.isfinite().all():
            return name
    return ""


def _bad(gradients: _Named, is_bad: Callable[[Tensor], Tensor] = lambda g: ~g.isfinite()) -> dict[str, int]:
    """The gradients that hold bad values, each with their number."""
    counts = {name: int(is_bad(g).sum()) for name, g in gradients.items() if g is not None}
    return {name: count for name, count in counts.items() if count}


first_bad_parameter.also(
    "nan is looked for in all parameters first, and infinities after that",
    lambda gradients: next(iter([*_bad(gradients, torch.isnan), *_bad(gradients, torch.isinf)]), ""),
)
first_bad_parameter.also(
    "the names are sorted: the first in the alphabet is named", lambda gradients: min(_bad(gradients), default="")
)
first_bad_parameter.also("all bad parameters are named, not the first one", lambda gradients: list(_bad(gradients)))
first_bad_parameter.also(
    "the parameter with the most bad values is named, not the first one",
    lambda gradients: max(_bad(gradients), key=_bad(gradients).__getitem__, default=""),
)


@exercise(
    cases={
        "3 and 4 at scale 2": ([torch.tensor([6.0]), torch.tensor([8.0])], 2.0, 1.0),
        "a small gradient at scale 1024": (_random(3, scale=100.0), 1024.0, 1.0),
        "scale 8 in float64": (_random(4, torch.float64, scale=800.0), 8.0, 0.5),
        "a gradient that is small with and without its scale": (_random(5, scale=0.44), 2.0, 10.0),
        "3 and 4 at scale 2, which may have 10": ([torch.tensor([6.0]), torch.tensor([8.0])], 2.0, 10.0),
        "gradients of 0": ([torch.zeros(2), torch.zeros(1)], 2.0, 1.0),
    },
)
def unscaled_and_clipped(gradients, scale, max_norm):
    """What the optimizer gets: `fn(gradients, scale, max_norm)`, gradients that still carry the loss scale."""
    true = [gradient / scale for gradient in gradients]
    norm = torch.nn.utils.get_total_norm(true)
    return [gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0) for gradient in true]
