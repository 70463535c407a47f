"""Pictures with knobs: a control is moved, the picture beside it is drawn again, with the numbers below it as text.

Every control works from the keyboard. The picture is HTML, which can bear an alternative text; it redraws in place and
needs no output area of the notebook.
"""

import html
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from course_lm.classroom import plots
from course_lm.monitoring.live import as_html

_MARGIN = 0.1  # inches around what is drawn
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
        arranged: ipywidgets.Box | None = None,
    ) -> None:
        self.controls, self.picture, self.words = dict(controls), ipywidgets.HTML(), ipywidgets.HTML()
        self._draw = draw
        self._shown: Bbox | None = None
        for control in self.controls.values():
            control.tooltip = control.tooltip or control.description  # else the browser shows "null"
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
        figure, text = self._draw(**{name: control.value for name, control in self.controls.items()})
        picture = as_html(plots.png(figure, self._part_of(figure)), text.partition("\n")[0])
        self.picture.value = _READOUTS + picture.replace("<img ", f'<img onload="{_NAME_HANDLES}" ')
        # Screen readers say what changed.
        look = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
        self.words.value = f"<pre aria-live='polite' style='{look}'>{html.escape(text)}</pre>"

    def _part_of(self, figure: Figure) -> Bbox:
        """The part of a figure that is shown: it grows where a label needs room, and else stays, and so do the axes."""
        drawn = figure.get_tightbbox().padded(_MARGIN)
        self._shown = Bbox.union([drawn, self._shown or drawn])
        return self._shown


def explorer(draw: Callable[..., tuple[Figure, str]], controls: Mapping[str, Any]) -> Explorer:
    """Controls beside a picture that follows them.

    Args:
        draw: called with the controls' values by name; returns a figure, which needs no layout engine, and what it
            shows, in words and numbers. The first line is the picture's alternative text.
        controls: ipywidgets that have a `value` and a `description`.
    """
    return Explorer(draw, controls)


def _fitted(control: Any) -> Any:
    """The control as wide as its column, its buttons as wide as their words."""
    control.layout.width = "auto"
    if isinstance(control, ipywidgets.ToggleButtons):
        control.style.button_width = "auto"
    return control
