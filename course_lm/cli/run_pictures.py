"""Several runs in one picture."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lm.classroom.live import SMOOTHING
from course_lm.monitoring import smooth
from course_lm.use.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float]]
# Okabe and Ito's colours but the pale yellow. Lengths without a common divisor: 7 * 5 * 4 runs look unlike, and two
# neighbours differ in all three.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v")
LINES = ("-", "--", "-.", ":")


def draw_runs(labels: Sequence[str], runs: Sequence[RunFolder], *, per_byte: bool) -> "Figure":
    """Validation (with markers) and smoothed training loss of runs, over steps and over seconds of training steps.

    With `per_byte` the validation alone, in bits per byte: a training record does not say how many bytes it is of.
    Colour, line and marker are each run's own.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, (label, run) in enumerate(zip(labels, runs)):
        color, marker, line = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
        for axes, curves in ((left, _over_steps(run, per_byte)), (right, _over_seconds(run, per_byte))):
            (steps, measured), (places, losses) = curves
            axes.plot(steps, measured, label=label, color=color, linestyle=line, marker=marker, markersize=5)
            if not per_byte:
                axes.plot(places, losses, color=color, linestyle=line, linewidth=1.0, alpha=0.55)
    left.set(xlabel="optimizer steps", ylabel="validation, bits per byte" if per_byte else "loss (nats per token)")
    right.set(xlabel="seconds of training steps")
    left.legend(frameon=False, title=None if per_byte else "with markers: validation; without: training, smoothed")
    return figure


def _over_steps(run: RunFolder, per_byte: bool) -> tuple[Curve, Curve]:
    """Validation and smoothed training loss by step."""
    validation, training = [record["step"] for record in run.validation], [record["step"] for record in run.train]
    return (validation, _measured(run, per_byte)), (training, _smoothed(run))


def _over_seconds(run: RunFolder, per_byte: bool) -> tuple[Curve, Curve]:
    """Validation and smoothed training loss by seconds."""
    validation = [run.seconds_at(record["step"]) for record in run.validation]
    return (validation, _measured(run, per_byte)), (run.seconds(), _smoothed(run))


def _measured(run: RunFolder, per_byte: bool) -> list[float]:
    return [record.get("bits_per_byte" if per_byte else "val_loss", math.nan) for record in run.validation]


def _smoothed(run: RunFolder) -> list[float]:
    return smooth([record["loss"] for record in run.train], SMOOTHING)
