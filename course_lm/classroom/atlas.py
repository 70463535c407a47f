"""The curve atlas: how this course's model learns the stories when all is well, and under six common illnesses.

`diagnose` says which of them a run looks like; `plots.compare_with_atlas` draws it over them. The curves are those of
`data/curve_atlas.json`, several seeds each.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from course_lm.corpus.shipped import data_file
from course_lm.monitoring import History, Record

HEALTHY = "healthy"
WINDOW = 10  # optimizer steps, at least, over which a training loss is averaged before it is compared
REACH = 3.0  # a run may be this many times further from its kind than the kind's own runs are from each other
LEAST_REACH = 0.2  # nats per token
SIGNS = {
    HEALTHY: "both losses fall side by side and level off above the floor",
    "learning rate too high": "the loss falls for a few steps and then sticks far up; updates are large",
    "learning rate too low": "the loss falls all the way and gets nowhere; updates are tiny",
    "no shift": "the training loss drops to zero within 50 steps; validation with the right loss explodes",
    "leak into validation": "validation falls with training to below the floor: its text was trained on",
    "dead from clipping": "the loss stays at log(vocabulary) although the gradient norm looks healthy",
    "over-fitting": "training falls below the floor while validation turns round and rises",
}

Run = Mapping[str, Sequence[float]]
Curves = tuple[np.ndarray, np.ndarray]  # training losses (windows,), validation losses (points,)


@dataclass(frozen=True)
class Atlas:
    """Reference runs by name, a list of seeds each.

    Attributes:
        floor: of the validation text, nats per token.
        log_every, eval_every: optimizer steps between two values of a curve.
        runs: "loss" (the mean since the last log point) and "val_loss" in nats per token, "grad_norm" before clipping,
            and "update_ratio", the median over the weight matrices.
    """

    floor: float
    log_every: int
    eval_every: int
    runs: Mapping[str, Sequence[Run]]

    def steps(self, curve: str, run: Run) -> list[int]:
        """The completed optimizer steps at which the values of a curve of `run` were measured."""
        every = self.eval_every if curve == "val_loss" else self.log_every
        return [every * number for number in range(1, len(run[curve]) + 1)]

    def band(self, name: str, curve: str) -> tuple[list[int], list[float], list[float]]:
        """Steps, and the lowest and the highest value of a curve over the runs of that name."""
        runs = self.runs[name]
        columns = list(zip(*(run[curve] for run in runs)))
        return self.steps(curve, runs[0]), [min(column) for column in columns], [max(column) for column in columns]

    def records(self, name: str, number: int = 0) -> list[Record]:
        """One of the runs, as the records that a trainer would have kept."""
        run = self.runs[name][number]
        keys = ("loss", "grad_norm", "update_ratio")
        train = (
            {"event": "train", "step": step, **{key: run[key][at] for key in keys}}
            for at, step in enumerate(self.steps("loss", run))
        )
        validation = (
            {"event": "validation", "step": step, "val_loss": loss}
            for step, loss in zip(self.steps("val_loss", run), run["val_loss"])
        )
        return sorted([*train, *validation], key=lambda record: record["step"])


@dataclass(frozen=True)
class Diagnosis:
    """What a run looks like. `name` is None where it looks like nothing in the atlas.

    `possible` are all the names within reach, nearest first. `distances` and `reaches` are in nats per token.
    """

    name: str | None
    possible: tuple[str, ...]
    distances: Mapping[str, float]
    reaches: Mapping[str, float]
    message: str


@lru_cache(maxsize=1)
def load_atlas() -> Atlas:
    """The atlas that ships with the course."""
    return Atlas(**json.loads(data_file("curve_atlas.json").read_text(encoding="utf-8")))


def diagnose(history: History | Iterable[Record], atlas: Atlas | None = None) -> Diagnosis:
    """Which run of the atlas a run looks like.

    The distance of two runs is the mean absolute difference of their training losses, averaged over `WINDOW` steps at
    least, and that of their validation losses; where both are known, the mean of the two. The distance from a kind is
    that from its nearest run. It is within reach up to `REACH` times what separates the runs of that kind from their
    own nearest neighbours. Losses that are not finite are left out, and so is what follows the atlas's last step.

    Raises:
        ValueError: the records hold no finite training loss within the atlas's steps.
    """
    atlas = atlas or load_atlas()
    last = max(atlas.steps("loss", atlas.runs[HEALTHY][0]))
    edges, points, mine = _read(history, last)
    kinds = {name: [_curves_of(atlas, run, edges, points) for run in runs] for name, runs in atlas.runs.items() if runs}
    distances = {name: min(_distance(mine, run, edges) for run in runs) for name, runs in kinds.items()}
    reaches = {name: _reach(runs, edges) for name, runs in kinds.items()}
    order = sorted(distances, key=distances.__getitem__)
    possible = tuple(name for name in order if distances[name] <= reaches[name])
    name = possible[0] if possible else None
    message = _message(order, possible, distances, reaches, int(edges[-1]))
    return Diagnosis(name, possible, distances, reaches, message)


def _read(history: History | Iterable[Record], last: int) -> tuple[np.ndarray, np.ndarray, Curves]:
    """Where the windows of the training loss begin and end, the steps of validations, and the losses there."""
    records = history.records if isinstance(history, History) else list(history)
    steps, losses = _finite(records, "train", "loss", last)
    if not len(steps):
        raise ValueError(f"the records hold no finite training loss in steps 1 to {last}")
    edges = [0]
    for step in steps:
        # A run that is shorter than a window is one window.
        if step - edges[-1] >= min(WINDOW, steps[-1]):
            edges.append(step)
    points, val_losses = _finite(records, "validation", "val_loss", last)
    windows = np.array(edges)
    return windows, np.array(points), (_means(steps, losses, windows), np.array(val_losses))


def _finite(records: Iterable[Record], event: str, key: str, last: int) -> tuple[list[int], list[float]]:
    pairs: list[tuple[int, Any]] = [
        (record["step"], record.get(key)) for record in records if record["event"] == event and record["step"] <= last
    ]
    # A step that was recorded twice counts once, with what was recorded last.
    kept = {step: value for step, value in pairs if value is not None and math.isfinite(value)}
    return list(kept), list(kept.values())


def _means(steps: Sequence[int], losses: Sequence[float], edges: np.ndarray) -> np.ndarray:
    """Mean loss between each two `edges`. A recorded loss is the mean of the steps since the record before it."""
    ends = np.array([0, *steps])
    total = np.concatenate([[0.0], np.cumsum(np.diff(ends) * np.array(losses))])  # of all steps up to each end
    # By the summed loss, so that runs with other log points can be compared at the same edges.
    return np.diff(np.interp(edges, ends, total)) / np.diff(edges)


def _curves_of(atlas: Atlas, run: Run, edges: np.ndarray, points: np.ndarray) -> Curves:
    training = _means(atlas.steps("loss", run), run["loss"], edges)
    return training, np.interp(points, atlas.steps("val_loss", run), run["val_loss"])


def _distance(mine: Curves, theirs: Curves, edges: np.ndarray) -> float:
    training = float(np.average(np.abs(mine[0] - theirs[0]), weights=np.diff(edges)))  # a wide window weighs more
    if not len(mine[1]):
        return training
    return (training + float(np.mean(np.abs(mine[1] - theirs[1])))) / 2


def _reach(runs: Sequence[Curves], edges: np.ndarray) -> float:
    neighbours = [
        min((_distance(run, other, edges) for other in runs if other is not run), default=0.0) for run in runs
    ]
    return max(LEAST_REACH, REACH * max(neighbours))


def _message(
    order: Sequence[str],
    possible: Sequence[str],
    distances: Mapping[str, float],
    reaches: Mapping[str, float],
    steps: int,
) -> str:
    far = {name: f"{name} ({distances[name]:.2f})" for name in order}
    unit = "nats per token on average"
    if not possible:
        return (
            f"none of them: over {steps} steps the nearest is {order[0]}, {distances[order[0]]:.2f} {unit} away, "
            f"and its kind reaches {reaches[order[0]]:.2f}"
        )
    nearest = possible[0]
    message = f"{nearest}: over {steps} steps {distances[nearest]:.2f} {unit} from its nearest run"
    if len(possible) > 1:
        return f"{message}; too early to exclude {', '.join(far[name] for name in possible[1:])}"
    rest = [far[name] for name in order if name != nearest]
    sign = SIGNS.get(nearest, "")
    return message + (f"; next is {rest[0]}" if rest else "") + (f". {sign[0].upper()}{sign[1:]}." if sign else "")
