"""Claims about TensorBoard and Weights & Biases: what is logged can be read back."""

import json
import math
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from course_lm.monitoring import TensorBoardLogger, WandbConfig, WandbLogger
from tests.records import train_record, validation_record


def tensorboard_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    # pyrefly: ignore[not-iterable]  # under this key stands a list
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_back_every_metric_and_gets_no_partial_record(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    logger.start(0, 2)
    logger.log(train_record(1, loss=3.0))
    logger.log(train_record(2, loss=2.5))
    logger.log(validation_record(2, 1.5))
    logger.log(train_record(3, loss=2.0) | {"partial": True})
    logger.close()
    scalars = tensorboard_scalars(tmp_path)
    assert scalars["train/loss"] == [(1, 3.0), (2, 2.5)]
    assert scalars["validation/val_loss"] == [(2, 1.5)]
    assert {"train/lr", "train/grad_norm", "train/tokens_per_second"} <= set(scalars)


def test_tensorboard_shows_a_resumed_run_once(tmp_path: Path) -> None:
    for start, loss in ((0, 3.0), (2, 1.0)):
        logger = TensorBoardLogger(tmp_path)
        logger.start(start, 4)
        for step in range(start + 1, 5):
            logger.log(train_record(step, loss))
        logger.close()
    assert tensorboard_scalars(tmp_path)["train/loss"] == [(1, 3.0), (2, 3.0), (3, 1.0), (4, 1.0)]


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file, which wandb lays out as LevelDB does its log: pieces in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2 as protocol

    data, at, piece = path.read_bytes(), 7, b""  # a header of 7 bytes
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        piece += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = protocol.Record()  # type: ignore[attr-defined]
            record.ParseFromString(piece)
            piece = b""
            yield record


def wandb_run(folder: Path, number: int) -> tuple[Any, dict[int, dict[str, float]]]:
    """The n-th offline run in a folder and its metrics at each step, once its service has written everything."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_ctime)
        records = list(wandb_records(files[number]))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            history = [record.history for record in records if record.WhichOneof("record_type") == "history"]
            rows = [
                {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item}
                for row in history
            ]
            metrics = {row["_step"]: {key: row[key] for key in row if not key.startswith("_")} for row in rows}
            (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
            return run, metrics
        time.sleep(0.05)
    raise TimeoutError(f"wandb has not finished {files}")


@pytest.fixture
def wandb_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_wandb_offline_reads_back_every_metric_at_its_step(tmp_path: Path, wandb_is_quiet: None) -> None:
    logger = WandbLogger("my-lm", name="a-run", folder=tmp_path / "toy", settings={"learning_rate": 0.125})
    logger.start(0, 20)
    logger.log(train_record(10, loss=7.0625))
    logger.log(train_record(20, loss=math.nan))
    logger.log(validation_record(20, 1.5))
    logger.close()
    run, metrics = wandb_run(tmp_path / "toy", 0)
    expected = {f"train/{key}": value for key, value in train_record(10, 7.0625).items()}
    del expected["train/event"], expected["train/step"]
    assert metrics[10] == expected
    assert math.isnan(metrics[20]["train/loss"]) and metrics[20]["validation/val_loss"] == 1.5
    assert set(metrics) == {10, 20}
    assert (run.project, run.display_name, run.run_group) == ("my-lm", "a-run", "toy")
    assert {item.key: item.value_json for item in run.config.update}["learning_rate"] == "0.125"


def test_a_run_that_goes_on_is_a_second_wandb_run_of_the_same_group(tmp_path: Path, wandb_is_quiet: None) -> None:
    for start in (0, 2):
        logger = WandbLogger("my-lm", folder=tmp_path / "toy")
        logger.start(start, 4)
        for step in range(start + 1, start + 3):
            logger.log(train_record(step))
        logger.log(train_record(start + 3) | {"partial": True})
        logger.close()
        time.sleep(1.0)  # the folders are named by the second
    first, second = (wandb_run(tmp_path / "toy", number) for number in (0, 1))
    assert [set(metrics) for _, metrics in (first, second)] == [{1, 2}, {3, 4}]
    assert first[0].run_group == second[0].run_group == "toy"
    assert first[0].run_id != second[0].run_id


class Online:
    """What is asked of wandb, in place of it: a run that is online needs a server."""

    Settings = dict

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def init(self, **asked: Any) -> "Online":
        self.asked.append(asked)
        self.id = asked["id"] or f"id-{len(self.asked)}"
        return self

    def finish(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_run_that_goes_on_online_goes_on_with_its_wandb_run(tmp_path, monkeypatch, mode):
    wandb = Online()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for step in (0, 2, 4, 0):  # the last is a new run in the place of the old one
        logger = WandbConfig(mode=mode).logger(tmp_path / "toy", {"experiment_name": "toy"})
        logger.start(step, 4)
        logger.close()
    kept = ["id-1", "id-1"] if mode == "online" else [None, None]
    assert [asked["id"] for asked in wandb.asked] == [None, *kept, None]
    assert [asked["resume"] for asked in wandb.asked] == [None, *(id_ and "allow" for id_ in kept), None]


def test_a_wandb_run_has_the_name_of_the_run_unless_it_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", wandb := Online())
    for name in (None, "mine"):
        WandbConfig(name=name).logger(tmp_path / "runs" / "toy", {"experiment_name": "toy"}).start(0, 4)
    assert [asked["name"] for asked in wandb.asked] == ["toy", "mine"]


@pytest.mark.parametrize(("module", "make"), [
    ("tensorboard", lambda folder: TensorBoardLogger(folder)),
    ("wandb", lambda folder: WandbLogger("my-lm", folder=folder)),
])  # fmt: skip
def test_a_missing_tracker_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'{module} is not installed: pip install "course-lm\[track\]"'):
        make(tmp_path)
