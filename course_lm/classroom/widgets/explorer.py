"""Pictures with knobs: a control is moved, the picture beside it follows, with the numbers below it as text.

An explorer is an ordinary HTML output. It holds a drawn view for some values of each control, so it works where there
is no kernel: in a page, in a book, in a notebook that was opened again. Where its kernel runs, that computes the view
of every value. Every control works from the keyboard; explorer.js draws.
"""

import base64
import hashlib
import html
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_lm.classroom.live import in_notebook
from course_lm.classroom.widgets.scene import scene

MOST_STORED = 64  # views of an explorer: each takes some 20 ms to compute and 1 kB to store
SCRIPT = Path(__file__).with_suffix(".js")


@dataclass(frozen=True)
class Control:
    """What a reader moves: it has one of `options`, which it shows as `texts`; or it is a number that is typed.

    `stored` are the places of the options whose views work without a kernel, at most.
    """

    label: str
    kind: str
    options: Sequence[Any]
    texts: Sequence[str]
    value: Any
    stored: int = 4

    def __post_init__(self) -> None:
        if self.options and self.value not in self.options:
            raise ValueError(f"{self.label}: the value must be one of {list(self.options)}, got {self.value!r}")


def slider(label: str, value: Any, options: Sequence[Any], form: str = "{}", stored: int = 4) -> Control:
    """A slider over `options`, shown by a format such as "{:.2f}"."""
    return Control(label, "slider", list(options), [form.format(each) for each in options], value, stored)


def steps(least: float, most: float, step: float) -> list[float]:
    """From the least to the most, both among them, without the rounding errors of a sum."""
    return [round(least + n * step, 9) for n in range(round((most - least) / step) + 1)]


def powers(least: float, most: float, step: float) -> list[float]:
    """10 to the power of each of `steps`, to four digits."""
    return [float(f"{10**exponent:.4g}") for exponent in steps(least, most, step)]


def buttons(label: str, options: Sequence[str], value: str | None = None) -> Control:
    """One of a few words, all of which are seen."""
    return Control(label, "buttons", list(options), list(options), value or options[0], len(options))


def pick(label: str, options: Sequence[str], value: str | None = None, stored: int = MOST_STORED) -> Control:
    """One of a list of words that folds open."""
    return Control(label, "list", list(options), list(options), value or options[0], stored)


def switch(label: str, value: bool = False) -> Control:
    """On or off."""
    return Control(label, "switch", [False, True], ["off", "on"], value, 2)


def number(label: str, value: float) -> Control:
    """A number that is typed; it moves where a kernel runs."""
    return Control(label, "number", [], [], value, 1)


class Explorer:
    """Controls beside a picture and words that follow them.

    Args:
        draw: called with the controls' values by name; returns a figure, which is never painted, and what it shows, in
            words and numbers. The first line is the picture's alternative text.
        controls: by the names of the values that `draw` takes.

    Attributes:
        values: of the controls, by name.
    """

    def __init__(self, draw: Callable[..., tuple[Figure, str]], controls: Mapping[str, Control]) -> None:
        self.draw, self.controls = draw, dict(controls)
        self.values = {name: control.value for name, control in self.controls.items()}
        self._link: Any = None

    def view(self, **values: Any) -> dict[str, Any]:
        """The `scene` and the `words` of these values; those not given are as they are."""
        figure, words = self.draw(**self.values | values)
        try:
            return {"scene": scene(figure), "words": words}
        finally:
            plt.close(figure)

    def stored_places(self) -> list[list[int]]:
        """For each control, the places of the options whose views are stored."""
        most = [max(1, min(control.stored, len(control.options))) for control in self.controls.values()]
        while math.prod(most) > MOST_STORED:
            most[most.index(max(most))] -= 1
        return [_spread(control, count) for control, count in zip(self.controls.values(), most, strict=True)]

    def places(self) -> list[Any]:
        """Where each control is: the place of its option, or the number that was typed."""
        given = [(one.options, self.values[name]) for name, one in self.controls.items()]
        return [list(options).index(value) if options else value for options, value in given]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        first, stored, view = dict(self.values), self.stored_places(), self.view()
        told = {
            "controls": [
                {"name": name, "label": one.label, "kind": one.kind, "texts": one.texts, "at": at, "stored": here}
                for (name, one), at, here in zip(self.controls.items(), self.places(), stored, strict=True)
            ],
            "view": view,
            "stored": self._grid(stored),
        }
        self.values = first
        key = hashlib.sha256(_json(told).encode()).hexdigest()[:16]  # the same at every run of a lesson
        self._listen(key)
        return {"text/plain": view["words"], "text/html": _page(key, told)}

    def _grid(self, stored: Sequence[Sequence[int]]) -> str:
        """The views of all stored places, packed; the last control turns first."""
        grid = []
        for chosen in itertools.product(*stored):
            named = zip(self.controls.items(), chosen, strict=True)
            grid.append(self.view(**{name: one.options[at] for (name, one), at in named if one.options}))
        return base64.b64encode(zlib.compress(_json(grid).encode(), 9)).decode()

    def _listen(self, key: str) -> None:
        """Answer the questions of the output with this key, where a kernel runs it."""
        if not in_notebook():
            return
        self._link = link = _link_type()(key=key)  # kept: a model that nothing holds is closed
        link.on_msg(lambda _, asked, __: link.send(self.answer(asked)))

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The view for the `places` of the controls and a handle that was `dragged`, with the question's number."""
        named = zip(self.controls.items(), asked["places"], strict=True)
        self.values = {name: one.options[at] if one.options else type(one.value)(at) for (name, one), at in named}
        if dragged := asked.get("dragged"):
            self.moved(*dragged)
        try:
            view = self.view()
        except Exception as error:  # of a learner's `draw`: a callback would swallow it
            view = {"scene": {"size": [0, 0], "panels": []}, "words": f"{type(error).__name__}: {error}"}
        return {"turn": asked["turn"], **view, "places": self.places()}

    def moved(self, handle: str, x: float, y: float) -> None:
        """Follow a handle that was dragged to x and y; of these explorers only that of schedules has some."""


explorer = Explorer  # what a lesson calls


def _spread(control: Control, count: int) -> list[int]:
    """`count` places of options, evenly spread; one of them makes way for the value's own."""
    if not control.options:
        return [0]
    first, last = list(control.options).index(control.value), len(control.options) - 1
    places = [round(n * last / max(1, count - 1)) for n in range(count)]
    if first not in places:
        places.remove(min(places[1:-1] or places, key=lambda place: abs(place - first)))
    return sorted({first, *places})


def _json(told: Any) -> str:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def _page(key: str, told: Mapping[str, Any]) -> str:
    """The words for pages that run no script, and the script that puts controls and picture in their place."""
    words = html.escape(told["view"]["words"])
    data = _json({"key": key, **told}).replace("</", "<\\/")
    start = f'const told = {data}\ndocument.querySelectorAll("#explorer-{key}").forEach(root => mount(root, told))'
    return (
        f'<div class="course-explorer" id="explorer-{key}"><pre>{words}</pre></div>'
        f'<script type="module">{script()}{start}</script>'
    )


@cache
def script() -> str:
    """explorer.js as an output holds it: without its comments."""
    return re.sub(r"^ *(//.*|/\*\*[^/]*\*/)\n", "", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)


@cache
def _link_type() -> type:
    """The kernel's half of an explorer; made late, since anywidget is slow to import."""
    import anywidget
    import traitlets

    class Link(anywidget.AnyWidget):
        _esm = SCRIPT
        key = traitlets.Unicode().tag(sync=True)

    return Link
