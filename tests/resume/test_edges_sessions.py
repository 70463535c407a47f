"""Whatever a person does to a run, it ends as the unbroken one, bit for bit, or in one refusal with nothing lost.

A session is a random sequence of what people do: start, stop, crash, start again with another setting or other data,
run a cell once more, load an older checkpoint, evaluate, draw random numbers, damage a file. There is no third outcome.
"""

import os
import random
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from course_lm.checkpoints import load_checkpoint
from course_lm.config import TrainingConfig
from course_lm.model import GPT, ModelConfig
from course_lm.trainer import Trainer, resume
from tests.sets import examples
from tests.training_run import (
    LENGTH,
    NAME,
    VOCABULARY,
    Act,
    Crash,
    assert_same,
    configure,
    counting,
    loaders,
    model_of,
    quiet,
    without_measures,
)

KINDS = ("list", "dynamic", "packed")
MICRO_BATCHES = st.integers(1, 10)  # of a run of 8: beyond it nothing happens
COMPARED = ("model", "optimizer", "data", "epoch", "batch", "step", "tokens", "history")

# One value for each key that a session may come back with; any of them would give another run.
OTHER_RUNS = {
    "optimizer": {"learning_rate": 1e-3, "beta2": 0.9, "weight_decay": 0.5},
    "lr_scheduler": {"type": "linear", "warmup_ratio": 0.5, "min_lr": 1e-4},
    "training": {
        "seed": 3,
        "max_grad_norm": 0.1,
        "gradient_accumulation_steps": 2,
        "num_epochs": 3,
        "max_steps": 50,
        "precision": "bf16",
        "on_nonfinite": "skip",
        "early_stopping_threshold": 0.5,
        "eval_steps": 2,
        "average_weights": 0.5,
    },
    "model": {"dropout": 0.3},
    "data": {"max_length": 64},
}
SAME_RUN = {"save_steps": 2, "save_total_limit": 1, "restore_best": True, "early_stopping_patience": 9_999}


class Failure(Exception):
    """Stands for an error in a cell of a notebook: the trainer is still there."""


def crash() -> None:
    raise Crash


def fail() -> None:
    raise Failure


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def data_of(kind: str, documents: int = 16) -> tuple[Any, Any]:
    """Fresh training and validation data."""
    train, validation = loaders("fixed" if kind == "list" else kind, documents)
    return (list(train) if kind == "list" else train), validation


def trainer_of(config: TrainingConfig, act: Act = quiet) -> Trainer:
    """A trainer built anew, whose loss calls `act` with the number of its micro-batches so far."""
    return Trainer(model_of(), config, loss_fn=counting(act))


def base(folder: Path) -> TrainingConfig:
    return configure(folder, num_epochs=2, gradient_accumulation_steps=1, save_steps=3)


def end_of(folder: Path) -> dict[str, Any]:
    """What a finished run leaves and no stop may change."""
    state = without_measures(load_checkpoint(folder / NAME / "checkpoint_last.safetensors"))
    return {name: state[name] for name in COMPARED}


@cache
def unbroken(kind: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    trainer_of(base(folder)).train(*data_of(kind))
    left = end_of(folder)
    shutil.rmtree(folder)
    return left


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*")) if path.is_file()}


class Session(RuleBasedStateMachine):
    """One person, one folder, one run."""

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind: str) -> None:
        self.kind, self.folder = kind, Path(tempfile.mkdtemp())
        self.config = base(self.folder)
        self.trainer: Trainer | None = None
        self.act: Act = quiet

    def teardown(self) -> None:
        """Start it once more, undisturbed: it must end as the unbroken run."""
        if hasattr(self, "folder"):
            self.train(trainer_of(self.config))
            assert_same(end_of(self.folder), unbroken(self.kind), self.kind)
            shutil.rmtree(self.folder)

    # Starting and stopping

    @rule(micro_batch=MICRO_BATCHES, act=st.sampled_from([interrupt, crash, fail]))
    def start_anew(self, micro_batch: int, act: Callable[[], None]) -> None:
        self.disturb(micro_batch, act)
        self.train(trainer_of(self.config, self.disturbance))

    @precondition(lambda self: self.trainer is not None)
    @rule(micro_batch=MICRO_BATCHES, act=st.sampled_from([interrupt, crash, fail]))
    def run_the_cell_again(self, micro_batch: int, act: Callable[[], None]) -> None:
        assert self.trainer is not None
        self.disturb(micro_batch, act)
        self.train(self.trainer)

    @precondition(lambda self: self.checkpoints())
    @rule(number=st.integers(0, 99), micro_batch=MICRO_BATCHES)
    def load_a_checkpoint_by_hand(self, number: int, micro_batch: int) -> None:
        paths = self.checkpoints()
        self.disturb(micro_batch, interrupt)
        trainer = trainer_of(self.config, self.disturbance)
        trainer.load_checkpoint(paths[number % len(paths)])
        self.train(trainer)

    # The same run, differently

    @rule(key=st.sampled_from(sorted(SAME_RUN)), micro_batch=MICRO_BATCHES)
    def change_what_no_step_depends_on(self, key: str, micro_batch: int) -> None:
        changed: dict[str, Any] = {key: SAME_RUN[key]}
        training = replace(self.config.training, **changed)
        self.disturb(micro_batch, interrupt)
        self.train(trainer_of(replace(self.config, training=training), self.disturbance))

    @precondition(lambda self: self.trainer is not None)
    @rule(on_training_data=st.booleans())
    def evaluate_in_between(self, on_training_data: bool) -> None:
        assert self.trainer is not None
        train, validation = data_of(self.kind)
        assert self.trainer.evaluate(train if on_training_data else validation)["tokens"] > 0

    @rule()
    def draw_random_numbers(self) -> None:
        _ = torch.rand(3), random.random(), np.random.rand(2)

    # Other runs

    @precondition(lambda self: self.checkpoints())
    @rule(data=st.data())
    def come_back_with_another_setting(self, data: st.DataObject) -> None:
        section = data.draw(st.sampled_from(sorted(OTHER_RUNS)))
        key = data.draw(st.sampled_from(sorted(OTHER_RUNS[section])))
        if f"{section}.{key}" in resume.LENGTH and self.steps_taken() <= 3:
            return  # warm-up and peak may have the same rates in both lengths, and then the run may become longer
        part = replace(getattr(self.config, section), **{key: OTHER_RUNS[section][key]})
        with self.refusal():
            trainer_of(replace(self.config, **{section: part})).train(*data_of(self.kind))

    @precondition(lambda self: self.checkpoints())
    @rule(momentum=st.booleans())
    def come_back_with_another_optimizer_or_rate(self, momentum: bool) -> None:
        trainer = trainer_of(self.config)
        if momentum:
            optimizer = torch.optim.SGD(trainer.model.parameters(), lr=3e-3, momentum=0.9)
            other = Trainer(trainer.model, self.config, optimizer=optimizer)
        else:
            other = Trainer(trainer.model, self.config, schedule=lambda step: 1e-2)
        if momentum or self.steps_taken():
            with self.refusal():
                other.train(*data_of(self.kind))

    @precondition(lambda self: self.checkpoints())
    @rule()
    def come_back_with_other_text(self) -> None:
        with self.refusal():
            trainer_of(self.config).train(*data_of(self.kind, documents=12))

    @precondition(lambda self: self.checkpoints())
    @rule()
    def come_back_with_another_model(self) -> None:
        model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=16, dropout=0.2), VOCABULARY, LENGTH)
        with self.refusal():
            Trainer(model, self.config).train(*data_of(self.kind))

    # Accidents

    @precondition(lambda self: len(self.checkpoints()) > 2)
    @rule(place=st.floats(0, 0.999))
    def damage_the_newest_checkpoint(self, place: float) -> None:
        newest = max(self.checkpoints(), key=os.path.getmtime)
        content = bytearray(newest.read_bytes())
        content[int(place * len(content))] ^= 4
        newest.write_bytes(content)
        self.trainer = None

    @rule()
    def lose_the_log(self) -> None:
        (self.folder / NAME / "metrics.jsonl").unlink(missing_ok=True)
        self.trainer = None

    # What the rules are made of

    def disturb(self, micro_batch: int, act: Callable[[], None]) -> None:
        """Let the next training be disturbed at one of its micro-batches, counted by the trainer that runs it."""
        left = micro_batch

        def count_down(count: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                act()

        self.act = count_down

    def disturbance(self, count: int) -> None:
        self.act(count)

    def train(self, trainer: Trainer) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="passing over a checkpoint")
            self.trainer = trainer
            try:
                trainer.train(*data_of(self.kind))
            except Failure:
                pass
            except Crash:
                self.trainer = None
        self.act = quiet

    @contextmanager
    def refusal(self) -> Iterator[None]:
        """One line, and no file is touched."""
        before = files_in(self.folder / NAME)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="passing over a checkpoint")
            with pytest.raises(ValueError) as caught:
                yield
        assert "\n" not in str(caught.value), caught.value
        assert files_in(self.folder / NAME) == before

    def checkpoints(self) -> list[Path]:
        """The intact ones."""
        paths = sorted((self.folder / NAME).glob("checkpoint_*.safetensors"))
        return [path for path in paths if is_intact(path, path.stat().st_mtime_ns)]

    def steps_taken(self) -> int:
        """Up to the newest intact checkpoint."""
        return load_checkpoint(max(self.checkpoints(), key=os.path.getmtime))["step"]


@cache  # asked before every rule
def is_intact(path: Path, written_at: int) -> bool:
    try:
        load_checkpoint(path)
    except ValueError:
        return False
    return True


def test_a_session_ends_as_the_unbroken_run_or_in_a_refusal(capsys):
    run_state_machine_as_test(Session, settings=examples(75, 300, stateful_step_count=8))
