"""Claims about monitoring: observers cannot hurt a run, logs are whole and cut back, and NaN never wins."""

import io
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lm.monitoring import (
    EarlyStopping,
    History,
    JSONLLogger,
    Observers,
    ProgressBar,
    TensorBoardLogger,
    Throughput,
    WandbConfig,
    WandbLogger,
)


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


class Broken(Recorder):
    """An observer whose `method` raises."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.calls = 0

        def fail(*arguments: Any) -> None:
            self.calls += 1
            raise RuntimeError("disk full")

        setattr(self, method, fail)


@pytest.mark.parametrize("method", ["start", "log", "close"])
def test_a_broken_observer_is_warned_about_once_and_left_out(method: str) -> None:
    broken, healthy = Broken(method), Recorder()
    observers = Observers([broken, healthy])
    with pytest.warns(UserWarning, match=rf"Broken\.{method} failed \(RuntimeError: disk full\)") as caught:
        observers.start(0, 2)
        observers.log(train_record(1))
        observers.log(train_record(2))
        observers.close()
    assert len(caught) == 1
    assert broken.calls == 1
    assert healthy.told == [("start", 0, 2), train_record(1), train_record(2), "close"]


def test_an_observer_that_fails_while_logging_is_closed() -> None:
    broken = Broken("log")
    with pytest.warns(UserWarning):
        Observers([broken]).log(train_record(1))
    assert broken.told == ["close"]


def test_an_observer_cannot_change_what_others_see() -> None:
    class Meddler(Recorder):
        def log(self, record: dict[str, Any]) -> None:
            record["loss"] = -1.0

    honest, record = Recorder(), train_record(1)
    Observers([Meddler(), honest]).log(record)
    assert honest.told == [train_record(1)]
    assert record == train_record(1)


def test_a_keyboard_interrupt_in_an_observer_is_not_swallowed() -> None:
    class Interrupted(Recorder):
        def log(self, record: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers([Interrupted()]).log(train_record(1))


def test_jsonl_holds_each_record_while_the_run_goes_on(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "new" / "metrics.jsonl")
    logger.start(0, 3)
    for step in (1, 2, 3):
        logger.log(train_record(step))
        assert lines_of(logger.path) == [train_record(k) for k in range(1, step + 1)]


def test_jsonl_writes_null_for_what_json_cannot_hold(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "metrics.jsonl")
    logger.log({"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": torch.tensor(math.nan), "e": 1.5})
    logger.close()
    text = logger.path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 1, "a": None, "b": None, "c": None, "d": None, "e": 1.5,
    }  # fmt: skip


def test_jsonl_takes_tensors_and_numpy_numbers(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "metrics.jsonl")
    logger.log({"step": np.int64(1), "loss": torch.tensor(2.5)})
    logger.close()
    assert lines_of(logger.path) == [{"step": 1, "loss": 2.5}]


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


def test_jsonl_keeps_a_whole_last_record_that_lacks_only_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train_record(1)) + "\n" + json.dumps(train_record(2)))
    logger = JSONLLogger(path)
    logger.start(2, None)
    logger.log(train_record(3))
    logger.close()
    assert lines_of(path) == [train_record(1), train_record(2), train_record(3)]


def test_jsonl_that_needs_no_cut_is_not_rewritten(tmp_path: Path) -> None:
    logger = JSONLLogger(tmp_path / "metrics.jsonl")
    logger.log(train_record(1))
    before = logger.path.stat()
    logger.start(1, None)
    assert logger.path.stat().st_ino == before.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def shown_by_a_run(monkeypatch: pytest.MonkeyPatch, steps: int, total: int | None, start: int = 0) -> str:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.start(start, total)
    for step in range(start + 1, steps + 1):
        bar.log(train_record(step, loss=step + 0.25))
    bar.log(validation_record(steps, 1.5))
    bar.close()
    return screen.getvalue()


def test_the_bar_shows_step_loss_lr_norm_throughput_and_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    last = shown_by_a_run(monkeypatch, steps=20, total=20).split("\r")[-1]
    for part in ("20/20 steps", "loss 20.250", "val 1.500", "12,346 tok/s", "lr 1.0e-03", "norm 0.50"):
        assert part in last


def test_the_bar_of_a_resumed_run_starts_where_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    first = shown_by_a_run(monkeypatch, steps=20, total=20, start=15).split("\r")[1]
    assert "15/20" in first


def test_the_bar_works_without_a_known_total(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "5 steps" in shown_by_a_run(monkeypatch, steps=5, total=None)


def test_the_bar_does_not_fill_a_file_with_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_by_a_run(monkeypatch, steps=5000, total=5000).count("\r") <= 3


def test_the_bar_passes_over_a_metric_that_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    bar = ProgressBar()
    bar.log({**train_record(1), "grad_norm": None})
    bar.close()
    assert "loss " in stderr.getvalue() and "norm " not in stderr.getvalue()


def tensorboard_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_back_every_metric(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    logger.start(0, 2)
    logger.log(train_record(1, loss=3.0))
    logger.log(train_record(2, loss=2.5))
    logger.log(validation_record(2, 1.5))
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


def test_wandb_offline_writes_the_metrics_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger("my-lm", name="a-run", folder=tmp_path, settings={"learning_rate": 0.125})
    logger.start(0, 2)
    logger.log(train_record(1, loss=7.0625))
    logger.log(validation_record(1, 1.5))
    logger.close()
    (stored,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    parts = [b"train/loss", b"7.0625", b"validation/val_loss", b"learning_rate", b"0.125", b"a-run"]
    deadline = time.monotonic() + 30  # finishing a run returns before its service process has written everything
    while (missing := [part for part in parts if part not in stored.read_bytes()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert missing == []


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


def test_an_unknown_wandb_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^mode must be one of offline, online, disabled, got 'cloud'"):
        WandbConfig(mode="cloud")


losses = st.floats() | st.sampled_from([math.nan, math.inf, 1.0, 2.0, 3.0])


@given(values=st.lists(losses, max_size=30), patience=st.integers(1, 4), min_delta=st.floats(0, 2))
def test_early_stopping_stops_after_patience_values_without_improvement(
    values: list[float], patience: int, min_delta: float
) -> None:
    stopping = EarlyStopping(patience, min_delta)
    best, since = math.inf, 0
    for value in values:
        improves = not math.isnan(value) and value < best - min_delta
        best, since = (value, 0) if improves else (best, since + 1)
        assert stopping.update(value) is improves
        assert stopping.best == best
        assert stopping.should_stop is (since >= patience)


def test_many_small_gains_count_as_one_improvement() -> None:
    stopping = EarlyStopping(patience=3, min_delta=0.1)
    assert [stopping.update(value) for value in (2.0, 1.95, 1.875)] == [True, False, True]


@given(values=st.lists(losses, max_size=20), cut=st.integers(0, 20))
def test_early_stopping_goes_on_from_its_state(values: list[float], cut: int) -> None:
    straight, first = EarlyStopping(3), EarlyStopping(3)
    expected = [straight.update(value) for value in values]
    decisions = [first.update(value) for value in values[:cut]]
    resumed = EarlyStopping(3)
    resumed.load_state_dict(first.state_dict())
    decisions += [resumed.update(value) for value in values[cut:]]
    assert decisions == expected
    assert resumed.state_dict() == straight.state_dict()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"patience": 0}, "patience must be at least 1 validation, got 0"),
    ({"patience": 1, "min_delta": -0.5}, r"min_delta must be in \[0, inf\), got -0.5"),
    ({"patience": 1, "min_delta": math.nan}, r"min_delta must be in \[0, inf\), got nan"),
])  # fmt: skip
def test_early_stopping_refuses_bad_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**arguments)


def test_history_separates_events_and_keeps_their_order() -> None:
    history = History()
    for record in (train_record(1), validation_record(1, 2.0), train_record(2)):
        history.append(record)
    assert history.records == [train_record(1), validation_record(1, 2.0), train_record(2)]
    assert history.train == [train_record(1), train_record(2)]
    assert history.validation == [validation_record(1, 2.0)]


@given(values=st.lists(losses, max_size=12))
def test_the_best_record_has_the_lowest_loss_and_is_never_nan(values: list[float]) -> None:
    history = History(validation_record(step, value) for step, value in enumerate(values))
    measured = [(value, step) for step, value in enumerate(values) if not math.isnan(value)]
    assert (history.best and history.best["step"]) == (min(measured)[1] if measured else None)


def test_history_goes_on_from_its_state_and_shares_nothing_with_it() -> None:
    history = History([train_record(1)])
    state = history.state_dict()
    resumed = History(state)
    resumed.append(train_record(2))
    resumed.records[0]["loss"] = 0.0
    assert state == history.records == [train_record(1)]


def test_throughput_counts_the_tokens_and_seconds_between_log_points() -> None:
    seconds = iter([0.0, 2.0, 10.0, 14.0])
    meter = Throughput(clock=lambda: next(seconds))
    assert meter.update(100) == 50.0
    meter.restart(100)
    assert meter.update(180) == 20.0


def test_throughput_without_elapsed_time_is_nan() -> None:
    assert math.isnan(Throughput(clock=lambda: 1.0).update(5))


def test_importing_monitoring_loads_no_tracker() -> None:
    code = "import sys, course_lm.monitoring; print(sorted({'tensorboard', 'wandb', 'ipywidgets'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_pause_does_not_count_as_training_time() -> None:
    times = iter([0.0, 1.0, 6.0, 7.0])  # made, paused from 1 s to 6 s, updated at 7 s
    meter = Throughput(lambda: next(times))
    with meter.paused():
        pass
    assert meter.update(100) == 50.0
