"""Reading the curve of a learning-rate range test: loss against learning rate, smoothed, and where it falls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from course_lm.display import BLUE, GREY, PALE_BLUE, RED
from course_lm.monitoring import smooth
from course_lm.validation import is_number, require, require_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHING, SKIP_START, SKIP_END = 0.7, 5, 5
LEAST_POINTS = 5  # that a reading takes
LEAST_FALL = 0.01  # of the loss at the start
NOISE_FACTOR = 10  # by which a fall must exceed the noise: normal noise alone does so in less than 1 % of tests
NOISE_POINTS = 20  # from which the noise is measured, at least
RANGE = (0.1, 0.9)  # shares of the fall
_ENDINGS = {
    None: "",
    "diverged": "; the sweep stopped where the loss diverged",
    "not finite": "; the sweep stopped where the loss or its gradient was not finite",
}


@dataclass(frozen=True)
class Suggestion:
    """How a curve reads. `lr` and `range` (low, high) are None where it shows no usable slope; `message` says why."""

    lr: float | None
    range: tuple[float, float] | None
    message: str


@dataclass(frozen=True)
class LRFinderResult:
    """The points of a range test, and how they read.

    Attributes:
        lrs: the learning rate of each step, what `train_step` would be given as `lr`.
        losses: the loss of the step taken with it, or of `val_loader` after it, nats per token, as measured.
        stopped: "diverged" or "not finite" (loss or gradient) where that ended the sweep. The point that was not finite
            is left out.
        smoothing, skip_start, skip_end: see `suggest`.
    """

    lrs: Sequence[float]
    losses: Sequence[float]
    stopped: str | None = None
    smoothing: float = SMOOTHING
    skip_start: int = SKIP_START
    skip_end: int = SKIP_END

    @property
    def suggestion(self) -> float | None:
        """Where the loss falls steepest, or None."""
        return self._reading.lr

    @property
    def range(self) -> tuple[float, float] | None:
        """Where the loss falls, from a tenth of its fall to nine tenths, or None."""
        return self._reading.range

    @property
    def message(self) -> str:
        """The reading in words, and why the sweep ended early where it did."""
        return self._reading.message + _ENDINGS[self.stopped]

    def plot(self) -> "Figure":
        """Loss against learning rate: the points, the smoothed curve, the range and the suggestion."""
        return _plot(self)

    # A cached property writes into __dict__, which a frozen dataclass allows.
    @cached_property
    def _reading(self) -> Suggestion:
        skips = {"skip_start": self.skip_start, "skip_end": self.skip_end}
        return suggest(self.lrs, self.losses, smoothing=self.smoothing, **skips)


def suggest(
    lrs: Sequence[float],
    losses: Sequence[float],
    *,
    smoothing: float = SMOOTHING,
    skip_start: int = SKIP_START,
    skip_end: int = SKIP_END,
) -> Suggestion:
    """Read the curve of a range test. Points whose loss is not finite are left out.

    The losses are smoothed, then `skip_start` points are dropped at the start and `skip_end` at the end. The *fall* is
    how far the smoothed loss gets below its first value. The range reaches from where a tenth of the fall is made to
    where nine tenths are. The suggestion is the point in it where d loss / d log(lr) is lowest, among those where the
    loss is lower than ever before: a recovery from a spike is no descent.

    There is no usable slope where the fall is less than `LEAST_FALL` of the first value, or less than `NOISE_FACTOR`
    times the noise of the smoothed loss, as the differences of successive losses on the way down tell it.

    Raises:
        ValueError: a setting out of its range, unequal lengths, or learning rates that do not rise.
    """
    check_reading(smoothing, skip_start, skip_end)
    require(len(lrs) == len(losses), "lrs", f"as many as the losses ({len(losses)})", len(lrs))
    for before, lr in pairwise([0.0, *lrs]):
        require(before < lr, "lrs", "positive and rising", f"{lr:g} after {before:g}")
    finite = [(lr, loss) for lr, loss in zip(lrs, losses, strict=True) if math.isfinite(loss)]
    kept = slice(skip_start, max(len(finite) - skip_end, skip_start))
    points = len(finite[kept])
    if points < LEAST_POINTS:
        return Suggestion(None, None, f"no usable slope: {points} points are left to read, {LEAST_POINTS} are needed")
    rates, raw = np.array(finite).T  # each (N,)
    curve = np.array(smooth(raw.tolist(), smoothing))
    slope, last = np.gradient(curve, np.log(rates))[kept], curve[-1]
    rates, raw, curve = rates[kept], raw[kept], curve[kept]
    fall = float(curve[0] - curve.min())
    least, why = _least_fall(raw, curve, smoothing)
    if fall <= least:
        return Suggestion(None, None, f"no usable slope: the loss falls by {fall:.3f} from {curve[0]:.3f}, {why}")
    lr, within, message = read_descent(rates, curve, slope, fall)
    if last <= curve[0] - RANGE[1] * fall:
        message += "; at the last point it has not risen again"
    return Suggestion(lr, within, message)


def check_reading(smoothing: float, skip_start: int, skip_end: int) -> None:
    """Raise ValueError for settings with which no curve can be read."""
    require(is_number(smoothing) and 0 <= smoothing < 1, "smoothing", "in [0, 1)", smoothing)
    for name, value in (("skip_start", skip_start), ("skip_end", skip_end)):
        require_whole(name, value, least=0)


def _least_fall(raw: np.ndarray, curve: np.ndarray, smoothing: float) -> tuple[float, str]:
    """What a fall must exceed, and what to say of one that does not."""
    # Behind its lowest point the loss may jump about because it diverges, which is no noise of the descent.
    down = raw[: max(int(curve.argmin()) + 1, NOISE_POINTS)]
    # Differences leave out the trend, their median leaves out single jumps.
    deviation = float(np.median(np.abs(np.diff(down)))) / (0.6745 * math.sqrt(2))  # of normal noise, from a median
    # The root is what an exponential average leaves of the deviation of independent noise.
    noise = NOISE_FACTOR * deviation * math.sqrt((1 - smoothing) / (1 + smoothing))
    share = LEAST_FALL * abs(float(curve[0]))
    return max((noise, "which noise alone can do"), (share, f"less than {LEAST_FALL:.0%} of it"))


def read_descent(
    rates: np.ndarray, curve: np.ndarray, slope: np.ndarray, fall: float
) -> tuple[float, tuple[float, float], str]:
    """Where the smoothed `curve` falls steepest, the range in which it makes `fall`, and both in words.

    `slope` is d loss / d log(lr), and `fall` how far the curve gets below its first value.
    """
    lowest_yet = np.minimum.accumulate(curve)
    # argmax of booleans: the first point that is so low.
    low, high = (int(np.argmax(lowest_yet <= curve[0] - share * fall)) for share in RANGE)
    # Where the loss only comes down from a spike, it is above what it was before.
    descending = np.where(curve == lowest_yet, slope, np.inf)[low : high + 1]
    steepest, first, last = (float(rates[at]) for at in (low + int(descending.argmin()), low, high))
    message = f"the loss falls steepest at {steepest:.1e}, and clearly from {first:.1e} to {last:.1e}"
    if low < LEAST_POINTS:
        message += "; it falls from the first points on"
    return steepest, (first, last), message


def _plot(result: LRFinderResult) -> "Figure":
    from matplotlib.figure import Figure  # not one of pyplot's, which would stay open

    figure = Figure()
    axes = figure.subplots()
    curve = smooth(result.losses, result.smoothing)
    axes.scatter(result.lrs, result.losses, s=12, color=GREY, alpha=0.6, linewidths=0)
    axes.plot(result.lrs, curve, color=BLUE)
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss (nats per token)")
    axes.xaxis.set_major_formatter("{x:.0e}")  # powers with a raised exponent take much longer to draw
    axes.minorticks_off()
    _zoom_in(axes, result, curve)
    if result.suggestion is None or result.range is None:
        axes.set_title("no usable slope")
        return figure
    axes.axvspan(*result.range, color=PALE_BLUE, zorder=0)
    height = float(np.interp(result.suggestion, result.lrs, curve))
    axes.plot(result.suggestion, height, "o", color=RED, markersize=8)
    label = f"steepest at {result.suggestion:.1e}"
    place = (result.suggestion, height)
    # Below and left of the dot, since above and right of it the curve may run through the words.
    words = axes.annotate(label, place, (-9, -3), textcoords="offset points", color=RED, weight="bold")
    words.set(ha="right", va="top")
    low, high = result.range
    above = axes.get_xaxis_transform()
    label = f"falls from {low:.1e} to {high:.1e}"
    # The square root of the product is the middle on a logarithmic axis.
    axes.text(math.sqrt(low * high), 1.02, label, transform=above, color=BLUE, ha="center")
    return figure


def _zoom_in(axes: "Axes", result: LRFinderResult, curve: Sequence[float]) -> None:
    """Leave out what lies far above the start, which would flatten the descent, and say so."""
    if result.suggestion is None:
        return
    start, lowest = max(curve[: result.skip_start + 1]), min(*curve, *result.losses)
    top = start + 0.6 * (start - lowest)
    axes.set_ylim(lowest - 0.1 * (start - lowest), top)
    higher = sum(loss > top for loss in result.losses)
    if higher:
        axes.text(0.01, 0.97, f"{higher} points lie higher", transform=axes.transAxes, color=GREY, va="top")
