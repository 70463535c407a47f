"""A picture of the run in the notebook that is drawn anew, in place, while training goes on."""

import base64
import html
import io
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from course_lm.display import BLUE, INK, RED
from course_lm.loss import perplexity
from course_lm.monitoring import History, Record, smooth
from course_lm.validation import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHING = 0.6
_MARGINS = {"left": 0.08, "right": 0.97, "top": 0.95, "bottom": 0.13, "wspace": 0.6, "hspace": 0.5}


def draw_run(history: History, floor: float | None = None) -> "Figure":
    """Loss, gradient norm and learning rate of a run against its optimizer steps.

    The training loss is drawn as it was logged (points) and smoothed (line), the validation loss beside it; the axis on
    the right reads as perplexity, which is one of a model where the loss is the plain next-token loss. `floor` is
    the loss of the distribution that made the validation text, nats per token: no model goes lower for long.
    """
    from matplotlib.figure import Figure  # not one of pyplot's, which would stay open
    from matplotlib.layout_engine import PlaceHolderLayoutEngine

    figure = Figure(figsize=(8.0, 4.2), layout=PlaceHolderLayoutEngine(True, True))  # settled: see _png
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2), **_MARGINS)
    loss, norm, lr = (figure.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))
    _draw_loss(loss, history, floor)
    _draw_norm(norm, history.train)
    _draw_rate(lr, history.train)
    return figure


class LivePlot:
    """An observer that shows the run as a picture in a notebook, drawn anew in place; elsewhere it does nothing.

    The picture is an ordinary output of the cell, so the file keeps it as it was last drawn.

    Args:
        draw: makes a figure from the history so far, as `draw_run` does.
        every: seconds, at least, between two drawings.
        share: the part of the run's time that drawing takes at most: after one of s seconds the next one begins no
            sooner than s / share later. The first drawing of all, which takes longer, does not count.

    Attributes:
        drawings, seconds: how often it was drawn, and the seconds that took altogether.
    """

    def __init__(self, draw: Callable[[History], "Figure"] = draw_run, every: float = 2.0, share: float = 0.05) -> None:
        require(every >= 0, "every", "a number of seconds of at least 0", every)
        require(0 < share <= 1, "share", "in (0, 1]", share)
        self.draw, self.every, self.share = draw, every, share
        self.history = History()
        self.drawings, self.seconds = 0, 0.0
        self._display: Any = None
        # Before the drawing, so that `close` does not try again one that failed.
        self._stale = False
        self._next = 0.0

    def start(self, step: int, total_steps: int | None) -> None:
        """Begin a picture in the cell that runs; records after `step` are dropped, since the run makes them again."""
        self.history = History(record for record in self.history.records if record["step"] <= step)
        self._display, self._stale, self._next = None, False, 0.0

    def log(self, record: Record) -> None:
        """Take the record, and draw if it is time to."""
        self.history.append(record)
        self._stale = True
        if time.perf_counter() >= self._next:
            self._show()

    def close(self) -> None:
        """Draw what was not drawn yet."""
        if self._stale:
            self._show()

    def _show(self) -> None:
        if not in_notebook():
            return
        from IPython.display import display

        self._stale = False
        started = time.perf_counter()
        alt = describe(self.history)
        data = {"text/html": as_html(_png(self.draw(self.history)), alt), "text/plain": alt}
        if self._display is None:
            self._display = display(data, display_id=True, raw=True)
        else:
            self._display.update(data, raw=True)
        seconds = time.perf_counter() - started
        pause = seconds / self.share if self.drawings else 0.0  # the first one finds fonts and fills caches
        self._next = started + max(self.every, pause)
        self.drawings, self.seconds = self.drawings + 1, self.seconds + seconds


def as_html(png: bytes, alt: str) -> str:
    """A picture in PNG as HTML with its alternative text.

    JupyterLab and nbconvert show an output of PNG without one, whatever its metadata say.
    """
    width, height = struct.unpack(">II", png[16:24])  # said beforehand, so that nothing jumps when the picture comes
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    look = "max-width: 100%; height: auto; border-radius: 8px"  # on a dark page it is a card
    size = f'width="{width}" height="{height}" style="{look}"'
    return f'<img alt="{html.escape(alt)}" {size} src="{source}">'


def _png(figure: "Figure") -> bytes:
    """The figure as a file; one of pyplot's is closed."""
    import matplotlib.pyplot as plt

    file = io.BytesIO()
    fixed = figure.get_layout_engine() is not None  # trimmed to what is drawn, the picture would jump
    figure.savefig(file, format="png", bbox_inches=None if fixed else "tight")
    plt.close(figure)
    return file.getvalue()


def describe(history: History) -> str:
    """The run in one sentence, for a reader who cannot see the picture."""
    if not history.train:
        return "No training record yet."
    first, last = history.train[0], history.train[-1]
    text = f"Training loss {first['loss']:.3f} at step {first['step']}, {last['loss']:.3f} at step {last['step']}"
    best = history.best
    return f"{text}; lowest validation loss {best['val_loss']:.3f} at step {best['step']}." if best else f"{text}."


def _draw_loss(axes: "Axes", history: History, floor: float | None) -> None:
    steps, losses = _curve(history.train, "loss")
    # the points in full colour: where the loss falls fast, the line lags behind them
    axes.plot(steps, losses, ".", color=BLUE, markersize=6, label="training")
    axes.plot(steps, smooth(losses, SMOOTHING), color=BLUE, alpha=0.4, label="smoothed")
    if history.validation:
        axes.plot(*_curve(history.validation, "val_loss"), "o-", color=RED, markersize=5, label="validation")
    if floor is not None:
        axes.axhline(floor, color=INK, linestyle=(0, (5, 3)), label=f"floor {floor:.2f}")
    axes.set(xlabel="optimizer steps", ylabel="loss (nats per token)")
    axes.legend(loc="upper right", frameon=False)
    _add_perplexity(axes)


def _add_perplexity(axes: "Axes") -> None:
    """Write exp(loss) on the right at the ticks of the loss."""
    from matplotlib.ticker import FuncFormatter

    right = axes.secondary_yaxis("right")
    right.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: _short(perplexity(loss))))
    right.set_ylabel("perplexity")


def _short(number: float) -> str:
    return f"{number:,.0f}" if 100 <= number < 100_000 else f"{number:.3g}"


def _draw_norm(axes: "Axes", records: Sequence[Record]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    steps, norms = _curve(records, "grad_norm")
    axes.plot(steps, norms, color=BLUE)
    axes.set(xlabel="optimizer steps", ylabel="gradient norm")
    if any(norm > 0 for norm in norms):  # a logarithmic axis cannot show 0 alone
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def _draw_rate(axes: "Axes", records: Sequence[Record]) -> None:
    axes.plot(*_curve(records, "lr"), color=BLUE)
    axes.set(xlabel="optimizer steps", ylabel="learning rate")
    axes.ticklabel_format(axis="y", scilimits=(-2, 3))


def _curve(records: Sequence[Record], key: str) -> tuple[list[int], list[float]]:
    return [record["step"] for record in records], [record[key] for record in records]


def in_notebook() -> bool:
    """Whether this runs in a cell of a kernel that can show a picture."""
    # Looked up and not imported: a process that has not loaded it is no notebook. In a terminal it has no kernel.
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython is not None else False
