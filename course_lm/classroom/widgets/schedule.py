"""Schedules to play with: four beside each other, dragged or typed, and what gives each of them to copy.

A curve is drawn from its YAML: the text that stands below the picture is read back as a run's configuration, and what
that configuration builds is what the picture shows.
"""

import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Control, Explorer, buttons, number, pick
from course_lm.config import TrainingConfig
from course_lm.guard import check_schedule
from course_lm.optim import checked_rate
from course_lm.run_records import METRICS
from course_lm.schedules import SCHEDULES, ScheduleConfig, build_schedule
from course_lm.use.run_folder import read_records
from course_lm.validation import ensure
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
_FIRST_TYPES = {"A": "cosine", "B": "warmup_stable_decay", "C": _NONE, "D": _NONE}  # of the explorer's curves
_DROPS = {"drop_1": 200_000, "drop_2": 400_000, "drop_3": 500_000}  # the controls that stand for `milestones`
_BLOCKS = 1_000  # of steps: the two ends of each are drawn


class _Curve(NamedTuple):
    """A schedule, the steps at which it is drawn, and its rates there."""

    schedule: Schedule
    steps: list[int]
    rates: list[float]


def draw_schedules(
    curves: Mapping[str, Settings] | None = None, own: Mapping[str, Schedule] | None = None, *, log: bool = False
) -> tuple[Figure, str]:
    """The learning rate of each curve against the steps, the area under it, and the YAML that gives it.

    Args:
        curves: by name, the settings of each: "type", "total_steps", "peak_lr", and any others of `ScheduleConfig`.
            By default those with which the explorer begins.
        own: functions from the completed steps to the rate; their names are types too, which need "total_steps" alone.
        log: draw the rates on a logarithmic axis, where a rate of 0 is not seen.

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
            (_, steps, rates), lines = _scheduled(settings, own or {})
        except Exception as error:  # a learner's function may raise anything, and a callback would swallow it
            words.append(f"# {title} is refused: {error}")
            continue
        axes.plot(steps, rates, color=colour, label=name)
        ends.append((rates[-1], title, colour))
        longest, highest = max(longest, total_steps), max(highest, *rates)
        words += [f"# {title}: {_described(steps, rates)}", *lines]
    axes.set(xlabel="completed optimizer steps", ylabel="learning rate", xlim=(0, plots.round_up(longest)))
    top = plots.round_up(highest * 1.05) if highest else 1.0
    axes.set(yscale="log" if log else "linear", ylim=(top / 1000 if log else 0, top))
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


class ScheduleExplorer(Explorer):
    """Four schedules with numbers of their own, whose curves can be dragged: see `schedule_explorer`."""

    def __init__(self, own: Mapping[str, Schedule | str | Path]) -> None:
        first = _FIRST_TYPES | {"C": next(iter(own), _NONE)}
        self._own: dict[str, Schedule] = {}
        steps = {}
        for name, each in own.items():
            self._own[name], steps[name] = (each, NANOGPT["total_steps"]) if callable(each) else run_rates(each)
        self._columns = {name: _controls(name, kind, [_NONE, *_TYPES, *own]) for name, kind in first.items()}
        flat = {f"{name} {key}": control for name, column in self._columns.items() for key, control in column.items()}
        super().__init__(self._drawn, {**flat, "scale": buttons("learning rate", ["linear", "log"])})
        self.values["C total_steps"] = steps.get(first["C"], NANOGPT["total_steps"])

    def curves(self) -> dict[str, dict[str, Any]]:
        """The settings of each curve that is drawn, by its name; a drop at 0 is none."""
        chosen: dict[str, dict[str, Any]] = {}
        for name, column in self._columns.items():
            values = {key: self.values[f"{name} {key}"] for key in column}
            drops = sorted({values.pop(key) for key in _DROPS} - {0})
            if values["type"] != _NONE:
                chosen[name] = {**values, "milestones": drops or None}
        return chosen

    def view(self, **values: Any) -> dict[str, Any]:
        """As of any explorer; and the controls that no curve reads, the texts to copy, the handles to drag."""
        self.values |= values
        curves = self.curves()
        coloured = zip(curves.items(), cycle(plots.PALETTE))  # as `draw_schedules` colours them
        more: dict[str, Any] = {
            "hidden": self._unread(),
            "handles": [one for (name, curve), colour in coloured for one in _handles(name, curve, colour)],
            "copies": {f"{name} as {way}": text for name, one in curves.items() for way, text in _copies(one).items()},
        }
        return super().view() | more

    def moved(self, handle: str, x: float, y: float) -> None:
        """Drag "A peak", "A end" or "A decay" to a step and a learning rate, as far as the package accepts it."""
        name, _, part = handle.partition(" ")
        curve, step, rate = self.curves()[name], max(0, round(x)), max(0.0, float(f"{y:.3g}"))
        if part == "peak":
            warmup = min(step, curve["total_steps"])
            changes = {"peak_lr": max(rate, curve["min_lr"], 1e-9), "warmup_steps": warmup}
        elif part == "end":
            changes = {"total_steps": max(step, curve["warmup_steps"], 1), "min_lr": min(rate, curve["peak_lr"])}
        else:
            changes = {"decay_ratio": round(min(1.0, max(0.0, 1 - step / curve["total_steps"])), 3)}
        self.values |= {f"{name} {key}": value for key, value in changes.items()}

    def _unread(self) -> list[str]:
        """The names of the controls that the chosen types do not read."""
        unread = []
        for name, column in self._columns.items():
            kind = self.values[f"{name} type"]
            read = {"type", *_parameters(kind), *(["total_steps"] if kind in self._own else [])}
            read |= set(_DROPS) if "milestones" in read else set()
            unread += [f"{name} {key}" for key in column if key not in read]
        return unread

    def _drawn(self, **_: Any) -> tuple[Figure, str]:
        figure, words = draw_schedules(self.curves(), self._own, log=self.values["scale"] == "log")
        return figure, f"{words}\n# the axis of learning rates is {self.values['scale']}"


def schedule_explorer(own: Mapping[str, Schedule | str | Path] | None = None) -> ScheduleExplorer:
    """Four schedules with numbers of their own, at first nanoGPT's; every control works by keyboard.

    Args:
        own: by name, functions of your own from the completed steps to the rate, or folders of runs, see `run_rates`.
            The first one is drawn at once.

    Raises OSError or ValueError for a folder whose run has recorded no learning rate.
    """
    return ScheduleExplorer(own or {})


def run_rates(folder: str | Path) -> tuple[Schedule, int]:
    """The learning rates that a run has recorded, a straight line from each record to the next, and its steps.

    Args:
        folder: of the run, with its `metrics.jsonl`.
    """
    records = read_records(Path(folder) / METRICS)
    logged = {int(record["step"]) - 1: record["lr"] for record in records if "lr" in record}  # of the step before it
    ensure(bool(logged), f"{folder} holds no {METRICS} with a learning rate")
    return lambda step: float(np.interp(step, [*logged], [*logged.values()])), max(logged) + 1


def _scheduled(settings: Settings, own: Mapping[str, Schedule]) -> tuple[_Curve, list[str]]:
    """The curve, and the lines that say how to get it."""
    if settings["type"] in own:
        schedule = own[settings["type"]]
        check_schedule(schedule)
        steps = _drawn_steps(int(settings["total_steps"]))
        rates = [checked_rate(schedule(step), f"the rate at step {step}") for step in steps]
        return _Curve(schedule, steps, rates), ["# your own function: Trainer(model, config, schedule=...) takes it"]
    text = schedule_yaml(settings)
    curve = _configured(text)
    return curve, [*text.splitlines(), *_python(curve.schedule)]


def _drawn_steps(total_steps: int) -> list[int]:
    """At most 2,000 steps of a run, and all where it is no longer than 1,000."""
    block = math.ceil(total_steps / _BLOCKS)
    return sorted({*range(0, total_steps, block), *range(block - 1, total_steps, block), total_steps - 1})


@functools.lru_cache(maxsize=16)  # a control changes one curve of four
def _configured(text: str) -> _Curve:
    config = TrainingConfig().updated(load_yaml(text), "the configuration")
    rate, steps = config.optimizer.learning_rate, config.training.max_steps
    assert steps is not None
    schedule = build_schedule(config.lr_scheduler, peak_lr=rate, total_steps=steps)
    drawn = _drawn_steps(steps)
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


def _controls(name: str, kind: str, kinds: Sequence[str]) -> dict[str, Control]:
    """The controls of one curve, by the settings that they give."""
    numbers = {"steps": "total_steps", "warm-up": "warmup_steps", "peak": "peak_lr", "minimum": "min_lr"}
    given = {key: number(f"{name} {label}", NANOGPT[key]) for label, key in numbers.items()}
    others = {"num_cycles": 0.5, "decay_ratio": 0.1, "timescale": NANOGPT["warmup_steps"], "gamma": 0.4, **_DROPS}
    more = {key: number(f"{name} {key.removeprefix('num_').replace('_', ' ')}", value) for key, value in others.items()}
    stored = 4 if name == "A" else 2  # of the types, without a kernel
    return {"type": pick(f"{name} type", kinds, kind, stored), **given, **more}


def _handles(name: str, curve: Settings, colour: str) -> list[dict[str, Any]]:
    """Where a curve can be taken hold of: its name, step and rate, colour; nowhere where it is refused."""
    if not (drawn := _accepted(curve)):
        return []
    total, peak = curve["total_steps"], curve["peak_lr"]
    places = {"peak": (min(curve["warmup_steps"], total), peak)}
    if "min_lr" in _parameters(curve["type"]):
        places["end"] = (total, drawn.schedule(total))
    if "decay_ratio" in _parameters(curve["type"]):
        places["decay"] = (total * (1 - curve["decay_ratio"]), peak)
    return [{"name": f"{name} {part}", "at": place, "colour": colour} for part, place in places.items()]


def _copies(curve: Settings) -> dict[str, str]:
    """The lines of the configuration, the call in Python, PyTorch's scheduler; none for what is refused."""
    if not (drawn := _accepted(curve)):
        return {}
    call, peak = _call(drawn.schedule), curve["peak_lr"]
    torch = f"torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: {call} / {peak!r})  # its lr is {peak!r}"
    return {"YAML": schedule_yaml(curve), "Python": call, "PyTorch": torch}


def _accepted(curve: Settings) -> _Curve | None:
    try:
        return _configured(schedule_yaml(curve))
    except ValueError:
        return None
