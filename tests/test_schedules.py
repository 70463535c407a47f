"""Schedules: pure functions of the completed steps, equal to the published ones."""

import inspect
import math
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import nbformat
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from course_lm import schedules
from course_lm.schedules import ScheduleConfig, ScheduleLR, ScheduleType, build_schedule

TYPES = get_args(ScheduleType)

runs = st.integers(1, 120).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total)))
rates = st.floats(1e-6, 10)
configs = st.builds(
    ScheduleConfig,
    type=st.sampled_from(TYPES),
    warmup_ratio=st.floats(0, 1, exclude_max=True),
    num_cycles=st.just(0.5),
    min_lr=st.floats(0, 1),
    step_size=st.none() | st.integers(1, 50),
    gamma=st.floats(0.01, 1),
    timescale=st.none() | st.integers(1, 500),
    decay_ratio=st.floats(0, 1),
)


def theirs(get_schedule: Callable[..., torch.optim.lr_scheduler.LambdaLR], peak_lr: float, **numbers):
    """A transformers schedule as a function of the completed steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak_lr)
    factor = get_schedule(optimizer, **numbers).lr_lambdas[0]
    return lambda step: peak_lr * factor(step)


def rates_under(make_scheduler: Callable[[Optimizer], LRScheduler], peak_lr: float, steps: int) -> list[float]:
    """The rates at which an optimizer makes its steps under one of torch's schedulers."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak_lr)
    scheduler = make_scheduler(optimizer)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


def assert_same_at_every_step(mine, other, peak_lr: float, total_steps: int) -> None:
    for step in range(total_steps + 1):
        assert math.isclose(mine(step), other(step), rel_tol=1e-12, abs_tol=1e-12 * peak_lr), f"step {step}"


# What each schedule of transformers is given beside the warm-up and the length of the run.
THEIRS: dict[str, tuple[Callable[..., Any], Callable[[float, int | None, float], dict[str, Any]]]] = {
    "linear": (transformers.get_linear_schedule_with_warmup, lambda cycles, timescale, least: {}),
    "constant": (transformers.get_constant_schedule_with_warmup, lambda cycles, timescale, least: {}),
    "inverse_sqrt": (transformers.get_inverse_sqrt_schedule, lambda cycles, timescale, least: {"timescale": timescale}),
    "cosine": (
        transformers.get_cosine_with_min_lr_schedule_with_warmup,
        lambda cycles, timescale, least: {"num_cycles": cycles, "min_lr_rate": least},
    ),
}


@pytest.mark.parametrize("kind", THEIRS)
@given(runs, rates, st.floats(0.1, 5), st.none() | st.integers(1, 1000), st.floats(0, 1))
def test_a_schedule_equals_that_of_transformers_at_every_step(kind, run, peak_lr, cycles, timescale, least):
    total, warmup = run
    get, given_besides = THEIRS[kind]
    numbers = {"num_warmup_steps": warmup, **given_besides(cycles, timescale, least)}
    if "num_training_steps" in inspect.signature(get).parameters:
        numbers["num_training_steps"] = total
    config = ScheduleConfig(
        kind,
        warmup_steps=warmup,
        num_cycles=cycles,
        timescale=timescale,
        min_lr=least * peak_lr if "min_lr_rate" in numbers else 0.0,
    )
    mine = build_schedule(config, peak_lr=peak_lr, total_steps=total)
    assert_same_at_every_step(mine, theirs(get, peak_lr, **numbers), peak_lr, total)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 40), rates)
def test_warmup_stable_decay_equals_transformers_at_every_step(warmup, stable, decay, peak_lr):
    total = warmup + stable + decay
    config = ScheduleConfig("warmup_stable_decay", warmup_steps=warmup, decay_ratio=decay / total)
    mine = build_schedule(config, peak_lr=peak_lr, total_steps=total)
    numbers = {"num_warmup_steps": warmup, "num_stable_steps": stable, "num_decay_steps": decay}
    other = theirs(transformers.get_wsd_schedule, peak_lr, **numbers, decay_type="linear")
    assert_same_at_every_step(mine, other, peak_lr, total)


def test_cosine_with_warmup_matches_a_table_made_by_hand():
    # Warm-up in quarters; then 0.6 + 0.4 cos of 0°, 15°, …, 180°; then the minimum for ever.
    warmup = [0.0, 0.25, 0.5, 0.75]
    descent = [1.0, 0.986370, 0.946410, 0.882843, 0.8, 0.703528, 0.6]
    descent += [0.496472, 0.4, 0.317157, 0.253590, 0.213630, 0.2]
    expected = warmup + descent + [0.2] * 8
    config = ScheduleConfig(warmup_steps=4, min_lr=0.2)
    lr = build_schedule(config, peak_lr=1.0, total_steps=16)
    assert [lr(step) for step in range(25)] == pytest.approx(expected, abs=1e-6)


def test_step_decay_multiplies_by_gamma_after_each_step_size():
    config = ScheduleConfig("step", warmup_steps=2, step_size=3, gamma=0.5, min_lr=0.2)
    lr = build_schedule(config, peak_lr=1.0, total_steps=12)
    assert [lr(step) for step in range(13)] == [0.0, 0.5, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2]


@given(runs, rates, st.lists(st.integers(1, 130), max_size=4))
def test_step_decay_at_milestones_equals_torch_at_every_step(run, peak_lr, milestones):
    total, _ = run
    config = ScheduleConfig("step", warmup_steps=0, milestones=milestones, gamma=0.5)
    mine = build_schedule(config, peak_lr=peak_lr, total_steps=total)
    rates_of_torch = rates_under(lambda optimizer: MultiStepLR(optimizer, milestones, gamma=0.5), peak_lr, total)
    assert [mine(step) for step in range(total)] == pytest.approx(rates_of_torch, rel=1e-9)


def test_milestones_count_from_the_start_of_the_run_not_from_the_end_of_the_warm_up():
    config = ScheduleConfig("step", warmup_steps=4, milestones=[6], gamma=0.5)
    schedule = build_schedule(config, peak_lr=1.0, total_steps=10)
    assert [schedule(step) for step in (4, 5, 6, 9)] == [1.0, 1.0, 0.5, 0.5]


@given(runs)
def test_step_decay_has_at_most_three_plateaus_by_default(run):
    total, warmup = run
    values = {
        schedules.step_decay(k, peak_lr=1.0, total_steps=total, warmup_steps=warmup) for k in range(warmup, total)
    }
    assert values <= {1.0, 0.1, 0.1**2}
    assert len(values) == 3 or total - warmup < 5


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("cosine", "cosine_with_warmup"),
        ("linear_with_warmup", "linear"),
        ("constant_with_warmup", "constant"),
    ],
)
def test_an_alias_is_the_same_schedule(alias, name):
    assert schedules.SCHEDULES[alias] is schedules.SCHEDULES[name]


@given(configs, rates, st.integers(1, 200), st.integers(0, 1000))
def test_the_rate_rises_in_equal_steps_to_the_peak_and_then_never_again_nor_below_the_minimum(
    config, peak_lr, total, extra
):
    peak_lr = max(peak_lr, config.min_lr)
    lr = build_schedule(config, peak_lr=peak_lr, total_steps=total)
    values = [lr(step) for step in range(total + 1)]
    top = next(step for step, value in enumerate(values) if value >= peak_lr * (1 - 1e-12))
    assert values[:top] == pytest.approx([peak_lr * step / max(1, top) for step in range(top)])
    assert all(later <= earlier + 1e-12 * peak_lr for earlier, later in zip(values[top:], values[top + 1 :]))
    assert values[top] <= peak_lr * (1 + 1e-12) and values[-1] >= config.min_lr - 1e-15
    assert lr(total + extra) == values[-1]
    if config.type in ("cosine", "linear", "warmup_stable_decay"):  # those with a fixed end
        assert values[-1] == pytest.approx(config.min_lr, rel=1e-12, abs=1e-12 * peak_lr)


@pytest.mark.parametrize(("ratio", "total", "warmup"), [(0.1, 100, 10), (0.07, 100, 7), (0.1, 4, 0), (0.29, 100, 29)])
def test_the_warm_up_ratio_is_rounded_to_the_nearest_step(ratio, total, warmup):
    lr = build_schedule(ScheduleConfig("constant", warmup_ratio=ratio), peak_lr=1.0, total_steps=total)
    assert sum(lr(step) < 1.0 for step in range(total)) == warmup


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 200))
def test_a_warm_up_ratio_always_leaves_a_step_at_the_peak(ratio, total):
    lr = build_schedule(ScheduleConfig("constant", warmup_ratio=ratio), peak_lr=1.0, total_steps=total)
    assert lr(total - 1) == 1.0


def test_warmup_steps_win_over_the_ratio():
    config = ScheduleConfig("constant", warmup_ratio=0.5, warmup_steps=2)
    lr = build_schedule(config, peak_lr=1.0, total_steps=10)
    assert [lr(step) for step in range(4)] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("kind", TYPES)
def test_a_schedule_can_be_sent_to_another_process(kind):
    lr = build_schedule(ScheduleConfig(kind), peak_lr=1.0, total_steps=20)
    copy = pickle.loads(pickle.dumps(lr))
    assert [copy(step) for step in range(25)] == [lr(step) for step in range(25)]


@pytest.mark.parametrize(
    ("config", "total", "message"),
    [
        (ScheduleConfig(warmup_steps=20), 10, "warmup_steps must be at most the run's 10 steps, got 20"),
        (ScheduleConfig(min_lr=0.5), 10, "min_lr must be at most the peak learning rate 0.1, got 0.5"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused(config, total, message):
    with pytest.raises(ValueError) as error:
        build_schedule(config, peak_lr=0.1, total_steps=total)
    assert str(error.value) == message


# Torch's own schedulers, and schedules in the place of one.


@pytest.mark.parametrize("kind", TYPES)
def test_a_schedule_drives_an_optimizer_as_torchs_scheduler(kind):
    schedule = build_schedule(ScheduleConfig(kind), peak_lr=0.5, total_steps=20)
    used = rates_under(lambda optimizer: ScheduleLR(optimizer, schedule), 9.0, 25)
    assert used == [schedule(step) for step in range(25)]


def two_groups() -> Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.ones(1))]}]
    optimizer = SGD(groups, lr=1.0)
    optimizer.param_groups[1]["lr_scale"] = 0.1
    return optimizer


def rates_of(optimizer: Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def test_a_scheduler_goes_on_from_its_state(tmp_path):
    schedule = build_schedule(ScheduleConfig("linear"), peak_lr=0.5, total_steps=20)
    straight, resumed = two_groups(), two_groups()
    scheduler = ScheduleLR(straight, schedule)
    for _ in range(7):
        straight.step()
        scheduler.step()
    torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    again = ScheduleLR(resumed, schedule)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert rates_of(resumed) == rates_of(straight)
    for one in (scheduler, again):
        one.optimizer.step()
        one.step()
    assert rates_of(resumed) == rates_of(straight) != [0.5, 0.05]


def test_a_scheduler_that_goes_on_has_counted_torchs_first_call():
    optimizer = two_groups()
    scheduler = ScheduleLR(optimizer, lambda k: 1.0 / (1 + k))
    scheduler.load_state_dict({"completed_steps": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch takes a first call for one that came before the optimizer's
        scheduler.step()
    assert rates_of(optimizer) == pytest.approx([0.2, 0.02])


def test_the_bad_rate_of_a_schedule_is_refused():
    optimizer = two_groups()
    scheduler = ScheduleLR(optimizer, lambda k: 0.1 if k == 0 else math.nan)
    optimizer.step()
    with pytest.raises(ValueError, match="got nan"):
        scheduler.step()
    assert rates_of(optimizer) == [0.1, 0.1 * 0.1]


@pytest.mark.parametrize("peak_lr", [math.nan, math.inf, -1.0, "0.1", None])
def test_a_peak_that_is_no_rate_is_refused(peak_lr):
    with pytest.raises((ValueError, TypeError), match=r"^peak_lr must be a finite number of at least 0, got "):
        build_schedule(ScheduleConfig(), peak_lr=peak_lr, total_steps=9)


@pytest.mark.parametrize("total", [0, 10.5, 10.0, True, "10", None])
def test_a_length_that_is_no_whole_number_is_refused(total):
    with pytest.raises(ValueError, match="total_steps must be a whole number of at least 1, got"):
        build_schedule(ScheduleConfig(), peak_lr=0.1, total_steps=total)


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(1.0))
    rate = optimizer.param_groups[0]["lr"]
    scheduler = ScheduleLR(optimizer, lambda k: 1.0 / (1 + k))
    scheduler.load_state_dict({"completed_steps": 3})
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == 0.25


def test_the_names_of_other_tools_in_lesson_05_are_theirs():
    notebook = nbformat.read(Path(__file__).parents[1] / "notebooks" / "05_schedules.ipynb", as_version=4)
    (table,) = (cell.source for cell in notebook.cells if "their names in other tools" in cell.source)
    functions = {kind.value: function.__name__ for kind, function in TYPE_TO_SCHEDULER_FUNCTION.items()}
    named = dict(re.findall(r"`(\w+)`, `(get_\w+)`", table))
    assert named.items() <= functions.items() and len(named) == 7
    assert all(hasattr(torch.optim.lr_scheduler, name) for name in re.findall(r"`(\w+LR)`", table))
