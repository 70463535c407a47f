"""Early stopping to play with: a stored run that over-fits, validated with more or less noise."""

import math

import numpy as np
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.atlas import load_atlas
from course_lm.classroom.widgets.explorer import Explorer, explorer, slider, steps
from course_lm.monitoring import EarlyStopping, smooth

RUN = "over-fitting"


def draw_early_stopping(
    *, patience: int = 3, min_delta: float = 0.0, smoothing: float = 0.0, noise: float = 0.1, seed: int = 1
) -> tuple[Figure, str]:
    """Where early stopping ends a run of the atlas that over-fits, and which weights it keeps.

    Args:
        patience, min_delta: see `EarlyStopping`; validations, and nats per token.
        smoothing: of the validation losses before they are judged, in [0, 1); 0 judges each as it was measured.
        noise: standard deviation in nats per token, as if each validation drew a short text anew.
        seed: of the stored run, from 1, and of the noise.

    Returns:
        The figure: measured losses as points, judged ones as a line, what is never seen in grey. And in words where
        training stops, what is kept, and what that costs beside the best weights of the whole run.
    """
    atlas = load_atlas()
    run = atlas.runs[RUN][seed - 1]
    steps, true = atlas.steps("val_loss", run), np.array(run["val_loss"])
    # Its own generator: the lesson's global random state stays as it is.
    measured = true + noise * np.random.default_rng(seed).normal(size=len(true))
    judged = smooth(measured.tolist(), smoothing)
    read, kept = _stop(judged, patience, min_delta)
    figure = Figure(figsize=(8, 3.9))
    axes = figure.subplots()
    axes.plot(steps, measured, "o", color=plots.BAND, markersize=5)
    axes.plot(steps[:read], measured[:read], "o", color=plots.RED, markersize=5)
    axes.plot(steps[:read], judged[:read], color=plots.RED)
    ends = [(steps[read - 1], "stop" if read < len(true) else "end", plots.INK, ":")]
    if kept is not None:
        ends.append((steps[kept], "kept", plots.BLUE, "-"))
    for place, (step, text, colour, line) in enumerate(ends):
        axes.axvline(step, color=colour, linestyle=line, linewidth=1.4)
        axes.text(step + 2, 5.35 - 0.3 * place, text, color=colour, weight="bold")
    axes.set(
        xlabel="optimizer steps", ylabel="validation loss (nats per token)", ylim=(2.2, 5.6), xlim=(0, steps[-1] + 4)
    )
    words = f"patience {patience}, min_delta {min_delta:.2f}, smoothing {smoothing:.2f}, noise {noise:.2f}, seed {seed}"
    return figure, f"{words}\n{_outcome(steps, true, read, kept)}"


def _stop(values: list[float], patience: int, min_delta: float) -> tuple[int, int | None]:
    """How many values are read, and the position of the one whose weights are kept."""
    stopper, kept = EarlyStopping(patience, min_delta), None
    for position, value in enumerate(values):
        kept = position if stopper.update(value) else kept
        if stopper.should_stop:
            return position + 1, kept
    return len(values), kept


def _outcome(steps: list[int], true: np.ndarray, read: int, kept: int | None) -> str:
    best = int(true.argmin())
    verb = "stops early" if read < len(true) else "runs to its end"
    loss = math.inf if kept is None else float(true[kept])
    saved = steps[-1] - steps[read - 1]
    return (
        f"the run {verb} at step {steps[read - 1]}, which saves {saved} of {steps[-1]} steps\n"
        f"kept: step {'none' if kept is None else steps[kept]}, true validation loss {loss:.3f}\n"
        f"best of the whole run: step {steps[best]}, {true[best]:.3f}; what is kept is {loss - true[best]:.3f} worse"
    )


def monitoring_explorer() -> Explorer:
    """Move patience, min_delta, smoothing and noise, and see where a run stops; every control works by keyboard."""
    controls = {
        "patience": slider("patience", 3, range(1, 11)),
        "min_delta": slider("min_delta", 0.0, steps(0.0, 0.5, 0.02)),
        "smoothing": slider("smoothing", 0.0, steps(0.0, 0.95, 0.05)),
        "noise": slider("noise", 0.1, steps(0.0, 0.5, 0.02)),
        "seed": slider("seed", 1, range(1, len(load_atlas().runs[RUN]) + 1)),
    }
    return explorer(draw_early_stopping, controls)
