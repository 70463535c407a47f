"""Claims about `training.time_budget`: the run ends in time, whatever the machine does, and is repeated to the bit."""

import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import course_lm.trainer.loop
from course_lm import cli
from course_lm.checkpoints import load_checkpoint, save_checkpoint
from course_lm.config import TrainingConfig
from course_lm.forward import check_causal
from course_lm.schedules import SCHEDULES, ScheduleConfig
from course_lm.trainer import Trainer, budget
from course_lm.trainer.budget import Budget, progress_of, schedule_over
from course_lm.trainer.run import STOPPED
from tests.cli.small_runs import arguments, write_text
from tests.records import Recorder
from tests.small_run import small_batches
from tests.training_run import (
    NAME,
    assert_same,
    configure,
    counting,
    loaders,
    model_of,
    outcome,
    without_measures,
)

MINUTE = 60.0


class Machine:
    """A machine on which time passes where the model computes and where a checkpoint is written, and nowhere else.

    Attributes:
        now: seconds. slowness: a factor for all that it does.
        changes: (seconds, slowness), each for the time from then on.
    """

    def __init__(self, slowness: float = 1.0, row: float = 0.01, cell: float = 0.01, save: float = 0.1) -> None:
        self.now, self.slowness, self.row, self.cell, self.save = 0.0, slowness, row, cell, save
        self.changes: list[tuple[float, float]] = []
        self.saves = self.passes = 0

    def model(self) -> torch.nn.Module:
        """A model whose forward pass takes time, three times as long where it is trained."""
        model = model_of()
        check_causal(model, torch.arange(8)[None])  # now: a run tries it once, and here each pass takes time
        model.register_forward_pre_hook(self._compute, with_kwargs=True)
        return model

    def _compute(self, model: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = inputs[0] if inputs else named["input_ids"]
        self.passes += 1
        self.slowness = next((slowness for at, slowness in reversed(self.changes) if self.now >= at), self.slowness)
        self.now += self.slowness * (3 if model.training else 1) * (self.row + self.cell * ids.numel())

    def write(self, *arguments: Any, **named: Any) -> None:
        """Save, in the time that this machine needs."""
        save_checkpoint(*arguments, **named)
        self.saves += 1
        self.now += self.slowness * self.save


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(budget, "clock", lambda: made.now)
    monkeypatch.setattr(course_lm.trainer.loop, "save_checkpoint", made.write)
    return made


def run(
    folder: Path, machine: Machine, mode: str = "bucketed", stop: "StopAfter | None" = None, **given: Any
) -> Trainer:
    """Train, or go on training, with everything built anew; validate after every fifth step."""
    settings: dict[str, Any] = {"eval_steps": 5, "save_steps": 7, "save_total_limit": None, **given}
    trainer = Trainer(machine.model(), configure(folder, **settings), observers=[] if stop is None else [stop])
    if stop is not None:
        stop.trainer = trainer
    trainer.train(*loaders(mode))
    return trainer


def steps_of(folder: Path) -> dict[str, Any]:
    """What the steps of a run have left: its last weights and moments, and its records but for the decisions."""
    state = without_measures(load_checkpoint(folder / NAME / "checkpoint_last.safetensors"))
    records = [record for record in state["history"] if record["event"] != "length"]
    return {"model": state["model"], "optimizer": state["optimizer"], "records": records}


def never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("a step was timed")


# No trace


@pytest.mark.parametrize(("mode", "precision"), [("bucketed", "fp16"), ("packed", "bf16"), ("dynamic", "fp32")])
def test_a_run_with_a_budget_is_the_run_of_the_steps_that_it_makes(tmp_path, machine, mode, precision):
    budgeted = run(tmp_path / "budget", machine, mode, time_budget=1.0, precision=precision)
    steps, lengths = budgeted.total_steps, budgeted.settings.lengths
    assert steps is not None and steps > 4
    run(tmp_path / "steps", machine, mode, max_steps=steps, lengths=lengths, precision=precision)
    assert_same(steps_of(tmp_path / "budget"), steps_of(tmp_path / "steps"))


def test_timing_changes_neither_model_optimizer_data_nor_random_numbers(tmp_path, machine):
    train, validation = loaders("bucketed")
    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=1.0, precision="fp16"))
    train.load_state_dict({"epoch": 1, "batch": 2})
    before, modes = trainer.state_dict(), [module.training for module in trainer.model.modules()]
    trainer.fit_to_budget(train, validation)
    assert machine.passes > 4
    differ = {"config": None, "budget": None}
    assert_same(trainer.state_dict() | differ, before | differ)
    assert [module.training for module in trainer.model.modules()] == modes
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert train.state_dict() == {"epoch": 1, "batch": 2}
    assert trainer.history.records == [] and list(tmp_path.iterdir()) == [tmp_path / f".{NAME}.lock"]


def test_an_interrupt_while_steps_are_timed_leaves_a_trainer_that_can_train(tmp_path, machine):
    def press(count: int) -> None:
        if count == 4:
            raise KeyboardInterrupt

    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=1.0), loss_fn=counting(press))
    before = trainer.state_dict()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(*loaders("fixed"))
    assert_same(trainer.state_dict()["model"], before["model"])
    trainer.train(*loaders("fixed"))
    assert trainer.step == trainer.settings.max_steps


# One run


class StopAfter(Recorder):
    """An observer that stops its trainer after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.trainer: Trainer | None = None

    def log(self, record: dict[str, Any]) -> None:
        if record["step"] == self.steps and self.trainer is not None:
            self.trainer.stop()


@pytest.mark.parametrize("steps", [1, 8])
def test_a_run_that_goes_on_under_a_budget_changes_no_bit_and_is_not_timed_again(tmp_path, machine, monkeypatch, steps):
    monkeypatch.setattr(budget, "OFF", math.inf)  # nothing is decided anew
    run(tmp_path / "straight", machine, time_budget=1.0, logging_steps=1)
    stopped = run(tmp_path / "stopped", machine, stop=StopAfter(steps), time_budget=1.0, logging_steps=1)
    assert (stopped.step, stopped.interrupted) == (steps, STOPPED)
    monkeypatch.setattr(Budget, "try_steps", never)
    run(tmp_path / "stopped", machine, time_budget=1.0, logging_steps=1)
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "straight"))


def test_the_saved_configuration_repeats_the_run_without_timing(tmp_path, machine, monkeypatch, capsys):
    run(tmp_path / "first", machine, stop=StopAfter(12), time_budget=1.0, logging_steps=1)
    machine.slowness = 4.0
    first = run(tmp_path / "first", machine, time_budget=1.0, logging_steps=1)
    lengths, steps = first.settings.lengths, first.total_steps
    assert lengths is not None and len(lengths) > 1 and lengths[-1][1] == steps
    saved = TrainingConfig.from_yaml(tmp_path / "first" / NAME / "config.yaml")
    state = load_checkpoint(tmp_path / "first" / NAME / "checkpoint_last.safetensors")
    for training in (vars(saved.training), state["config"]["training"]):
        assert [training[key] for key in ("time_budget", "max_steps", "lengths")] == [1.0, steps, lengths]
    monkeypatch.setattr(Budget, "try_steps", never)
    capsys.readouterr()
    again = replace(saved, training=replace(saved.training, output_dir=str(tmp_path / "again")))
    Trainer(machine.model(), again).train(*loaders("bucketed"))
    assert f"max_steps is {steps}: nothing is timed for training.time_budget 1" in capsys.readouterr().out
    assert_same(steps_of(tmp_path / "again"), steps_of(tmp_path / "first"))


def test_a_run_that_goes_on_has_the_minutes_that_were_left(tmp_path, machine):
    run(tmp_path, machine, stop=StopAfter(12), time_budget=1.0, logging_steps=1)
    stopped, machine.now = machine.now, machine.now + 1_000
    begun = machine.now
    run(tmp_path, machine, time_budget=1.0, logging_steps=1)
    assert 0.9 <= (stopped + machine.now - begun) / MINUTE <= 1.0


def test_going_back_to_an_earlier_state_gives_the_minutes_that_were_left_then(tmp_path, machine):
    trainer = run(tmp_path, machine, stop=StopAfter(12), time_budget=1.0, logging_steps=1)
    state, stopped = trainer.state_dict(), machine.now
    machine.now += 1_000  # a pause between two calls of train does not count
    trainer.train(*loaders("bucketed"))
    assert 0.9 <= (machine.now - 1_000) / MINUTE <= 1.0
    trainer.load_state_dict(state)
    begun = machine.now
    trainer.train(*loaders("bucketed"))
    assert 0.9 <= (stopped + machine.now - begun) / MINUTE <= 1.0


def test_epochs_by_themselves_follow_the_budget(tmp_path, machine):
    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=1.0))
    trainer.fit_to_budget(*loaders("bucketed"))
    machine.slowness = 3.0
    train, validation = loaders("bucketed")
    while not trainer.finished:
        trainer.train_epoch(train, validation)
    assert trainer.settings.lengths is not None and 0.9 <= machine.now / MINUTE <= 1.1


def test_a_run_that_repeats_another_one_and_goes_on_is_not_decided_anew(tmp_path, machine):
    first = run(tmp_path / "first", machine, time_budget=1.0)
    run(tmp_path, machine, stop=StopAfter(8), time_budget=1.0, max_steps=first.step, logging_steps=1)
    machine.slowness = 5.0
    assert run(tmp_path, machine, time_budget=1.0, logging_steps=1).step == first.step


def test_a_state_that_is_loaded_brings_its_steps(tmp_path, machine):
    machine.changes = [(30.0, 3.0)]
    saved = run(tmp_path / "first", machine, time_budget=1.0)
    machine.slowness = 5.0
    unknown = replace(saved.settings, max_steps=None, lengths=None)
    trainer = Trainer(machine.model(), replace(saved.config, training=unknown))
    trainer.load_checkpoint(tmp_path / "first" / NAME / "checkpoint_last.safetensors")
    for settings in (trainer.settings, trainer.config.training):
        assert (settings.max_steps, settings.lengths) == (saved.settings.max_steps, saved.settings.lengths)


def test_a_function_of_ones_own_is_asked_for_the_steps_themselves(tmp_path, machine):
    machine.changes, asked = [(30.0, 3.0)], []
    config = configure(tmp_path, time_budget=1.0)
    trainer = Trainer(machine.model(), config, schedule=lambda step: asked.append(step) or 1e-3)  # type: ignore[func-returns-value]
    trainer.train(*loaders("bucketed"))
    assert trainer.settings.lengths is not None and {type(step) for step in asked} == {int}


# Progress


@st.composite
def decisions(draw: st.DrawFn) -> list[list[int]]:
    """Lengths as a run may decide on them: each decision falls before the end of the one before it."""
    lengths = [[0, draw(st.integers(1, 300))]]
    for _ in range(draw(st.integers(0, 5))):
        decided, total = lengths[-1]
        if total - decided < 2:
            break
        step = draw(st.integers(decided + 1, total - 1))
        lengths.append([step, draw(st.integers(step + 1, step + 300))])
    return lengths


@given(decisions())
def test_progress_rises_evenly_after_each_decision_and_ends_where_the_first_length_ends(lengths):
    places = [progress_of(lengths, step) for step in range(lengths[-1][1])]
    assert places[0] == 0 and math.isclose(places[-1], lengths[0][1] - 1, abs_tol=1e-9)
    paces = [after - before for before, after in pairwise(places)]
    assert all(pace >= -1e-9 for pace in paces)
    for (step, _), end in zip(lengths, [*(step for step, _ in lengths[1:]), lengths[-1][1]]):
        of_decision = paces[max(0, step - 1) : end - 1]
        assert not of_decision or math.isclose(min(of_decision), max(of_decision), abs_tol=1e-9)


@given(decisions(), st.integers(1, 300))
def test_a_decision_changes_no_step_that_was_taken(lengths, more):
    decided, total = lengths[-1]
    if total - decided > 1:
        step = decided + (total - decided) // 2
        longer = [*lengths, [step, step + more]]
        assert all(progress_of(longer, k) == progress_of(lengths, k) for k in range(step))


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.sampled_from(list(SCHEDULES)))
def test_without_a_second_decision_the_rates_are_those_of_the_schedule_to_the_bit(total, step, kind):
    plain, over = (
        schedule_over(lengths, ScheduleConfig(type=kind), peak_lr=1e-3, total_steps=total)
        for lengths in (None, [[0, total]])
    )
    assert plain(step) == over(step)


# In time


@pytest.mark.parametrize(
    ("mode", "slowness", "save", "minutes", "settings"),
    [
        ("fixed", 0.6, 0.1, 1.8, {}),
        ("bucketed", 0.4, 0.1, 1.2, {}),
        ("packed", 1.0, 8.0, 5.0, {"eval_steps": None, "save_steps": 3}),  # costly validations and saves
    ],
)
def test_the_run_ends_within_a_tenth_of_its_budget(tmp_path, machine, mode, slowness, save, minutes, settings):
    machine.slowness, machine.save = slowness, save
    run(tmp_path, machine, mode, time_budget=minutes, **settings)
    assert 0.9 <= machine.now / (minutes * MINUTE) <= 1.0


def test_what_was_spent_before_counts(tmp_path, machine):
    machine.now = 50.0
    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=3.0, save_steps=9), started=20.0)
    trainer.train(*loaders("fixed"))
    assert 0.9 <= (machine.now - 20.0) / (3 * MINUTE) <= 1.0


# The loop that is closed, on a machine that changes


def drive(
    clock: list[float],
    *,
    step: float = 0.4,
    trial: float = 1.0,
    slowness: Callable[[float], float] = lambda share: 1.0,
    noise: float = 0.0,
    validation: float = 0.0,
    epoch: int = 54,
) -> tuple[float, list[list[int]]]:
    """A run of four minutes by the clock alone: the share of the minutes that it took, and its lengths.

    step: seconds. trial: how much longer the steps before the first one take. slowness: by the share of the minutes
    that is over. noise: of each step. validation: seconds of each. epoch: steps.
    """
    draw, minutes = random.Random(0), 4.0

    def take(longer: float = 1.0) -> None:
        share = clock[0] / (60 * minutes)
        clock[0] += step * longer * slowness(share) * max(0.0, draw.gauss(1.0, noise))

    run = Budget(minutes, None, 500)
    run.start()
    run.epoch_steps = epoch
    run.try_steps([[batch] for batch in small_batches(1)], lambda window: take(trial), bool)
    total, _ = run.first_length()
    run.begin_epoch(0, epoch)
    lengths, done = [[0, total]], 0
    while done < total:
        take()
        done += 1
        decided = run.look(done, total) if run.is_due(done, *lengths[-1]) else None
        if decided is not None:
            total = decided
            lengths.append([done, decided])
        if done % epoch == 0 or done == total:
            with run.timing("validation"):
                clock[0] += validation
            with run.timing("save"):
                clock[0] += 0.05
    return clock[0] / (60 * minutes), lengths


def slow_later(share: float) -> float:
    return 4.0 if share > 0.5 else 1.0


def fast_later(share: float) -> float:
    return 0.25 if share > 0.5 else 1.0


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    hands = [0.0]
    monkeypatch.setattr(budget, "clock", lambda: hands[0])
    return hands


MACHINES: dict[str, tuple[dict[str, Any], int]] = {
    "always the same": ({}, 0),
    "four times slower half-way": ({"slowness": slow_later}, 5),
    "four times faster half-way": ({"slowness": fast_later}, 3),
    "twice as slow as in the trial": ({"trial": 0.5}, 3),
    "twice as fast as in the trial": ({"trial": 2.0}, 3),
    "each step off by a third": ({"noise": 0.3}, 20),
    "a validation takes a twentieth": ({"validation": 12.0}, 3),
    "one disturbance": ({"slowness": lambda share: 25.0 if 0.4 < share < 0.402 else 1.0}, 2),
}


@pytest.mark.parametrize("seconds", [0.02, 0.4, 5.0])
@pytest.mark.parametrize("name", MACHINES)
def test_minutes_hold_and_few_decisions_are_taken(hand, name, seconds):
    machine, most = MACHINES[name]
    taken, lengths = drive(hand, step=seconds, epoch=max(10, int(22 / seconds)), **machine)
    assert 0.9 <= taken <= 1.02
    assert len(lengths) - 1 <= most


def test_a_run_whose_minutes_are_over_takes_one_more_step(hand):
    _, lengths = drive(hand, slowness=lambda share: 1_000.0 if share > 0.5 else 1.0)
    assert lengths[-1][1] == lengths[-1][0] + 1


def test_the_first_pass_over_a_shape_is_left_out_and_one_disturbance_does_not_count(hand):
    seconds = iter([9.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0])

    def act(window: Any) -> None:
        hand[0] += next(seconds)

    run = Budget(10.0, None, 500)
    run.try_steps([[batch] for batch in small_batches(1)], act, bool)
    assert run.pace == 1.0 and hand[0] <= 9.0 + budget.LONGEST_TRIAL + 5.0


@pytest.mark.parametrize(("slowness", "mode"), [(4.0, "fixed"), (0.25, "fixed"), (4.0, "packed")])
def test_a_run_ends_in_time_and_with_its_last_rate_where_the_machine_changes(tmp_path, machine, slowness, mode):
    machine.changes = [(1.5 * MINUTE, slowness)]
    trainer = run(tmp_path, machine, mode, time_budget=3.0, logging_steps=1)
    assert 0.9 <= machine.now / (3 * MINUTE) <= 1.1
    lengths = trainer.settings.lengths
    assert lengths is not None and 1 < len(lengths) <= 8
    assert trainer.step == trainer.settings.max_steps == trainer.total_steps == lengths[-1][1]
    plain = schedule_over(None, trainer.config.lr_scheduler, peak_lr=3e-3, total_steps=lengths[0][1])
    assert math.isclose(trainer.history.train[-1]["lr"], plain(lengths[0][1] - 1), rel_tol=1e-6)
    told = [
        (record["step"], record["total_steps"]) for record in trainer.history.records if record["event"] == "length"
    ]
    assert told == [tuple(length) for length in lengths[1:]]


def test_a_run_of_six_real_seconds_ends_in_time(tmp_path, monkeypatch):
    """In seconds of the processor, which other processes do not lengthen."""
    monkeypatch.setattr(budget, "clock", time.process_time)
    torch.set_num_threads(1)
    trainer = Trainer(model_of(), configure(tmp_path, time_budget=0.1, logging_steps=10, eval_steps=20, save_steps=50))
    started = time.process_time()
    trainer.train(*loaders("packed"))
    # a third of a second is timed, and a processor that others share changes its pace within seconds
    assert 0.5 <= (time.process_time() - started) / 6 <= 1.5


# Refusals


@pytest.mark.parametrize(
    "lengths", ["9", [], [9], [[0]], [[0, 9, 9]], [[1, 9]], [[0, 9], [0, 9]], [[0, 5], [7, 7]], [[0, 5], [3, 8]]]
)
def test_lengths_that_no_run_decides_on_are_refused_in_one_line(tmp_path, lengths):
    path = tmp_path / "settings.yaml"
    path.write_text(f"training: {{max_steps: 9, lengths: {lengths}}}")
    with pytest.raises(ValueError, match=r"training\.lengths must be") as caught:
        TrainingConfig.from_yaml(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_budget_without_time_for_a_step_is_refused_with_one_that_would_do(tmp_path, machine):
    with pytest.raises(ValueError, match=r"training\.time_budget must be at least") as caught:
        run(tmp_path, machine, time_budget=0.01)
    assert "\n" not in str(caught.value) and not (tmp_path / NAME).exists()
    least = float(str(caught.value).split("at least ")[1].split()[0])
    assert run(tmp_path, machine, time_budget=1.1 * least).step >= 1


@pytest.mark.parametrize(
    ("first", "budget"), [({"time_budget": 1.0}, r"1\.0"), ({"max_steps": 8}, "None")], ids=["another", "none"]
)
def test_another_budget_in_the_folder_of_a_run_is_refused(tmp_path, machine, first, budget):
    run(tmp_path, machine, **first)
    with pytest.raises(
        ValueError, match=rf"saved with training\.time_budget {budget}, this run has 2\.0: change it back"
    ):
        run(tmp_path, machine, time_budget=2.0)
    run(tmp_path, machine, **first)


def test_an_iterator_and_a_loader_without_a_length_are_refused_before_a_batch_is_read(machine):
    batches = small_batches(4)
    config = replace(configure("runs"), training=replace(configure("runs").training, time_budget=1.0, output_dir=None))
    unknown, once = (
        r"has no len\(\): set training\.max_steps",
        "needs a training loader that can be read again, got an i",
    )
    with_length = iter(DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    for loader, said in ((iter(batches), unknown), ((batch for batch in batches), unknown), (with_length, once)):
        with pytest.raises(ValueError, match=said):
            Trainer(machine.model(), config).train(loader)
        assert len(list(loader)) == 4
    assert machine.passes == 0


def test_an_epoch_by_itself_is_refused_where_the_steps_are_not_known(tmp_path, machine):
    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=1.0))
    with pytest.raises(ValueError, match=r"training\.time_budget 1 has not been turned into steps"):
        trainer.train_epoch(*loaders("fixed"))


# What comes first


@pytest.mark.parametrize(
    ("file", "given", "left"),
    [
        ({"max_steps": 9}, {"time_budget": 4.0}, (None, 4.0, None)),
        ({"time_budget": 4.0}, {"max_steps": 9}, (9, None, None)),
        ({"max_steps": 9, "lengths": [[0, 12], [5, 9]]}, {"num_epochs": 3}, (None, None, None)),
        ({"max_steps": 9, "lengths": [[0, 12], [5, 9]]}, {"seed": 1}, (9, None, [[0, 12], [5, 9]])),
        ({"max_steps": 9, "time_budget": 4.0}, {"time_budget": 5.0}, (None, 5.0, None)),
        ({"time_budget": 4.0}, {"time_budget": None}, (None, None, None)),
    ],
)
def test_a_length_given_later_takes_the_place_of_one_given_before(file, given, left):
    config = TrainingConfig().updated({"training": file}, "a file").updated({"training": given}, "command line")
    assert (config.training.max_steps, config.training.time_budget, config.training.lengths) == left


# The command


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock on which whatever is timed takes a second and a half."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(budget, "clock", lambda: 1.5 * next(ticks))
    yield


def command(folder: Path, *more: str) -> list[str]:
    text = write_text(folder / "text.txt", 90)
    return arguments("train", text, "--config=tiny", "--training.time_budget=1", *more)


@pytest.mark.usefixtures("ticking")
def test_the_command_says_what_a_budget_makes(tmp_path, capsys):
    assert cli.main(command(tmp_path)) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("1 min make")]
    assert re.search(r"about [\d,]+ steps, [\d.]+ epochs: 1.5 s a step, .* s before the first step$", line)
    records = [json.loads(text) for text in (tmp_path / "runs" / "toy" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == TrainingConfig.from_yaml(tmp_path / "runs" / "toy" / "config.yaml").training.max_steps


@pytest.mark.usefixtures("ticking")
def test_a_curriculum_follows_the_steps_that_a_budget_makes_and_is_repeated(tmp_path, capsys):
    settings = ["--curriculum.enabled=true", "--curriculum.strategy=length"]
    assert cli.main(command(tmp_path, *settings)) == 0
    assert "curriculum: length difficulty" in capsys.readouterr().out
    saved = TrainingConfig.from_yaml(tmp_path / "runs" / "toy" / "config.yaml")
    assert saved.training.max_steps is not None
    assert saved.training.first_length and saved.curriculum.num_steps == saved.training.first_length // 2
    again = command(tmp_path, *settings)
    assert cli.main(again) == 0  # the run is found, and over
    assert "nothing is left to train" in capsys.readouterr().out
