"""The bars of a profile."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from course_lm.display import BLUE_BAND, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure_of(*drawers: "Callable[[Axes], object]") -> "Figure":
    """What each of the drawers draws, side by side."""
    from matplotlib.figure import Figure  # not one of pyplot's, which would stay open

    figure = Figure(figsize=(7.0 * len(drawers), 4.4), layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(drawers), squeeze=False)[0], drawers):
        draw(axes)
    return figure


def draw_bars(axes: "Axes", names: Sequence[str], lengths: Sequence[float], labels: Sequence[str]) -> None:
    """A bar for each name, the first one above, with its label at its end."""
    bars = axes.barh(names, lengths, color=BLUE_BAND, label="measured")
    axes.bar_label(bars, labels, padding=3, color=GREY)
    axes.margins(x=0.1)  # room for the labels
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
