"""Checks of lesson 07: the spacing of a format, rounding to bf16 by bits, gradients lost in fp16, the scale's rule."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from course_lm.classroom.checks.report import Report, compare

_SMALLEST_NORMAL, _SMALLEST_SUBNORMAL = 2.0**-14, 2.0**-24  # of fp16


def spacing(fn: Callable[..., object]) -> Report:
    """Distance to the next larger number of a format: `fn(x, fraction_bits, smallest_exponent)`, x above 0."""

    def by_exponent(exponent: Callable[[float], float]) -> Callable[[float, int, int], float]:
        return lambda x, fraction_bits, smallest_exponent: 2.0 ** (max(exponent(x), smallest_exponent) - fraction_bits)

    fp16, bf16 = (10, -14), (7, -126)
    right = by_exponent(lambda x: math.floor(math.log2(x)))
    return compare(
        fn,
        reference=right,
        cases={
            "fp16 at 1": (1.0, *fp16),
            "fp16 at 1000": (1000.0, *fp16),
            "bf16 at 0.0177": (0.0177, *bf16),
            "bf16 at 255": (255.0, *bf16),
            "a subnormal of fp16": (2.0**-20, *fp16),
            "a subnormal of bf16": (2.0**-130, *bf16),
        },
        mistakes={
            "subnormals are forgotten: below the smallest normal number the spacing stays the same": (
                lambda x, fraction_bits, _: 2.0 ** (math.floor(math.log2(x)) - fraction_bits)
            ),
            "the exponent is rounded to the nearest integer instead of down": by_exponent(
                lambda x: round(math.log2(x))
            ),
            "the exponent is rounded up instead of down": by_exponent(lambda x: math.ceil(math.log2(x))),
            "the spacing at 1 is multiplied by x itself, not by the power of two below x": (
                lambda x, fraction_bits, smallest_exponent: max(x, 2.0**smallest_exponent) * 2.0**-fraction_bits
            ),
            "the leading 1 that is not stored is counted as a fraction bit": lambda x, fraction_bits, smallest: right(
                x, fraction_bits + 1, smallest
            ),
            "the spacing at 1 is returned for every x": lambda x, fraction_bits, _: 2.0**-fraction_bits,
        },
        close=(1e-6, 0.0),
    )


def nearest_bf16(fn: Callable[..., object]) -> Report:
    """The nearest bf16 number to each float32, as float32, by its bits: `fn(x)`."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.empty(200).uniform_(-30, 30, generator=generator)
    signs = torch.tensor([1.0, -1.0]).repeat(100)
    halfway = 1 + torch.arange(1, 12, 2) / 256  # between two neighbours in bf16
    return compare(
        fn,
        reference=lambda x: x.bfloat16().float(),
        cases={
            "numbers of many sizes": (sizes * signs,),
            "numbers half way between two neighbours": (torch.cat([halfway, -halfway]),),
            "a matrix of numbers that bf16 has": (torch.tensor([[0.0, 1.0, -2.5], [0.375, -96.0, 2.0**-130]]),),
            "too large for bf16": (torch.tensor([3.4e38, -3.4e38]),),
        },
        mistakes={
            "the low 16 bits are cut off, which rounds towards 0": lambda x: _upper_half(x, 0),
            "a number half way between two goes away from 0 instead of to the even one": lambda x: _upper_half(
                x, 0x8000
            ),
            "a number half way between two goes towards 0 instead of to the even one": lambda x: _upper_half(x, 0x7FFF),
            "every number is rounded away from 0": lambda x: _upper_half(x, 0xFFFF),
            "a number half way between two goes to the odd one": lambda x: _upper_half(
                x, 0x8000 - ((x.view(torch.int32) >> 16) & 1)
            ),
            "the result is the nearest fp16 number": lambda x: x.half().float(),
            "the low 8 bits are rounded away, not the low 16": _to_24_bits,
            "the sign is lost": lambda x: x.bfloat16().float().abs(),
        },
        close=(1e-6, 0.0),
    )


def _upper_half(x: Tensor, added: int | Tensor) -> Tensor:
    return ((x.view(torch.int32) + added) & -0x10000).view(torch.float32)


def _to_24_bits(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    return ((bits + 0x7F + ((bits >> 8) & 1)) & -0x100).view(torch.float32)


def underflow_share(fn: Callable[..., object]) -> Report:
    """Share of a gradient's nonzero entries that become 0 in fp16 at a loss scale: `fn(gradient, scale)`, a float."""
    generator = torch.Generator().manual_seed(0)

    def gradient(holes: float) -> Tensor:
        sizes = 2.0 ** torch.empty(50, 20).uniform_(-40, -5, generator=generator)
        signs = torch.randint(2, (50, 20), generator=generator) * 2 - 1
        return sizes * signs * (torch.rand(50, 20, generator=generator) >= holes)

    def lost(gradient: Tensor, scale: float) -> Tensor:
        return ((gradient * scale).half() == 0) & (gradient != 0)

    def below(limit: float) -> Callable[[Tensor, float], float]:
        return lambda gradient, scale: float(((gradient * scale)[gradient != 0].abs() < limit).double().mean())

    return compare(
        fn,
        reference=lambda gradient, scale: float(lost(gradient, scale)[gradient != 0].double().mean()),
        cases={
            "a third of the gradient is 0": (gradient(0.3), 1.0),
            "with a scale": (gradient(0.2), 1024.0),
            "no zeros, in float64": (gradient(0.0).double(), 16.0),
            "around the smallest subnormal": (torch.tensor([2.0**-24, 0.75 * 2**-24, 2.0**-25, -(2.0**-26)]), 1.0),
        },
        mistakes={
            "entries that are 0 in the gradient itself count as lost": lambda gradient, scale: float(
                ((gradient * scale).half() == 0).double().mean()
            ),
            "the lost ones are divided by all entries, those that are 0 too": lambda gradient, scale: float(
                lost(gradient, scale).double().mean()
            ),
            "all below the smallest subnormal counts as lost, though its upper half rounds up": below(
                _SMALLEST_SUBNORMAL
            ),
            "the smallest normal number is taken for the limit: subnormals are not lost": below(_SMALLEST_NORMAL),
            "negative entries count as small: the absolute value is missing": lambda gradient, scale: float(
                ((gradient * scale)[gradient != 0] <= _SMALLEST_SUBNORMAL / 2).double().mean()
            ),
            "the scale comes after the rounding to fp16, too late": lambda gradient, scale: float(
                lost(gradient, 1.0)[gradient != 0].double().mean()
            ),
            "the gradient is divided by the scale": lambda gradient, scale: float(
                lost(gradient, 1 / scale)[gradient != 0].double().mean()
            ),
            "the share that survives is returned": lambda gradient, scale: float(
                (~lost(gradient, scale))[gradient != 0].double().mean()
            ),
        },
    )


def updated_scale(fn: Callable[..., object]) -> Report:
    """The loss scale and its count after a step: `fn(scale, good_steps, found_inf, growth_interval)`, a pair."""

    def rule(
        *, factor: float = 0.5, late: int = 0, keep_after_overflow: bool = False, keep_after_growth: bool = False
    ) -> Callable[[float, int, bool, int], tuple[float, int]]:
        def updated(scale: float, good_steps: int, found_inf: bool, growth_interval: int) -> tuple[float, int]:
            if found_inf:
                return scale * factor, good_steps if keep_after_overflow else 0
            if good_steps + 1 >= growth_interval + late:
                return scale * 2, good_steps + 1 if keep_after_growth else 0
            return scale, good_steps + 1

        return updated

    return compare(
        fn,
        reference=rule(),
        cases={
            "a good step": (1024.0, 2, False, 4),
            "the good step that completes the interval": (1024.0, 3, False, 4),
            "an overflow after two good steps": (1024.0, 2, True, 4),
            "an overflow where a good step would have raised the scale": (4096.0, 3, True, 4),
            "an interval of one step": (2.0, 0, False, 1),
        },
        mistakes={
            "an overflow does not set the count back": rule(keep_after_overflow=True),
            "the count goes on after the scale has grown": rule(keep_after_growth=True),
            "the scale grows one step too late": rule(late=1),
            "the scale grows one step too early": rule(late=-1),
            "an overflow leaves the scale as it is": rule(factor=1.0),
            "an overflow doubles the scale": rule(factor=2.0),
            "the step that overflows counts as a good one": lambda scale, good_steps, found_inf, growth_interval: (
                (scale / 2, 1) if found_inf else rule()(scale, good_steps, found_inf, growth_interval)
            ),
            "every good step doubles the scale": lambda scale, good_steps, found_inf, growth_interval: (
                (scale / 2, 0) if found_inf else (scale * 2, good_steps + 1)
            ),
        },
    )
