"""The records of a run, in memory or in its folder, and where they stand there. Loads no torch."""

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

CONFIG, METRICS, SESSIONS, TOKENIZER = "config.yaml", "metrics.jsonl", "made_by.json", "tokenizer.json"
HELD = "runs"  # where a run is looked for that is given by its name alone
Record = dict[str, Any]


class RunRecords:
    """What is asked of the records of a run; a subclass has them as `records`, in order."""

    records: list[Record]

    @property
    def train(self) -> list[Record]:
        """The records of training steps."""
        return [record for record in self.records if record["event"] == "train"]

    @property
    def validation(self) -> list[Record]:
        """The records of validations."""
        return [record for record in self.records if record["event"] == "validation"]

    @property
    def best(self) -> Record | None:
        """The first validation record with the lowest val_loss (never a NaN), or None."""
        measured = (record for record in self.validation if not math.isnan(record["val_loss"]))
        return min(measured, key=lambda record: record["val_loss"], default=None)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to be read; OSError for what is none, as a pipe would be waited for and a device may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path} is no regular file")
    return open(path, "rb")


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """The sessions in the folder's `made_by.json`; none where there is no such file, or it cannot be read."""
    try:
        with open_regular(folder / SESSIONS) as file:
            sessions = json.load(file)["sessions"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [session for session in sessions if isinstance(session, dict)] if isinstance(sessions, list) else []


def lock_of(folder: Path) -> Path:
    """The file that is locked while a process trains in `folder`: beside it, since the folder may be renamed."""
    folder = Path(os.path.realpath(folder))  # by all its names it is one folder
    return folder.with_name(f".{folder.name}.lock")
