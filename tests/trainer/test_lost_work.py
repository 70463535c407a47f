"""Whatever ends a run, no completed step is lost: an error first saves, and a signal ends what takes minutes."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import nn

from course_lm import cli
from course_lm.checkpoints import load_checkpoint
from course_lm.monitoring import evaluation
from course_lm.trainer import Trainer, loop
from tests.training_run import NAME, assert_same, configure, loaders, model_of, outcome

LAST = "checkpoint_last.safetensors"
Act = Callable[[], None]


class Watched:
    """A list of batches of one's own; it acts before it gives its batch number `at`, in the first epoch."""

    def __init__(self, at: int = 0, act: Act = lambda: None) -> None:
        self.batches, self.at, self.act = list(loaders("dynamic")[0]), at, act

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches, start=1):
            if number == self.at:
                self.at = 0
                self.act()
            yield batch


def run(folder: Path, train: Any = None, held_out: Any = None, model: nn.Module | None = None, **given: Any) -> Trainer:
    """Twelve steps of two batches; a validation after every second one, a save of the best and where an epoch ends."""
    settings: dict[str, Any] = {"gradient_accumulation_steps": 2, "eval_steps": 2, "save_steps": 1000, **given}
    trainer = Trainer(model or model_of(), configure(folder, **settings))
    trainer.train(train or Watched(), held_out or loaders("dynamic")[1])
    return trainer


@cache
def unbroken() -> Any:
    folder = Path(mkdtemp())
    run(folder)
    return outcome(folder)


def goes_on(folder: Path, records: bool = True) -> None:
    """The run that broke off goes on, and ends as one that never did."""
    run(folder)
    mine, other = outcome(folder), unbroken()
    if records:
        assert_same(mine["lines"], other["lines"])
    for part in ("model", "optimizer", "step", "epoch", "batch", "data", "tokens", *(["history"] if records else [])):
        assert_same(mine["checkpoints"][LAST][part], other["checkpoints"][LAST][part])


def saved_step(folder: Path) -> int:
    return load_checkpoint(folder / NAME / LAST)["step"]


def raising(error: Exception) -> Callable[..., Any]:
    def act(*_: object, **__: object) -> None:
        raise error

    return act


def at_micro_batch(number: int, act: Act) -> nn.Module:
    """A model that acts before the forward pass of the micro-batch of this number that it is trained on."""
    model, passes = model_of(), []

    def before(*_: object) -> None:
        passes.append(torch.is_grad_enabled())
        if torch.is_grad_enabled() and sum(passes) == number:
            act()

    model.register_forward_pre_hook(before)
    return model


def after_saves(count: int, act: Act) -> Callable[..., None]:
    """What writes a checkpoint, and acts in the save of this number."""
    write, calls = loop.save_checkpoint, []

    def save(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == count:
            act()
        write(*arguments)

    return save


def a_bad_batch(folder: Path, patch: pytest.MonkeyPatch) -> None:
    train = Watched()
    train.batches[4] = {**train.batches[4], "labels": train.batches[4]["labels"][:, :1]}
    run(folder, train)


def a_lost_worker(folder: Path, patch: pytest.MonkeyPatch) -> None:
    run(folder, Watched(5, raising(RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"))))


def a_compiler_that_was_killed(folder: Path, patch: pytest.MonkeyPatch) -> None:
    run(folder, model=at_micro_batch(5, raising(RuntimeError("backend='inductor' raised:\nCppCompileError: killed"))))


def memory_in_a_validation(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evaluation, "move_batch", raising(torch.OutOfMemoryError("CUDA out of memory")))
    run(folder)


def a_disk_that_fails_once(folder: Path, patch: pytest.MonkeyPatch) -> None:
    # the second save is that of the best weights after step 4
    patch.setattr(loop, "save_checkpoint", after_saves(2, raising(OSError(errno.EIO, "Input/output error"))))
    run(folder)


def a_record_that_cannot_be_made(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop.RunLog, "take_pending", raising(RuntimeError("the device is lost")))
    run(folder)


def a_program_that_exits(folder: Path, patch: pytest.MonkeyPatch) -> None:
    run(folder, Watched(5, lambda: sys.exit("enough")))


PLACES = {
    a_bad_batch: 2,
    a_program_that_exits: 2,
    a_lost_worker: 2,
    a_compiler_that_was_killed: 2,
    memory_in_a_validation: 2,
    a_disk_that_fails_once: 4,
    a_record_that_cannot_be_made: 2,
}


@pytest.mark.parametrize("place", PLACES)
def test_an_error_first_saves_every_completed_step(place, tmp_path, monkeypatch):
    errors = (ValueError, RuntimeError, OSError, MemoryError, SystemExit)
    with monkeypatch.context() as patch, pytest.raises(errors) as caught:
        place(tmp_path, patch)
    steps = PLACES[place]
    assert caught.value.__notes__ == [f"all {steps} steps are saved: run it again to go on from {tmp_path / NAME}"]
    assert saved_step(tmp_path) == steps
    # a record that could not be made is made of more steps
    goes_on(tmp_path, records=place is not a_record_that_cannot_be_made)


def test_an_update_that_was_broken_off_is_never_saved(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-3)
    step = optimizer.step

    def breaks_off() -> None:
        step()
        raise RuntimeError("the device is lost")

    trainer = Trainer(model, configure(tmp_path, gradient_accumulation_steps=2), optimizer=optimizer)
    trainer.train(Watched(), loaders("dynamic")[1])
    assert saved_step(tmp_path) == 12
    before = (tmp_path / NAME / LAST).read_bytes()
    optimizer.step = breaks_off  # type: ignore[method-assign]
    trainer.settings = configure(tmp_path, num_epochs=3, gradient_accumulation_steps=2).training
    with pytest.raises(RuntimeError, match="the device is lost") as caught:
        trainer.train(Watched(), loaders("dynamic")[1])
    assert caught.value.__notes__ == [
        f"step 12 could not be saved: the newest checkpoint in {tmp_path / NAME} is where it goes on"
    ]
    assert (tmp_path / NAME / LAST).read_bytes() == before
    shutil.rmtree(tmp_path / NAME)
    trainer.settings = configure(tmp_path, num_epochs=4, gradient_accumulation_steps=2).training
    with pytest.raises(RuntimeError, match="the device is lost") as caught:
        trainer.train(Watched(), loaders("dynamic")[1])
    assert caught.value.__notes__ == [f"step 12 could not be saved: no checkpoint is in {tmp_path / NAME}"]


def test_an_error_while_the_best_weights_come_back_leaves_the_last_ones_saved(tmp_path, monkeypatch):
    def half_way(model: nn.Module, weights: Any) -> None:
        torch.nn.init.zeros_(next(model.parameters()))
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(loop, "load_weights", half_way)
        run(tmp_path, restore_best=True)
    goes_on(tmp_path)


def test_a_folder_that_is_removed_while_it_trains_is_whole_again_where_the_run_ends(tmp_path):
    run(tmp_path, model=at_micro_batch(9, lambda: shutil.rmtree(tmp_path / NAME)))
    mine, other = outcome(tmp_path), unbroken()
    for part in ("lines", "config", "checkpoints"):
        assert_same(mine[part], other[part])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            RuntimeError("worker (pid 7)\nexited"),
            "course-lm: error: RuntimeError: worker (pid 7); all 4 steps are saved: run",
        ),
        (OSError(errno.EIO, "Input/output error"), "course-lm: error: [Errno 5] Input/output error; all 4 steps are"),
    ],
)
def test_the_command_tells_an_error_after_the_first_step_in_one_line(error, told, monkeypatch, tmp_path, capsys):
    take, steps = loop.take_step, []

    def step(*arguments: Any, **named: Any) -> Any:
        if len(steps) == 4:
            raise error
        steps.append(arguments)
        return take(*arguments, **named)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "take_step", step)
    command = "train stories --config tiny --training.max_steps 9 --training.gradient_accumulation_steps 1"
    code = cli.main(command.split())
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("course-lm:")]
    assert code == (2 if isinstance(error, OSError) else 1)
    assert len(errors) == 1 and errors[0].startswith(told)


# Signals


def kill(number: int) -> Act:
    return lambda: os.kill(os.getpid(), number)


class Endless:
    """A validation that would take for ever; it sends a signal before its third batch."""

    def __init__(self, act: Act) -> None:
        self.act = act

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(iter(lambda: next(iter(loaders("dynamic")[1])), None)):
            if number == 2:
                self.act()
            assert number < 4, "the validation went on"
            yield batch


def in_a_step(folder: Path, patch: pytest.MonkeyPatch, act: Act) -> Trainer:
    return run(folder, model=at_micro_batch(5, act))


def in_a_save(folder: Path, patch: pytest.MonkeyPatch, act: Act) -> Trainer:
    patch.setattr(loop, "save_checkpoint", after_saves(2, act))
    return run(folder)


def in_a_validation(folder: Path, patch: pytest.MonkeyPatch, act: Act) -> Trainer:
    return run(folder, held_out=Endless(act))


def while_it_reads(folder: Path, patch: pytest.MonkeyPatch, act: Act) -> Trainer:
    return run(folder, Watched(5, act))


DONE = {in_a_step: 3, in_a_save: 4, in_a_validation: 2, while_it_reads: 3}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("place", DONE)
def test_a_signal_ends_the_run_saved_wherever_it_comes(place, number, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        trainer = place(tmp_path, patch, kill(number))
    assert (trainer.interrupted, trainer.step, saved_step(tmp_path)) == (number, DONE[place], DONE[place])
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"stopped by {number.name} after step {trainer.step}: ")
    assert trainer.model.training
    goes_on(tmp_path)


@pytest.mark.parametrize(
    ("number", "steps"), [(signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGHUP, 3), (signal.SIGXCPU, 3)]
)
def test_a_second_signal_ends_a_step_that_hangs_or_has_no_effect_and_no_step_is_lost(number, steps, tmp_path):
    handlers = signal.getsignal(number)

    def twice() -> None:
        kill(number)()
        kill(number)()

    trainer = run(tmp_path, model=at_micro_batch(5, twice))
    assert (trainer.interrupted, trainer.step, saved_step(tmp_path)) == (number, steps, steps)
    assert signal.getsignal(number) == handlers
    goes_on(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_compile(number, tmp_path, monkeypatch):
    """Nothing of the step that is compiled was done."""
    compiled, compiles = torch.compile, []

    def backend(graph: Any, inputs: Any) -> Any:
        compiles.append(graph)
        if len(compiles) == 2:  # another shape
            os.kill(os.getpid(), number)
            raise AssertionError("the compile went on")
        return graph.forward

    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda model: compiled(model, backend=backend, dynamic=False))
        trainer = run(tmp_path, compile=True, eval_steps=None)
    assert trainer.interrupted == number and len(compiles) == 2
    assert not trainer.step or saved_step(tmp_path) == trainer.step


def test_a_validation_by_hand_is_not_broken_off_by_an_earlier_signal(tmp_path, monkeypatch):
    trainer = in_a_validation(tmp_path, monkeypatch, kill(signal.SIGTERM))
    assert trainer.evaluate(loaders("dynamic")[1])["tokens"] > 0
