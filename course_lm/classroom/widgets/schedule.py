"""Schedules to play with: three beside each other, each with numbers of its own, and the YAML of each to copy.

A curve is drawn from its YAML: the text that stands below the picture is read back as a run's configuration, and what
that configuration builds is what the picture shows.
"""

import functools
import html
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import ipywidgets
import yaml
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.panel import Explorer
from course_lm.config import TrainingConfig
from course_lm.schedules import SCHEDULES, ScheduleConfig, build_schedule
from course_lm.yaml_tree import load_yaml

Schedule = Callable[[int], float]
Settings = Mapping[str, Any]

# The defaults of nanoGPT's train.py: GPT-2 small, 600,000 steps.
NANOGPT: Settings = {
    "type": "cosine",
    "total_steps": 600_000,
    "warmup_steps": 2_000,
    "peak_lr": 6e-4,
    "min_lr": 6e-5,
}

_TYPES = [name for name in SCHEDULES if not name.endswith("_with_warmup")]  # those are the same
_NONE = "none"
_FIRST_TYPES = {"A": "cosine", "B": "warmup_stable_decay", "C": _NONE}  # of the explorer's curves
_DROPS = {"drop_1": 200_000, "drop_2": 400_000, "drop_3": 500_000}  # the controls that stand for `milestones`
_BLOCKS = 1_000  # of steps: the two ends of each are drawn
_COPY = "navigator.clipboard.writeText(this.dataset.text).then(() => { this.textContent = 'copied' })"


class _Curve(NamedTuple):
    """A schedule, the steps at which it is drawn, and its rates there."""

    schedule: Schedule
    steps: list[int]
    rates: list[float]


def draw_schedules(curves: Mapping[str, Settings] | None = None) -> tuple[Figure, str]:
    """The learning rate of each curve against the steps, the area under it, and the YAML that gives it.

    Args:
        curves: by name, the settings of each: "type", "total_steps", "peak_lr", and any others of `ScheduleConfig`.
            By default those with which the explorer begins.

    Returns:
        The figure; and in words, for each curve, its area (the sum of the rates of all steps) and its YAML, or why the
        package refuses it.
    """
    if curves is None:
        curves = {name: {**NANOGPT, "type": kind} for name, kind in _FIRST_TYPES.items() if kind != _NONE}
    figure = Figure()
    axes = figure.subplots()
    words, ends = [], []
    longest, highest = 1, 0.0
    for (name, settings), colour in zip(curves.items(), cycle(plots.PALETTE)):
        title, total_steps = f"{name} {settings['type']}", int(settings["total_steps"])
        try:
            text = schedule_yaml(settings)
            schedule, steps, rates = _configured(text)
        except ValueError as error:
            words.append(f"# {title} is refused: {error}")
            continue
        axes.plot(steps, rates, color=colour)
        ends.append((rates[-1], title, colour))
        longest, highest = max(longest, total_steps), max(highest, *rates)
        words += [f"# {title}: {_described(steps, rates)}", *text.splitlines(), *_python(schedule)]
    axes.set(xlabel="completed optimizer steps", ylabel="learning rate", xlim=(0, plots.round_up(longest)))
    axes.set_ylim(0, plots.round_up(highest * 1.05) if highest else 1.0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    plots.label_ends(axes, ends)
    return figure, "\n".join(words) or "choose a schedule"


def schedule_yaml(settings: Settings) -> str:
    """The lines of a run's configuration that give this schedule: its peak, its length, the numbers that it reads."""
    read = {"warmup_ratio", *_parameters(settings["type"])}
    given = [part.name for part in fields(ScheduleConfig) if part.name in read and settings.get(part.name) is not None]
    tree = {
        "optimizer": {"learning_rate": settings["peak_lr"]},
        "lr_scheduler": {"type": settings["type"]} | {key: settings[key] for key in given},
        "training": {"max_steps": settings["total_steps"]},
    }
    return yaml.safe_dump(tree, default_flow_style=None, sort_keys=False)


def schedule_explorer() -> Explorer:
    """Three schedules with numbers of their own, at first nanoGPT's; every control works by keyboard."""
    curves = {name: _controls(name, kind) for name, kind in _FIRST_TYPES.items()}

    def draw(**_: Any) -> tuple[Figure, str]:
        chosen = {name: _settings(controls) for name, controls in curves.items()}
        return draw_schedules({name: curve for name, curve in chosen.items() if curve["type"] != _NONE})

    flat = {f"{name} {key}": control for name, controls in curves.items() for key, control in controls.items()}
    column = ipywidgets.VBox([_arranged(controls) for controls in curves.values()])
    return Explorer(draw, flat, None, column)


@functools.lru_cache(maxsize=16)  # a control changes one curve of three
def _configured(text: str) -> _Curve:
    config = TrainingConfig().updated(load_yaml(text), "the configuration")
    rate, steps = config.optimizer.learning_rate, config.training.max_steps
    assert steps is not None
    schedule = build_schedule(config.lr_scheduler, peak_lr=rate, total_steps=steps)
    block = math.ceil(steps / _BLOCKS)
    drawn = sorted({*range(0, steps, block), *range(block - 1, steps, block), steps - 1})
    return _Curve(schedule, drawn, [schedule(step) for step in drawn])


def _python(schedule: Schedule) -> list[str]:
    """The call that computes the same rates, as a comment of the YAML."""
    call = f"# in Python: {_call(schedule)}"
    return textwrap.wrap(call, width=92, subsequent_indent="#   ", break_long_words=False)


def _call(schedule: Schedule) -> str:
    assert isinstance(schedule, functools.partial)
    numbers = ", ".join(f"{key}={value!r}" for key, value in schedule.keywords.items())
    return f"schedules.{schedule.func.__name__}(step, {numbers})"


def _described(steps: Sequence[int], rates: Sequence[float]) -> str:
    """The area, in rates and in steps at the highest one. Between two sampled steps the rate is taken to be a line."""
    points = zip(steps, rates, strict=True)
    between = sum((end - start) * (rate + next_rate) / 2 for (start, rate), (end, next_rate) in pairwise(points))
    area, highest = between + (rates[0] + rates[-1]) / 2, max(rates)
    at_peak = f", as much as {area / highest:,.0f} steps at {highest:.4g}" if highest else ""
    return f"area {area:.4g}{at_peak}; last rate {rates[-1]:.4g}"


def _parameters(kind: str) -> list[str]:
    """The names of the numbers that a type reads."""
    return [*inspect.signature(SCHEDULES[kind]).parameters] if kind in SCHEDULES else []


def _controls(name: str, kind: str) -> dict[str, Any]:
    """The controls of one curve, by the settings that they give."""
    wide = {"style": {"description_width": "7em"}, "layout": ipywidgets.Layout(width="auto")}

    def number(what: str, value: float) -> Any:
        whole = isinstance(value, int)
        kind = ipywidgets.BoundedIntText if whole else ipywidgets.BoundedFloatText
        most = 10**9 if whole else 1e3
        return _stepped(kind(value=value, min=0, max=most, description=f"{name} {what}", **wide))

    return {
        # The longest name has room in a narrow window too.
        "type": ipywidgets.Dropdown(
            options=[_NONE, *_TYPES],
            value=kind,
            description=f"{name} type",
            layout=wide["layout"],
            style={"description_width": "initial"},
        ),
        "total_steps": number("steps", NANOGPT["total_steps"]),
        "warmup_steps": number("warm-up", NANOGPT["warmup_steps"]),
        "peak_lr": number("peak", NANOGPT["peak_lr"]),
        "min_lr": number("minimum", NANOGPT["min_lr"]),
        "num_cycles": number("cycles", 0.5),
        "decay_ratio": number("decay ratio", 0.1),
        "timescale": number("timescale", NANOGPT["warmup_steps"]),
        "gamma": number("gamma", 0.4),
        **{key: number(key.replace("_", " "), value) for key, value in _DROPS.items()},
    }


def _stepped(control: Any) -> Any:
    """Let the arrow keys change the first digit of a number, or the second where the first is 1."""

    def fit(_: object = None) -> None:
        if control.value > 0:
            digit = math.floor(math.log10(control.value / 2))
            control.step = 10 ** max(0, digit) if isinstance(control.value, int) else float(f"1e{digit}")

    control.observe(fit, names="value")
    fit()
    return control


def _arranged(controls: Mapping[str, Any]) -> ipywidgets.VBox:
    """The controls that the chosen type reads, and below them buttons that copy what gives the curve."""
    column, copies = ipywidgets.VBox(layout=ipywidgets.Layout(margin="0 0 0.8em 0")), ipywidgets.HTML()

    def arrange(_: object = None) -> None:
        kind = controls["type"].value
        read = {"type", *_parameters(kind)}
        read |= set(_DROPS) if "milestones" in read else set()
        shown = [control for key, control in controls.items() if key in read]
        column.children = [*shown, copies] if kind in SCHEDULES else shown

    def renew(_: object = None) -> None:
        copies.value = _copy_buttons(_settings(controls))

    controls["type"].observe(arrange, names="value")
    for control in controls.values():
        control.observe(renew, names="value")
    arrange()
    renew()
    return column


def _copy_buttons(settings: Settings) -> str:
    """A button for the lines of the configuration, and one for the call in Python; none for settings that are refused.

    In HTML, since the clipboard is the browser's: a kernel may run on another machine.
    """
    if settings["type"] not in SCHEDULES:
        return ""
    text = schedule_yaml(settings)
    try:
        parts = {"copy YAML": text, "copy Python": _call(_configured(text).schedule)}
    except ValueError:
        return ""
    look = f"class='jupyter-button' onclick=\"{_COPY}\""
    return " ".join(f"<button {look} data-text='{html.escape(text)}'>{name}</button>" for name, text in parts.items())


def _settings(controls: Mapping[str, Any]) -> Settings:
    """The settings of a curve, from its controls; a drop at 0 is none."""
    values = {key: control.value for key, control in controls.items()}
    drops = sorted({values.pop(key) for key in _DROPS} - {0})
    return {**values, "milestones": drops or None}
