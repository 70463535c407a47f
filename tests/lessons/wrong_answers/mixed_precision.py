"""Answers to the exercises of lesson 07: wrong ones, each with the mistake that must be named, and right ones."""

import math
from fractions import Fraction

import numpy as np
import torch

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("precision",)
SABOTAGE = (
    "precision.py",
    "if self.scaler.get_scale() < self.minimum_scale:",
    "if self.scaler.get_scale() > self.minimum_scale:",
)


def spacing_by_frexp(x, fraction_bits, smallest_exponent):
    return math.ldexp(1.0, max(math.frexp(x)[1] - 1, smallest_exponent) - fraction_bits)


def spacing_by_search(x, fraction_bits, smallest_exponent):
    power = Fraction(2) ** smallest_exponent
    while power * 2 <= Fraction(x):
        power *= 2
    return float(power / 2**fraction_bits)


def spacing_without_subnormals(x, fraction_bits, smallest_exponent):
    return math.ldexp(1.0, math.frexp(x)[1] - 1 - fraction_bits)


def spacing_rounded(x, fraction_bits, smallest_exponent):
    return 2.0 ** max(int(np.rint(np.log2(x))) - fraction_bits, smallest_exponent - fraction_bits)


def spacing_above(x, fraction_bits, smallest_exponent):
    power = 2.0**smallest_exponent
    while power < x:
        power *= 2
    return power / 2**fraction_bits


def spacing_proportional(x, fraction_bits, smallest_exponent):
    return max(x / 2**fraction_bits, 2.0 ** (smallest_exponent - fraction_bits))


def spacing_with_the_hidden_bit(x, fraction_bits, smallest_exponent):
    return spacing_by_search(x, fraction_bits, smallest_exponent) / 2


def spacing_at_one(x, fraction_bits, smallest_exponent):
    return 1 / 2**fraction_bits


def spacing_of_zero_below(x, fraction_bits, smallest_exponent):
    return 0 if x < 2.0**smallest_exponent else spacing_by_frexp(x, fraction_bits, smallest_exponent)


def spacing_to_the_next_smaller(x, fraction_bits, smallest_exponent):
    mantissa, exponent = math.frexp(x)
    return math.ldexp(1.0, max(exponent - 1 - (mantissa == 0.5), smallest_exponent) - fraction_bits)


def spacing_cut_at_the_smallest_normal(x, fraction_bits, smallest_exponent):
    return max(2.0 ** (math.floor(math.log2(x)) - fraction_bits), 2.0**smallest_exponent)


def spacing_as_next_number(x, fraction_bits, smallest_exponent):
    return x + spacing_by_frexp(x, fraction_bits, smallest_exponent)


def spacing_of_fp64(x, fraction_bits, smallest_exponent):
    return np.spacing(np.float64(x))


def spacing_by_numpy(x, fraction_bits, smallest_exponent):
    return np.exp2(np.maximum(np.floor(np.log2(x)), smallest_exponent) - fraction_bits)


def spacing_as_fraction(x, fraction_bits, smallest_exponent):
    return Fraction(2) ** (max(math.frexp(x)[1] - 1, smallest_exponent) - fraction_bits)


def bf16_by_bits(x):
    bits = x.view(torch.int32)
    return ((bits + 32767 + ((bits >> 16) & 1)) >> 16 << 16).view(torch.float32)


def bf16_by_numpy(x):
    bits = x.numpy().view(np.uint32).astype(np.uint64)
    upper, lower = bits >> 16, bits & 0xFFFF
    upper = upper + ((lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1)))
    return torch.from_numpy((upper << 16).astype(np.uint32).view(np.float32))


def bf16_with_unsigned_mask(x):
    bits = x.view(torch.int32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(torch.float32)


def bf16_by_spacing(x):
    """Without bits: rounded to a multiple of the spacing, as `round` does it, to even."""
    wide = x.double()
    exponent = torch.frexp(wide).exponent.sub(1).clamp(min=-126)
    rounded = torch.ldexp(torch.ldexp(wide, 7 - exponent).round(), exponent - 7)
    return rounded.where(rounded.abs() < 2.0**128, math.inf * wide.sign()).float().where(x.isfinite(), x)


def bf16_by_conversion(x):
    return x.to(torch.bfloat16).to(torch.float32)


def bf16_by_cutting_the_conversion(x):
    return (x.view(torch.int32) & -0x10000).view(torch.float32).bfloat16().float()


def bf16_up(x):
    return torch.where(x < 0, bf16_truncated(x), bf16_away_from_zero(x))


def bf16_as_integers(x):
    return bf16_by_bits(x).view(torch.int32).to(torch.float32)


def bf16_clamped(x):
    return bf16_by_bits(x).clamp(-3.3895313892515355e38, 3.3895313892515355e38)


def bf16_truncated(x):
    halves = x.contiguous().view(torch.int16).clone()
    halves[..., ::2] = 0
    return halves.view(torch.float32)


def bf16_half_up(x):
    upper, lower = x.view(torch.int32) >> 16, x.view(torch.int32) & 65535
    return ((upper + (lower >= 32768)) << 16).view(torch.float32)


def bf16_half_down(x):
    upper, lower = x.view(torch.int32) >> 16, x.view(torch.int32) & 65535
    return ((upper + (lower > 32768)) << 16).view(torch.float32)


def bf16_away_from_zero(x):
    upper, lower = x.view(torch.int32) >> 16, x.view(torch.int32) & 65535
    return ((upper + (lower > 0)) << 16).view(torch.float32)


def bf16_to_odd(x):
    upper, lower = x.view(torch.int32) >> 16, x.view(torch.int32) & 65535
    up = (lower > 32768) | ((lower == 32768) & (upper % 2 == 0))
    return ((upper + up) << 16).view(torch.float32)


def bf16_as_fp16(x):
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.numpy().astype(np.float16).astype(np.float32))


def bf16_without_sign(x):
    return bf16_by_bits(x.abs())


def share_by_rounding(gradient, scale):
    nonzero = gradient[gradient != 0]
    return ((nonzero * scale).to(torch.float16) == 0).float().mean()


def share_by_limit(gradient, scale):
    sizes = gradient.abs().flatten().tolist()
    nonzero = [size for size in sizes if size > 0]
    return sum(size * scale <= 2.0**-25 for size in nonzero) / len(nonzero)


def share_by_numpy(gradient, scale):
    values = gradient.numpy()[gradient.numpy() != 0]
    with np.errstate(over="ignore"):
        return np.mean((values * np.float32(scale)).astype(np.float16) == 0)


def share_as_fraction(gradient, scale):
    before, after = torch.count_nonzero(gradient), torch.count_nonzero((scale * gradient).to(torch.float16))
    return Fraction(int(before - after), int(before))


def share_after_scaling(gradient, scale):
    scaled = gradient * scale
    return float(((scaled.half() == 0) & (scaled != 0)).sum() / (scaled != 0).sum())


def share_in_bf16(gradient, scale):
    nonzero = gradient[gradient != 0]
    return (((nonzero * scale).to(torch.bfloat16)) == 0).float().mean().item()


def share_in_percent(gradient, scale):
    return 100 * share_by_rounding(gradient, scale)


def share_as_number(gradient, scale):
    return (gradient.count_nonzero() - (gradient * scale).half().count_nonzero()).item()


def share_with_overflows(gradient, scale):
    scaled = (gradient[gradient != 0] * scale).half()
    return ((scaled == 0) | ~scaled.isfinite()).double().mean()


def share_with_zeros(gradient, scale):
    half = (gradient * scale).half()
    return 1 - torch.count_nonzero(half) / half.numel()


def share_of_all(gradient, scale):
    before, after = torch.count_nonzero(gradient), torch.count_nonzero((gradient * scale).half())
    return (before - after) / gradient.numel()


def share_below(limit):
    def share(gradient, scale):
        nonzero = [abs(size) for size in gradient.flatten().tolist() if size]
        return sum(size * scale < limit for size in nonzero) / len(nonzero)

    return share


def share_without_abs(gradient, scale):
    nonzero = [size for size in gradient.flatten().tolist() if size]
    return sum(size * scale <= 2.0**-25 for size in nonzero) / len(nonzero)


def share_scaled_too_late(gradient, scale):
    nonzero = gradient[gradient != 0]
    return ((nonzero.half().float() * scale) == 0).float().mean()


def share_divided(gradient, scale):
    return share_by_rounding(gradient, 1 / scale)


def share_kept(gradient, scale):
    return 1 - share_by_limit(gradient, scale)


def scale_after(*, back=0, grown=0, late=0, factor=0.5):
    def updated_scale(scale, good_steps, found_inf, growth_interval):
        if found_inf:
            return factor * scale, back * good_steps
        count = good_steps + 1
        if count < growth_interval + late:
            return scale, count
        return 2 * scale, grown * count

    return updated_scale


def scale_by_torch(scale, good_steps, found_inf, growth_interval):
    kept = torch.tensor(scale), torch.tensor(good_steps, dtype=torch.int32)
    torch.ops.aten._amp_update_scale_(*kept, torch.tensor(float(found_inf)), 2.0, 0.5, growth_interval)
    return tuple(part.item() for part in kept)


def scale_in_a_list(scale, good_steps, found_inf, growth_interval):
    completes = not found_inf and (good_steps + 1) % growth_interval == 0
    factor = Fraction(1, 2) if found_inf else 1 + completes
    return [scale * factor, 0 if found_inf or completes else good_steps + 1]


def scale_grown_before_the_overflow_is_seen(scale, good_steps, found_inf, growth_interval):
    if good_steps + 1 == growth_interval:
        return scale * 2, 0
    return (scale / 2, 0) if found_inf else (scale, good_steps + 1)


def scale_that_never_grows(scale, good_steps, found_inf, growth_interval):
    return (scale / 2, 0) if found_inf else (scale, good_steps + 1)


def scale_in_the_other_place(scale, good_steps, found_inf, growth_interval):
    return tuple(reversed(scale_after()(scale, good_steps, found_inf, growth_interval)))


def scale_alone_after_an_overflow(scale, good_steps, found_inf, growth_interval):
    return scale * 0.5 if found_inf else scale_after()(scale, good_steps, False, growth_interval)


def scale_alone(scale, good_steps, found_inf, growth_interval):
    return scale_after()(scale, good_steps, found_inf, growth_interval)[0]


def scale_that_counts_the_overflow(scale, good_steps, found_inf, growth_interval):
    return (scale * 0.5, 1) if found_inf else scale_after()(scale, good_steps, False, growth_interval)


def scale_that_always_grows(scale, good_steps, found_inf, growth_interval):
    return [scale / 2, 0] if found_inf else [scale + scale, good_steps + 1]


WRONG_ANSWERS = {
    "spacing": [
        (
            spacing_without_subnormals,
            "subnormals are forgotten: below the smallest normal number the spacing stays the same",
        ),
        (spacing_rounded, "the exponent is rounded to the nearest integer instead of down"),
        (spacing_above, "the exponent is rounded up instead of down"),
        (spacing_proportional, "the spacing at 1 is multiplied by x itself, not by the power of two below x"),
        (
            spacing_with_the_hidden_bit,
            "it is half the spacing, as if the leading 1 that is not stored were a fraction bit",
        ),
        (
            spacing_to_the_next_smaller,
            "the distance to the next smaller number is returned, which is half at a power of two",
        ),
        (spacing_cut_at_the_smallest_normal, "the spacing never falls below the smallest normal number"),
        (spacing_of_zero_below, "below the smallest normal number the spacing is 0"),
        (spacing_as_next_number, "the next larger number is returned, not the distance to it"),
        (spacing_of_fp64, "the spacing of Python's own numbers, fp64, is returned"),
        (spacing_at_one, "the spacing at 1 is returned for every x"),
    ],
    "nearest_bf16": [
        (bf16_truncated, "the low 16 bits are cut off, which rounds towards 0"),
        (bf16_half_up, "a number half way between two goes away from 0 instead of to the even one"),
        (bf16_half_down, "a number half way between two goes towards 0 instead of to the even one"),
        (bf16_to_odd, "a number half way between two goes to the odd one"),
        (bf16_away_from_zero, "every number is rounded away from 0"),
        (bf16_as_fp16, "the result is the nearest fp16 number"),
        (bf16_without_sign, "the sign is lost"),
        (bf16_up, "every number is rounded up, towards inf"),
        (bf16_as_integers, "the integers are turned into numbers instead of read as the bits of numbers"),
        (bf16_by_conversion, "a conversion to bfloat16 does the rounding, and the exercise asks for the bits"),
        (bf16_by_cutting_the_conversion, "the low 16 bits are cut off, which rounds towards 0"),
        (bf16_clamped, "numbers that are too large, and inf, become the largest one of bf16"),
    ],
    "underflow_share": [
        (share_with_zeros, "entries that are 0 in the gradient itself count as lost"),
        (share_of_all, "the lost ones are divided by all entries, those that are 0 too"),
        (share_below(2.0**-24), "all below the smallest subnormal counts as lost, though its upper half rounds up"),
        (share_below(2.0**-14), "the smallest normal number is taken for the limit: subnormals are not lost"),
        (share_without_abs, "negative entries count as small: the absolute value is missing"),
        (share_scaled_too_late, "the scale has no effect: it is left out, or comes after the rounding to fp16"),
        (share_in_bf16, "the gradient is rounded to bf16, not to fp16"),
        (share_in_percent, "percent are returned, not a share from 0 to 1"),
        (share_as_number, "the number of lost entries is returned, not their share"),
        (share_with_overflows, "entries that overflow to inf count as lost"),
        (share_divided, "the gradient is divided by the scale"),
        (share_kept, "the share that survives is returned"),
    ],
    "updated_scale": [
        (scale_after(back=1), "an overflow does not set the count back"),
        (scale_after(grown=1), "the count goes on after the scale has grown"),
        (scale_after(late=1), "the scale grows one step too late"),
        (scale_after(late=-1), "the scale grows one step too early"),
        (scale_after(factor=1), "an overflow leaves the scale as it is"),
        (scale_after(factor=2), "an overflow doubles the scale"),
        (scale_that_counts_the_overflow, "the step that overflows counts as a good one"),
        (scale_that_always_grows, "every good step doubles the scale"),
        (
            scale_grown_before_the_overflow_is_seen,
            "growth is decided first: an overflow at the end of an interval doubles the scale",
        ),
        (scale_that_never_grows, "the scale never grows"),
        (scale_in_the_other_place, "the pair is in the other order: the count stands first"),
        (
            scale_alone_after_an_overflow,
            "after an overflow the scale alone is returned, without the count",
        ),
        (scale_alone, "only the scale is returned, without the count"),
    ],
}

EQUIVALENT = {
    "spacing": [spacing_by_frexp, spacing_by_search, spacing_by_numpy, spacing_as_fraction],
    "nearest_bf16": [bf16_by_bits, bf16_by_numpy, bf16_with_unsigned_mask, bf16_by_spacing],
    "underflow_share": [share_by_rounding, share_by_limit, share_by_numpy, share_as_fraction, share_after_scaling],
    "updated_scale": [scale_after(), scale_by_torch, scale_in_a_list],
}
