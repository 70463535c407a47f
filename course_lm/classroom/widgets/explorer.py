"""Pictures with knobs: a control is moved, the picture is drawn again, the numbers stand below it as text.

Every control works from the keyboard. The picture is an image widget, which redraws in place and needs no output
area of the notebook.
"""

import html
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from course_lm.classroom import plots

_PICTURE_WIDTH = "760px"


def explorer(draw: Callable[..., tuple[Figure, str]], controls: Mapping[str, Any]) -> ipywidgets.VBox:
    """Controls above a picture that follows them.

    Args:
        draw: called with the controls' values by name; returns a figure and what it shows, in words and numbers.
        controls: ipywidgets that have a `value` and a `description`.
    """
    picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(width=_PICTURE_WIDTH, max_width="100%"))
    words = ipywidgets.HTML()

    def redraw(_: object = None) -> None:
        figure, text = draw(**{name: control.value for name, control in controls.items()})
        picture.value = plots.png(figure)
        words.value = f"<pre aria-live='polite'>{html.escape(text)}</pre>"  # screen readers say what changed

    for control in controls.values():
        control.tooltip = control.tooltip or control.description  # else the browser shows "null"
        control.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*controls.values(), picture, words])
