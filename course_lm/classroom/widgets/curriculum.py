"""Pacing to play with: how a threshold on difficulty rises, and what it admits of real sentences."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, buttons, explorer, slider, steps
from course_lm.corpus import load_corpus
from course_lm.curriculum import CurriculumConfig, CurriculumTrainingManager, build_pacing
from course_lm.display import CHOSEN

PacingSchedule = Literal["linear", "root", "exponential", "step"]
ThresholdOn = Literal["score", "quantile"]

EXAMPLES = 400
BATCH_SIZE = 16
_SHOWN = ("schedule", "start_threshold", "warmup_epochs", "num_epochs", "threshold_on")
_BINS = np.linspace(0, 1, 17)  # powers of two, so that ranks fall evenly


def sentence_difficulty() -> dict[ThresholdOn, Tensor]:
    """What thresholds are held against, for the first sentences of the corpus `hindi`: "score" and "quantile", (N,)."""
    examples = load_corpus("hindi").documents[:EXAMPLES]
    return {
        on: CurriculumTrainingManager("combined", "linear", {"threshold_on": on}).difficulty(examples)
        for on in get_args(ThresholdOn)
    }


def draw_pacing(
    difficulty: Mapping[ThresholdOn, Tensor],
    *,
    schedule: PacingSchedule = "linear",
    start_threshold: float = 0.2,
    warmup_epochs: int = 2,
    num_epochs: int = 10,
    threshold_on: ThresholdOn = "score",
    batch_size: int = BATCH_SIZE,
) -> tuple[Figure, str]:
    """The threshold of each epoch, the difficulties that it is held against, and the share of examples it admits.

    Args:
        difficulty: of the examples, for each kind of threshold: see `CurriculumTrainingManager.difficulty`.
        schedule, start_threshold, warmup_epochs, num_epochs, threshold_on: see `CurriculumConfig`. Epochs 0 to
            `num_epochs` are shown: the last one is the first that has to admit everything.
        batch_size: so many examples are admitted at least.

    Returns:
        The figure; and in words the configuration, what the first, the middle and the last epoch admit, and how many
        examples all epochs read, beside a run without a curriculum.
    """
    config = CurriculumConfig(
        schedule=schedule,
        start_threshold=start_threshold,
        warmup_epochs=warmup_epochs,
        num_epochs=num_epochs,
        threshold_on=threshold_on,
    )
    pacing, held = build_pacing(config), difficulty[threshold_on]
    thresholds = [min(pacing(epoch), 1.0) for epoch in range(num_epochs + 1)]
    # As `prepare_epoch` admits them.
    admitted = [min(len(held), max(batch_size, int((held <= threshold).sum()))) for threshold in thresholds]
    shares = [100 * count / len(held) for count in admitted]
    figure = _picture(held, thresholds, shares, warmup_epochs, f"{schedule}, on {threshold_on}")
    keys = ", ".join(f"{key}: {getattr(config, key)}" for key in _SHOWN)
    return figure, f"curriculum: {{enabled: true, {keys}}}\n{_admission(thresholds, admitted, held)}"


def pacing_explorer() -> Explorer:
    """Change how a threshold rises, and see what it admits of 400 sentences; every control works by keyboard."""
    controls = {
        "schedule": buttons("schedule", get_args(PacingSchedule)),
        "threshold_on": buttons("threshold on", get_args(ThresholdOn)),
        "start_threshold": slider("start threshold", 0.2, steps(0.05, 0.8, 0.05)),
        "warmup_epochs": slider("warm-up epochs", 2, range(7)),
        "num_epochs": slider("epochs until all", 10, range(8, 25)),
    }
    return explorer(partial(draw_pacing, sentence_difficulty()), controls)


def _picture(
    held: Tensor, thresholds: Sequence[float], shares: Sequence[float], warmup_epochs: int, title: str
) -> Figure:
    figure = Figure(figsize=(8.8, 3.4))
    rising, admitting = figure.subplots(1, 2, width_ratios=(1.3, 1), gridspec_kw={"wspace": 0.22})
    number = len(thresholds)
    edges = np.arange(number + 1) - 0.5
    if warmup_epochs:
        rising.axvspan(-0.5, warmup_epochs - 0.5, color=CHOSEN)
        rising.text(-0.4, 1.06, "warm-up", va="center")
    rising.stairs(thresholds, edges, baseline=None, color=plots.BLUE, linewidth=2)
    counts = np.diff([int((held <= edge).sum()) for edge in _BINS[1:]], prepend=0)
    first = 1.02 * number
    widths = 0.28 * number * counts / counts.max()
    rising.stairs(first + widths, _BINS, baseline=first, orientation="horizontal", fill=True, color=plots.SKY)
    rising.text(first, 1.06, "examples", va="center")
    rising.set(title=title, ylabel="threshold", ylim=(0, 1.12), xlim=(-0.5, 1.32 * number))
    admitting.bar(range(number), shares, color=plots.GREEN)
    admitting.axhline(100, color=plots.INK, linestyle=(0, (5, 3)), linewidth=1.4)
    admitting.text(-0.4, 106, "no curriculum", va="center")
    admitting.set(ylabel="admitted (%)", ylim=(0, 112), xlim=(-0.5, number - 0.5))
    for axes in (rising, admitting):
        axes.set(xlabel="epoch", xticks=range(0, number, 3 if number < 14 else 6))
    return figure


def _admission(thresholds: Sequence[float], admitted: Sequence[int], held: Tensor) -> str:
    number, last = len(held), len(thresholds) - 1
    lines = []
    for epoch in (0, last // 2, last):
        below = int((held <= thresholds[epoch]).sum())
        filled = f", {below} of them by the threshold: a batch is the least" if below < admitted[epoch] else ""
        share = f"{admitted[epoch]:3} of {number} examples ({admitted[epoch] / number:.0%})"
        lines.append(f"epoch {epoch:2}: threshold {thresholds[epoch]:.2f} admits {share}{filled}")
    lines.append(f"all {number} examples are admitted from epoch {admitted.index(number)} on")
    read, without = sum(admitted), number * len(admitted)
    lines.append(f"epochs 0 to {last} read {read:,} examples: {read / without:.0%} of the {without:,} of no curriculum")
    return "\n".join(lines)
