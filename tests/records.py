"""Records and an observer for the tests of monitoring."""

import json
from pathlib import Path
from typing import Any


def train_record(step: int, loss: float = 2.0) -> dict[str, Any]:
    return {
        "event": "train",
        "step": step,
        "epoch": 0,
        "loss": loss,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "tokens": 100 * step,
        "tokens_per_second": 12345.6,
    }


def validation_record(step: int, val_loss: float) -> dict[str, Any]:
    return {"event": "validation", "step": step, "epoch": 0, "val_loss": val_loss}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, step: int, total_steps: int | None) -> None:
        self.told.append(("start", step, total_steps))

    def log(self, record: dict[str, Any]) -> None:
        self.told.append(record)

    def close(self) -> None:
        self.told.append("close")
