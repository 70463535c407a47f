"""What three ranks have done is kept, wherever an error or a signal ends their run, and on whichever of them.

The run that goes on ends with the bits of one that nobody disturbed.
"""

import errno
import io
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from course_lm.batching import make_loader
from course_lm.checkpoints import load_checkpoint
from course_lm.distributed import DistributedConfig, RankError, connect
from course_lm.trainer import Trainer
from tests.distributed.pool import Outcome, Ranks
from tests.training_run import (
    DOCUMENTS,
    LENGTH,
    NAME,
    TOKENIZER,
    assert_same,
    configure,
    counting,
    loaders,
    model_of,
    outcome,
)

Whole = Callable[[str], dict[str, Any]]

WORLD = 3
LAST = "checkpoint_last.safetensors"
DONE = {"reading": 3, "step": 3, "validation": 4, "save": 4}  # the completed steps when it happens there
SLOW = 2.0  # seconds for each batch of the validation that a signal meets: a rank has sixteen of them


def session(folder: Path, strategy: str, place: str = "", act: Callable[[], object] = list) -> dict[str, Any]:
    """On a rank: train, or go on training, with everything built anew; `act` is called once, at `place`."""
    train_loader, _ = loaders("bucketed")
    val_loader = make_loader(DOCUMENTS * 2, TOKENIZER, mode="bucketed", batch_size=1, max_length=LENGTH, shuffle=False)
    settings = {"max_steps": 7, "eval_steps": 2, "logging_steps": 3, "average_weights": 0.9, "eval_tokens": None}
    config = replace(configure(folder, **settings), distributed=DistributedConfig(strategy=strategy))  # type: ignore[arg-type]
    acted: list[str] = []

    def happen(here: str) -> None:
        if here == place and trainer.step == DONE[here] and not acted:
            acted.append(here)
            act()

    trainer = Trainer(model_of(), config, loss_fn=counting(lambda count: happen("step")))
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        before_call(patch, train_loader, "collate", lambda *_: happen("reading"))
        before_call(patch, val_loader, "collate", lambda *_: happen("validation") or time.sleep(SLOW * len(acted)))
        # rank 0 in the middle of the writing, the others while they wait for it
        saves = (os, "replace") if connect().rank == 0 else (trainer, "save_checkpoint")
        before_call(patch, *saves, lambda *paths: "step_4" in str(paths[-1]) and happen("save"))
        trainer.train(train_loader, val_loader)
    return {"step": trainer.step, "interrupted": trainer.interrupted, "printed": printed.getvalue().splitlines()}


def before_call(patch: pytest.MonkeyPatch, owner: Any, name: str, first: Callable[..., object]) -> None:
    """Call `first` with the arguments of each call of this function, before it."""
    function = getattr(owner, name)

    def both(*arguments: Any) -> Any:
        first(*arguments)
        return function(*arguments)

    patch.setattr(owner, name, both)


def fail(rank: int) -> None:
    if connect().rank == rank:
        raise OSError(errno.EIO, "the disk is gone")


def send(ranks: Iterable[int], number: int) -> None:
    if connect().rank in ranks:
        os.kill(os.getpid(), number)


@pytest.fixture(scope="session")
def whole(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """`whole(strategy)` is the outcome of a run that nobody disturbs."""
    made: dict[str, dict[str, Any]] = {}

    def outcome_of(strategy: str) -> dict[str, Any]:
        if strategy not in made:
            folder = tmp_path_factory.mktemp(strategy)
            ranks(WORLD).run(session, folder, strategy)
            made[strategy] = outcome(folder)
        return made[strategy]

    return outcome_of


def assert_failed(outcomes: list[Outcome], rank: int, message: str) -> None:
    """Every rank has ended within seconds, by the error of this one."""
    for number, ended in enumerate(outcomes):
        assert ended.seconds < 30 and message in str(ended.error), (number, ended)
        if number == rank:
            assert isinstance(ended.error, OSError)
        else:
            assert isinstance(ended.error, RankError) and ended.error.exit_code == 2


def saved_steps(folder: Path) -> dict[str, int]:
    """The step of each checkpoint."""
    return {path.name: load_checkpoint(path)["step"] for path in (folder / NAME).glob("checkpoint_*.safetensors")}


def note_of(ended: Outcome) -> str:
    """What the error of a rank says of the saving."""
    return "".join(getattr(ended.error, "__notes__", ()))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["reading", "step", "validation"])
def test_an_error_of_one_rank_costs_no_completed_step(ranks, tmp_path, whole, place, rank):
    undisturbed = whole("ddp")
    outcomes = ranks(WORLD).outcomes(session, tmp_path, "ddp", place, partial(fail, rank), ends=True)
    assert_failed(outcomes, rank, "the disk is gone")
    assert note_of(outcomes[0]) == f"all {DONE[place]} steps are saved: run it again to go on from {tmp_path / NAME}"
    assert saved_steps(tmp_path)[LAST] == DONE[place]
    ranks(WORLD).run(session, tmp_path, "ddp")
    assert_same(outcome(tmp_path), undisturbed)


def test_a_write_that_fails_costs_no_completed_step(ranks, tmp_path, whole):
    undisturbed = whole("ddp")
    outcomes = ranks(WORLD).outcomes(session, tmp_path, "ddp", "save", partial(fail, 0), ends=True)
    for ended in outcomes:
        assert isinstance(ended.error, OSError) and "the disk is gone" in str(ended.error), ended
    assert saved_steps(tmp_path)[LAST] == 4
    ranks(WORLD).run(session, tmp_path, "ddp")
    assert_same(outcome(tmp_path), undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_saves_its_part_of_a_sharded_model_alone(ranks, tmp_path, whole, rank):
    undisturbed = whole("fsdp")
    outcomes = ranks(WORLD).outcomes(session, tmp_path, "fsdp", "step", partial(fail, rank), ends=True)
    assert_failed(outcomes, rank, "the disk is gone")
    told = f"step 3 could not be saved: the newest checkpoint in {tmp_path / NAME} is where it goes on"
    assert note_of(outcomes[0]) == told
    steps = saved_steps(tmp_path)
    assert LAST not in steps and max(steps.values()) == 2
    first, *_ = ranks(WORLD).run(session, tmp_path, "fsdp")
    assert any(re.fullmatch(r"resumed .* after step 2", line) for line in first["printed"])
    assert_same(outcome(tmp_path), undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to", [(0, 1, 2), (0,), (1,)], ids=["all", "rank 0", "rank 1"])
@pytest.mark.parametrize(
    ("place", "strategy"), [("step", "ddp"), ("save", "ddp"), ("validation", "ddp"), ("validation", "fsdp")]
)
def test_a_signal_to_any_rank_ends_all_and_costs_no_completed_step(ranks, tmp_path, whole, place, strategy, to, number):
    undisturbed = whole(strategy)
    for rank, ended in enumerate(ranks(WORLD).outcomes(session, tmp_path, strategy, place, partial(send, to, number))):
        assert ended.error is None and ended.seconds < 20, ended
        assert ended.value["step"] == 4 and ended.value["interrupted"] == number
        farewell = [line for line in ended.value["printed"] if "stopped by" in line]
        name = signal.Signals(number).name
        told = f"stopped by {name} after step 4: run it again to go on from {tmp_path / NAME}"
        assert farewell == ([told] if rank == 0 else [])
    assert saved_steps(tmp_path)[LAST] == 4
    ranks(WORLD).run(session, tmp_path, strategy)
    assert_same(outcome(tmp_path), undisturbed)
