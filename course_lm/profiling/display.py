"""How profiles are shown: aligned tables, and bars."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _SKY, _GREY = "#0072B2", "#A6CDE5", "#6E6E6E"


class Bars(NamedTuple):
    """A bar for each name, the first one above.

    Attributes:
        title, unit: over the bars, and below.
        names, lengths, labels: of each bar; a label stands at its end.
        inner: lengths of darker bars inside, none by default, and what the legend calls them.
    """

    title: str
    unit: str
    names: list[str]
    lengths: list[float]
    labels: list[str]
    inner: tuple[list[float], str] | None = None


def figure_of(*panels: Bars) -> "Figure":
    """The panels side by side."""
    from matplotlib.figure import Figure  # not one of pyplot's, which would stay open

    figure = Figure(figsize=(7.0 * len(panels), 4.4), layout="constrained")
    for axes, bars in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        _draw(axes, bars)
    return figure


def _draw(axes: "Axes", bars: Bars) -> None:
    outer = axes.barh(bars.names, bars.lengths, color=_SKY, label="measured")
    axes.bar_label(outer, bars.labels, padding=3, color=_GREY)
    if bars.inner is not None:
        lengths, label = bars.inner
        axes.barh(bars.names, lengths, color=_BLUE, height=0.4, label=label)
        axes.legend(loc="lower right", frameon=False)
    axes.set(xlabel=bars.unit, title=bars.title)
    axes.margins(x=0.1)  # room for the labels
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of a table: the first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]

    def line(row: tuple[str, ...]) -> str:
        first, *others = zip(row, widths)
        return "  ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]).rstrip()

    return "\n".join(map(line, rows))
