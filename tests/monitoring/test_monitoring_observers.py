"""Claims about observers: they cannot hurt a run, and the log file is whole and cut back."""

import json
import math
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lm.monitoring import History, JSONLLogger, Observers
from tests.records import Recorder, lines_of, train_record


class Broken(Recorder):
    """An observer whose `method` raises."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.calls = 0

        def fail(*arguments: Any) -> None:
            self.calls += 1
            raise RuntimeError("disk full")

        setattr(self, method, fail)


@pytest.mark.parametrize(
    ("method", "told"), [("start", ["close"]), ("log", [("start", 0, 2), "close"]), ("close", None)]
)
def test_a_broken_observer_is_warned_about_once_closed_and_left_out(method: str, told: list[Any] | None) -> None:
    broken, healthy = Broken(method), Recorder()
    observers = Observers([broken, healthy])
    with pytest.warns(UserWarning, match=rf"Broken\.{method} failed \(RuntimeError: disk full\)") as caught:
        observers.start(0, 2)
        observers.log(train_record(1))
        observers.log(train_record(2))
        observers.close()
    assert len(caught) == 1
    assert broken.calls == 1
    assert told is None or broken.told == told
    assert healthy.told == [("start", 0, 2), train_record(1), train_record(2), "close"]


def test_an_observer_cannot_change_what_others_see() -> None:
    class Meddler(Recorder):
        def log(self, record: dict[str, Any]) -> None:
            record["loss"] = -1.0

    honest, record = Recorder(), train_record(1)
    Observers([Meddler(), honest]).log(record)
    assert honest.told == [train_record(1)]
    assert record == train_record(1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_is_not_swallowed_in_an_observer(error: type[BaseException]) -> None:
    class Interrupted(Recorder):
        def log(self, record: dict[str, Any]) -> None:
            raise error

    with pytest.raises(error):
        Observers([Interrupted()]).log(train_record(1))


def test_jsonl_holds_each_record_while_the_run_goes_on(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "new" / "metrics.jsonl")
    logger.start(0, 3)
    for step in (1, 2, 3):
        logger.log(train_record(step))
        assert lines_of(logger.path) == [train_record(k) for k in range(1, step + 1)]


def test_jsonl_takes_tensors_and_numpy_numbers_and_writes_null_for_what_json_cannot_hold(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "metrics.jsonl")
    logger.log(
        {
            "step": np.int64(1),
            "a": math.nan,
            "b": math.inf,
            "c": -math.inf,
            "d": torch.tensor(math.nan),
            "e": torch.tensor(1.5),
        }
    )
    logger.close()
    text = logger.path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 1, "a": None, "b": None, "c": None, "d": None, "e": 1.5,
    }  # fmt: skip


@given(steps=st.integers(0, 12), resume_at=st.integers(0, 14), torn=st.integers(0, 200))
def test_jsonl_is_cut_back_to_the_step_it_goes_on_from(
    tmp_path_factory: pytest.TempPathFactory, steps: int, resume_at: int, torn: int
) -> None:
    logger = JSONLLogger(tmp_path_factory.mktemp("log") / "metrics.jsonl")
    for step in range(1, steps + 1):
        logger.log(train_record(step))
    logger.close()
    unfinished = json.dumps(train_record(1)).encode()[:torn]
    with open(logger.path, "ab") as file:
        file.write(unfinished[:-1])
    logger.start(resume_at, None)
    logger.log(train_record(resume_at + 1))
    logger.close()
    kept = [train_record(step) for step in range(1, min(steps, resume_at) + 1)]
    assert lines_of(logger.path) == [*kept, train_record(resume_at + 1)]


@pytest.mark.parametrize("partial", [False, True])
def test_jsonl_keeps_a_whole_last_record_that_lacks_only_its_line_end_unless_it_is_partial(
    tmp_path: Path, partial: bool
) -> None:
    path = tmp_path / "metrics.jsonl"
    last = train_record(2) | ({"partial": True} if partial else {})
    path.write_text(json.dumps(train_record(1)) + "\n" + json.dumps(last))
    logger = JSONLLogger(path)
    logger.start(2, None)
    logger.log(train_record(3))
    logger.close()
    assert lines_of(path) == [train_record(1), *([] if partial else [last]), train_record(3)]


def test_jsonl_that_needs_no_cut_is_not_rewritten(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "metrics.jsonl")
    logger.log(train_record(1))
    before = logger.path.stat()
    logger.start(1, None)
    assert logger.path.stat().st_ino == before.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("kept", [True, False])
def test_jsonl_that_is_removed_while_the_run_goes_on_is_written_anew(tmp_path: Path, kept: bool) -> None:
    history = History()
    logger = JSONLLogger(tmp_path / "run" / "metrics.jsonl", history if kept else None)
    logger.start(0, None)
    for step in range(1, 5):
        record = train_record(step) | ({"partial": True} if step == 4 else {})
        history.append(record)
        logger.log(record)
        if step == 2:
            shutil.rmtree(tmp_path / "run")
    logger.close()
    assert [line["step"] for line in lines_of(logger.path)] == ([1, 2, 3, 4] if kept else [3, 4])


def test_jsonl_waits_for_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    recorder = Recorder()
    observers = Observers([JSONLLogger(tmp_path / "metrics.jsonl"), recorder])
    with pytest.warns(UserWarning, match=r"metrics.jsonl is no regular file\); training goes on without it"):
        observers.start(0, None)
    observers.log(train_record(1))
    assert recorder.told == [("start", 0, None), train_record(1)]


def test_observers_are_closed_in_the_reverse_order_of_their_start() -> None:
    order: list[str] = []

    class Named(Recorder):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def start(self, step: int, total_steps: int | None) -> None:
            order.append(f"start {self.name}")

        def close(self) -> None:
            order.append(f"close {self.name}")

    observers = Observers([Named("a"), Named("b")])
    observers.start(0, 1)
    observers.close()
    assert order == ["start a", "start b", "close b", "close a"]


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_whole_lines_and_the_run_goes_on(tmp_path: Path) -> None:
    logger, healthy = JSONLLogger(tmp_path / "metrics.jsonl"), Recorder()
    observers = Observers([logger, healthy])
    with files_up_to(1000), pytest.warns(UserWarning, match="JSONLLogger.log failed .OSError") as caught:
        for step in range(1, 21):
            observers.log(train_record(step))
    assert len(caught) == 1
    assert healthy.told == [train_record(step) for step in range(1, 21)]
    kept = lines_of(logger.path)
    assert kept == [train_record(step) for step in range(1, len(kept) + 1)] and 3 < len(kept) < 20
    assert logger.path.read_bytes().endswith(b"\n")
