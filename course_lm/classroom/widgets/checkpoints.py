"""How often to save: the share of a run that is lost to saving, to work done again and to restarts."""

import math

import numpy as np
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, explorer, powers, slider

_SHORTEST, _LONGEST = 10.0, 86_400.0  # seconds: the drawn intervals
_POINTS, _DRAWN = 2001, 8  # intervals that are tried, of which every eighth is drawn


def draw_checkpoint_interval(
    save_seconds: float = 30.0, mtbf_hours: float = 3.0, interval_minutes: float = 20.0, restart_minutes: float = 5.0
) -> tuple[Figure, str]:
    """The expected share of time that is lost, against the interval between two saves.

    A run works for the interval, then saves. Failures come at random, on average one in `mtbf_hours`; after one the run
    restarts and does again what was not saved. The expectation is that of Daly 2006 ("A higher order estimate of the
    optimum checkpoint interval for restart dumps"); the dotted line is sqrt(2 · save · MTBF), after Young 1974.

    Returns:
        The figure; and in words the shares at the interval, the best interval, and Young's.
    """
    mtbf, restart = mtbf_hours * 3600, restart_minutes * 60
    intervals = np.geomspace(_SHORTEST, _LONGEST, _POINTS)
    saving, lost = np.array([_shares(each, save_seconds, mtbf, restart) for each in intervals]).T
    young = math.sqrt(2 * save_seconds * mtbf)
    best = float(intervals[np.argmin(saving + lost)])
    figure = Figure(figsize=(8, 3.6))
    axes = figure.subplots()
    minutes, saving, lost = intervals[::_DRAWN] / 60, saving[::_DRAWN], lost[::_DRAWN]
    axes.fill_between(minutes, 0, 100 * saving, color=plots.SKY, alpha=0.6, linewidth=0)
    axes.fill_between(minutes, 100 * saving, 100 * (saving + lost), color=plots.ORANGE, alpha=0.5, linewidth=0)
    axes.axvline(young / 60, color=plots.INK, linestyle=":")
    chosen = _shares(interval_minutes * 60, save_seconds, mtbf, restart)
    axes.plot(interval_minutes, 100 * sum(chosen), "o", color=plots.RED, markersize=10, clip_on=False)
    axes.set(xscale="log", xlim=(minutes[0], minutes[-1]), ylim=(0, 100))
    axes.set(xlabel="minutes of work between two saves", ylabel="share of the time (%)")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
    labels = {"transform": axes.transAxes, "weight": "bold", "va": "bottom"}
    axes.text(0.0, 1.02, "saving", color=plots.BLUE, **labels)
    axes.text(1.0, 1.02, "done again, restarts", color="#9A6400", ha="right", **labels)
    at_best = sum(_shares(best, save_seconds, mtbf, restart))
    words = (
        f"saving {save_seconds:.3g} s, a failure every {mtbf_hours:.3g} h, a restart {restart_minutes:.3g} min\n"
        f"a save every {interval_minutes:.3g} min: {sum(chosen):.1%} of the time is lost, "
        f"{chosen[0]:.1%} to saving and {chosen[1]:.1%} to failures\n"
        f"best {best / 60:.2g} min: {at_best:.1%} lost; Young's rule says {young / 60:.2g} min"
    )
    return figure, words


def _shares(interval: float, save: float, mtbf: float, restart: float) -> tuple[float, float]:
    """Shares of the expected time that go to saving, and to work done again and restarts; all in seconds."""
    exponents = (restart / mtbf, (interval + save) / mtbf)
    if sum(exponents) > 700:  # e to that power is no float any more: such a run never ends
        return 0.0, 1.0
    # Seconds that an interval takes, with failures (Daly 2006); expm1 stays exact where they are rare.
    expected = mtbf * math.exp(exponents[0]) * math.expm1(exponents[1])
    return save / expected, 1 - (interval + save) / expected


def checkpoint_explorer() -> Explorer:
    """Move cost, failures, interval and restart, and see how much of a run is lost; every control works by keyboard."""
    controls = {
        "save_seconds": slider("save (s)", 30, [*powers(-2, 1.4, 0.1), 30, *powers(1.6, 3, 0.1)], "{:.3g}"),
        "mtbf_hours": slider("failure every (h)", 3.162, powers(-1, 3, 0.1), "{:.3g}"),
        "interval_minutes": slider("interval (min)", 20, [*powers(-0.7, 1.2, 0.1), 20, *powers(1.4, 3, 0.1)], "{:.3g}"),
        "restart_minutes": slider("restart (min)", 5, range(61)),
    }
    return explorer(draw_checkpoint_interval, controls)
