"""Pictures with knobs: a control is moved, the picture beside it is drawn again, with the numbers below it as text.

Every control works from the keyboard. The picture is HTML, which can bear an alternative text; it redraws in place and
needs no output area of the notebook.
"""

import html
import io
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator
from matplotlib.transforms import Bbox

from course_lm.classroom import plots
from course_lm.classroom.live import as_html

_MARGIN, _ROOM = 11, 110  # pixels around what is drawn, and in which more is looked for
_MOST_INTERVALS = 5  # between the ticks of an axis
# ipywidgets cut the value of a slider off at 72 pixels.
_READOUTS = "<style>.course-explorer .widget-readout { min-width: max-content }</style>"
# ipywidgets leave the handle of a slider without a name. HTML that a widget sets runs no script, but this.
_NAME_HANDLES = (
    "this.closest('.course-explorer').querySelectorAll('.noUi-handle').forEach(handle => handle.setAttribute("
    "'aria-label', handle.closest('.jupyter-widgets').querySelector('.widget-label').innerText))"
)


class Explorer(ipywidgets.Box):
    """Controls beside a picture that follows them; where both find no room, above it.

    Attributes:
        controls: the widgets by name.
        picture, words: HTML widgets.
    """

    def __init__(
        self,
        draw: Callable[..., tuple[Figure, str]],
        controls: Mapping[str, Any],
        labels: str | None = None,
        arranged: ipywidgets.Box | None = None,
    ) -> None:
        self.controls, self.picture, self.words = dict(controls), ipywidgets.HTML(), ipywidgets.HTML()
        self._draw = draw
        self._shown: Bbox | None = None
        for control in self.controls.values():
            control.tooltip = control.tooltip or control.description  # else the browser shows "null"
            if labels:
                control.style.description_width = labels
            control.observe(self._redraw, names="value")
        self._redraw()
        column = arranged or ipywidgets.VBox([_fitted(control) for control in self.controls.values()])
        column.layout = ipywidgets.Layout(flex="0 1 22em", min_width="18em")
        result = ipywidgets.VBox([self.picture, self.words], layout=ipywidgets.Layout(flex="1 1 30em", min_width="0"))
        # Side by side from 52em on, about 680 pixels.
        layout = ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start")
        super().__init__([column, result], layout=layout)
        self.add_class("course-explorer")

    def _redraw(self, _: object = None) -> None:
        with mpl.rc_context({"text.hinting": "no_hinting"}):  # to fit glyphs to pixels takes longer than to draw them
            figure, text = self._draw(**{name: control.value for name, control in self.controls.items()})
            picture = as_html(self._png(figure), text.partition("\n")[0])
        self.picture.value = _READOUTS + picture.replace("<img ", f'<img onload="{_NAME_HANDLES}" ')
        # Screen readers say what changed.
        look = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
        self.words.value = f"<pre aria-live='polite' style='{look}'>{html.escape(text)}</pre>"

    def _png(self, figure: Figure) -> bytes:
        """The part of a figure that is drawn on, as a PNG file packed in haste; the figure is closed.

        The part grows where a label needs room, and else stays, and so do the axes.
        """
        _thin_out_ticks(figure)
        plots.darken_words(figure)
        canvas = Bbox.from_bounds(0, 0, *np.rint(figure.bbox.size))
        self._shown = self._shown or _measured(figure)
        around = Bbox.union([canvas, self._shown]).padded(_ROOM)
        image, drawn = _painted(figure, around)
        if np.less_equal(drawn.min, around.min).any() or np.greater_equal(drawn.max, around.max).any():  # cut off?
            around = Bbox.union([around, _measured(figure)]).padded(_ROOM)
            image, drawn = _painted(figure, around)
        self._shown = Bbox.union([self._shown, drawn.padded(_MARGIN)])
        left, upper = int(self._shown.x0 - around.x0), int(around.y1 - self._shown.y1)
        part = image[upper : upper + int(self._shown.height), left : left + int(self._shown.width)]
        picture = io.BytesIO()
        plt.imsave(picture, part, format="png", pil_kwargs={"compress_level": 1})
        plt.close(figure)
        return picture.getvalue()


def explorer(
    draw: Callable[..., tuple[Figure, str]], controls: Mapping[str, Any], labels: str | None = None
) -> Explorer:
    """Controls beside a picture that follows them.

    Args:
        draw: called with the controls' values by name; returns a figure, which needs no layout engine, and what it
            shows, in words and numbers. The first line is the picture's alternative text. Nothing is to begin further
            than an inch outside the figure.
        controls: ipywidgets that have a `value` and a `description`.
        labels: the width of all descriptions, as in CSS ("8em"); by default each control keeps its own.
    """
    return Explorer(draw, controls, labels)


def _measured(figure: Figure) -> Bbox:
    """What matplotlib finds to be drawn on, in pixels from the figure's lower left corner: it lays out all words."""
    return Bbox((figure.get_tightbbox().get_points() * figure.dpi).round()).padded(_MARGIN)


def _painted(figure: Figure, around: Bbox) -> tuple[np.ndarray, Bbox]:
    """A rectangle, in pixels from the figure's lower left corner, as an image (H, W, 4); and what is not white."""
    file = io.BytesIO()
    width, height = int(around.width), int(around.height)
    exactly = Bbox.from_bounds(*around.p0, width + 0.01, height + 0.01)  # rounded down, no row or column is lost
    figure.savefig(file, format="rgba", bbox_inches=Bbox(exactly.get_points() / figure.dpi))
    image = np.frombuffer(file.getbuffer(), np.uint8).reshape(height, width, 4)
    inked = image.view(np.uint32)[..., 0] != 0xFFFFFFFF
    rows, columns = np.flatnonzero(inked.any(1)), np.flatnonzero(inked.any(0))
    if not len(rows):
        return image, Bbox.from_bounds(0, 0, *np.rint(figure.bbox.size))
    drawn = Bbox([[columns[0], height - 1 - rows[-1]], [columns[-1] + 1, height - rows[0]]])
    return image, drawn.translated(*around.p0)


def _thin_out_ticks(figure: Figure) -> None:
    """No minor ticks, and few where the limits of an axis choose them: ticks take more time than curves."""
    for axes in figure.axes:
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(locator := axis.get_major_locator(), AutoLocator):
                locator.set_params(nbins=_MOST_INTERVALS)


def _fitted(control: Any) -> Any:
    """The control as wide as its column, its buttons as wide as their words."""
    control.layout.width = "auto"
    if isinstance(control, ipywidgets.ToggleButtons):
        control.style.button_width = "auto"
    return control
