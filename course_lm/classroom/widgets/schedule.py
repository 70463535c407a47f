"""Schedules to play with: overlay them, move their numbers, copy the one you want."""

import inspect
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import explorer
from course_lm.schedules import SCHEDULES, ScheduleConfig, ScheduleType, build_schedule

_TYPES: list[ScheduleType] = [name for name in SCHEDULES if not name.endswith("_with_warmup")]  # those are the same
_POINTS = 400  # of a drawn curve, at most


def draw_schedules(
    types: Sequence[ScheduleType],
    *,
    total_steps: int = 1000,
    warmup_steps: int = 100,
    peak_lr: float = 3e-4,
    min_lr: float = 0.0,
    num_cycles: float = 0.5,
) -> tuple[Figure, str]:
    """The learning rate of each schedule against the steps, the area under it, and how to write it down.

    Args:
        types: names in `schedules.SCHEDULES`.
        total_steps, warmup_steps: optimizer steps; the warm-up is cut to the run.
        peak_lr, min_lr: learning rates; the minimum is cut to the peak.
        num_cycles: waves of the cosine.

    Returns:
        The figure, and for each schedule its area (the sum of the rates of all steps), the YAML that configures it
        and the line of Python that computes it.
    """
    numbers = {"warmup_steps": min(warmup_steps, total_steps), "min_lr": min(min_lr, peak_lr)}
    figure, axes = plt.subplots()
    lines, ends = [], []
    for kind, colour in zip(types, cycle(plots.PALETTE)):
        config = ScheduleConfig(type=kind, num_cycles=num_cycles, **numbers)
        schedule = build_schedule(config, peak_lr=peak_lr, total_steps=total_steps)
        # All steps, for the area; the curve shows at most `_POINTS` of them.
        rates = [schedule(step) for step in range(total_steps)]
        every = max(1, total_steps // _POINTS)
        axes.plot(range(0, total_steps, every), rates[::every], color=colour)
        ends.append((rates[-1], kind, colour))
        lines += _described(config, rates, peak_lr, total_steps)
    axes.set(
        xlabel="completed optimizer steps", ylabel="learning rate", xlim=(0, total_steps), ylim=(0, peak_lr * 1.05)
    )
    plots.label_ends(axes, ends)
    return figure, "\n".join(lines) or "choose a schedule"


def _described(config: ScheduleConfig, rates: list[float], peak_lr: float, total_steps: int) -> list[str]:
    function = SCHEDULES[config.type]
    read = [key for key in ("warmup_steps", "num_cycles", "min_lr") if key in inspect.signature(function).parameters]
    values = {key: getattr(config, key) for key in read}
    yaml = ", ".join(f"{key}: {value:g}" for key, value in values.items())
    python = ", ".join(f"{key}={value:g}" for key, value in values.items())
    return [
        f"{config.type}: area {sum(rates):.4g}, which is {sum(rates) / peak_lr:.0f} steps at the peak",
        f"  optimizer: {{learning_rate: {peak_lr:.3g}}}",
        f"  lr_scheduler: {{type: {config.type}, {yaml}}}",
        f"  schedules.{function.__name__}(step, peak_lr={peak_lr:.3g}, total_steps={total_steps}, {python})",
    ]


def schedule_explorer() -> ipywidgets.VBox:
    """Overlay schedules and move their warm-up, length, peak, minimum and cycles; every control works by keyboard."""
    wide = {"style": {"description_width": "8em"}, "layout": ipywidgets.Layout(width="30em")}
    chosen = {
        kind: ipywidgets.Checkbox(value=kind in ("linear", "cosine"), description=kind, indent=False) for kind in _TYPES
    }
    numbers = {
        "total_steps": ipywidgets.IntSlider(value=1000, min=50, max=5000, step=50, description="total steps", **wide),
        "warmup_steps": ipywidgets.IntSlider(value=100, min=0, max=1000, step=10, description="warm-up", **wide),
        "peak_lr": ipywidgets.FloatLogSlider(value=3e-4, min=-5, max=-1, step=0.1, description="peak", **wide),
        "min_lr": ipywidgets.FloatSlider(value=0.0, min=0.0, max=1.0, step=0.05, description="minimum / peak", **wide),
        "num_cycles": ipywidgets.FloatSlider(value=0.5, min=0.5, max=5.0, step=0.5, description="cycles", **wide),
    }

    def draw(*, peak_lr: float, min_lr: float, **values: Any) -> tuple[Figure, str]:
        chosen_types = [kind for kind in _TYPES if values.pop(kind)]
        return draw_schedules(chosen_types, peak_lr=peak_lr, min_lr=min_lr * peak_lr, **values)

    return explorer(draw, chosen | numbers)
