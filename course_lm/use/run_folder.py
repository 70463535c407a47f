"""What stands in a run's folder, read without loading torch: settings, records, how it was made, who trains in it.

`config.yaml` holds the settings, `metrics.jsonl` a record on each line, `made_by.json` the sessions that made the run.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from course_lm.run_records import CONFIG, HELD, METRICS, Record, RunRecords, lock_of, open_regular, read_sessions
from course_lm.validation import LARGEST_INT, did_you_mean, ensure, one_line, require_kind
from course_lm.yaml_tree import read_yaml_file


@dataclass
class RunFolder(RunRecords):
    """A run as its folder tells it.

    Attributes:
        settings: by "section.key".
        records: of training steps and validations, in order; what was not measured, or not finite, is nan.
        total_steps: to which the newest session meant to train, or None where nobody knows.
        running: whether a process trains in the folder now.
    """

    folder: Path
    settings: dict[str, Any]
    records: list[Record]
    total_steps: int | None
    running: bool

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.absolute().name

    @property
    def steps(self) -> int:
        """Completed optimizer steps up to the last record."""
        return max((record["step"] for record in self.records), default=0)

    def seconds(self) -> list[float]:
        """For each training record, the seconds of training steps up to it, validations and saves left out.

        They are the tokens between two records over the tokens per second that were measured there.
        """
        seconds, tokens, sums = 0.0, 0, []
        for record in self.train:
            speed = record.get("tokens_per_second", math.nan)
            if speed > 0:  # neither nan nor the 0 of steps without a target
                seconds += (record.get("tokens", math.nan) - tokens) / speed
            tokens = record.get("tokens", math.nan)
            sums.append(seconds)
        return sums

    def seconds_at(self, step: int) -> float:
        """Seconds of training steps up to `step`, in proportion between two training records."""
        points = [(0, 0.0), *((record["step"], at) for record, at in zip(self.train, self.seconds()))]
        for (before, start), (after, end) in pairwise(points):
            if step <= after:
                return end if after == before else start + (end - start) * (step - before) / (after - before)
        return points[-1][1]

    @property
    def state(self) -> str:
        """One of "running", "empty" (no step was recorded), "finished" and "stopped"."""
        if self.running:
            return "running"
        if not self.records:
            return "empty"
        return "finished" if self._has_ended() else "stopped"

    def _has_ended(self) -> bool:
        end = self.settings.get("training.max_steps") or self.total_steps
        if end is not None and self.steps >= end:
            return True
        epochs = self.settings.get("training.num_epochs")
        if end is None and epochs is not None and max(record.get("epoch", 0) for record in self.records) >= epochs:
            return True
        return self._was_stopped_early()

    def _was_stopped_early(self) -> bool:
        """Whether `training.early_stopping_patience` ran out, which the validations tell."""
        patience = self.settings.get("training.early_stopping_patience")
        if patience is None:
            return False
        from course_lm.monitoring.stopping import is_out_of_patience  # loads torch, which most runs do without

        threshold = self.settings.get("training.early_stopping_threshold") or 0.0
        return is_out_of_patience((record["val_loss"] for record in self.validation), patience, threshold)


def find_run(name: str) -> Path:
    """The folder of a run that is given by its path, or by its name in the folder `runs`.

    Raises:
        ValueError: there is no such folder, or it is no run's; one line says what is there instead.
    """
    ensure(name != "", "RUN must be a run's folder, got an empty name")
    given, held = Path(name), Path(HELD, name)
    folder = held if held.is_dir() and not given.is_dir() else given
    if (folder / CONFIG).is_file():
        return folder
    if not folder.is_dir():
        kind = "is no folder" if folder.exists() else "is not there"
        near = [*map(str, _runs_in(given.parent)), *(run.name for run in _runs_in(held.parent))]
        hint = did_you_mean(name, near) or "give a run's folder, or its name in runs"
        raise ValueError(f"the run {one_line(name)} {kind}: {hint}")
    inside = _runs_in(folder)
    if inside:
        names = ", ".join(run.name for run in inside)
        raise ValueError(f"{folder} is no run itself; it holds the runs {names}: give {inside[0]}")
    if any(folder.glob("checkpoint_*.safetensors")):
        raise ValueError(f"{folder} holds checkpoints, but no {CONFIG}: copy it from where the run was trained")
    raise ValueError(f"{folder} is no run's folder: it has no {CONFIG}, which `course-lm train` writes")


def _runs_in(folder: Path) -> list[Path]:
    return sorted(found.parent for found in folder.glob(f"*/{CONFIG}")) if folder.is_dir() else []


def read_run(folder: Path) -> RunFolder:
    """The run in `folder`.

    Raises:
        OSError: a file of it cannot be read.
        ValueError: it holds no run, or a file of it is broken; names the file.
    """
    config = folder / CONFIG
    ensure(config.is_file(), f"{folder} holds no {CONFIG}: it is no run of course-lm")
    tree = read_yaml_file(config)
    whole = isinstance(tree, Mapping) and isinstance(tree.get("training"), Mapping)
    ensure(whole, f"{config} has no section training: it is of no run")
    settings = _flat(tree)
    for key, kind in _ENDS.items():
        require_kind(settings.get(key), kind, f"{config}: {key}")
    return RunFolder(folder, settings, read_records(folder / METRICS), _total_steps(folder), is_locked(folder))


# The settings that tell whether a run has ended; an older run may lack some.
_ENDS = {
    "training.max_steps": int | None,
    "training.num_epochs": int | None,
    "training.early_stopping_patience": int | None,
    "training.early_stopping_threshold": float | None,
}


def is_locked(folder: Path) -> bool:
    """Whether a process trains in `folder` now; False too where nobody knows, since the lock may not be opened."""
    path = lock_of(folder)
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0.1):  # another reader has it for a moment only
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False


def differing(runs: list[RunFolder]) -> list[str]:
    """The settings, by "section.key", that two of the runs have with unlike values; their names left out."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    values = {key: [run.settings[key] for run in runs if key in run.settings] for key in keys}
    return [key for key, held in values.items() if key not in _NAMING and any(value != held[0] for value in held)]


_NAMING = ("experiment_name", "training.output_dir")


def _flat(tree: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat


def read_records(path: Path) -> list[Record]:
    """The records of training and validation; the last line may be torn, as a killed process leaves it."""
    if not path.exists():
        return []
    with open_regular(path) as file:
        content = file.read()
    read = [_read_record(line) for line in content.splitlines()]
    whole = read if content.endswith(b"\n") else read[:-1]
    broken = next((number for number, record in enumerate(whole, start=1) if record is None), None)
    ensure(broken is None, f"{path} is broken: line {broken} is no record of a run")
    return [record for record in read if record is not None and str(record["event"]) in _LOSSES]


_LOSSES = {"train": "loss", "validation": "val_loss"}


def _read_record(line: bytes) -> Record | None:
    """The record that a line holds; None where it holds none."""
    try:
        record = {key: math.nan if value is None else value for key, value in json.loads(line).items()}
        event = str(record["event"])
        step = record["step"]
        whole = type(step) is int and step >= 0 and (event not in _LOSSES or _has_numbers(record, _LOSSES[event]))
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
    return record if whole else None


def _has_numbers(record: Record, loss: str) -> bool:
    """Whether a record of training or validation has its loss, and nothing but numbers beside its event.

    A larger int than any run has may be beyond all floats, with which nothing can be drawn or computed.
    """
    numbers = [value for key, value in record.items() if key != "event"]
    return loss in record and all(
        isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST_INT) for value in numbers
    )


def _total_steps(folder: Path) -> int | None:
    steps = [session.get("total_steps") for session in read_sessions(folder)]
    return steps[-1] if steps and type(steps[-1]) is int else None
