"""The bars of a profile."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lm.display import BLUE_BAND, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_bars(axes: "Axes", names: Sequence[str], lengths: Sequence[float], labels: Sequence[str]) -> None:
    """A bar for each name, the first one above, with its label at its end."""
    bars = axes.barh(names, lengths, color=BLUE_BAND, label="measured")
    axes.bar_label(bars, labels, padding=3, color=GREY)
    axes.margins(x=0.1)  # room for the labels
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
