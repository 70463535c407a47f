"""Runs in one picture, from what their folders hold."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lm.classroom.live import SMOOTHING, draw_run
from course_lm.display import INK, PALETTE
from course_lm.monitoring import History, smooth
from course_lm.use.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Lengths without a common divisor: 7 * 5 * 4 runs look unlike, and two neighbours differ in all three.
COLOURS = (*PALETTE, INK)
MARKERS = ("o", "s", "^", "D", "v")
LINES = ("-", "--", "-.", ":")


def draw_runs(labels: Sequence[str], runs: Sequence[RunFolder], *, per_byte: bool) -> "Figure":
    """Validation (with markers) and smoothed training loss of runs, over steps and over seconds of training steps.

    With `per_byte` the validation alone, in bits per byte: a training record does not say how many bytes it is of.
    Colour, line and marker are each run's own. Of one run alone, loss, gradient norm and learning rate over steps. The
    pictures name their runs by `labels`.
    """
    from matplotlib.figure import Figure

    if len(runs) == 1:  # an older or foreign log may lack what its picture shows
        figure = draw_run(History({"grad_norm": math.nan, "lr": math.nan, **record} for record in runs[0].records))
        figure.axes[0].set_title(labels[0], parse_math=False)
        return figure
    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, run in enumerate(runs):
        color, marker, line = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
        measured = [record.get("bits_per_byte" if per_byte else "val_loss", math.nan) for record in run.validation]
        losses = smooth([record["loss"] for record in run.train], SMOOTHING)
        validated = [record["step"] for record in run.validation]
        seconds = [run.seconds_at(step) for step in validated]
        logged = [record["step"] for record in run.train]
        for axes, at, trained_at in ((left, validated, logged), (right, seconds, run.seconds())):
            axes.plot(at, measured, color=color, linestyle=line, marker=marker, markersize=5)
            if not per_byte:
                axes.plot(trained_at, losses, color=color, linestyle=line, linewidth=1.0, alpha=0.55)
    left.set(xlabel="optimizer steps", ylabel="validation, bits per byte" if per_byte else "loss (nats per token)")
    right.set(xlabel="seconds of training steps")
    title = None if per_byte else "with markers: validation; without: training, smoothed"
    # handed over, since a label that begins with "_" is not looked up; and a name with two "$" is no formula
    for text in left.legend(left.lines[:: 1 if per_byte else 2], labels, frameon=False, title=title).get_texts():
        text.set_parse_math(False)
    return figure
