"""Exercises of lesson 07: the spacing of a format, gradients lost in fp16, the scale's rule, rounding to bf16."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks import at_each, exercise


@exercise(
    cases={
        "four bits: 0.5, 1, 1.5, 2, 3, 4, 6": ([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], 1, 0),
        "fp16": ([1.0, 1000.0, 1.999, 0.1, 2.0**-14, 2.0**-14 - 2.0**-24, 2.0**-20, 3 * 2.0**-24], 10, -14),
        "bf16": ([1.0, 255.0, 0.0177, 3.0, 2.0**100, 2.0**-126, 3 * 2.0**-127, 2.0**-130], 7, -126),
    },
    run=at_each(0),
    close=(1e-9, 0.0),
)
def spacing(x, fraction_bits, smallest_exponent):
    """Distance to the next larger number of a format: `fn(x, fraction_bits, smallest_exponent)`, x above 0."""
    exponent = max(math.floor(math.log2(x)), smallest_exponent)
    return 2.0 ** (exponent - fraction_bits)


_SMALLEST = 2.0**-24  # the smallest positive number of fp16


def _gradient(seed: int, zeros: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sizes = 2.0 ** torch.empty(50, 20).uniform_(-45, -5, generator=generator)
    signs = torch.randint(2, (50, 20), generator=generator) * 2 - 1
    return sizes * signs * (torch.rand(50, 20, generator=generator) >= zeros)


@exercise(
    cases={
        "two zeros, and entries around the smallest number of fp16": (
            torch.tensor([0.0, 6e-8, 4e-8, 2e-8, -1e-9, 0.1, 0.0, 5e-8]),
            1.0,
        ),
        "limits": (
            torch.tensor([_SMALLEST, -_SMALLEST, _SMALLEST / 2, 2.0**-10, 2.0**-14, 1e-7, 1e-8, 1e-41, -1.0, 1e-45]),
            1.0,
        ),
        "a third of the gradient is 0": (_gradient(0, zeros=0.3), 16.0),
        "a scale at which some entries overflow": (_gradient(1, zeros=0.2), 2.0**24),
        "a scale below 1": (_gradient(2, zeros=0.1), 0.125),
    },
)
def underflow_share(gradient, scale):
    """Share of a gradient's nonzero entries that become 0 in fp16 at a loss scale: `fn(gradient, scale)`, a float."""
    nonzero = gradient[gradient != 0]
    return ((nonzero * scale).half() == 0).double().mean()


def _after_each(
    fn: Callable[..., Any], scale: float, growth_interval: int, overflows: Sequence[bool] = ()
) -> list[Any]:
    """What follows on each count of good steps that there can be; with `overflows`, what a run of steps makes."""
    counts = range(growth_interval)
    if not overflows:
        return [fn(scale, count, found_inf, growth_interval) for found_inf in (False, True) for count in counts]
    pairs: list[tuple[Any, Any]] = [(scale, 0)]
    for found_inf in overflows:
        made = fn(*pairs[-1], found_inf, growth_interval)
        if not isinstance(made, Sequence | Tensor) or len(made) != 2:
            return [made]
        pairs.append((made[0], made[1]))
    return pairs


@exercise(
    cases={
        "an interval of 4": (1024.0, 4),
        "an interval of 7": (4096.0, 7),
        "a scale of 1": (1.0, 4),
        "a scale of 2²⁴": (2.0**24, 4),
        "an interval of one step": (3.0, 1),
        "steps in a row": (64.0, 3, [step in (4, 12, 13) for step in range(20)]),
    },
    run=_after_each,
)
def updated_scale(scale, good_steps, found_inf, growth_interval):
    """The loss scale and its count after a step: `fn(scale, good_steps, found_inf, growth_interval)`, a pair."""
    if found_inf:
        return scale / 2, 0
    if good_steps + 1 == growth_interval:
        return scale * 2, 0
    return scale, good_steps + 1


def _around_the_middle() -> Tensor:
    """Numbers above 1 whose low 16 bits are at, beside and far from the middle, above an even and an odd last bit."""
    uppers, lowers = (0x3F80, 0x3F81, 0x3FFF, 0x4012), (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    bits = torch.tensor([(upper << 16) + lower for upper in uppers for lower in lowers], dtype=torch.int32)
    return bits.view(torch.float32)


def _of_many_sizes() -> Tensor:
    sizes = 10.0 ** torch.empty(100).uniform_(-30, 30, generator=torch.Generator().manual_seed(0))
    return sizes * torch.tensor([1.0, -1.0]).repeat(50)


@exercise(
    cases={
        "half way between two neighbours": (torch.tensor([1.00390625, 1.01171875, -1.00390625, -1.01171875]),),
        "three numbers": (torch.tensor([0.1, -2.7, 1000.0]),),
        "around the middle, (2, 24)": (_around_the_middle() * torch.tensor([[1.0], [-1.0]]),),
        "numbers of many sizes": (_of_many_sizes(),),
        "subnormal numbers": (torch.tensor([1e-40, -3e-39, 2.0**-130, 5e-41]),),
        "too large for bf16, and inf": (torch.tensor([3.4e38, -3.4e38, 3.3895e38, math.inf, -math.inf]),),
    },
    close=(1e-7, 0.0),
    without=("bfloat16", "BFloat16Tensor", "autocast"),
)
def nearest_bf16(x):
    """The nearest bf16 number to each float32, as float32, by its bits: `fn(x)`."""
    bits = x.view(torch.int32)
    lifted = bits + 0x7FFF + ((bits >> 16) & 1)
    return (lifted & -0x10000).view(torch.float32)
