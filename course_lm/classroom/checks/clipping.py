"""Checks of lesson 09: the global norm, the clip coefficient, the first bad parameter, unscaling before clipping."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_lm.classroom.checks.report import Report, compare

Gradients = Sequence[Tensor | None]


def global_norm(fn: Callable[..., object]) -> Report:
    """The norm of all gradients as one vector: `fn(gradients)`, a list in which None stands for no gradient."""
    return compare(
        fn,
        reference=lambda gradients: torch.nn.utils.get_total_norm(_present(gradients)),
        cases={
            "3 and 4 in two parameters": ([torch.tensor([3.0]), torch.tensor([-4.0])],),
            "matrices, a vector and a None": ([*_random(0), None],),
            "float64": (_random(1, torch.float64),),
            "zeros": ([torch.zeros(2, 2), None, torch.zeros(3)],),
            "no gradient at all": ([None, None],),
        },
        mistakes={
            "the norms of the parameters are added": lambda gradients: sum(
                float(g.norm()) for g in _present(gradients)
            ),
            "only the largest norm of a parameter counts": lambda gradients: max(
                (float(g.norm()) for g in _present(gradients)), default=0.0
            ),
            "the root is missing": lambda gradients: sum(float(g.square().sum()) for g in _present(gradients)),
            "absolute values are added instead of squares": lambda gradients: sum(
                float(g.abs().sum()) for g in _present(gradients)
            ),
            "the squares are averaged over the weights": lambda gradients: _root_mean_square(_present(gradients)),
            "the squares of the norms are averaged over the parameters": lambda gradients: math.sqrt(
                sum(float(g.square().sum()) for g in _present(gradients)) / max(1, len(_present(gradients)))
            ),
        },
    )


def _present(gradients: Gradients) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _root_mean_square(gradients: list[Tensor]) -> float:
    squares = [gradient.square().flatten() for gradient in gradients]
    return float(torch.cat(squares).mean().sqrt()) if squares else 0.0


def _random(seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((4, 3), (5,), (2, 2))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) * scale for shape in shapes]


def clip_coefficient(fn: Callable[..., object]) -> Report:
    """The factor of all gradients: `fn(norm, max_norm)`, 1 where nothing is to be done; `max_norm` may be None."""

    def coefficient(norm: float, max_norm: float | None) -> float:
        if max_norm is None or not math.isfinite(norm) or norm <= max_norm:
            return 1.0
        return max_norm / norm

    def unless(norm: float, max_norm: float | None, *, inf: float = 1.0, nan: float = 1.0) -> float:
        return inf if math.isinf(norm) else nan if math.isnan(norm) else coefficient(norm, max_norm)

    def stretched(norm: float, max_norm: float | None) -> float:
        if max_norm is None or not math.isfinite(norm) or norm == 0:
            return 1.0
        return max_norm / norm

    def turned_around(norm: float, max_norm: float | None) -> float:
        factor = coefficient(norm, max_norm)
        return 1 / factor

    return compare(
        fn,
        reference=coefficient,
        cases={
            "norm 5, at most 1": (5.0, 1.0),
            "norm 0.5, at most 1": (0.5, 1.0),
            "norm 30, at most 0.25": (30.0, 0.25),
            "norm 0": (0.0, 1.0),
            "no clipping": (7.0, None),
            "norm inf": (math.inf, 1.0),
            "norm nan": (math.nan, 1.0),
        },
        mistakes={
            "a norm below max_norm is raised to max_norm": stretched,
            "the norm is divided by max_norm": turned_around,
            "a norm of inf gives 0, and inf × 0 is nan": lambda norm, most: unless(norm, most, inf=0.0),
            "a norm of inf gives 0 and a norm of nan gives nan": lambda norm, most: unless(
                norm, most, inf=0.0, nan=math.nan
            ),
            "gradients that are not finite are multiplied by 0": lambda norm, most: unless(
                norm, most, inf=0.0, nan=0.0
            ),
            "None counts as a max_norm of 1": lambda norm, most: coefficient(norm, 1.0 if most is None else most),
            "max_norm itself is returned as the factor": lambda norm, most: (
                1.0 if coefficient(norm, most) == 1.0 else most
            ),
        },
        close=(1e-4, 1e-6),
    )


def first_bad_parameter(fn: Callable[..., object]) -> Report:
    """The name of the first gradient that holds nan or ±inf, or "": `fn(gradients)`, a dict of tensors and None."""

    def first(gradients: Mapping[str, Tensor | None], bad: Callable[[Tensor], object]) -> str:
        return next((name for name, g in gradients.items() if g is not None and bool(bad(g))), "")

    def holds_bad(gradient: Tensor) -> Tensor:
        return ~gradient.isfinite().all()

    fine, large = torch.tensor([1.0, -2.0]), torch.tensor([3e38, 3e38])
    nan, inf, minus = (torch.tensor([1.0, value]) for value in (math.nan, math.inf, -math.inf))
    return compare(
        fn,
        reference=lambda gradients: first(gradients, holds_bad),
        cases={
            "nan, then inf": ({"a": fine, "b": None, "c": nan, "d": inf},),
            "inf, then nan": ({"a": fine, "b": inf, "c": nan},),
            "minus inf, then inf": ({"a": None, "b": minus, "c": inf},),
            "all finite": ({"a": fine, "b": fine * 0},),
            "finite, though their norm is not": ({"a": fine, "b": large},),
            "a matrix of nan": ({"a": fine, "b": torch.full((2, 2), math.nan)},),
        },
        mistakes={
            "only nan is looked for": lambda gradients: first(gradients, lambda g: g.isnan().any()),
            "only infinities are looked for": lambda gradients: first(gradients, lambda g: g.isinf().any()),
            "minus inf is overlooked": lambda gradients: first(
                gradients, lambda g: g.isnan().any() or g.isposinf().any()
            ),
            "the last bad parameter is named": lambda gradients: first(dict(reversed(gradients.items())), holds_bad),
            "a parameter counts as bad only where all its values are": lambda gradients: first(
                gradients, lambda g: not g.isfinite().any()
            ),
            "the norm or the sum is tested, which overflows for large finite gradients": lambda gradients: first(
                gradients, lambda g: not g.norm().isfinite()
            ),
            "a parameter without gradient is named": lambda gradients: next(
                (name for name, g in gradients.items() if g is None or bool(holds_bad(g))), ""
            ),
        },
    )


def unscaled_and_clipped(fn: Callable[..., object]) -> Report:
    """What the optimizer gets: `fn(gradients, scale, max_norm)`, gradients that still carry the loss scale."""

    def clip(gradients: Sequence[Tensor], max_norm: float) -> list[Tensor]:
        norm = torch.nn.utils.get_total_norm(gradients)
        return [gradient * (max_norm / norm).clamp(max=1.0) for gradient in gradients]

    def divide(gradients: Sequence[Tensor], scale: float) -> list[Tensor]:
        return [gradient / scale for gradient in gradients]

    return compare(
        fn,
        reference=lambda gradients, scale, max_norm: clip(divide(gradients, scale), max_norm),
        cases={
            "a large gradient at scale 1024": (_random(2, scale=4096.0), 1024.0, 1.0),
            "a small gradient at scale 1024": (_random(3, scale=10.24), 1024.0, 1.0),
            "scale 8 in float64": (_random(4, torch.float64, scale=80.0), 8.0, 0.5),
            "a gradient that is small at scale 8, too": (_random(5, scale=0.01), 8.0, 1.0),
            "3 and 4 at scale 2": ([torch.tensor([6.0]), torch.tensor([8.0])], 2.0, 1.0),
        },
        mistakes={
            "the gradients are clipped first and unscaled then": lambda gradients, scale, max_norm: divide(
                clip(gradients, max_norm), scale
            ),
            "the scale stays in": lambda gradients, scale, max_norm: clip(gradients, max_norm),
            "they are unscaled and not clipped": lambda gradients, scale, max_norm: divide(gradients, scale),
            "the scale is taken out twice": lambda gradients, scale, max_norm: clip(
                divide(gradients, scale * scale), max_norm
            ),
            "each gradient is clipped by its own norm": lambda gradients, scale, max_norm: [
                clip([gradient], max_norm)[0] for gradient in divide(gradients, scale)
            ],
            "each value is clipped instead of the norm": lambda gradients, scale, max_norm: [
                gradient.clamp(-max_norm, max_norm) for gradient in divide(gradients, scale)
            ],
            "small gradients are stretched to max_norm": lambda gradients, scale, max_norm: [
                gradient * max_norm / torch.nn.utils.get_total_norm(gradients) for gradient in gradients
            ],
        },
    )
