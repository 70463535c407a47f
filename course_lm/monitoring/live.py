"""A picture of the run in the notebook that is drawn anew, in place, while training goes on."""

import base64
import io
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from course_lm.monitoring.records import History, Record
from course_lm.monitoring.smoothing import smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHING = 0.8
_BLUE, _RED, _GREY, _INK = "#0072B2", "#D55E00", "#6E6E6E", "#222222"
_WIDTH = "760px"


def draw_run(history: History, floor: float | None = None) -> "Figure":
    """Loss, gradient norm and learning rate of a run against its optimizer steps.

    The training loss is drawn as it was logged (points) and smoothed (line), the validation loss beside it. `floor` is
    the loss of the distribution that made the validation text, nats per token: no model goes lower for long.
    """
    from matplotlib.figure import Figure  # not one of pyplot's, which would stay open

    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    loss, norm, lr = (figure.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))
    _draw_loss(loss, history, floor)
    _draw_metric(norm, history.train, "grad_norm", "gradient norm", "log")
    _draw_metric(lr, history.train, "lr", "learning rate", "linear")
    lr.ticklabel_format(axis="y", scilimits=(-2, 3))
    return figure


class LivePlot:
    """An observer that shows the run as a picture in a notebook; elsewhere it does nothing.

    While the run goes on the picture is a widget, which redraws in place; once it is over, an ordinary output of the
    cell, which stays in the file.

    Args:
        draw: makes a figure from the history so far, as `draw_run` does.
        every: seconds, at least, between two drawings.
        share: the part of the run's time that drawing takes at most: after one of s seconds the next comes no sooner
            than s / share later.

    Attributes:
        drawings, seconds: how often it was drawn, and how long that took altogether.
    """

    def __init__(self, draw: Callable[[History], "Figure"] = draw_run, every: float = 2.0, share: float = 0.05) -> None:
        if not every >= 0:
            raise ValueError(f"every must be a number of seconds of at least 0, got {every}")
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], got {share}")
        self.draw, self.every, self.share = draw, every, share
        self.history = History()
        self.drawings, self.seconds = 0, 0.0
        self._widget: Any = None
        self._next = -math.inf

    def start(self, step: int, total_steps: int | None) -> None:
        """Begin a picture; records after `step` go, for the run makes them again."""
        self.history = History(record for record in self.history.records if record["step"] <= step)
        self._next = -math.inf

    def log(self, record: Record) -> None:
        """Take the record, and draw if it is time to."""
        if not _in_notebook():
            return
        self.history.append(record)
        if time.perf_counter() >= self._next:
            self._show_live(self._png())

    def close(self) -> None:
        """Draw a last time, as an output of the cell."""
        if not _in_notebook() or not self.history.records:
            return
        picture = self._png()
        if self._widget is not None:
            self._widget.close()
            self._widget = None
        from IPython.display import display

        alt = describe(self.history)
        data = {"image/png": base64.b64encode(picture).decode(), "text/plain": alt}
        display(data, metadata={"image/png": {"alt": alt}}, raw=True)

    def _png(self) -> bytes:
        import matplotlib.pyplot as plt

        started = time.perf_counter()
        figure = self.draw(self.history)
        file = io.BytesIO()
        fixed = figure.get_layout_engine() is not None  # its size is settled: trimming would make it jump
        figure.savefig(file, format="png", bbox_inches=None if fixed else "tight")
        plt.close(figure)
        ended = time.perf_counter()
        self.drawings, self.seconds = self.drawings + 1, self.seconds + ended - started
        self._next = ended + max(self.every, (ended - started) / self.share)
        return file.getvalue()

    def _show_live(self, picture: bytes) -> None:
        if self._widget is None:
            import ipywidgets
            from IPython.display import display

            layout = ipywidgets.Layout(width=_WIDTH, max_width="100%")
            self._widget = ipywidgets.Image(value=picture, format="png", layout=layout)
            display(self._widget)
        self._widget.value = picture


def describe(history: History) -> str:
    """The run in one sentence, for who cannot see the picture."""
    if not history.train:
        return "No training record yet."
    first, last = history.train[0], history.train[-1]
    text = f"Training loss {first['loss']:.3f} at step {first['step']}, {last['loss']:.3f} at step {last['step']}"
    best = history.best
    return f"{text}; lowest validation loss {best['val_loss']:.3f} at step {best['step']}." if best else f"{text}."


def _draw_loss(axes: "Axes", history: History, floor: float | None) -> None:
    steps, losses = _curve(history.train, "loss")
    axes.plot(steps, losses, ".", color=_GREY, alpha=0.5, markersize=4)
    axes.plot(steps, smooth(losses, SMOOTHING), color=_BLUE, label="training, smoothed")
    if history.validation:
        axes.plot(*_curve(history.validation, "val_loss"), "o-", color=_RED, markersize=5, label="validation")
    if floor is not None:
        axes.axhline(floor, color=_INK, linestyle=(0, (5, 3)), label=f"floor {floor:.2f}")
    axes.set(xlabel="optimizer steps", ylabel="loss (nats per token)")
    axes.legend(loc="upper right", frameon=False)


def _draw_metric(axes: "Axes", records: Sequence[Record], key: str, label: str, scale: str) -> None:
    steps, values = _curve(records, key)
    axes.plot(steps, values, color=_BLUE)
    axes.set(xlabel="optimizer steps", ylabel=label)
    if any(value > 0 for value in values):
        axes.set_yscale(scale)


def _curve(records: Sequence[Record], key: str) -> tuple[list[int], list[float]]:
    return [record["step"] for record in records], [record[key] for record in records]


def _in_notebook() -> bool:
    """Whether this runs in a cell of a kernel that can show a picture."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython is not None else False
