"""The course's figures: one style, one way to show a figure with its alternative text, the loop's picture.

Colours are those of `course_lm.display`. Curves are named by a label at their end instead of a legend.
"""

import io
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle, pairwise
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import LogLocator

from course_lm.classroom.atlas import Atlas, load_atlas
from course_lm.classroom.comparison import changes_in_perplexity, interval
from course_lm.classroom.live import as_html
from course_lm.display import (
    BAND,
    BLUE,
    BLUE_BAND,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    RED_BAND,
    SKY,
)
from course_lm.monitoring import History
from course_lm.profiling import Machine, Part

LEGIBLE = 4.5  # the least contrast of words with their ground


def style() -> None:
    """Give every figure made from now on the course's look."""
    mpl.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": GREY,
            "axes.grid": True,
            "axes.labelsize": 13,
            "axes.prop_cycle": cycler(color=PALETTE),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 14,
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "figure.figsize": (8.0, 4.2),
            "font.size": 12,
            "grid.color": GRID,
            "legend.frameon": False,
            "lines.linewidth": 2.0,
            "savefig.facecolor": "white",
            "text.color": INK,
        }
    )
    # Where a font of mathematics is missing, another one serves; a line for each that is tried tells a reader nothing.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


def show(figure: Figure, alt: str) -> None:
    """Display `figure` as the cell's output, with `alt` as its alternative text, and close it.

    `alt` says what the picture shows to someone who cannot see it. Raises ValueError where it is empty, and
    ImportError outside an environment with IPython.
    """
    if not alt.strip():
        raise ValueError("a figure needs an alternative text that says what it shows, got an empty one")
    from IPython.display import display

    display({"text/html": as_html(png(figure), alt), "text/plain": alt}, raw=True)


def png(figure: Figure) -> bytes:
    """`figure`, with all that is drawn, as a PNG file; it is closed."""
    for words in figure.findobj(Text):  # in the colour of a curve they are often too pale on white
        colour = mpl.colors.to_hex(words.get_color())  # given as a list, it could not be looked up
        if colour != "#ffffff":  # those stand on a dark ground
            words.set_color(ink(colour))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    plt.close(figure)
    return picture.getvalue()


def loss_curve(
    steps: Sequence[int],
    losses: Sequence[float],
    *,
    validation: tuple[Sequence[int], Sequence[float]],
    floor: float,
    band: tuple[Sequence[int], Sequence[float], Sequence[float]],
) -> Figure:
    """The training loss (nats per token) after each of `steps` optimizer steps.

    `validation` are points of the same kind, (steps, losses). `floor` is what the distribution that made the
    validation text pays for it: on text that it was not trained on, no model goes lower, other than by chance. `band`
    is (steps, lowest, highest) of reference runs.
    """
    figure, axes = plt.subplots()
    axes.fill_between(*band, color=BAND, linewidth=0)
    axes.plot(steps, losses, color=BLUE, linewidth=1.6)
    axes.plot(*validation, color=RED, marker="o", markersize=6, linewidth=1.6)
    axes.axhline(floor, color=INK, linestyle=(0, (5, 3)), linewidth=1.6)
    # Room below the floor, or its line would lie on the axis.
    axes.set_ylim(bottom=min(floor, *losses) - 0.06 * (max(losses) - floor))
    axes.set(xlabel="optimizer steps", ylabel="loss (nats per token)")
    axes.margins(x=0.01)
    names = (("training", losses[-1], BLUE), ("validation", validation[1][-1], RED), (f"floor {floor:.2f}", floor, INK))
    label_ends(axes, [(float(end), name, colour) for name, end, colour in names])
    return figure


def compare_with_atlas(history: History) -> Figure:
    """A run's losses in black over those of the curve atlas, a panel for each kind of run with bands over its seeds.

    The bands are of lesson 00's model, text, vocabulary and rate; another run has other curves when it is healthy too.
    """
    atlas = load_atlas()
    figure, panels = plt.subplots(2, 4, figsize=(11, 5.6), sharex=True, sharey=True, layout="constrained")
    for axes, name in zip(panels.flat, atlas.runs):
        _atlas_panel(axes, atlas, name)
        for records, key, look in ((history.train, "loss", "-"), (history.validation, "val_loss", ".")):
            points = [record["step"] for record in records], [record[key] for record in records]
            axes.plot(*points, look, color=INK, linewidth=1.2, markersize=6, label=f"your {key}")
    figure.supxlabel("optimizer steps")
    figure.supylabel("loss (nats per token)")
    panels[0, -1].tick_params(labelbottom=True)  # the panel below it holds the legend
    panels.flat[-1].axis("off")
    panels.flat[-1].legend(*panels.flat[0].get_legend_handles_labels(), loc="center", fontsize=12)
    return figure


def _atlas_panel(axes: Axes, atlas: Atlas, name: str) -> None:
    top = 7.5  # just above what a model that knows nothing pays
    for curve, colour in (("loss", BLUE_BAND), ("val_loss", RED_BAND)):
        steps, lowest, highest = atlas.band(name, curve)
        axes.fill_between(
            steps, lowest, highest, color=colour, linewidth=2, label=f"{curve}, {len(atlas.runs[name])} seeds"
        )
        if lowest[-1] > top:
            axes.text(steps[-1], top - 0.4, f"{curve}: {lowest[-1]:.0f}", color=RED, ha="right", va="top")
    axes.axhline(atlas.floor, color=INK, linestyle=(0, (5, 3)), linewidth=1.2, label="floor")
    axes.set(ylim=(0, top), xlim=(0, steps[-1] + 4))
    axes.set_title(name, fontsize=13)


def shift_picture(words: Sequence[str]) -> Figure:
    """The tokens of a row as they are read and as labels, an arrow from each to the label that it is scored against."""
    last = len(words) - 1
    figure, axes = plt.subplots(figsize=(1.7 * len(words), 2.4))
    axes.set(xlim=(-0.9, last + 0.5), ylim=(-0.3, 1.3))
    axes.axis("off")
    for height, name, left_over in ((1, "read", last), (0, "labels", 0)):
        axes.text(-0.9, height, name, weight="bold", va="center")
        for t, word in enumerate(words):
            box = {"boxstyle": "round", "facecolor": "white" if t == left_over else _FILLS[0]}
            axes.text(t, height, word, ha="center", va="center", bbox=box)
    for t in range(last):
        axes.annotate("", (t + 0.85, 0.2), (t + 0.1, 0.82), arrowprops={"arrowstyle": "-|>"})
    return figure


def reported_and_held_out(runs: Mapping[str, tuple[Sequence[float], float]], window: int = 10) -> Figure:
    """The training loss that each run reports, the mean of `window` steps, and as a dot its loss on held-out text.

    `runs` maps a name to (losses of all steps, held-out loss at the end), in nats per token.
    """
    figure, axes = plt.subplots(figsize=(8.5, 3.8))
    ends = []
    for (name, (losses, held_out)), colour in zip(runs.items(), (BLUE, RED, ORANGE, GREEN)):
        means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
        axes.plot(range(window, len(losses) + 1), means, color=colour)
        axes.plot(len(losses), held_out, "o", color=colour, markersize=10, clip_on=False)
        ends.append((float(means[-1]), name, colour))
    axes.set(xlabel="optimizer steps", ylabel="loss (nats per token)")
    axes.text(0.97, 0.95, "lines: reported\ndots: held out", transform=axes.transAxes, ha="right", va="top")
    axes.margins(x=0.01)
    label_ends(axes, ends)
    return figure


def steps_over_time(runs: Mapping[str, Sequence[tuple[float, int]]], killed: tuple[float, int]) -> Figure:
    """The last step in the logs of two runs, over the seconds since the first one, and where a rank was killed.

    `killed` is a moment of the second run.
    """
    figure, axes = plt.subplots(figsize=(8.5, 3.4))
    began = 0.0
    for (name, seen), colour, side in zip(runs.items(), (BLUE, RED), ("left", "right")):
        began = min(seconds for seconds, step in seen if step > 0)
        ended = min(seconds for seconds, step in seen if step == seen[-1][1])
        moments = [(seconds - began, step) for seconds, step in seen if began <= seconds <= ended]
        axes.step(*zip(*moments), where="post", color=colour)
        axes.text(ended - began, seen[-1][1] + 0.5, name, color=colour, ha=side, va="bottom")
    axes.plot(killed[0] - began, killed[1], "x", color=INK, markersize=11, markeredgewidth=3)
    axes.text(killed[0] - began, killed[1] - 1.2, "  SIGKILL", va="top")
    axes.set(xlabel="seconds since the first step", ylabel="last step in the log")
    axes.margins(y=0.14)
    return figure


def step_seconds(arms: Mapping[str, Sequence[float]]) -> Figure:
    """Milliseconds of single steps in the order in which they were taken, arm after arm; the medians are dashed."""
    figure, axes = plt.subplots(figsize=(8.5, 3.4))
    first = 1
    for (name, seconds), colour in zip(arms.items(), PALETTE):
        numbers, height = range(first, first + len(seconds)), 1e3 * float(np.median(seconds))
        axes.plot(numbers, [1e3 * one for one in seconds], "o", color=colour, markersize=7)
        axes.hlines(height, numbers[0], numbers[-1], color=colour, linestyle="--", linewidth=1.4)
        axes.text(numbers[-1], 0.8 * height, f"{name}, median", color=colour, ha="right", va="top", weight="bold")
        first = numbers[-1] + 1
    axes.set(xlabel="step, in the order of measurement", ylabel="milliseconds", ylim=(0, None))
    return figure


def reported_speedups(ways: Mapping[str, Sequence[float]]) -> Figure:
    """What many benchmarks report, a row for each way of measuring: 90 % of the ratios as a bar, the median as a dot.

    The truth is 1.
    """
    figure, axes = plt.subplots(figsize=(8.5, 0.9 + 0.6 * len(ways)))
    for row, ratios in enumerate(ways.values()):
        low, middle, high = np.quantile(np.asarray(ratios), (0.05, 0.5, 0.95))
        axes.plot([low, high], [row, row], color=BLUE_BAND, linewidth=11, solid_capstyle="butt")
        axes.plot(middle, row, "o", color=BLUE, markersize=9)
        axes.text(high, row, f"  {middle:.2f}", color=BLUE, weight="bold", va="center")
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1.4)
    axes.set_yticks(range(len(ways)), list(ways))
    axes.set(xlabel="times as fast, as reported (90 % of the benchmarks)", ylim=(len(ways) - 0.5, -0.6))
    axes.margins(x=0.1)
    return figure


def roofline(
    machine: Machine, parts: Sequence[Part], memory: float | None = None, steps: Mapping[str, float] | None = None
) -> Figure:
    """FLOP/s of the parts of a step over their FLOPs per byte, below what the machine can do.

    Parts without matrix products have no place on it.

    Args:
        memory: bytes per second of copies too large for a cache, a second slope.
        steps: FLOP/s of whole steps, each a line.

    Source: Williams, Waterman & Patterson 2009, "Roofline: an insightful visual performance model".
    """
    figure, axes = plt.subplots(figsize=(8.5, 4.2))
    placed = [part for part in parts if part.flops and part.bytes and part.seconds]
    places = [part.flops / part.bytes for part in placed]
    bandwidth = machine.bytes_per_second
    kinks = [peak / bandwidth for peak in machine.flops_per_second.values()]
    x = np.geomspace(min(*places, *kinks) / 3, max(*places, *kinks) * 8, 200)
    scale, unit = (1e12, "T") if max(machine.flops_per_second.values()) > 1e13 else (1e9, "G")
    for name, peak in machine.flops_per_second.items():
        axes.plot(x, np.minimum(peak, bandwidth * x) / scale, color=INK)
        axes.text(x[-1], 1.08 * peak / scale, f"{name}: {peak / scale:,.0f} {unit}FLOP/s", ha="right", va="bottom")
        if memory is not None:
            axes.plot(x, np.minimum(peak, memory * x) / scale, color=INK, linestyle="--")
            label = f"{memory / scale:.3g} {unit}B/s, large copies"
            axes.text(1.6 * x[0], 1.2 * memory * x[0] / scale, label, va="top")
    for name, rate in (steps or {}).items():
        axes.axhline(rate / scale, color=GREY, linestyle=":")
        axes.text(x[-1], rate / scale, name, color=GREY, ha="right", va="bottom")
    for part, place, colour in zip(placed, places, PALETTE):
        axes.plot(place, part.flops / part.seconds / scale, "o", color=colour, markersize=9, label=part.name)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs for each byte moved", ylabel=f"{unit}FLOP/s")
    axes.text(1.3 * x[0], 1.2 * bandwidth * x[0] / scale, f"{bandwidth / scale:.3g} {unit}B/s", ha="left", va="top")
    _plain_numbers(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=11)
    return figure


def memory_by_owner(ways: Mapping[str, Mapping[str, int]], owners: Sequence[str]) -> Figure:
    """Bytes at the peak of a step, a stacked bar for each way of making it, `owners` from left to right."""
    colours = (BLUE, ORANGE, GREEN, SKY, PURPLE, GREY, BAND, RED)
    figure, axes = plt.subplots(figsize=(8.5, 1.2 + 0.5 * len(ways)))
    left = np.zeros(len(ways))
    for owner, colour in zip(owners, colours[: len(owners)], strict=True):
        widths = np.array([held.get(owner, 0) for held in ways.values()]) / 2**20
        axes.barh(range(len(ways)), widths, left=left, color=colour, label=owner)
        left += widths
    for row, width in enumerate(left):
        axes.text(width, row, f"  {width:.1f}", va="center")
    axes.set_yticks(range(len(ways)), list(ways))
    axes.set(xlabel="MiB at the peak of a step")
    axes.grid(False)
    axes.margins(x=0.1)
    axes.invert_yaxis()
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=11)
    return figure


def steps_and_rows(points: Mapping[int, tuple[float, float]], least: tuple[float, float]) -> Figure:
    """Steps and rows that reach one loss, a dot for each batch size, and the curve of McCandlish et al. 2018.

    Args:
        points: steps and rows by the batch size. least: fewest steps, fewest rows.
    """
    figure, axes = plt.subplots(figsize=(8.5, 4.0))
    fewest_steps, fewest_rows = least
    steps = fewest_steps * (1 + np.geomspace(0.02, 50, 200))
    axes.plot(steps, fewest_rows * (1 + 1 / (steps / fewest_steps - 1)), color=GREY)
    axes.plot(2 * fewest_steps, 2 * fewest_rows, "*", color=RED, markersize=18)
    look = {"color": RED, "weight": "bold", "ha": "right", "va": "top"}
    axes.text(1.85 * fewest_steps, 1.85 * fewest_rows, "critical batch", **look)
    for size, (taken, rows) in points.items():
        axes.plot(taken, rows, "o", color=BLUE, markersize=9)
        axes.text(1.06 * taken, rows, f"{size:,}", color=BLUE, weight="bold", va="bottom")
    taken, rows = zip(*points.values())
    axes.set(xscale="log", yscale="log", xlabel="optimizer steps to the loss", ylabel="rows to the loss")
    axes.set_xlim(min(*taken, fewest_steps) / 1.3, max(*taken, 2 * fewest_steps) * 1.6)
    axes.set_ylim(min(*rows, fewest_rows) / 1.3, max(*rows, 2 * fewest_rows) * 1.6)
    axes.text(0.98, 0.95, "numbers: rows of a batch", transform=axes.transAxes, ha="right", va="top")
    _plain_numbers(axes)
    return figure


def loss_over_flops(curves: Mapping[str, Mapping[float, Sequence[float]]]) -> Figure:
    """The validation loss (nats per token) over the FLOPs of a training, a curve for each model, a band over seeds.

    `curves` maps a model's name to its losses, one for each seed, by FLOPs.
    """
    figure, axes = plt.subplots(figsize=(8.5, 4.2))
    ends = []
    for (name, curve), colour in zip(curves.items(), PALETTE):
        budgets = sorted(curve)
        low, high = ([end(curve[budget]) for budget in budgets] for end in (min, max))
        middle = [float(np.mean(curve[budget])) for budget in budgets]
        axes.fill_between(budgets, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(budgets, middle, "o-", color=colour)
        ends.append((middle[-1], name, colour))
    axes.set(xscale="log", xlabel="FLOPs of the whole training", ylabel="validation loss (nats per token)")
    budgets = sorted({budget for curve in curves.values() for budget in curve})
    axes.set_xticks(budgets, [f"{budget:.1e}" for budget in budgets])
    axes.xaxis.set_minor_formatter("")
    label_ends(axes, ends)
    return figure


def paired_changes(texts: Mapping[str, Mapping[str, Sequence[float]]], against: Sequence[str]) -> Figure:
    """The change in perplexity of each kind of run with its 95 % interval, a panel for each text, numbers at its right.

    Args:
        texts: by text and kind, a loss (nats per token) for each seed.
        against: the kinds that the others are compared with, two at most; the first one has no row.
    """
    size = (1.5 + 4.2 * len(texts), 1.5 + 0.5 * max(map(len, texts.values())))
    figure, panels = plt.subplots(1, len(texts), figsize=size, sharex=True, squeeze=False, layout="constrained")
    colours = (GREY, BLUE)
    for axes, (text, losses) in zip(panels[0], texts.items()):
        kinds = [kind for kind in reversed(list(losses)) if kind != against[0]]
        for row, kind in enumerate(kinds):
            for other, colour, height in zip(against, colours, (row + 0.17, row - 0.17)):
                if kind != other:
                    mean, half = interval(changes_in_perplexity(losses[kind], losses[other]))
                    axes.errorbar(mean, height, xerr=half, fmt="o", color=colour)
                    words = f"{mean:+.1f} ± {half:.1f}".replace("-", "−")
                    axes.text(1.03, height, words, color=colour, va="center", transform=axes.get_yaxis_transform())
        axes.axvline(0, color=INK, linewidth=1.2)
        axes.set_yticks(range(len(kinds)), kinds)
        axes.set(title=text, xlabel="change in perplexity (%)")
    names = zip(("grey", "blue"), against)
    figure.suptitle("; ".join(f"{colour}: against {other}" for colour, other in names))
    return figure


def curves(
    named: Mapping[str, Any],
    *,
    levels: Mapping[str, float] | None = None,
    colours: Sequence[str] = PALETTE,
    **settings: Any,
) -> Figure:
    """A curve for each name, which stands at the curve's end.

    A curve is its heights over 0, 1, 2, …, or a tuple of places and heights. `levels` are dashed lines at a height of
    their own; `settings` are those of the axes. With more curves than `colours` these begin again.
    """
    figure, axes = plt.subplots(figsize=(8.5, 3.6))
    ends = []
    for (name, curve), colour in zip(named.items(), cycle(colours)):
        places, heights = curve if isinstance(curve, tuple) else (range(len(curve)), curve)
        axes.plot(places, heights, color=colour)
        ends.append((float(heights[-1]), name, colour))
    for name, height in (levels or {}).items():
        axes.axhline(height, color=INK, linestyle="--", linewidth=1.4)
        ends.append((height, name, INK))
    axes.margins(x=0.01)
    axes.set(**settings)
    label_ends(axes, ends)
    return figure


def reported_losses(named: Mapping[str, Sequence[float]], untrained: float) -> Figure:
    """The loss that each loop reports, step by step, and what an untrained model pays as a dashed line."""
    return curves(
        named,
        levels={f"untrained {untrained:.2f}": untrained},
        colours=(BLUE, RED, ORANGE, GREEN),
        xlabel="optimizer steps",
        ylabel="reported loss (nats per token)",
    )


def training_and_validation(named: Mapping[str, Mapping[str, Any]], atlas: Atlas) -> Figure:
    """Training losses of runs of the atlas on the left, validation losses with their names on the right."""
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
    for axes, curve, title in zip(panels, ("loss", "val_loss"), ("training", "validation")):
        ends = []
        for (name, run), colour in zip(named.items(), cycle((RED, BLUE))):
            axes.plot(atlas.steps(curve, run), run[curve], color=colour)
            ends.append((run[curve][-1], name, colour))
        axes.axhline(atlas.floor, color=INK, linestyle="--", linewidth=1.4)
        axes.set(title=title, xlabel="optimizer steps", ylim=(0, 7.2))
    panels[0].set_ylabel("loss (nats per token)")
    label_ends(panels[1], [*ends, (atlas.floor, "floor", INK)])
    return figure


def _plain_numbers(axes: Axes) -> None:
    """Numbers at the ticks of logarithmic axes without powers of ten, whose font is not everywhere."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter("")


def rank_tiles(ranks: Sequence[Mapping[str, Sequence[int]]]) -> Figure:
    """What each rank holds at several moments: a panel for each moment, a row for each rank, a tile for each number.

    `ranks` has one mapping for each rank, from the moment's name to numbers. A number of the first moment has the
    colour of its rank wherever it stands; a new one is white.
    """
    moments = list(ranks[0])
    colours = (SKY, ORANGE, GREEN, PURPLE, BLUE, RED)
    first = [[int(number) for number in rank[moments[0]]] for rank in ranks]
    origin = {number: colours[row % len(colours)] for row, numbers in enumerate(first) for number in numbers}
    width = max(len(rank[moment]) for rank in ranks for moment in moments)
    figure, panels = plt.subplots(1, len(moments), figsize=(10, 2.6), layout="constrained")
    for axes, moment in zip(panels, moments):
        for row, rank in enumerate(ranks):
            for column, number in enumerate(rank[moment]):
                colour = origin.get(int(number), "white")
                axes.add_patch(Rectangle((column, row), 0.94, 0.9, facecolor=colour, edgecolor=GREY, linewidth=1))
                axes.text(column + 0.47, row + 0.46, str(int(number)), ha="center", va="center", fontsize=13)
        axes.set(title=moment, xlim=(-0.1, width), ylim=(len(ranks), -0.1), aspect="equal")
        axes.axis("off")
    for row in range(len(ranks)):
        panels[0].text(-0.3, row + 0.46, f"rank {row}", ha="right", va="center")
    return figure


def round_up(value: float) -> float:
    """The next larger number of 1, 1.5, 2, 3, 4, 6 and 8 times a power of ten: an axis to there seldom moves."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 6, 8, 10) if step * power >= value * (1 - 1e-9))


@cache
def ink(colour: str) -> str:
    """A colour as dark as words in it must be on white: a contrast of 4.5, as WCAG 2 asks."""
    rgb = mpl.colors.to_rgb(colour)
    while contrast(rgb, "white") < LEGIBLE:
        rgb = (0.97 * rgb[0], 0.97 * rgb[1], 0.97 * rgb[2])
    return mpl.colors.to_hex(rgb)


def contrast(one: Any, other: Any) -> float:
    """The contrast of two colours of matplotlib's, 1 to 21: "Web Content Accessibility Guidelines 2"."""
    rgb = np.array([mpl.colors.to_rgb(colour) for colour in (one, other)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    dark, light = sorted(linear @ (0.2126, 0.7152, 0.0722))  # their luminances
    return float((light + 0.05) / (dark + 0.05))


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], gap: float = 0.07) -> None:
    """Write labels right of the axes at the heights where curves end; `ends` holds (height, text, colour).

    Labels that would overlap are moved apart to `gap`, a fraction of the axes' height.
    """
    if not ends:
        return
    axes.autoscale_view()  # transData is stale until the limits are settled
    on_screen = axes.transData.transform([(0.0, height) for height, _, _ in ends])
    in_axes = axes.transAxes.inverted().transform(on_screen)[:, 1]
    for (_, text, colour), height in zip(ends, spread(list(in_axes), gap), strict=True):
        axes.text(1.015, height, text, transform=axes.transAxes, color=colour, va="center", weight="bold")


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """`heights` moved up just as far as needed so that no two are closer than `gap`; their order is kept."""
    moved = list(heights)
    order = sorted(range(len(moved)), key=moved.__getitem__)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


# Each part of the loop: its place in the picture (column, row), what it does, and the lesson that replaces it.
_PARTS = {
    "next window": (0, 0, "the micro-batches\nof one step", "02_batching.ipynb"),
    "forward": (1, 0, "tokens to logits", "07_mixed_precision.ipynb"),
    "loss": (2, 0, "nats per\ntarget token", "03_loss.ipynb"),
    "backward": (3, 0, "a gradient for\neach weight", "08_accumulation.ipynb"),
    "unscale": (3, 1, "undo the scaling\nthat fp16 needs", "07_mixed_precision.ipynb"),
    "clip": (2, 1, "bound the norm of\nthe gradient", "09_clipping.ipynb"),
    "schedule": (0, 1, "this step's\nlearning rate", "05_schedules.ipynb"),
    "step": (1, 1, "the optimizer\nmoves the weights", "04_optimizers.ipynb"),
    "log": (0, 2, "write down\nwhat happened", "10_monitoring.ipynb"),
    "checkpoint": (1, 2, "save all that\na resume needs", "11_checkpoints.ipynb"),
    "validate": (2, 2, "the loss on\nunseen text", "10_monitoring.ipynb"),
    "stop": (3, 2, "at the end, or when\nnothing improves", "10_monitoring.ipynb"),
}
LOOP_PARTS = tuple(_PARTS)
LOOP_LESSONS = {part: lesson for part, (*_, lesson) in _PARTS.items()}
_FILLS, _EDGES = ("#E3F0F8", "#FDF1DA", "#E0F3EC"), (BLUE, "#B87A00", GREEN)
_WIDTH, _HEIGHT, _COLUMN, _ROW = 2.3, 1.3, 3.0, 2.35
# Along each row of names an arrow leads from one to the next.
_ARROWS = (
    ("next window", "forward", "loss", "backward", "unscale", "clip", "step"),
    ("schedule", "step"),
    ("log", "checkpoint", "validate", "stop"),
)


def loop_picture(links: Mapping[str, str]) -> Figure:
    """The training loop as a picture: one box for each of `LOOP_PARTS`, in the order in which they run.

    `links` maps each part to the lesson that replaces it, by its file name ("09_clipping.ipynb"): its number and
    name stand in the box. Saved as SVG, the box links to the file.
    """
    figure, axes = plt.subplots(figsize=(11.2, 6.8))
    axes.set(xlim=(-0.95, 12.25), ylim=(-6.35, 1.35), aspect="equal")
    axes.axis("off")
    _frame(axes, 1, 0, 3, "for each micro-batch of the window")
    _frame(axes, 0, 1, 3, "once per step")
    _frame(axes, 0, 2, 3, "after each step, in this order")
    for part in LOOP_PARTS:
        _box(axes, part, links[part])
    for start, end in (pair for parts in _ARROWS for pair in pairwise(parts)):
        _arrow(axes, *_between(start, end))
    left, bottom = _corner("schedule")
    _arrow(axes, (left - 0.7, bottom + _HEIGHT / 2), (left, bottom + _HEIGHT / 2))
    axes.text(left - 0.85, bottom + _HEIGHT / 2, "k", ha="center", va="center", size=14, weight="bold")
    left, bottom = _corner("step")
    _arrow(axes, (left + _WIDTH / 2, bottom), (left + _WIDTH / 2, 0.22 - 2 * _ROW))
    _return_arrow(axes)
    return figure


def _corner(part: str) -> tuple[float, float]:
    column, row, *_ = _PARTS[part]
    return column * _COLUMN, -row * _ROW - _HEIGHT


def _box(axes: Axes, part: str, link: str) -> None:
    (x, y), (_, row, purpose, _) = _corner(part), _PARTS[part]
    box = FancyBboxPatch((x, y), _WIDTH, _HEIGHT, "round,pad=0,rounding_size=0.14", linewidth=1.5)
    box.set(facecolor=_FILLS[row], edgecolor=_EDGES[row], url=link)
    axes.add_patch(box)
    middle = x + _WIDTH / 2
    axes.text(middle, y + 1.06, part, ha="center", va="center", size=14, weight="bold")
    axes.text(middle, y + 0.63, purpose, ha="center", va="center", size=10, linespacing=1.1)
    lesson = link.removesuffix(".ipynb").replace("_", " ")
    label = axes.text(middle, y + 0.19, lesson, ha="center", va="center", size=10)
    label.set(color=BLUE, weight="bold", url=link)


def _frame(axes: Axes, first: int, row: int, last: int, label: str) -> None:
    x, y, pad = first * _COLUMN - 0.22, -row * _ROW - _HEIGHT - 0.22, 0.44
    width = (last - first) * _COLUMN + _WIDTH + pad
    shape = "round,pad=0,rounding_size=0.2"
    style = {"facecolor": "none", "edgecolor": _EDGES[row], "linestyle": (0, (4, 3)), "linewidth": 1.2}
    axes.add_patch(FancyBboxPatch((x, y), width, _HEIGHT + pad, shape, **style))
    axes.text(x + 0.1, y + _HEIGHT + pad + 0.09, label, color=_EDGES[row], size=11, style="italic")


def _between(start: str, end: str) -> tuple[tuple[float, float], tuple[float, float]]:
    (x0, y0), (x1, y1) = _corner(start), _corner(end)
    # Boxes of one column are joined from top to bottom, all others from side to side.
    if x0 == x1:
        return (x0 + _WIDTH / 2, y0), (x1 + _WIDTH / 2, y1 + _HEIGHT)
    forwards = x1 > x0
    middle = y0 + _HEIGHT / 2
    return (x0 + _WIDTH * forwards, middle), (x1 + _WIDTH * (not forwards), middle)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=16, shrinkA=2, shrinkB=2)
    arrow.set(color=INK, linewidth=1.6)
    axes.add_patch(arrow)


def _return_arrow(axes: Axes) -> None:
    (stop_x, stop_y), (window_x, window_y) = _corner("stop"), _corner("next window")
    right, top, entry = stop_x + _WIDTH + 0.6, 0.95, window_x + _WIDTH / 2
    xs = [stop_x + _WIDTH, right, right, entry]
    ys = [stop_y + _HEIGHT / 2, stop_y + _HEIGHT / 2, top, top]
    axes.plot(xs, ys, color=INK, lw=1.6, solid_joinstyle="round")
    _arrow(axes, (entry, top), (entry, window_y + _HEIGHT))
    axes.text((entry + right) / 2, top + 0.08, "not stopped: the next step", ha="center", size=11)
