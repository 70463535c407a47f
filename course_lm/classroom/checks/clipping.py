"""Checks of lesson 09: the global norm, the clip coefficient, the first bad parameter, unscaling before clipping."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare

Gradients = Sequence[Tensor | None]
Named = Mapping[str, Tensor | None]


def global_norm(fn: Callable[..., object]) -> Report:
    """The norm of all gradients as one vector: `fn(gradients)`, a list in which None stands for no gradient."""
    squares, squared = "float(g.square().sum())", "g.square().sum()"
    all_squares = f"sum({squares} for g in gradients if g is not None)"
    present = "[g for g in gradients if g is not None]"
    numbers = f"sum(g.numel() for g in {present})"
    return compare(
        fn,
        reference=lambda gradients: torch.nn.utils.get_total_norm(_present(gradients)),
        cases={
            "3 and 4 in two parameters": ([torch.tensor([3.0]), torch.tensor([-4.0])],),
            "matrices, a vector and a None among them": ([_random(0)[0], None, *_random(0)[1:]],),
            "float64, a parameter of one number": ([*_random(1, torch.float64), torch.tensor(0.5).double()],),
            "no gradient at all": ([None, None],),
        },
        shown=["3 and 4 in two parameters"],
        mistakes={
            "the norms of the parameters are added": Edit(
                f"math.sqrt({all_squares})", f"sum(math.sqrt({squares}) for g in {present})"
            ),
            "only the largest norm of a parameter counts": Edit(
                all_squares, f"max([0.0, *({squares} for g in {present})])"
            ),
            "the root is missing": Edit("math.sqrt", ""),
            "absolute values are added instead of squares": (Edit("square", "abs"), Edit("math.sqrt", "")),
            "absolute values are added instead of squares, and the root is taken": Edit("square", "abs"),
            "the squares are averaged over the weights": Edit(all_squares, f"{all_squares} / max(1, {numbers})"),
            "the squares of each parameter are averaged over its weights": Edit(squared, "g.square().mean()"),
            "the squares of the norms are averaged over the parameters": Edit(
                all_squares, f"{all_squares} / max(1, len({present}))"
            ),
            "the squares of the norms are averaged over the parameters, those without gradient too": Edit(
                all_squares, f"{all_squares} / max(1, len(gradients))"
            ),
            "the norms of the parameters are averaged": Edit(
                f"math.sqrt({all_squares})", f"sum(math.sqrt({squares}) for g in {present}) / max(1, len({present}))"
            ),
            "the norms of the parameters are averaged, those without gradient as 0": Edit(
                f"math.sqrt({all_squares})", f"sum(math.sqrt({squares}) for g in {present}) / max(1, len(gradients))"
            ),
            "the root of the sum of the norms is taken: the norms are not squared": Edit(
                squares, "math.sqrt(g.square().sum())"
            ),
            "the root is taken twice": Edit(f"math.sqrt({all_squares})", f"math.sqrt(math.sqrt({all_squares}))"),
            "the largest absolute value is taken: the norm for p = ∞": Edit(
                f"math.sqrt({all_squares})", f"max([0.0, *(float(g.abs().max()) for g in {present})])"
            ),
            "the sum is squared, not each number": Edit(squared, "g.sum().square()"),
            "the numbers are added, not their squares": Edit(
                f"math.sqrt({all_squares})", f"sum(float(g.sum()) for g in {present})"
            ),
            "the parameters after the first None are left out": lambda gradients: _norm(_before_none(gradients)),
            "only the first parameter counts": lambda gradients: _norm(_present(gradients)[:1]),
            "only the last parameter counts": lambda gradients: _norm(_present(gradients)[-1:]),
            "only matrices count": lambda gradients: _norm([g for g in _present(gradients) if g.ndim > 1]),
            "a matrix counts by its spectral norm, its largest singular value": lambda gradients: _norm_of(
                [torch.linalg.matrix_norm(g, 2) if g.ndim > 1 else g.norm() for g in _present(gradients)]
            ),
            "a matrix counts by its nuclear norm, the sum of its singular values": lambda gradients: _norm_of(
                [torch.linalg.matrix_norm(g, "nuc") if g.ndim > 1 else g.norm() for g in _present(gradients)]
            ),
            "the norms of the rows are added within each parameter": lambda gradients: _norm_of(
                [g.norm(dim=-1).sum() if g.ndim else g.abs() for g in _present(gradients)]
            ),
            "the norms of all rows are added": lambda gradients: sum(
                float(g.norm(dim=-1).sum() if g.ndim else g.abs()) for g in _present(gradients)
            ),
            "a parameter without gradient counts as 1": lambda gradients: _norm(
                [torch.ones(()) if g is None else g for g in gradients]
            ),
            "the standard deviation is taken for the norm": lambda gradients: (
                float(_flat(gradients).std()) if _present(gradients) else 0.0
            ),
            "half the sum of the squares is taken, without a root": Edit(
                f"math.sqrt({all_squares})", f"0.5 * {all_squares}"
            ),
            "a third power stands for the square": Edit(squared, "g.abs().pow(3).sum()"),
            "the norm is cut off to a whole number": Edit(
                f"math.sqrt({all_squares})", f"int(math.sqrt({all_squares}))"
            ),
        },
        hints={
            "math.sqrt": "One root, at the end, of one sum over everything.",
            "square": "The norm of a vector is the root of the sum of its squares.",
            "g is not None": "A None adds nothing; what comes after it still counts.",
        },
    )


def _present(gradients: Gradients) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]


def _before_none(gradients: Gradients) -> list[Tensor]:
    present = []
    for gradient in gradients:
        if gradient is None:
            break
        present.append(gradient)
    return present


def _flat(gradients: Gradients) -> Tensor:
    return torch.cat([torch.zeros(0), *(gradient.flatten() for gradient in _present(gradients))])


def _norm(gradients: Sequence[Tensor]) -> float:
    return float(_flat(gradients).norm())


def _norm_of(norms: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(norm) ** 2 for norm in norms))


def _random(seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((4, 3), (5,), (2, 2))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) * scale for shape in shapes]


def clip_coefficient(fn: Callable[..., object]) -> Report:
    """The factor of all gradients: `fn(norm, max_norm)`, 1 where nothing is to be done; `max_norm` may be None."""
    none, finite, small = "max_norm is None", "not math.isfinite(norm)", "norm <= max_norm"
    guard, ratio = f"{none} or {finite} or {small}", "max_norm / norm"
    test = f"    if {guard}:"

    def of_bad(value: str, asked: str = "not math.isfinite(norm)") -> AnyOf:
        """Another factor where the norm is `asked` to be, with clipping or always."""
        return AnyOf(
            Edit(test, f"    if max_norm is not None and {asked}:\n        return {value}\n{test}"),
            Edit(test, f"    if {asked}:\n        return {value}\n{test}"),
        )

    bad = {
        "a norm of inf gives 0, and inf × 0 is nan": of_bad("0.0", "norm == math.inf"),
        "a norm of nan gives nan": of_bad("math.nan", "norm != norm"),
        "a norm of inf gives 0 and a norm of nan gives nan": of_bad("norm if norm != norm else 0.0"),
        "gradients that are not finite are multiplied by 0": of_bad("0.0"),
        "a norm of nan gives 0": of_bad("0.0", "norm != norm"),
        "a norm of inf gives inf and a norm of nan gives nan": of_bad("norm"),
        "a norm of inf or nan gives nan": of_bad("math.nan"),
    }
    return compare(
        fn,
        reference=lambda norm, most: (
            1.0 if most is None or not math.isfinite(norm) else min(1.0, most / norm if norm else 1.0)
        ),
        run=_for_each_norm,
        shown=["norms 5 and 2, at most 1"],
        cases={
            "norms 5 and 2, at most 1": ([5.0, 2.0], 1.0),
            "norms from 0 to 1, at most 1": ([0.0, 0.5, 1.0], 1.0),
            "norms from 0.25 to 30, at most 3": ([0.25, 2.0, 3.0, 7.0, 30.0], 3.0),
            "no clipping": ([0.5, 7.0], None),
            "norm inf": ([math.inf], 0.5),
            "norm nan": ([math.nan], 0.5),
            "norm inf and nan, no clipping": ([math.inf, math.nan], None),
        },
        mistakes={
            "a norm below max_norm is raised to max_norm": Edit(small, "norm == 0"),
            "a norm below max_norm is raised to max_norm, and a norm of 0 divides by 0": Edit(f" or {small}", ""),
            "the norm is divided by max_norm": Edit(ratio, "norm / max_norm"),
            "the norm is divided by max_norm, below max_norm as well": (
                Edit(f" or {small}", ""),
                Edit(ratio, "norm / max_norm"),
            ),
            **bad,
            "a norm of inf or nan gives max_norm": Edit(
                test, f"    if max_norm is not None and {finite}:\n        return max_norm\n{test}"
            ),
            "None counts as a max_norm of 1": Edit(test, f"    max_norm = 1.0 if {none} else max_norm\n{test}"),
            "None counts as a max_norm of 0": Edit(
                test, f"    if {none} and math.isfinite(norm):\n        return 0.0\n{test}"
            ),
            "max_norm itself is returned as the factor": Edit(ratio, "max_norm"),
            "the clipped norm is returned, not the factor": (
                Edit("return 1.0", "return norm"),
                Edit(ratio, "max_norm"),
            ),
            "the norm is returned where nothing is to be done": Edit("return 1.0", "return norm"),
            "what is too much is returned: norm − max_norm": Edit(ratio, "norm - max_norm"),
            "the share that is too much is returned: 1 − max_norm / norm": Edit(ratio, f"1 - {ratio}"),
            "the square of the norm divides": Edit(ratio, "max_norm / norm**2"),
            "the ratio is squared": Edit(ratio, f"({ratio}) ** 2"),
            "the root of the ratio is taken": Edit(ratio, f"math.sqrt({ratio})"),
            "the factor is 1 over the norm": Edit(ratio, "1.0 / norm"),
            "the factor is 0 where nothing is to be done": Edit("return 1.0", "return 0.0"),
            "the comparison is turned around: norms above max_norm stay, those below are raised": Edit("<=", ">="),
            "1 is added below: max_norm / (norm + 1)": Edit(ratio, "max_norm / (norm + 1)"),
            "a smaller norm is set to max_norm / norm only above 1: max_norm is compared as 1": Edit(
                small, "norm <= 1"
            ),
            "nothing is ever clipped": Edit(f"return {ratio}", "return 1.0"),
            "the sign is wrong": Edit(ratio, f"-{ratio}"),
        },
        hints={
            **dict.fromkeys([*bad, finite], "inf and nan stay to be seen: the factor is 1."),
            none: "None means: no clipping, the factor is 1.",
            small: "The factor never makes gradients longer: at or below max_norm it is 1.",
            ratio: "norm × factor shall be max_norm.",
        },
    )


def _for_each_norm(fn: Callable[..., Any], norms: Sequence[float], max_norm: float | None) -> list[Any]:
    return [fn(norm, max_norm) for norm in norms]


def first_bad_parameter(fn: Callable[..., object]) -> Report:
    """The name of the first gradient that holds nan or ±inf, or "": `fn(gradients)`, a dict of tensors and None."""
    test, bad = "not gradient.isfinite().all()", "gradient is not None and not gradient.isfinite().all()"
    fine, large = torch.tensor([1.0, -2.0]), torch.tensor([3e38, 3e38])
    nan, inf, minus = (torch.tensor([1.0, value]) for value in (math.nan, math.inf, -math.inf))
    return compare(
        fn,
        reference=lambda gradients: next(iter(_bad(gradients)), ""),
        shown=["nan, then inf"],
        cases={
            "nan, then inf": ({"wte": fine, "attn": None, "mlp": nan, "head": inf},),
            "minus inf, then inf": ({"wte": None, "mlp": minus, "head": inf},),
            "all finite": ({"wte": fine, "mlp": fine * 0},),
            "finite, though their norm is not": ({"wte": fine, "mlp": large, "norm": fine, "head": nan},),
            "inf and minus inf in a matrix, and more to come": (
                {
                    "wte": torch.tensor([[math.inf, 1.0], [-math.inf, 2.0]]),
                    "mlp": torch.tensor([math.nan, 1.0]),
                    "attn": torch.full((2, 2), math.nan),
                    "head": inf,
                },
            ),
            "all of a vector is inf, then all of a matrix is nan": (
                {"wte": fine, "attn": torch.tensor([math.inf, math.inf]), "mlp": torch.full((2, 2), math.nan)},
            ),
        },
        mistakes={
            "only nan is looked for": Edit(test, "gradient.isnan().any()"),
            "only infinities are looked for": Edit(test, "gradient.isinf().any()"),
            "minus inf is overlooked": Edit(test, "(gradient.isnan() | gradient.isposinf()).any()"),
            "plus inf is overlooked": Edit(test, "(gradient.isnan() | gradient.isneginf()).any()"),
            "only plus inf is looked for": Edit(test, "gradient.isposinf().any()"),
            "the last bad parameter is named": Edit("gradients.items()", "reversed(gradients.items())"),
            "a parameter counts as bad only where all its values are": Edit(test, "not gradient.isfinite().any()"),
            "a parameter counts as bad only where all its values are nan": Edit(test, "gradient.isnan().all()"),
            "the norm or the sum is tested, which overflows for large finite gradients": Edit(
                test, "not gradient.norm().isfinite()"
            ),
            "the sum is tested for nan": Edit(test, "gradient.sum().isnan()"),
            "the sum is tested for infinity": Edit(test, "gradient.sum().isinf()"),
            "the norm is tested for infinity": Edit(test, "gradient.norm().isinf()"),
            "a parameter without gradient is named": Edit("is not None and", "is None or"),
            "the search ends at the first parameter without gradient": Edit(
                f"        if {bad}:", f'        if gradient is None:\n            return ""\n        if {bad}:'
            ),
            "the first parameter alone is looked at: the loop returns in its first round": lambda gradients: (
                _bad(dict(list(gradients.items())[:1])) or [""]
            )[0],
            "the first parameter that is finite is named": Edit(test, "gradient.isfinite().all()"),
            "only the first value of each gradient is looked at": Edit(test, "not gradient.flatten()[0].isfinite()"),
            "only the last value of each gradient is looked at": Edit(test, "not gradient.flatten()[-1].isfinite()"),
            "nan is looked for in all parameters first, and infinities after that": lambda gradients: next(
                iter([*_bad(gradients, torch.isnan), *_bad(gradients, torch.isinf)]), ""
            ),
            "infinities are looked for in all parameters first, and nan after that": lambda gradients: next(
                iter([*_bad(gradients, torch.isinf), *_bad(gradients, torch.isnan)]), ""
            ),
            "the names are sorted: the first in the alphabet is named": lambda gradients: min(
                _bad(gradients), default=""
            ),
            "all bad parameters are named, not the first one": lambda gradients: _bad(gradients),
            "the names of all bad parameters are joined": lambda gradients: ", ".join(_bad(gradients)),
            "the position is given, not the name": lambda gradients: next(
                (list(gradients).index(name) for name in _bad(gradients)), ""
            ),
            "True or False is given, not the name": lambda gradients: bool(_bad(gradients)),
            "the gradient is given, not its name": Edit("return name", "return gradient"),
        },
        hints={
            test: "`isfinite` is False for nan, inf and −inf; one such value is enough.",
            "is not None": "A parameter without gradient is passed over, and the search goes on.",
            "gradients.items()": "The first in the model's order: return as soon as one is found.",
        },
    )


def _bad(gradients: Named, is_bad: Callable[[Tensor], Tensor] = lambda g: ~g.isfinite()) -> list[str]:
    """The names of the gradients that hold a bad value."""
    return [name for name, g in gradients.items() if g is not None and bool(is_bad(g).any())]


def unscaled_and_clipped(fn: Callable[..., object]) -> Report:
    """What the optimizer gets: `fn(gradients, scale, max_norm)`, gradients that still carry the loss scale."""
    divided, norm_of = "gradient / scale for gradient in gradients", "torch.nn.utils.get_total_norm(true)"
    ratio, clamped = "(max_norm / (norm + 1e-6))", ".clamp(max=1.0)"
    by_value = "gradient.clamp(-max_norm, max_norm)"

    def reference(gradients: Sequence[Tensor], scale: float, max_norm: float) -> list[Tensor]:
        true = [gradient / scale for gradient in gradients]
        norm = _norm_of([gradient.norm() for gradient in true])
        return [gradient * (max_norm / norm if norm > max_norm else 1.0) for gradient in true]

    def norm_is(other: str) -> Edit:
        return Edit(norm_of, f"torch.as_tensor({other})")

    return compare(
        fn,
        reference=reference,
        cases={
            "3 and 4 at scale 2": ([torch.tensor([6.0]), torch.tensor([8.0])], 2.0, 1.0),
            "a small gradient at scale 1024": (_random(3, scale=100.0), 1024.0, 1.0),
            "scale 8 in float64": (_random(4, torch.float64, scale=800.0), 8.0, 0.5),
            "a gradient that is small with and without its scale": (_random(5, scale=0.44), 2.0, 10.0),
            "3 and 4 at scale 2, which may have 10": ([torch.tensor([6.0]), torch.tensor([8.0])], 2.0, 10.0),
            "gradients of 0": ([torch.zeros(2), torch.zeros(1)], 2.0, 1.0),
        },
        shown=["3 and 4 at scale 2", "gradients of 0"],
        mistakes={
            "the gradients are clipped first and unscaled then": (
                Edit(divided, "gradient for gradient in gradients"),
                Edit(clamped, f"{clamped} / scale"),
            ),
            "the scale stays in": Edit(divided, "gradient for gradient in gradients"),
            "they are unscaled and not clipped": Edit(f" * {ratio}{clamped}", ""),
            "the clipped gradients still carry the scale: only the norm is unscaled": Edit(
                "for gradient in true]", "for gradient in gradients]"
            ),
            "the scale is taken out twice": Edit("gradient / scale", "gradient / scale / scale"),
            "the gradients are multiplied by the scale": Edit("gradient / scale", "gradient * scale"),
            "the scale is taken out once more after clipping": Edit(clamped, f"{clamped} / scale"),
            "the gradients are clipped to max_norm × scale": Edit(ratio, ratio.replace("max_norm", "max_norm * scale")),
            "each gradient is clipped by its own norm": Edit("(norm + 1e-6)", "(gradient.norm() + 1e-6)"),
            "each value is clipped instead of the norm": Edit(f"gradient * {ratio}{clamped}", by_value),
            "small gradients are stretched to max_norm": AnyOf(
                Edit(clamped, ""), Edit(f"{ratio}{clamped}", "(max_norm / norm)")
            ),
            "gradients of 0 are divided by their norm, which gives nan": Edit(
                f"{ratio}{clamped}", "(norm.clamp(max=max_norm) / norm)"
            ),
            "gradients that need no clipping keep their scale": Edit(
                f"gradient * {ratio}{clamped}",
                f"gradient * (scale if norm <= max_norm else {ratio})",
            ),
            "the factor is turned around: norm / max_norm": Edit(
                f"{ratio}{clamped}", "(norm / max_norm).clamp(min=1.0)"
            ),
            "the factor is norm / max_norm, at most 1": Edit(ratio, "(norm / max_norm)"),
            "the gradients are set to a norm of 1 and max_norm is left out": Edit(ratio, "(1.0 / (norm + 1e-6))"),
            "max_norm is the factor where the norm is too large": Edit(
                f"{ratio}{clamped}", "(max_norm if norm > max_norm else 1.0)"
            ),
            "max_norm is compared as 1": Edit(f"{ratio}{clamped}", f"({ratio} if norm > 1.0 else 1.0)"),
            "what is too large becomes 0": Edit(f"{ratio}{clamped}", "(norm <= max_norm)"),
            "the norm is squared: the root is missing": norm_is("sum(one.square().sum() for one in true)"),
            "the norms of the tensors are added": norm_is("sum(one.norm() for one in true)"),
            "the largest norm of a tensor decides": norm_is("max(one.norm() for one in true)"),
            "the norm of the first tensor decides": norm_is("true[0].norm()"),
            "the norm of the last tensor decides": norm_is("true[-1].norm()"),
            "the norms of the tensors are averaged": norm_is("sum(one.norm() for one in true) / len(true)"),
            "the largest absolute value decides, not the norm": norm_is("max(one.abs().max() for one in true)"),
            "absolute values are added for the norm, not squares": norm_is("sum(one.abs().sum() for one in true)"),
            "the mean of the squares is taken for the norm, not their sum": norm_is(
                "torch.cat([one.flatten() for one in true]).square().mean().sqrt()"
            ),
            "the factor has no upper end but a lower one: gradients are never made smaller": Edit(
                clamped, ".clamp(min=1.0)"
            ),
            "one vector is given, not a list of tensors": lambda gradients, scale, most: torch.cat(
                [one.flatten() for one in reference(gradients, scale, most)]
            ),
            "the factor is given, not the gradients": Edit(
                f"[gradient * {ratio}{clamped} for gradient in true]", f"{ratio}{clamped}"
            ),
            "the first tensor alone is given": lambda gradients, scale, most: reference(gradients, scale, most)[0],
        },
        hints={
            "gradient / scale": "The threshold is about the true gradient: take the scale out first, once.",
            norm_of: "One norm for all tensors together, of the unscaled gradients.",
            ratio: "The factor is max_norm / norm, the same for every tensor.",
            clamped: "A gradient within max_norm stays as it is: the factor is at most 1.",
        },
    )
