"""Three ways to clip the gradients of two parameters: what each does to their lengths and directions."""

import math
from typing import Literal, get_args

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from torch import Tensor, nn

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, buttons, explorer, slider, steps
from course_lm.clipping import clip_gradients

ClippingMethod = Literal["global", "per parameter", "value"]
_FIRST = (2.0, 1.0)  # the gradient of parameter A, which stays
_FARTHEST = 8.0


def draw_clipping(
    method: ClippingMethod, *, threshold: float = 2.0, length: float = 6.0, degrees: float = 70.0
) -> tuple[Figure, str]:
    """The gradients of two parameters with two weights each, before (pale) and after clipping.

    Args:
        method: "global" bounds the norm of all four numbers together, "per parameter" the norm of each pair, "value"
            each number.
        threshold: the bound, positive.
        length, degrees: of the gradient of parameter B; that of parameter A is always (2, 1).

    Returns:
        The figure; and norms before and after in words, with the angles by which clipping turned the gradients.
    """
    turned = math.radians(degrees)
    before = [torch.tensor(_FIRST), torch.tensor([length * math.cos(turned), length * math.sin(turned)])]
    after = _clipped(before, method, threshold)
    figure = Figure(figsize=(5.6, 5.2))
    axes = figure.subplots()
    _draw_bound(axes, method, threshold)
    for one, other, name, colour in zip(before, after, "AB", (plots.BLUE, plots.RED)):
        _draw_arrow(axes, one, colour, alpha=0.3)
        _draw_arrow(axes, other, colour)
        x, y = (one * (1 + 0.35 / max(float(one.norm()), 0.35))).tolist()
        axes.text(x, y, name, color=colour, weight="bold", ha="center", va="center")
    limits = (-0.3, _FARTHEST + 0.7)
    axes.set(xlim=limits, ylim=limits, xlabel="gradient of the first weight", ylabel="gradient of the second weight")
    axes.set(aspect="equal", xticks=range(0, 9, 2), yticks=range(0, 9, 2), title=f"{method}, threshold {threshold:.1f}")
    return figure, _described(before, after, f"{method}, B at {degrees:g} degrees")


def clipping_explorer() -> Explorer:
    """Clip two gradients in three ways; every control works by keyboard."""
    controls = {
        "method": buttons("clip", get_args(ClippingMethod)),
        "threshold": slider("threshold", 2.0, steps(0.2, 8.0, 0.2)),
        "length": slider("length of B", 6.0, steps(0.0, 8.0, 0.5)),
        "degrees": slider("direction of B", 70, range(0, 91, 5), "{} degrees"),
    }
    return explorer(draw_clipping, controls)


def _clipped(gradients: list[Tensor], method: ClippingMethod, threshold: float) -> list[Tensor]:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    if method == "value":
        nn.utils.clip_grad_value_(parameters, threshold)
    else:
        # The package's own clipping, once over both parameters or once for each.
        for group in [parameters] if method == "global" else [[parameter] for parameter in parameters]:
            clip_gradients(group, threshold)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _draw_bound(axes: Axes, method: ClippingMethod, threshold: float) -> None:
    """The region inside which a gradient stays as it is; under the global norm there is none for one alone."""
    look = {"facecolor": (*to_rgb(plots.INK), 0.06), "edgecolor": plots.GREY, "linestyle": ":", "zorder": 0}
    if method == "per parameter":
        axes.add_patch(Circle((0, 0), threshold, **look))
    elif method == "value":
        axes.add_patch(Rectangle((-threshold, -threshold), 2 * threshold, 2 * threshold, **look))


def _draw_arrow(axes: Axes, gradient: Tensor, colour: str, alpha: float = 1.0) -> None:
    head = min(0.6, float(gradient.norm()))  # a short arrow is all head
    shape = {"width": 0.08, "head_length": head, "head_width": head / 1.5, "length_includes_head": True}
    if head:
        axes.arrow(0, 0, float(gradient[0]), float(gradient[1]), color=colour, alpha=alpha, **shape)


def _described(before: list[Tensor], after: list[Tensor], setting: str) -> str:
    named = [("both together", torch.cat(before), torch.cat(after)), *zip("AB", before, after)]
    lines = [
        f"{name:13}  norm {one.norm():.2f} -> {other.norm():.2f}, turned by {_degrees_between(one, other):.1f} degrees"
        for name, one, other in named
    ]
    same = all(torch.equal(one, other) for one, other in zip(before, after))
    return "\n".join([f"{setting}: {'nothing is clipped' if same else 'clipped'}", *lines])


def _degrees_between(one: Tensor, other: Tensor) -> float:
    if not one.any():
        return 0.0
    cosine = torch.cosine_similarity(one.double(), other.double(), dim=0)
    return math.degrees(math.acos(min(1.0, float(cosine))))  # rounding may lift a cosine above 1
