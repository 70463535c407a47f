"""Runs in each kernel of the lab: writes down the words of a figure that are hard to read on what lies under them.

It looks at every figure that a lesson shows.
"""

import os
from collections import Counter
from unittest.mock import patch

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from course_lm.classroom import plots

REST = 0.2  # of the required contrast, for what rounding and the edges of letters do


def faint_labels(figure):
    """Words of a figure whose contrast with the commonest colour under them is below what `plots` asks, a line each."""
    words = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    places = [text.get_window_extent() for text in words]
    opacities = [text.get_alpha() for text in words]
    for text in words:
        text.set_alpha(0)  # not hidden, or the layout would change
    canvas.draw()
    ground = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    for text, opacity in zip(words, opacities):
        text.set_alpha(opacity)
    faint = []
    for text, place in zip(words, places):
        left, bottom, right, top = (max(0, round(edge)) for edge in place.extents)
        under = ground[bottom:top, left:right].reshape(-1, 3)
        colour = Counter(map(tuple, under.tolist())).most_common(1)[0][0] if len(under) else (255, 255, 255)
        if (box := text.get_bbox_patch()) is not None:
            *rgb, alpha = box.get_facecolor()
            colour = tuple(255 * (alpha * part + 1 - alpha) for part in rgb)
        on = "#{:02x}{:02x}{:02x}".format(*map(round, colour))
        contrast = plots.contrast(text.get_color(), on)
        if contrast < plots.LEGIBLE - REST:
            faint.append(f"{text.get_text()!r}: {contrast:.1f} on {on}")
    return faint


def note(figure):
    """Look at a figure that was drawn: `plots.png` gives words their last colour."""
    with open(os.environ["FAINT_LABELS_LOG"], "a", encoding="utf-8") as log:
        log.writelines(f"{line}\n" for line in faint_labels(figure))


show = plots.show


def watched_show(figure, alt):
    show(figure, alt)
    note(figure)


if "FAINT_LABELS_LOG" in os.environ:
    patch.object(plots, "show", watched_show).start()
