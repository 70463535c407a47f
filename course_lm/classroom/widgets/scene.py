"""A matplotlib figure as the few numbers that explorer.js draws: marks in pixels, axes with their ticks, no picture.

matplotlib lays the figure out and never paints it: to paint takes most of its time. Colours stay those of the figure,
but its ink is "ink", which is the page's own colour of text, in the light and in the dark.
"""

import re
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, PathCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.spines import Spine
from matplotlib.text import Text

from course_lm.classroom import plots
from course_lm.display import CHOSEN, PALE_BLUE

Mark = dict[str, Any]
_DASHES = {"--": "6 4", ":": "2 3", "-.": "6 3 2 3"}
_NO_MARKER, _NO_LINE = ("None", "none", "", " ", None), ("None", "none", "", " ")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_INKS = {to_hex(colour) for colour in ("black", plots.INK)}
# Pale grounds would be slabs on a dark page: there they are a strong colour, thinly laid.
_PALE = {PALE_BLUE.lower(): (plots.BLUE, 0.15), CHOSEN.lower(): (plots.ORANGE, 0.18)}
_FAR = 1e5  # pixels; further away a browser reads no number
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}
_BASELINES = {"top": "hanging", "center": "central", "center_baseline": "central", "bottom": "auto", "baseline": "auto"}


def scene(figure: Figure) -> dict[str, Any]:
    """What a figure shows, in pixels from its upper left corner; JSON can hold it.

    Returns:
        `size`: width and height. `panels`: for each axes its `box` (left, top, width, height), `title`, `legend` (name
        and colour), its axes `x` and `y` (None where they are off: name, scale, limits, ticks as [pixel, text], grid)
        and its `marks` from the lowest to the highest: lines, dots, fills and texts.
    """
    width, height = (float(side) for side in figure.bbox.size)
    return {"size": [round(width), round(height)], "panels": [_panel(axes, height) for axes in figure.axes]}


def _panel(axes: Axes, height: float) -> dict[str, Any]:
    axes.apply_aspect()
    axes.get_xlim(), axes.get_ylim()  # settle the limits, on which every transform hangs
    left, bottom, right, top = axes.bbox.extents
    words = {*axes.texts}  # without the titles, which are told apart
    drawn = [artist for artist in axes.get_children() if not isinstance(artist, Text) or artist in words]
    drawn.sort(key=lambda artist: artist.get_zorder())
    marks = [mark for artist in drawn if artist.get_visible() for mark in _marks(artist, axes, height)]
    named: Any = axes.get_legend_handles_labels() if axes.get_legend() else ([], [])
    colours = [(handle if isinstance(handle, Patch) else handle[0]).get_facecolor() for handle in named[0]]
    return {
        "box": [round(float(side), 1) for side in (left, height - top, right - left, top - bottom)],
        "title": axes.get_title() or axes.get_title("left"),
        "legend": [[name, _colour(colour)] for name, colour in zip(named[1], colours, strict=True)],
        "x": _axis(axes.xaxis, left, right) if axes.axison else None,
        "y": _axis(axes.yaxis, height - bottom, height - top) if axes.axison else None,
        "marks": marks,
    }


def _axis(axis: Axis, start: float, end: float) -> dict[str, Any]:
    """The axis that lies between two pixels."""
    limits = [float(limit) for limit in axis.get_view_interval()]
    transform = axis.get_transform()
    low, high = transform.transform(limits)
    shown = np.asarray(axis.get_majorticklocs())
    parts = (transform.transform(shown) - low) / (high - low)
    within = (parts > -1e-6) & (parts < 1 + 1e-6)
    formatter = axis.get_major_formatter()
    texts = formatter.format_ticks(shown.tolist())
    return {
        "name": " ".join(filter(None, (axis.get_label().get_text(), _plain(formatter.get_offset())))),
        "log": axis.get_scale() == "log",
        "limits": limits,
        "ticks": [
            [round(start + float(part) * (end - start), 1), _plain(text)]
            for part, text, here in zip(parts, texts, within, strict=True)
            if here
        ],
        "grid": bool(axis.get_tick_params().get("gridOn")),
    }


def _marks(artist: Any, axes: Axes, height: float) -> Iterator[Mark]:
    """What explorer.js draws for an artist."""
    if isinstance(artist, Line2D):
        yield from _line(artist, height)
    elif isinstance(artist, PathCollection):
        yield from _dots(artist, height)
    elif isinstance(artist, Collection):
        yield from _paths(artist, height)
    elif isinstance(artist, AxesImage):
        yield from _cells(artist, axes, height)
    elif isinstance(artist, Patch) and not isinstance(artist, Spine) and artist is not axes.patch:
        path = artist.get_transform().transform_path(artist.get_path())
        yield _fill(path, artist.get_facecolor(), artist.get_edgecolor(), artist.get_linestyle(), height)
    elif isinstance(artist, Text) and artist.get_text().strip():
        yield _text(artist, height)


def _line(line: Line2D, height: float) -> Iterator[Mark]:
    marked = line.get_marker() not in _NO_MARKER
    path = line.get_path().transformed(line.get_transform())
    points = _pixels(path.vertices if marked else _simplified(path), height)
    name = str(line.get_label())
    alpha = line.get_alpha()
    opacity = 1.0 if alpha is None else round(float(alpha), 2)
    common = {"points": points, "colour": _colour(line.get_color()), "opacity": opacity}
    if line.get_linestyle() not in _NO_LINE:
        dash = _dash(line.get_linestyle())
        yield {
            "kind": "line",
            **common,
            "width": _dots_of(line.get_linewidth()),
            "dash": dash,
            "name": "" if name.startswith("_") else name,
            "free": not line.get_clip_on(),
        }
    if marked:
        ring = line.get_markerfacecolor() in ("none", "None")
        size = _dots_of(line.get_markersize()) / (4 if line.get_marker() == "." else 2)
        yield {"kind": "dots", **common, "radius": size, "ring": ring, "free": not line.get_clip_on()}


def _simplified(path: Path) -> np.ndarray:
    """The corners of a path without those that no pixel shows, (N, 2); NaN where it begins anew."""
    path = path.cleaned(remove_nans=True, simplify=True)
    codes = np.asarray(path.codes)
    kept = codes != Path.STOP
    gaps = np.flatnonzero(codes[kept] == Path.MOVETO)[1:]
    return np.insert(np.asarray(path.vertices)[kept], gaps, np.nan, axis=0)


def _dots(dots: Any, height: float) -> Iterator[Mark]:
    points = _pixels(dots.get_offset_transform().transform(np.ma.filled(dots.get_offsets(), np.nan)), height)
    faces, edges = dots.get_facecolor(), dots.get_edgecolor()
    ring = len(faces) == 0
    radius = _dots_of(float(np.sqrt(dots.get_sizes()[0])) / 2)
    colour = edges[0] if ring else faces[0]
    yield {
        "kind": "dots",
        "points": points,
        "colour": _colour(colour),
        "opacity": float(colour[3]),
        "radius": radius,
        "ring": ring,
    }


def _paths(collection: Any, height: float) -> Iterator[Mark]:
    faces, edges = collection.get_facecolor(), collection.get_edgecolor()
    dashes = collection.get_linestyle()
    for number, path in enumerate(collection.get_paths()):
        face = faces[number % len(faces)] if len(faces) else (0, 0, 0, 0)
        edge = edges[number % len(edges)] if len(edges) else (0, 0, 0, 0)
        moved = collection.get_transform().transform_path(path)
        dash = "--" if dashes and dashes[number % len(dashes)][1] else "-"
        yield _fill(moved, face, edge, dash, height)


def _cells(image: Any, axes: Axes, height: float) -> Iterator[Mark]:
    """The cells of an image, a fill for each colour, equal ones beside each other as one."""
    colours = np.asarray(image.to_rgba(image.get_array()))
    rows, columns = colours.shape[:2]
    left, right, bottom, top = image.get_extent()
    across, down = np.linspace(left, right, columns + 1), np.linspace(top, bottom, rows + 1)
    xs = axes.transData.transform([(x, top) for x in across])[:, 0]
    ys = height - axes.transData.transform([(left, y) for y in down])[:, 1]
    shapes: dict[str, list[str]] = {}
    for row in range(rows):
        names = [to_hex(colour) for colour in colours[row]]
        start = 0
        for column in range(1, columns + 1):
            if column == columns or names[column] != names[start]:
                corner = f"M{xs[start]:.1f} {ys[row]:.1f}H{xs[column]:.1f}V{ys[row + 1]:.1f}H{xs[start]:.1f}Z"
                shapes.setdefault(names[start], []).append(corner)
                start = column
    for colour, parts in shapes.items():
        yield {"kind": "fill", "path": "".join(parts), "colour": colour, "opacity": 1, "edge": None, "dash": ""}


def _fill(path: Path, face: Any, edge: Any, dash: Any, height: float) -> Mark:
    closed = to_rgba(face)[3] > 0
    colour, opaque = _PALE.get(to_hex(face), (face, to_rgba(face)[3]))
    parts = []
    for polygon in map(np.asarray, path.to_polygons(closed_only=False)):
        corners = polygon[np.isfinite(polygon).all(1)] * (1, -1) + (0, height)
        parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners.tolist()) + ("Z" if closed else ""))
    drawn = to_rgba(edge)[3] > 0
    same = drawn and closed and to_hex(edge) == to_hex(face)  # then the edge shows nothing
    return {
        "kind": "fill",
        "path": "".join(parts),
        "colour": _colour(colour) if closed else "none",
        "opacity": round(float(opaque if closed else to_rgba(edge)[3]), 2),
        "edge": _colour(edge) if drawn and not same else None,
        "dash": _dash(dash),
    }


def _text(text: Any, height: float) -> Mark:
    if hasattr(text, "xyann"):  # an annotation: so many points from its place
        place = text._get_xy(None, text.xy, text.xycoords) + np.asarray(text.xyann) * text.figure.dpi / 72
    else:
        place = text.get_transform().transform(text.get_unitless_position())
    return {
        "kind": "text",
        "at": _pixels([place], height),
        "text": text.get_text(),
        "colour": _colour(text.get_color()),
        "anchor": _ANCHORS[text.get_ha()],
        "baseline": _BASELINES[text.get_va()],
        "size": round(_dots_of(text.get_fontsize()), 1),
        "bold": text.get_weight() in ("bold", 700),
        "mono": "monospace" in text.get_family(),
    }


def _pixels(points: Any, height: float) -> list[float | None]:
    """x and y in turn, from the upper left corner; None where there is no number."""
    flat = (np.asarray(points, dtype=float) * (1, -1) + (0, height)).clip(-_FAR, _FAR).round(1).ravel()
    return [float(value) if np.isfinite(value) else None for value in flat]


def _colour(colour: Any) -> str:
    name = to_hex(colour)
    return "ink" if name in _INKS else name


def _dash(style: Any) -> str:
    return _DASHES.get(style, "6 4" if isinstance(style, tuple) and style[1] else "")


def _dots_of(points: float) -> float:
    """Points, of which an inch has 72, as pixels."""
    return round(points * mpl.rcParams["figure.dpi"] / 72, 2)


def _plain(text: str) -> str:
    """The powers of ten that matplotlib writes as TeX, in Unicode."""
    text = re.sub(r"\\mathdefault\{(.*)\}", r"\1", text.replace("$", ""))
    text = re.sub(r"\^\{([-−\d]+)\}", lambda power: power[1].replace("−", "-").translate(_SUPERSCRIPTS), text)
    return text.replace(r"\times", "×").replace("\\", "")
