"""One number in fp32, bf16 and fp16: the bits of the nearest number that each format has, and the rounding error."""

import math
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, explorer, powers, slider

_INKS = {"sign": plots.RED, "exponent": plots.BLUE, "fraction": "#00694D"}
_ROW = 2.1  # heights of a bit from one format to the next


@dataclass(frozen=True)
class _Format:
    name: str
    dtype: torch.dtype
    as_int: torch.dtype
    exponent_bits: int

    def nearest(self, value: float) -> float:
        return float(torch.tensor(value, dtype=torch.float64).to(self.dtype))

    def bits(self, value: float) -> str:
        """Sign, exponent and fraction of the nearest number, as 0s and 1s, highest first."""
        pattern = int(torch.tensor(value, dtype=torch.float64).to(self.dtype).view(self.as_int))
        width = torch.finfo(self.dtype).bits
        # view gives a negative int where the sign bit is set; the remainder is its bits.
        return f"{pattern % 2**width:0{width}b}"

    def parts(self) -> list[str]:
        """Which part of the number each bit belongs to."""
        fraction_bits = torch.finfo(self.dtype).bits - 1 - self.exponent_bits
        return ["sign"] + ["exponent"] * self.exponent_bits + ["fraction"] * fraction_bits


_FORMATS = (
    _Format("fp32", torch.float32, torch.int32, 8),
    _Format("bf16", torch.bfloat16, torch.int16, 8),
    _Format("fp16", torch.float16, torch.int16, 5),
)


def draw_number_formats(value: float, *, scale: float = 1.0) -> tuple[Figure, str]:
    """The bits of `value * scale` in fp32, bf16 and fp16, and what is left of `value` after dividing by `scale` again.

    Args:
        value: a finite number.
        scale: multiplies the value before it is rounded, as a loss scale does to a gradient.

    Returns:
        The figure, and for each format the number that comes back and its error relative to `value`.
    """
    figure = Figure(figsize=(9.6, 3.7))
    axes = figure.subplots()
    lines = [f"{value:.6g} × scale {scale:g} = {value * scale:.6g}"]
    for row, number_format in enumerate(_FORMATS):
        back, said = _returned(number_format, value, scale)
        lines.append(f"{number_format.name}  {back:<15.9g} {said}")
        _draw_bits(axes, number_format, value * scale, -row * _ROW)
        axes.text(0, 1.18 - row * _ROW, f"{number_format.name}   {back:.9g}   {said}", weight="bold")
    left = 18.5
    for part, colour in _INKS.items():
        axes.text(left, 0.4 - 2 * _ROW, part, color=colour, weight="bold")
        left += 4.4
    axes.set(xlim=(-0.1, 32.1), ylim=(-0.15 - 2 * _ROW, 2.0))
    axes.axis("off")
    return figure, "\n".join(lines)


def _returned(number_format: _Format, value: float, scale: float) -> tuple[float, str]:
    """The value after rounding at `scale` and dividing again, and what rounding did to it."""
    nearest = number_format.nearest(value * scale)
    back = nearest / scale
    if math.isinf(nearest):
        return back, "overflow: too large for this format"
    if nearest == 0 and value != 0:
        return back, "underflow: all of it is lost"
    error = "exact" if back == value else f"error {abs(back / value - 1):.1e}"
    if 0 < abs(nearest) < torch.finfo(number_format.dtype).tiny:
        error += ", subnormal"
    return back, error


def _draw_bits(axes: Axes, number_format: _Format, number: float, bottom: float) -> None:
    bits, parts = number_format.bits(number), number_format.parts()
    for part, ink in _INKS.items():
        boxes = [(place + 0.04, 0.92) for place, kind in enumerate(parts) if kind == part]
        axes.broken_barh(boxes, (bottom, 1.0), facecolor=(*to_rgb(ink), 0.2), edgecolor=ink, linewidth=0.8)
    for place, bit in enumerate(bits):
        axes.text(place + 0.5, bottom + 0.5, bit, ha="center", va="center", fontsize=10)


def number_format_explorer() -> Explorer:
    """Move a number over eighteen powers of ten, and a loss scale, and see what each format keeps of it."""
    value = slider("number", 1e-8, powers(-12, 6, 0.05), "{:.3g}", stored=19)
    exponent = slider("scale 2 to the", 0, range(25), stored=5)

    def draw(*, value: float, exponent: int) -> tuple[Figure, str]:
        return draw_number_formats(value, scale=2.0**exponent)

    return explorer(draw, {"value": value, "exponent": exponent})
