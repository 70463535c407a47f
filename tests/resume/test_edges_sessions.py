"""Whatever a person does to a run, it ends as the unbroken one, bit for bit, or in one refusal with nothing lost.

A session is a random sequence of what people do: start, stop, crash, start again with another setting or other data,
run a cell once more, load an older checkpoint, evaluate, draw random numbers, damage a file; come back with other code,
or to a folder behind a link; lose the reader of what is printed, the data half-way, or the working directory. There is
no third outcome.
"""

import math
import os
import random
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from torch import Tensor, nn

from course_lm.checkpoints import load_checkpoint
from course_lm.config import TrainingConfig
from course_lm.loss import next_token_loss
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
REDIRECTIONS = st.sampled_from([redirect_stdout, redirect_stderr])
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
# Whoever comes back with one of these computes another run, or cannot train.
OTHER_CODE: dict[str, Callable[[TrainingConfig], Trainer]] = {
    "loss": lambda config: Trainer(model_of(), config, loss_fn=doubled),
    "clip": lambda config: Trainer(model_of(), config, clip=shrink),
    "forward pass": lambda config: Trainer(with_first_weights(Doubling), config),
    "weights of one row": lambda config: Trainer(with_weight(lambda weight: weight[:1].expand_as(weight)), config),
    "weights in one memory": lambda config: Trainer(with_weight(lambda weight: weight, twice=True), config),
}
WRONG_MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "counted": lambda mask: mask.cumsum(1),
    "negative": lambda mask: -mask,
    "nan": lambda mask: mask * math.nan,
    "one token short": lambda mask: mask[:, 1:],
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


def doubled(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
    return 2 * next_token_loss(logits, labels, reduction=reduction)


def shrink(parameters: Iterable[Tensor], max_norm: float) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


class Doubling(GPT):
    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        return 2 * super().forward(*arguments, **keywords)


def with_first_weights(kind: type[GPT]) -> GPT:
    model = kind(model_of().config, VOCABULARY, LENGTH)
    model.load_state_dict(model_of().state_dict())
    return model


def with_weight(change: Callable[[Tensor], Tensor], twice: bool = False) -> GPT:
    """A model of which a weight is changed, and where that is said, another one is a view of it."""
    model = model_of()
    block: Any = model.blocks[0]
    block.up.weight = nn.Parameter(change(block.up.weight.detach()))
    if twice:
        block.down.weight = nn.Parameter(block.up.weight.detach().T)
    return model


class Dying(list):
    """Batches of which some are on a disk that fails."""

    def __init__(self, batches: list[Any], left: int) -> None:
        super().__init__(batches)
        self.left = left

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return map(self.read, part) if isinstance(index, slice) else part

    def read(self, batch: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk of the data is gone")
        return batch


def dying(kind: str, left: int) -> Any:
    """Training data that can be read so many times more."""
    train, _ = data_of(kind)
    if isinstance(train, list):
        return Dying(train, left)
    read, collate = Dying([], left + 1).read, train.collate  # 1: the first batch is looked at before the run begins
    train.collate = lambda rows: read(collate(rows))
    return train


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

    ended = 0  # sessions that were compared with the unbroken run

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
            Session.ended += 1

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

    # The same run, elsewhere

    @rule(micro_batch=MICRO_BATCHES, act=st.sampled_from([interrupt, crash, fail]))
    def train_within_an_autocast(self, micro_batch: int, act: Callable[[], None]) -> None:
        self.disturb(micro_batch, act)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.train(trainer_of(self.config, self.disturbance))

    @precondition(lambda self: self.checkpoints())
    @rule()
    def come_back_on_other_threads(self) -> None:
        """In a copy, since it may differ by rounding, as it says."""
        folder, threads = Path(tempfile.mkdtemp()), torch.get_num_threads()
        shutil.copytree(self.folder / NAME, folder / NAME)
        torch.set_num_threads(threads + 1)
        try:
            with pytest.warns(UserWarning, match="threads"):
                trainer_of(base(folder)).train(*data_of(self.kind))
        finally:
            torch.set_num_threads(threads)
        torch.testing.assert_close(end_of(folder)["model"], unbroken(self.kind)["model"], rtol=1e-3, atol=1e-4)
        shutil.rmtree(folder)

    @rule(micro_batch=MICRO_BATCHES, act=st.sampled_from([interrupt, crash, fail]), redirect=REDIRECTIONS)
    def print_to_a_reader_that_has_gone(self, micro_batch: int, act: Callable[[], None], redirect: Any) -> None:
        self.disturb(micro_batch, act)
        reader, writer = os.pipe()
        os.close(reader)
        with suppress(BrokenPipeError), open(writer, "w", buffering=1) as pipe, redirect(pipe), self.either():
            self.train(trainer_of(self.config, self.disturbance))

    @rule(micro_batch=MICRO_BATCHES)
    def change_the_directory(self, micro_batch: int) -> None:
        """A run in a relative folder stays where it began."""
        there, back = self.folder / "there", Path.cwd()
        there.mkdir(exist_ok=True)
        self.disturb(micro_batch, lambda: os.chdir(there))
        try:
            os.chdir(self.folder)
            with self.either():
                self.train(trainer_of(base(Path()), self.disturbance))
        finally:
            os.chdir(back)
        assert not list(there.iterdir())

    @precondition(lambda self: self.checkpoints() and not (self.folder / NAME).is_symlink())
    @rule(moved=st.booleans())
    def come_back_to_a_link(self, moved: bool) -> None:
        """A link to the run's folder is that folder; one to nothing is refused, or leads to a run that begins anew."""
        run, away = self.folder / NAME, self.folder / "away"
        run.rename(away)
        run.symlink_to(away if moved else self.folder / "nowhere")
        if moved:
            self.train(trainer_of(self.config))
            return
        before = files_in(away)
        with self.either():
            self.train(trainer_of(self.config))
            assert_same(end_of(self.folder), unbroken(self.kind), self.kind)
        assert files_in(away) == before
        run.unlink()
        away.rename(run)
        self.trainer = None

    # The data

    @rule(left=MICRO_BATCHES)
    def lose_the_data(self, left: int) -> None:
        with self.either():
            self.train(trainer_of(self.config), dying(self.kind, left))

    @precondition(lambda self: self.kind == "list")
    @rule(place=st.integers(0, 3), mask=st.sampled_from(sorted(WRONG_MASKS)))
    def meet_a_wrong_mask(self, place: int, mask: str) -> None:
        train, _ = data_of(self.kind)
        train[place] = {**train[place], "attention_mask": WRONG_MASKS[mask](train[place]["attention_mask"])}
        with self.either():
            self.train(trainer_of(self.config), train)

    # Other runs

    @precondition(lambda self: self.checkpoints())
    @rule(what=st.sampled_from(sorted(OTHER_CODE)))
    def come_back_with_other_code(self, what: str) -> None:
        with self.refusal():
            OTHER_CODE[what](self.config).train(*data_of(self.kind))

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

    def train(self, trainer: Trainer, data: Any = None) -> None:
        train, validation = data_of(self.kind)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="passing over a checkpoint")
            self.trainer = trainer
            try:
                trainer.train(train if data is None else data, validation)
            except Failure:
                pass
            except Crash:
                self.trainer = None
        self.act = quiet

    @contextmanager
    def either(self) -> Iterator[None]:
        """Right, as the next start shows, or one line."""
        try:
            yield
        except (ValueError, OSError) as error:
            assert "\n" not in str(error), error
            self.trainer, self.act = None, quiet

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
    assert Session.ended, "no session was compared with the unbroken run"
