"""Claims about `training.time_budget`: the run ends in time, timing leaves no trace, and nobody times it twice."""

import itertools
import json
import math
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import course_lm.trainer.loop
from course_lm import cli
from course_lm.batching import labels_of
from course_lm.checkpoints import load_checkpoint, save_checkpoint
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.distributed import Group
from course_lm.trainer import Trainer, timing
from course_lm.trainer.time_budget import Costs, Plan, fit
from tests.small_run import small_batches
from tests.training_run import (
    LENGTH,
    NAME,
    VOCABULARY,
    assert_same,
    configure,
    counting,
    loaders,
    model_of,
    outcome,
)

MINUTE = 60.0


class Machine:
    """A machine on which time passes where the model computes and where a checkpoint is written, and nowhere else.

    Attributes:
        now: seconds. slowness: a factor for all that it does.
    """

    def __init__(self, slowness: float = 1.0, row: float = 0.01, cell: float = 0.01, save: float = 0.1) -> None:
        self.now, self.slowness, self.row, self.cell, self.save = 0.0, slowness, row, cell, save
        self.saves = self.validations = self.passes = 0

    def model(self) -> torch.nn.Module:
        """A model whose forward pass takes time, three times as long where it is trained."""
        model = model_of()
        model.register_forward_pre_hook(self._compute, with_kwargs=True)
        return model

    def _compute(self, model: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = inputs[0] if inputs else named["input_ids"]
        self.passes += 1
        self.now += self.slowness * (3 if model.training else 1) * (self.row + self.cell * ids.numel())

    def write(self, *arguments: Any, **named: Any) -> None:
        """Save, in the time that this machine needs."""
        save_checkpoint(*arguments, **named)
        self.saves += 1
        self.now += self.slowness * self.save


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(timing, "clock", lambda: made.now)
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


def without_budget(value: Any) -> Any:
    """A copy in which no budget is named."""
    if isinstance(value, dict):
        return {key: without_budget(part) for key, part in value.items() if key != "time_budget"}
    if isinstance(value, list):
        return [without_budget(part) for part in value if not (isinstance(part, str) and "time_budget" in part)]
    return value


def never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("a step was timed")


# No trace


@pytest.mark.parametrize(("mode", "precision"), [("bucketed", "fp16"), ("packed", "bf16"), ("dynamic", "fp32")])
def test_a_run_with_a_budget_is_the_run_of_the_steps_that_it_makes(tmp_path, machine, mode, precision):
    budgeted = run(tmp_path / "budget", machine, mode, time_budget=1.0, precision=precision)
    steps = budgeted.total_steps
    assert steps is not None and steps > 4
    run(tmp_path / "steps", machine, mode, max_steps=steps, precision=precision)
    mine, other = (without_budget(outcome(tmp_path / name)) for name in ("budget", "steps"))
    assert_same(mine, other)


def test_timing_changes_neither_model_optimizer_data_nor_random_numbers(tmp_path, machine):
    train, validation = loaders("bucketed")
    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=1.0, precision="fp16"))
    train.load_state_dict({"epoch": 1, "batch": 2})
    before, modes = trainer.state_dict(), [module.training for module in trainer.model.modules()]
    trainer.fit_to_budget(train, validation)
    assert machine.passes > 4
    assert_same(without_budget(trainer.state_dict()) | {"config": 0}, without_budget(before) | {"config": 0})
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


class StopAfter:
    """An observer that stops its trainer after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.trainer: Trainer | None = None

    def start(self, step: int, total_steps: int | None) -> None: ...

    def close(self) -> None: ...

    def log(self, record: dict[str, Any]) -> None:
        if record["step"] == self.steps and self.trainer is not None:
            self.trainer.stop()


@pytest.mark.parametrize("steps", [1, 8])
def test_a_run_that_goes_on_under_a_budget_changes_no_bit_and_is_not_timed_again(tmp_path, machine, monkeypatch, steps):
    run(tmp_path / "straight", machine, time_budget=1.0, logging_steps=1)
    stopped = run(tmp_path / "stopped", machine, stop=StopAfter(steps), time_budget=1.0, logging_steps=1)
    assert (stopped.step, stopped.interrupted) == (steps, signal.SIGTERM)
    monkeypatch.setattr(timing, "Trial", never)
    run(tmp_path / "stopped", machine, time_budget=1.0, logging_steps=1)
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "straight"))


def test_the_saved_configuration_repeats_the_run_without_timing(tmp_path, machine, monkeypatch, capsys):
    first = run(tmp_path / "first", machine, time_budget=1.0)
    saved = TrainingConfig.from_yaml(tmp_path / "first" / NAME / "config.yaml")
    assert (saved.training.time_budget, saved.training.max_steps) == (1.0, first.total_steps)
    state = load_checkpoint(tmp_path / "first" / NAME / "checkpoint_last.safetensors")
    assert state["config"]["training"]["max_steps"] == first.total_steps
    monkeypatch.setattr(timing, "Trial", never)
    capsys.readouterr()
    again = replace(saved, training=replace(saved.training, output_dir=str(tmp_path / "again")))
    Trainer(machine.model(), again).train(*loaders("bucketed"))
    assert f"max_steps is {first.total_steps}: nothing is timed for training.time_budget 1" in capsys.readouterr().out
    assert_same(outcome(tmp_path / "again"), outcome(tmp_path / "first"))


def test_the_schedule_with_its_warm_up_spans_the_steps_of_the_budget(tmp_path, machine):
    trainer = run(tmp_path, machine, time_budget=1.0)
    steps, peak = trainer.settings.max_steps, trainer.config.optimizer.learning_rate
    assert steps is not None and trainer.schedule is not None
    assert trainer.total_steps == steps
    assert trainer.schedule(round(0.1 * steps)) == peak and trainer.schedule(steps) < 1e-9 * peak


def test_a_state_that_is_loaded_brings_its_steps(tmp_path, machine):
    saved = run(tmp_path / "first", machine, time_budget=1.0)
    machine.slowness = 5.0
    trainer = Trainer(machine.model(), replace(saved.config, training=replace(saved.settings, max_steps=None)))
    trainer.load_checkpoint(tmp_path / "first" / NAME / "checkpoint_last.safetensors")
    assert trainer.settings.max_steps == saved.settings.max_steps == trainer.config.training.max_steps


# In time


@pytest.mark.parametrize(("mode", "slowness"), [("fixed", 0.6), ("bucketed", 0.4), ("packed", 1.0)])
def test_the_run_ends_within_a_tenth_of_its_budget(tmp_path, machine, mode, slowness):
    machine.slowness = slowness
    run(tmp_path, machine, mode, time_budget=3 * slowness)
    assert 0.9 <= machine.now / (3 * slowness * MINUTE) <= 1.0


def test_costly_validations_and_saves_count(tmp_path, machine):
    machine.save = 8.0
    run(tmp_path, machine, "packed", time_budget=5.0, eval_steps=None, save_steps=3)
    assert 0.9 <= machine.now / (5 * MINUTE) <= 1.0


def test_what_was_spent_before_counts(tmp_path, machine):
    machine.now = 50.0
    trainer = Trainer(machine.model(), configure(tmp_path, time_budget=3.0, save_steps=9), started=20.0)
    trainer.train(*loaders("fixed"))
    assert 0.9 <= (machine.now - 20.0) / (3 * MINUTE) <= 1.0


def growing(count: int = 24) -> list[dict[str, Any]]:
    """Batches that grow from one word to `LENGTH`, as a bucketed loader without shuffling gives them."""
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(VOCABULARY, (4, 2 + index * (LENGTH - 2) // count), generator=draw) for index in range(count)]
    return [{"input_ids": i, "attention_mask": torch.ones_like(i), "labels": labels_of(i, i * 0 + 1)} for i in ids]


class Foreign:
    """An iterable with a length, which can only be read from its start."""

    def __init__(self, batches: list[dict[str, Any]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.batches

    def __len__(self) -> int:
        return len(self.batches)


def trial_of(sample: timing.Sample, now: list[float], seconds: Iterator[float], deadline: float) -> float:
    """The mean seconds that a trial finds where the passes take these seconds on a clock that reads `now[0]`."""

    def act(window: Any) -> bool:
        now[0] += next(seconds)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "clock", lambda: now[0])
        return timing.Trial(LoopConfig(time_budget=10.0), Group()).mean_seconds(sample, act, deadline)


@pytest.mark.parametrize("kind", [list, Foreign])
def test_windows_are_taken_from_the_whole_of_an_epoch(kind):
    batches = growing()
    sample = timing.sample_windows(kind(batches), 2, deadline=math.inf)
    sizes = [sum(batch["input_ids"].numel() for batch in window) for window in sample.windows]
    everything = [batch["input_ids"].numel() for batch in batches]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] / 3
    assert sum(sizes) / len(sizes) == pytest.approx(2 * sum(everything) / len(everything), rel=0.1)
    assert sample.size == pytest.approx(2 * sum(everything) / len(everything), rel=0.1)


def test_a_bucketed_loader_is_sampled_by_its_sizes_and_stays_where_it_is():
    loader = loaders("bucketed")[0]
    loader.load_state_dict({"epoch": 1, "batch": 2})
    sample = timing.sample_windows(loader, 1, deadline=None)
    assert len({window[0]["input_ids"].shape[1] for window in sample.windows}) > 1
    assert loader.state_dict() == {"epoch": 1, "batch": 2}


def test_the_first_pass_over_a_shape_is_left_out_and_one_disturbance_does_not_count():
    (batch,) = small_batches(1)
    sample = timing.Sample([[batch]], size=batch["input_ids"].numel(), batches=1)
    assert trial_of(sample, [0.0], iter([9.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0]), deadline=19.0) == 1.0


def test_a_trial_ends_at_its_deadline_but_makes_two_passes():
    sample = timing.Sample([[batch] for batch in growing(8)], size=40, batches=1)
    for deadline, end in ((7.0, 7.0), (0.5, 2.0)):
        now = [0.0]
        trial_of(sample, now, itertools.repeat(1.0), deadline)
        assert now[0] == end


def test_a_run_of_six_real_seconds_ends_in_time(tmp_path, monkeypatch):
    """In seconds of the processor, which other processes do not lengthen."""
    monkeypatch.setattr(timing, "clock", time.process_time)
    torch.set_num_threads(1)
    trainer = Trainer(model_of(), configure(tmp_path, time_budget=0.1, logging_steps=10, eval_steps=20, save_steps=50))
    started = time.process_time()
    trainer.train(*loaders("packed"))
    # a third of a second is timed, and a processor that others share changes its pace within seconds
    assert 0.5 <= (time.process_time() - started) / 6 <= 1.5


# What a plan counts


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 7, 12, 15])
@pytest.mark.parametrize("eval_steps", [None, 3])
def test_a_plan_counts_what_a_run_does_between_its_steps(tmp_path, machine, steps, eval_steps):
    trainer = run(tmp_path, machine, "fixed", max_steps=steps, eval_steps=eval_steps, save_steps=2)
    plan = Plan(loaders("fixed")[0], trainer.settings, validates=True, saves=True)
    counts = plan.counts(steps)
    assert counts.validations == len(trainer.history.validation)
    assert counts.records == len(trainer.history.train)
    names = [path.name for path in (tmp_path / NAME).glob("checkpoint_epoch_*.safetensors")]
    assert counts.epochs - 1 == len(names)
    assert machine.saves <= counts.saves


class Uneven:
    """A loader whose epochs have 1, 2, 3, … batches."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 1

    def length_of_epoch(self, epoch: int) -> int:
        return epoch + 1


@pytest.mark.parametrize(("steps", "epochs", "passes"), [(1, 1, 1.0), (2, 2, 1.5), (3, 2, 2.0), (4, 3, 2 + 1 / 3)])
def test_a_plan_knows_epochs_of_unlike_length(steps, epochs, passes):
    settings = LoopConfig(gradient_accumulation_steps=1)
    plan = Plan(Uneven(), settings, validates=False, saves=False)
    assert plan.counts(steps).epochs == epochs
    assert math.isclose(plan.epochs(steps), passes)


def test_the_line_says_what_was_decided_and_why():
    settings = LoopConfig(time_budget=1.0, gradient_accumulation_steps=1, eval_steps=20, save_steps=30)
    plan = Plan(small_batches(10), settings, validates=True, saves=False)
    steps, told = fit(plan, Costs(step=1.0, validation=2.0), spent=4.0)
    assert steps == 48  # 58.8 - 4 seconds hold 48 steps and three validations
    assert told == ("1 min make 48 steps, 4.8 epochs: 1 s a step, 3 validations of 2 s, 4 s before the first step")


def test_a_plan_counts_the_records_of_the_layers():
    settings = LoopConfig(gradient_accumulation_steps=1, layer_statistics=4, logging_steps=100)
    counts = Plan(small_batches(10), settings, validates=False, saves=False).counts(11)
    assert counts.seconds(Costs(step=0.0, layers=3.0)) == 6.0  # after steps 4 and 8


# Refusals


@pytest.mark.parametrize("value", ["0", "-1", ".nan", ".inf", "soon", "true", "[4]", "1e400"])
def test_a_bad_budget_is_refused_in_one_line(tmp_path, value):
    path = tmp_path / "settings.yaml"
    path.write_text(f"training: {{time_budget: {value}}}")
    with pytest.raises(ValueError, match=r"training\.time_budget must be") as caught:
        TrainingConfig.from_yaml(path)
    assert "\n" not in str(caught.value)


def test_a_budget_without_time_for_a_step_is_refused_with_one_that_would_do(tmp_path, machine):
    with pytest.raises(ValueError, match=r"training\.time_budget must be at least") as caught:
        run(tmp_path, machine, time_budget=0.01)
    assert "\n" not in str(caught.value) and not (tmp_path / NAME).exists()
    least = float(str(caught.value).split("at least ")[1].split()[0])
    assert run(tmp_path, machine, time_budget=1.1 * least).step >= 1


def test_another_budget_in_the_folder_of_a_run_is_refused(tmp_path, machine):
    run(tmp_path, machine, time_budget=1.0)
    with pytest.raises(ValueError, match=r"saved with training\.time_budget 1\.0, this run has 2\.0: change it back"):
        run(tmp_path, machine, time_budget=2.0)
    run(tmp_path, machine, time_budget=1.0)


def test_a_budget_in_the_folder_of_a_run_without_one_is_refused(tmp_path, machine):
    run(tmp_path, machine, max_steps=8)
    with pytest.raises(ValueError, match=r"saved with training\.time_budget None, this run has 2\.0"):
        run(tmp_path, machine, time_budget=2.0)


def test_an_iterator_and_a_loader_without_a_length_are_refused_before_a_batch_is_read(machine):
    batches = small_batches(4)
    config = replace(configure("runs"), training=replace(configure("runs").training, time_budget=1.0, output_dir=None))
    for loader in (iter(batches), (batch for batch in batches)):
        with pytest.raises(ValueError, match=r"has no len\(\): set training\.max_steps"):
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
        ({"max_steps": 9}, {"time_budget": 4.0}, (None, 4.0)),
        ({"time_budget": 4.0}, {"max_steps": 9}, (9, None)),
        ({"time_budget": 4.0}, {"num_epochs": 3}, (None, None)),
        ({"max_steps": 9}, {"num_epochs": 3}, (None, None)),
        ({"max_steps": 9, "time_budget": 4.0}, {"seed": 1}, (9, 4.0)),
        ({"max_steps": 9, "time_budget": 4.0}, {"time_budget": 5.0}, (None, 5.0)),
        ({"time_budget": 4.0}, {"max_steps": None}, (None, 4.0)),
        ({"time_budget": 4.0}, {"time_budget": None}, (None, None)),
    ],
)
def test_a_length_given_later_takes_the_place_of_one_given_before(file, given, left):
    config = TrainingConfig().updated({"training": file}, "a file").updated({"training": given}, "command line")
    assert (config.training.max_steps, config.training.time_budget) == left


# The command


SMALL = [
    "--config=tiny",
    f"--experiment_name={NAME}",
    "--data.vocab_size=270",
    "--data.max_length=16",
    "--model.d_model=16",
    "--training.device=cpu",
    "--training.precision=fp32",
    "--training.time_budget=1",
]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock on which whatever is timed takes a second and a half."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(timing, "clock", lambda: 1.5 * next(ticks))
    yield


def command(folder: Path, *arguments: str) -> list[str]:
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"the {a} cat sat on {b} mats" for a in range(30) for b in range(3)))
    return ["train", *SMALL, f"--data.corpus={text}", f"--training.output_dir={folder}", *arguments]


@pytest.mark.usefixtures("ticking")
def test_the_command_says_what_a_budget_makes(tmp_path, capsys):
    assert cli.main(command(tmp_path)) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("1 min make")]
    steps = int(line.split()[3])
    assert re.search(r"s a step, \d+ validations? of .* s, \d+ saves of 1.5 s, .* s before the first step$", line)
    records = [json.loads(text) for text in (tmp_path / NAME / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == steps


@pytest.mark.usefixtures("ticking")
def test_a_curriculum_follows_the_steps_that_a_budget_makes_and_is_repeated(tmp_path, capsys):
    settings = ["--curriculum.enabled=true", "--curriculum.strategy=length"]
    assert cli.main(command(tmp_path, *settings)) == 0
    assert "curriculum: length difficulty" in capsys.readouterr().out
    saved = TrainingConfig.from_yaml(tmp_path / NAME / "config.yaml")
    assert saved.training.max_steps is not None
    assert saved.curriculum.num_steps == saved.training.max_steps // 2
    again = command(tmp_path, *settings)
    assert cli.main(again) == 0  # the run is found, and over
    assert "nothing is left to train" in capsys.readouterr().out
