"""Checks of lesson 07: the spacing of a format, gradients lost in fp16, the scale's rule, rounding to bf16 by bits."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_lm.classroom.checks.comparison import difference
from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare

_HALF_UP = 0x8000  # half of the last bit that bf16 keeps


def spacing(fn: Callable[..., object]) -> Report:
    """Distance to the next larger number of a format: `fn(x, fraction_bits, smallest_exponent)`, x above 0."""
    exponent, floored = "max(math.floor(math.log2(x)), smallest_exponent)", "math.floor(math.log2(x))"
    power = "2.0 ** (exponent - fraction_bits)"

    def by_tens(x: float, fraction_bits: int, smallest_exponent: int) -> float:
        return 10.0 ** (max(math.floor(math.log10(x)), smallest_exponent) - fraction_bits)

    return compare(
        fn,
        reference=lambda x, bits, smallest: 2.0 ** (max(math.frexp(x)[1] - 1, smallest) - bits),
        run=_at_each_number,
        cases={
            "four bits: 0.5, 1, 1.5, 2, 3, 4, 6": (1, 0, [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]),
            "fp16": (10, -14, [1.0, 1000.0, 1.999, 0.1, 2.0**-14, 2.0**-14 - 2.0**-24, 2.0**-20, 3 * 2.0**-24]),
            "bf16": (7, -126, [1.0, 255.0, 0.0177, 3.0, 2.0**100, 2.0**-126, 3 * 2.0**-127, 2.0**-130]),
        },
        shown=["four bits: 0.5, 1, 1.5, 2, 3, 4, 6", "fp16", "bf16"],
        mistakes={
            "subnormals are forgotten: below the smallest normal number the spacing stays the same": Edit(
                exponent, floored
            ),
            "the exponent is rounded to the nearest integer instead of down": Edit("math.floor", "round"),
            "the exponent is rounded up instead of down": Edit("math.floor", "math.ceil"),
            "the exponent is cut off towards 0, which rounds negative ones up": Edit("math.floor", "int"),
            "the spacing at 1 is multiplied by x itself, not by the power of two below x": AnyOf(
                Edit(floored, "math.log2(x)"), Edit(exponent, "math.log2(x)")
            ),
            "it is half the spacing, as if the leading 1 that is not stored were a fraction bit": Edit(
                "- fraction_bits)", "- fraction_bits - 1)"
            ),
            "it is twice the spacing, as if the format had one fraction bit fewer": Edit(
                "- fraction_bits)", "- fraction_bits + 1)"
            ),
            "the spacing at 1 is returned for every x": Edit(power, "2.0 ** -fraction_bits"),
            "the power of two below x is returned: the fraction bits are not used": Edit(power, "2.0 ** exponent"),
            "the power of two is divided by the number of fraction bits": Edit(
                power, "2.0 ** exponent / fraction_bits"
            ),
            "below a power of two the spacing is that of the numbers above it": lambda x, bits, smallest: (
                2.0 ** (max(math.floor(math.log2(x)) + 1, smallest) - bits)
            ),
            "the distance to the next smaller number is returned, which is half at a power of two": Edit(
                floored, "math.ceil(math.log2(x)) - 1"
            ),
            "the next larger number is returned, not the distance to it": Edit(power, f"x + {power}"),
            "the exponent of the spacing is returned, without the power of two": Edit("2.0 ** ", ""),
            "the spacing is divided by x: this is the relative one": Edit(power, f"{power} / x"),
            "below the smallest normal number the spacing is that number": Edit(
                power, f"(2.0 ** smallest_exponent if x < 2.0**smallest_exponent else {power})"
            ),
            "below the smallest normal number the spacing is 0": Edit(
                power, f"({power} if x >= 2.0**smallest_exponent else 0.0)"
            ),
            "the exponent does not go below 0: numbers below 1 have the spacing at 1": AnyOf(
                Edit(exponent, f"max({floored}, 0)"),
                Edit(exponent, f"(max({floored}, 0) if x >= 2.0**smallest_exponent else smallest_exponent)"),
            ),
            "the spacing never falls below the smallest normal number": Edit(
                power, f"max({power}, 2.0**smallest_exponent)"
            ),
            "below the smallest normal number the spacing is twice as wide": Edit(
                ", smallest_exponent)\n", ", smallest_exponent + (x < 2.0**smallest_exponent))\n"
            ),
            "the spacing is that at the smallest normal number for every x": Edit(exponent, "smallest_exponent"),
            "the smallest exponent is taken for a largest one: min and max are exchanged": Edit("max(", "min("),
            "the limits of fp16 are used for every format": Edit(", smallest_exponent)\n", ", -14)\n"),
            "the fraction bits of fp16 are used for every format": Edit("- fraction_bits)", "- 10)"),
            "the logarithm has base e": Edit("math.log2", "math.log"),
            "the logarithm has base 10": Edit("math.log2", "math.log10"),
            "logarithm and power have base 10": by_tens,
            "the spacing of Python's own numbers, fp64, is returned": lambda x, bits, smallest: math.ulp(x),
            "the spacing of fp32 is returned": lambda x, bits, smallest: float(np.spacing(np.float32(x))),
        },
        close=(1e-9, 0.0),
        hints={
            "smallest_exponent)": "Below the smallest normal number the exponent stays at `smallest_exponent`.",
            "math.floor": "The exponent of x is that of the power of two at or below it.",
            "exponent - fraction": "Between two powers of two lie 2 to the power of `fraction_bits` numbers.",
        },
    )


def _at_each_number(
    fn: Callable[..., Any], fraction_bits: int, smallest_exponent: int, numbers: list[float]
) -> list[Any]:
    return [fn(x, fraction_bits, smallest_exponent) for x in numbers]


def underflow_share(fn: Callable[..., object]) -> Report:
    """Share of a gradient's nonzero entries that become 0 in fp16 at a loss scale: `fn(gradient, scale)`, a float."""
    generator = torch.Generator().manual_seed(0)
    nonzero, scaled, mean = "gradient[gradient != 0]", "nonzero * scale", ".double().mean()"
    rounded, lost = f"({scaled}).half()", f"({scaled}).half() == 0"

    def gradient(holes: float) -> Tensor:
        sizes = 2.0 ** torch.empty(50, 20).uniform_(-45, -5, generator=generator)
        signs = torch.randint(2, (50, 20), generator=generator) * 2 - 1
        return sizes * signs * (torch.rand(50, 20, generator=generator) >= holes)

    def below(*limits: float) -> AnyOf:
        """Entries below a limit, and at it."""
        tests = [f"({scaled}).abs() {sign} {limit!r}" for limit in limits for sign in ("<", "<=")]
        return AnyOf(*(Edit(lost, test) for test in tests))

    smallest = 2.0**-24
    return compare(
        fn,
        reference=lambda gradient, scale: float(_lost(gradient, scale)[gradient != 0].double().mean()),
        cases={
            "two zeros, and entries around the smallest number of fp16": (
                torch.tensor([0.0, 6e-8, 4e-8, 2e-8, -1e-9, 0.1, 0.0, 5e-8]),
                1.0,
            ),
            "limits": (
                torch.tensor([smallest, -smallest, smallest / 2, 2.0**-10, 2.0**-14, 1e-7, 1e-8, 1e-41, -1.0, 1e-45]),
                1.0,
            ),
            "a third of the gradient is 0": (gradient(0.3), 16.0),
            "a scale at which some entries overflow": (gradient(0.2), 2.0**24),
            "a scale below 1": (gradient(0.1), 0.125),
        },
        shown=["two zeros, and entries around the smallest number of fp16", "a third of the gradient is 0"],
        mistakes={
            "entries that are 0 in the gradient itself count as lost": Edit(nonzero, "gradient"),
            "the lost ones are divided by all entries, those that are 0 too": Edit(mean, ".sum() / gradient.numel()"),
            "entries that are 0 count as lost, and the sum is divided by the others alone": (
                Edit(nonzero, "gradient"),
                Edit(mean, ".sum() / (gradient != 0).sum()"),
            ),
            "all below the smallest subnormal counts as lost, though its upper half rounds up": below(smallest),
            "the smallest normal number is taken for the limit: subnormals are not lost": below(2.0**-14),
            "half of the smallest subnormal is kept, though it rounds to 0": Edit(lost, f"({scaled}).abs() < 2.0**-25"),
            "fp16's eps, the spacing at 1, is taken for the limit": below(2.0**-10),
            "a limit of 1e-8 stands for the rounding to fp16": below(1e-8),
            "a limit of 1e-7 stands for the rounding to fp16": below(1e-7),
            "negative entries count as small: the absolute value is missing": AnyOf(
                *(Edit(lost, f"{scaled} {test}") for test in ("<= 2.0**-25", "< 2.0**-24", "<= 2.0**-24", "< 2.0**-14"))
            ),
            "the scale has no effect: it is left out, or comes after the rounding to fp16": Edit(scaled, "nonzero"),
            "the scale comes after the rounding to fp16, and what it makes is rounded once more": Edit(
                scaled, "nonzero.half() * scale"
            ),
            "the gradient is divided by the scale": Edit(scaled, "nonzero / scale"),
            "the scaled gradient is unscaled in fp16, which loses more": Edit(rounded, f"({rounded} / scale)"),
            "the share that survives is returned": Edit("== 0", "!= 0"),
            "the number of lost entries is returned, not their share": Edit(mean, ".double().sum()"),
            "the number of entries that survive is returned": (Edit("== 0", "!= 0"), Edit(mean, ".double().sum()")),
            "percent are returned, not a share from 0 to 1": Edit(mean, ".double().mean() * 100"),
            "the gradient is rounded to bf16, not to fp16": Edit(".half()", ".bfloat16()"),
            "nothing is lost: the numbers stay fp32, or what is 0 in fp16 is left out before it is counted": Edit(
                rounded, f"({scaled})"
            ),
            "entries that overflow to inf count as lost": Edit(lost, f"({rounded} == 0) | {rounded}.isinf()"),
            "entries that are 0 in fp16 before the scale are left out": Edit(nonzero, "gradient[gradient.half() != 0]"),
            "the difference that the scale makes is returned": Edit(
                f"(({scaled}).half() == 0){mean}", f"((nonzero.half() == 0) & (({scaled}).half() != 0)){mean}"
            ),
            "the places of the nonzero entries are rounded, not the entries": Edit(nonzero, "gradient.nonzero()"),
            "the lost ones are divided by those that survive": Edit(mean, f".sum() / ({rounded} != 0).sum()"),
            "every row's share weighs the same": lambda gradient, scale: _mean_of_rows(gradient, scale),
            "the share is by size, not by number: lost over all magnitudes": lambda gradient, scale: float(
                gradient.abs()[_lost(gradient, scale)].double().sum() / gradient.abs().double().sum()
            ),
            "the share is rounded to whole percents": Edit(
                f"return ({lost}){mean}", f"return round((({lost}){mean}).item(), 2)"
            ),
        },
        hints={
            "gradient != 0": "Entries that are 0 from the start cannot be lost: leave them out before you count.",
            scaled: "Scale first, then round: `(x * scale).half()`; what is 0 then is lost.",
            ".half()": "Let torch round: what is 0 after `.half()` is lost.",
            ".mean()": "The share is the number of lost entries over the number of nonzero ones.",
        },
    )


def _lost(gradient: Tensor, scale: float) -> Tensor:
    return ((gradient * scale).half() == 0) & (gradient != 0)


def _mean_of_rows(gradient: Tensor, scale: float) -> float:
    rows = gradient if gradient.ndim > 1 else gradient[None]
    return float((_lost(rows, scale).sum(-1) / (rows != 0).sum(-1)).double().mean())


def updated_scale(fn: Callable[..., object]) -> Report:
    """The loss scale and its count after a step: `fn(scale, good_steps, found_inf, growth_interval)`, a pair."""
    overflow, grown, completes = "scale / 2, 0", "scale * 2, 0", "good_steps + 1 == growth_interval"

    def right(scale: float, good_steps: int, found_inf: bool, growth_interval: int) -> tuple[float, int]:
        if found_inf:
            return scale * 0.5, 0
        return (scale * 2, 0) if good_steps + 1 >= growth_interval else (scale, good_steps + 1)

    def by_equality(scale: float, good_steps: int, found_inf: bool, growth_interval: int) -> tuple[float, int]:
        beyond = good_steps >= growth_interval
        return (
            (scale, good_steps + 1)
            if beyond and not found_inf
            else right(scale, good_steps, found_inf, growth_interval)
        )

    def growth_first(scale: float, good_steps: int, found_inf: bool, growth_interval: int) -> tuple[float, int]:
        return right(scale, good_steps, found_inf and good_steps + 1 < growth_interval, growth_interval)

    return compare(
        fn,
        reference=right,
        run=_after_each,
        cases={
            "an interval of 4": (1024.0, 4),
            "an interval of 7": (4096.0, 7),
            "a scale of 1": (1.0, 4),
            "a scale of 2²⁴": (2.0**24, 4),
            "an interval of one step": (3.0, 1),
            "steps in a row": (64.0, 3, [step in (4, 12, 13) for step in range(20)]),
        },
        shown=["a scale of 2²⁴", "an interval of 4", "an interval of 7", "an interval of one step"],
        mistakes={
            "an overflow does not set the count back": Edit(overflow, "scale / 2, good_steps"),
            "the count goes on after the scale has grown": AnyOf(
                Edit(grown, "scale * 2, good_steps + 1"),
                (Edit(completes, completes.replace("==", ">=")), Edit(grown, "scale * 2, good_steps + 1")),
                (
                    Edit(completes, f"({completes}".replace("==", ") %") + " == 0"),
                    Edit(grown, "scale * 2, good_steps + 1"),
                ),
            ),
            "the scale is kept from falling below 1": Edit(overflow, "max(1.0, scale / 2), 0"),
            "the count stays as it is when the scale grows": Edit(grown, "scale * 2, good_steps"),
            "the step that completes the interval counts for the next one": Edit(grown, "scale * 2, 1"),
            "the scale grows one step too late": Edit(completes, "good_steps == growth_interval"),
            "the scale grows one step too early": AnyOf(
                Edit(completes, "good_steps + 2 >= growth_interval"),
                Edit(completes, "good_steps + 2 == growth_interval"),
            ),
            "the scale grows when the count is a multiple of the interval, 0 too": AnyOf(
                Edit(completes, "good_steps % growth_interval == 0"),
                (Edit(completes, "good_steps % growth_interval == 0"), Edit(grown, "scale * 2, good_steps + 1")),
            ),
            "an overflow leaves the scale as it is": Edit("scale / 2", "scale"),
            "an overflow doubles the scale": Edit("scale / 2", "scale * 2"),
            "an overflow halves the scale and rounds it down to a whole number": Edit("scale / 2", "scale // 2"),
            "an overflow divides the scale by 4": Edit("scale / 2", "scale / 4"),
            "an overflow divides the scale by 10": Edit("scale / 2", "scale / 10"),
            "an overflow sets the scale back to 1": Edit("scale / 2", "1.0"),
            "an overflow takes 1 off the scale": Edit("scale / 2", "scale - 1"),
            "an overflow takes the root of the scale": Edit("scale / 2", "scale ** 0.5"),
            "the step that overflows counts as a good one": AnyOf(
                Edit(overflow, "scale / 2, 1"),
                Edit(overflow, "scale / 2, good_steps + 1"),
            ),
            "an overflow takes one off the count": AnyOf(
                Edit(overflow, "scale / 2, good_steps - 1"), Edit(overflow, "scale / 2, max(0, good_steps - 1)")
            ),
            "found_inf is not looked at": Edit("if found_inf", "if False"),
            "found_inf is turned around: good steps halve the scale": Edit("if found_inf", "if not found_inf"),
            "growth and backoff are exchanged: good steps halve the scale, an overflow doubles it": (
                Edit("scale / 2", "scale * 2"),
                Edit("return scale * 2", "return scale / 2"),
            ),
            "growth is decided first: an overflow at the end of an interval doubles the scale": growth_first,
            "every good step doubles the scale": AnyOf(
                (Edit(completes, "True"), Edit(grown, "scale * 2, good_steps + 1")),
                Edit(completes, "True"),
            ),
            "the scale never grows": AnyOf(Edit(completes, "False"), Edit("return scale * 2", "return scale")),
            "the scale is multiplied by the interval": Edit("return scale * 2", "return scale * growth_interval"),
            "the scale grows by 1": Edit("return scale * 2", "return scale + 1"),
            "the scale grows by the square": Edit("return scale * 2", "return scale ** 2"),
            "the scale grows fourfold": Edit("return scale * 2", "return scale * 4"),
            "the count does not rise with a good step": Edit(
                "return scale, good_steps + 1", "return scale, good_steps"
            ),
            "the count starts again after every good step": Edit("return scale, good_steps + 1", "return scale, 0"),
            "the pair is in the other order: the count stands first": AnyOf(
                lambda *args: right(*args)[::-1], lambda *args: by_equality(*args)[::-1]
            ),
            "after an overflow the scale alone is returned, without the count": Edit(overflow, "scale / 2"),
            "after growth the scale alone is returned, without the count": Edit(grown, "scale * 2"),
            "only the scale is returned, without the count": lambda *args: right(*args)[0],
            "only the count is returned, without the scale": lambda *args: right(*args)[1],
        },
        hints={
            overflow: "An overflow halves the scale and begins the count again at 0.",
            completes: "The step itself counts: it completes the interval where `good_steps + 1` reaches it.",
            grown: "A completed interval doubles the scale and begins the count again at 0.",
            "return scale, good": "Any other good step leaves the scale and adds 1 to the count.",
        },
    )


def _after_each(
    fn: Callable[..., Any], scale: float, growth_interval: int, overflows: Sequence[bool] = ()
) -> list[Any]:
    """What follows on each count of good steps that there can be; with `overflows`, what a run of steps makes."""
    counts = range(growth_interval)
    if not overflows:
        return [fn(scale, count, found_inf, growth_interval) for found_inf in (False, True) for count in counts]
    pairs = [(scale, 0)]
    for found_inf in overflows:
        made = fn(*pairs[-1], found_inf, growth_interval)
        made = made.tolist() if isinstance(made, Tensor) else made
        if not isinstance(made, Sequence) or len(made) != 2:
            return [made]
        pairs.append((made[0], made[1]))
    return pairs


def nearest_bf16(fn: Callable[..., object]) -> Report:
    """The nearest bf16 number to each float32, as float32, by its bits: `fn(x)`."""
    added = "0x7FFF + ((bits >> 16) & 1)"
    every = f" + {added}"
    signed = torch.tensor([1.0, -1.0])[:, None]

    def by_sign(positive: int, negative: int) -> Callable[[Tensor], Tensor]:
        """What is added before the cut, for numbers above 0 and below."""
        return lambda x: _upper_half(x, torch.where(x < 0, negative, positive).to(torch.int32))

    def kept(low_bits: int) -> Callable[[Tensor], Tensor]:
        half, mask = (1 << (low_bits - 1)) - 1, -(1 << low_bits)

        def rounded(x: Tensor) -> Tensor:
            bits = x.view(torch.int32)
            return ((bits + half + ((bits >> low_bits) & 1)) & mask).view(torch.float32)

        return rounded

    return compare(
        fn,
        reference=_rounded,
        run=_without_conversion,
        cases={
            "half way between two neighbours": (torch.tensor([1.00390625, 1.01171875, -1.00390625, -1.01171875]),),
            "three numbers": (torch.tensor([0.1, -2.7, 1000.0]),),
            "around the middle, (2, 24)": (_around_the_middle() * signed,),
            "numbers of many sizes": (_many_sizes(),),
            "subnormal numbers": (torch.tensor([1e-40, -3e-39, 2.0**-130, 5e-41]),),
            "too large for bf16, and inf": (torch.tensor([3.4e38, -3.4e38, 3.3895e38, math.inf, -math.inf]),),
        },
        shown=[
            "half way between two neighbours",
            "three numbers",
            "numbers of many sizes",
        ],
        mistakes={
            "the low 16 bits are cut off, which rounds towards 0": Edit(every, ""),
            "a number half way between two goes away from 0 instead of to the even one": Edit(added, "0x8000"),
            "a number half way between two goes towards 0 instead of to the even one": Edit(
                " + ((bits >> 16) & 1)", ""
            ),
            "every number is rounded away from 0": Edit(added, "0xFFFF"),
            "every number goes up by one place, those that bf16 has too": Edit(added, "0x10000"),
            "a number half way between two goes to the odd one": Edit(added, "0x8000 - ((bits >> 16) & 1)"),
            "0x8000 and the last bit are added, which lifts numbers just below the middle too": Edit(
                "0x7FFF", "0x8000"
            ),
            "a number half way between two goes up, which is towards 0 below 0": by_sign(_HALF_UP, _HALF_UP - 1),
            "every number is rounded down, towards −inf": by_sign(0, 0xFFFF),
            "every number is rounded up, towards inf": by_sign(0xFFFF, 0),
            "the last bit that stays is read one place too high": Edit("bits >> 16", "bits >> 17"),
            "all that is above the cut is added, not its last bit alone": Edit("((bits >> 16) & 1)", "(bits >> 16)"),
            "nothing is cut off: the low 16 bits stay": Edit("lifted & -0x10000", "lifted"),
            "the upper half is left in the lower one: it is shifted down and not back": Edit(
                "lifted & -0x10000", "lifted >> 16"
            ),
            "the low half stays and the upper half is cut off": Edit("-0x10000", "0xFFFF"),
            "the sign is lost": Edit("-0x10000", "0x7FFF0000"),
            "the result is the nearest fp16 number": lambda x: x.half().float(),
            "the low 8 bits are rounded away, not the low 16": kept(8),
            "one bit too many is kept": kept(15),
            "one bit too few is kept": kept(17),
            "the low 13 bits are rounded away, which leaves the fraction bits of fp16": kept(13),
            "numbers that are too large become the largest one of bf16, not inf": lambda x: _clamped(x, math.inf),
            "numbers that are too large, and inf, become the largest one of bf16": lambda x: _clamped(x, 0.0),
            "subnormal numbers become 0": lambda x: _rounded(x) * (x.abs() >= 2.0**-126),
            "the integers are turned into numbers instead of read as the bits of numbers": Edit(
                ".view(torch.float32)", ".float()"
            ),
            "the bits themselves are returned, as integers": Edit(".view(torch.float32)", ""),
            "the numbers are turned into integers instead of read as bits": Edit(
                "x.view(torch.int32)", "x.to(torch.int32)"
            ),
            "the numbers are returned as they are": lambda x: x.clone(),
            "the spacing at 1 is used for every size": AnyOf(
                *(lambda x, steps=steps: (x * steps).round() / steps for steps in (128, 256))
            ),
            "a conversion to bfloat16 does the rounding, and the exercise asks for the bits": lambda x: (
                x.bfloat16().float()
            ),
        },
        close=(1e-7, 0.0),
        hints={
            "0x7FFF": "What lies above the middle must carry into the upper half; the middle only at an odd last bit.",
            "-0x10000": "`& -0x10000` clears the low 16 bits and keeps the sign.",
            ".view(torch.float32)": "`.view` reads the same bits as another type; `.to` and `.float` convert.",
        },
    )


class _Conversions(TorchDispatchMode):
    """Counts the operations that make bf16 numbers out of others."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen += isinstance(result, Tensor) and result.dtype == torch.bfloat16 and not func.is_view
        return result


def _without_conversion(fn: Callable[..., object], x: Tensor) -> object:
    """Call `fn`, and refuse right numbers that torch's own conversion made; wrong ones have a mistake to name."""
    with _Conversions() as conversions:
        result = fn(x)
    if conversions.seen and difference(_rounded(x), result, (1e-7, 0.0)) is None:
        raise Refused("a conversion to bfloat16 does the rounding; do it by the bits")
    return result


def _rounded(x: Tensor) -> Tensor:
    """The nearest bf16 numbers, in whole numbers of NumPy."""
    bits = x.contiguous().numpy().view(np.uint32).astype(np.int64)
    upper, lower = bits >> 16, bits & 0xFFFF
    upper += (lower > _HALF_UP) | ((lower == _HALF_UP) & (upper % 2 == 1))
    return torch.from_numpy((upper << 16).astype(np.uint32).view(np.float32))


def _upper_half(x: Tensor, added: Tensor) -> Tensor:
    return ((x.view(torch.int32) + added) & -0x10000).view(torch.float32)


def _clamped(x: Tensor, beyond: float) -> Tensor:
    """Rounded, and at most bf16's largest number unless `x` is `beyond` itself."""
    largest = torch.finfo(torch.bfloat16).max
    return torch.where(x.abs() == beyond, x, _rounded(x).clamp(-largest, largest))


def _around_the_middle() -> Tensor:
    """Numbers above 1 whose low 16 bits are at, beside and far from the middle, above an even and an odd last bit."""
    uppers, lowers = (0x3F80, 0x3F81, 0x3FFF, 0x4012), (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    return torch.tensor([(upper << 16) + lower for upper in uppers for lower in lowers], dtype=torch.int32).view(
        torch.float32
    )


def _many_sizes() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.empty(100).uniform_(-30, 30, generator=generator)
    return sizes * torch.tensor([1.0, -1.0]).repeat(50)
