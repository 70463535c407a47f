"""The bars of a profile."""

from typing import TYPE_CHECKING, NamedTuple

from course_lm.display import BLUE, BLUE_BAND, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    outer = axes.barh(bars.names, bars.lengths, color=BLUE_BAND, label="measured")
    axes.bar_label(outer, bars.labels, padding=3, color=GREY)
    if bars.inner is not None:
        lengths, label = bars.inner
        axes.barh(bars.names, lengths, color=BLUE, height=0.4, label=label)
        axes.legend(loc="lower right", frameon=False)
    axes.set(xlabel=bars.unit, title=bars.title)
    axes.margins(x=0.1)  # room for the labels
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
