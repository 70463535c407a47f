"""Claims about the books of a run: what is recorded, smoothed and counted, and when to stop; NaN never wins."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lm.monitoring import EarlyStopping, History, Throughput, peak_memory, smooth, summarise
from course_lm.step import StepResult
from tests.records import train_record, validation_record

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


@pytest.mark.parametrize(("arguments", "message"), [
    ({"patience": 0}, "patience must be a whole number of at least 1, got 0"),
    ({"patience": math.nan}, "patience must be a whole number of at least 1, got nan"),
    ({"patience": 1, "min_delta": "0"}, r"min_delta must be in \[0, inf\), got '0'"),
    ({"patience": 1, "min_delta": -0.5}, r"min_delta must be in \[0, inf\), got -0.5"),
    ({"patience": 1, "min_delta": math.nan}, r"min_delta must be in \[0, inf\), got nan"),
])  # fmt: skip
def test_early_stopping_refuses_bad_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**arguments)


@given(values=st.lists(losses, max_size=12))
def test_the_best_record_has_the_lowest_loss_and_is_never_nan(values: list[float]) -> None:
    history = History(validation_record(step, value) for step, value in enumerate(values))
    measured = [(value, step) for step, value in enumerate(values) if not math.isnan(value)]
    assert (history.best and history.best["step"]) == (min(measured)[1] if measured else None)


def test_a_state_of_a_history_grows_with_it_and_holds_every_number() -> None:
    numbers = {"nan": math.nan, "inf": -math.inf, "third": 1 / 3, "scalar": np.float32(0.1), "text": "é", "none": None}
    history, resumed = History(), History()
    assert history.state_dict().numel() == 0
    for step in range(3):
        history.append(train_record(step) | numbers)
        resumed.load_state_dict(history.state_dict())
        plain = [record | {"scalar": float(np.float32(0.1))} for record in history.records]
        assert repr(resumed.records) == repr(plain)
    with pytest.raises(ValueError, match=r"a record of the event 'train' holds a object"):
        History([train_record(1) | {"odd": object()}]).state_dict()


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


@pytest.mark.parametrize("following", [train_record(20), train_record(15) | {"partial": True}])
def test_a_partial_record_gives_way_to_the_next_one(following: dict[str, Any]) -> None:
    history = History([train_record(10), train_record(13) | {"partial": True}])
    history.append(following)
    assert history.records == [train_record(10), following]


def test_a_partial_record_is_not_saved() -> None:
    history = History([train_record(10), train_record(13) | {"partial": True}])
    resumed = History()
    resumed.load_state_dict(history.state_dict())
    assert resumed.records == history.whole == [train_record(10)]
    assert len(history.train) == 2


def step_result(loss: float, tokens: int, norm: float, skipped: bool = False) -> StepResult:
    values = (loss, tokens, norm, skipped, -1)
    return StepResult(*(torch.tensor(value) for value in values))


finite = st.floats(0.0, 100.0, width=32)
steps = st.builds(step_result, finite, st.integers(1, 1000), finite, st.booleans())


@given(results=st.lists(steps, max_size=8))
def test_a_record_counts_every_token_of_the_completed_steps_the_same(results: list[StepResult]) -> None:
    summary = summarise(results)
    losses = [float(r.loss) for r in results if not r.skipped for _ in range(int(r.tokens))]
    norms = [float(r.grad_norm) for r in results if not r.skipped]
    assert summary["tokens"] == len(losses)
    if not losses:
        assert all(math.isnan(summary[name]) for name in ("loss", "grad_norm", "grad_norm_max"))
        return
    assert summary["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-9, abs=1e-12)
    assert (summary["grad_norm"], summary["grad_norm_max"]) == (norms[-1], max(norms))


def test_the_peak_of_memory_is_in_bytes_and_no_less_than_what_is_used_now() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system has no /proc")
    (now,) = (int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    assert 0.9 * 1024 * now <= peak_memory() < 2**45


def test_the_peak_of_a_gpu_is_what_torch_had_allocated_on_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {torch.device("cuda:1"): 2**30}.__getitem__)
    assert peak_memory("cuda:1") == 2**30


@given(values=st.lists(st.floats(-100, 100), max_size=20), smoothing=st.floats(0, 0.99))
def test_a_smoothed_point_is_the_mean_in_which_each_step_back_weighs_less(
    values: list[float], smoothing: float
) -> None:
    for count, point in enumerate(smooth(values, smoothing), 1):
        weights = [smoothing ** (count - 1 - index) for index in range(count)]
        total = sum(weight * value for weight, value in zip(weights, values))
        assert point == pytest.approx(total / sum(weights), rel=1e-9, abs=1e-9)


def test_a_gap_in_a_curve_stays_a_gap_and_spoils_nothing_behind_it() -> None:
    curve = smooth([1.0, math.nan, 2.0, math.inf, 3.0], 0.5)
    assert [math.isnan(value) for value in curve] == [False, True, False, True, False]
    assert [curve[0], curve[2], curve[4]] == smooth([1.0, 2.0, 3.0], 0.5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan, None, "x", True])
def test_a_smoothing_that_is_no_weight_is_refused(smoothing: Any) -> None:
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\), got"):
        smooth([1.0], smoothing)
