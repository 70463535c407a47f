"""Claims about a run from outside: its folder, the signals that end it, and a resume that changes no bit."""

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import course_lm.trainer.loop
from course_lm.batching import labels_of, make_loader
from course_lm.checkpoints import load_checkpoint
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.loss import LossConfig, Reduction, build_loss, next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import History
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer, resume
from course_lm.trainer.resume import check_rates, check_same_run
from course_lm.trainer.run import default_observers, on_interrupt, run_folder
from tests import training_run
from tests.fork_server import started
from tests.sets import draws, of_set
from tests.training_run import (
    VOCABULARY,
    Act,
    Crash,
    assert_same,
    counting,
    crash_at,
    interrupt_at,
    model_of,
    stop_and_go_on,
)

LENGTH = 8
DOCUMENTS = [f"the {animal} sat on a {place}" for animal in ("cat", "dog") for place in ("mat", "hat", "sun", "bed")]
TOKENIZER = train_tokenizer(DOCUMENTS, VOCABULARY)
MACHINE = {"tokens_per_second", "peak_memory_bytes"}
OF_THE_PLAIN_LOSS = {"perplexity"}  # these runs wrap it, each in its own way


def configure(folder: Path, **training: Any) -> TrainingConfig:
    """Two micro-batches a step with a tail of one, three steps an epoch, three epochs, early stopping on."""
    values: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "num_epochs": 3,
        "save_total_limit": 3,
        "early_stopping_patience": 5,
    }
    return training_run.configure(folder, learning_rate=1e-2, **{**values, **training})


def batch_list() -> list[dict[str, Any]]:
    """Five batches of random tokens."""
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (1 + i % 2, LENGTH - i % 3), generator=draw) for i in range(5)]
    return [
        {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": labels_of(ids, torch.ones_like(ids)),
            "num_bytes": ids.numel(),
        }
        for ids in rows
    ]


def loader_of(kind: str, num_workers: int = 0) -> Any:
    """Fresh training data: a list of batches, or a loader of this mode."""
    if kind == "list":
        return batch_list()
    return make_loader(
        DOCUMENTS[:5], TOKENIZER, mode=kind, batch_size=4, max_length=LENGTH, seed=7, num_workers=num_workers
    )


def trainer_of(config: TrainingConfig, dtype: torch.dtype = torch.float32, **parts: Any) -> Trainer:
    """A trainer with a freshly built model, the same every time."""
    return Trainer(model_of(LENGTH, dtype), config, **parts)


def without_machine(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key not in MACHINE | OF_THE_PLAIN_LOSS} for record in records
    ]


def outcome(trainer: Trainer) -> dict[str, Any]:
    """Everything that a run leaves and that must not depend on where it was stopped."""
    folder = trainer.folder
    assert folder is not None
    best = folder / "checkpoint_best.safetensors"
    return {
        "weights": dict(trainer.model.state_dict()),
        "moments": trainer.optimizer.state_dict(),
        "scaler": trainer.precision.state_dict(),
        "history": without_machine(trainer.history.records),
        "lines": without_machine([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]),
        "best": load_checkpoint(best)["model"] if best.exists() else {},
        "steps": sorted(path.name for path in folder.glob("checkpoint_step_*.safetensors")),
        "counts": [
            trainer.step,
            trainer.epoch,
            trainer.batch,
            trainer.log.tokens,
            trainer.log.skipped,
        ],
    }


CASES: dict[str, dict[str, Any]] = {
    "list": {"kind": "list"},
    "fixed": {"kind": "fixed"},
    "dynamic": {"kind": "dynamic", "gradient_accumulation_steps": 1},
    "bucketed": {"kind": "bucketed", "gradient_accumulation_steps": 1},
    "packed": {"kind": "packed", "gradient_accumulation_steps": 3},
    "bf16": {"kind": "packed", "precision": "bf16"},
    "fp16": {"kind": "list", "precision": "fp16"},
    "float64": {"kind": "list", "dtype": torch.float64, "logging_steps": 4},
    "eval_steps": {"kind": "fixed", "eval_steps": 2, "logging_steps": 3},
    "max_steps": {"kind": "list", "max_steps": 7, "logging_steps": 3},
    "layers": {"kind": "list", "logging_steps": 3, "layer_statistics": 2},
    "stops_early": {"kind": "list", "early_stopping_patience": 1, "early_stopping_threshold": 9.0},
}


def start(case: str, folder: Path, **parts: Any) -> Trainer:
    """Train (or go on training) the case in this folder with everything built anew."""
    settings = dict(CASES[case])
    kind, dtype = settings.pop("kind"), settings.pop("dtype", torch.float32)
    trainer = trainer_of(configure(folder, **settings), dtype, **parts)
    trainer.train(loader_of(kind), loader_of(kind))
    return trainer


def start_with(case: str, folder: Path, act: Act) -> Trainer:
    return start(case, folder, loss_fn=counting(act))


def run_with(config: TrainingConfig, **parts: Any) -> Trainer:
    """Train, or go on training, on the list of batches with everything built anew."""
    trainer = trainer_of(config, **parts)
    trainer.train(batch_list(), batch_list())
    return trainer


@cache
def straight(case: str) -> tuple[dict[str, Any], int]:
    """What the case leaves when nothing stops it, and how many micro-batches it takes."""
    counts: list[int] = []
    trainer = start(case, Path(mkdtemp()), loss_fn=counting(counts.append))
    return outcome(trainer), len(counts)


def assert_stop_changes_nothing(case: str, folder: Path, micro_batch: int, number: int = signal.SIGINT) -> None:
    expected, total = straight(case)
    assert total >= micro_batch

    def check_stopped(trainer: Trainer) -> None:
        assert trainer.step <= -(-micro_batch // trainer.settings.gradient_accumulation_steps) + 2
        assert_recorded_to_the_last_step(trainer)

    run = partial(start_with, case, folder)
    assert_same(outcome(stop_and_go_on(run, micro_batch, number, check_stopped)), expected)


def assert_recorded_to_the_last_step(trainer: Trainer) -> None:
    """The history and the log end with the last finished step, and count all tokens."""
    assert trainer.folder is not None
    lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in trainer.history.train]
    assert steps == sorted(set(steps)) and steps[-1] == trainer.step
    assert [line["step"] for line in lines if line["event"] == "train"] == steps
    unrecorded = sum(int(result.tokens) for result in trainer.log.pending if not result.skipped)
    assert trainer.history.train[-1]["tokens"] == trainer.log.tokens + unrecorded


# Resume


@pytest.mark.parametrize("micro_batch", [1, 4, 5, 6, 8, 15])
def test_stopping_and_going_on_changes_no_bit(tmp_path, micro_batch):
    assert_stop_changes_nothing("list", tmp_path, micro_batch)


@pytest.mark.parametrize("case", CASES)
def test_stopping_at_a_micro_batch_of_the_day_changes_no_bit(tmp_path, case):
    total = straight(case)[1]
    for micro_batch in draws(case).sample(range(1, total + 1), of_set(2, total)):
        assert_stop_changes_nothing(case, tmp_path / str(micro_batch), micro_batch)


def test_stopping_after_every_single_step_changes_no_bit(tmp_path):
    expected, _ = straight("packed")
    while (trainer := start("packed", tmp_path, loss_fn=counting(interrupt_at(1)))).interrupted:
        assert trainer.step < 20
    assert_same(outcome(trainer), expected)


def test_a_terminated_run_goes_on_as_well(tmp_path):
    assert_stop_changes_nothing("list", tmp_path, 7, signal.SIGTERM)


def test_a_run_stopped_before_its_first_step_goes_on(tmp_path):
    trainer = trainer_of(configure(tmp_path), observers=[SignalAtStart()])
    trainer.train(loader_of("list"), loader_of("list"))
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


class SignalAtStart:
    """Presses Ctrl-C at the first record, or at the n-th validation."""

    def __init__(self, validation: int | None = None) -> None:
        self.left, self.event = (1, None) if validation is None else (validation, "validation")

    def start(self, step: int, total_steps: int | None) -> None:
        pass

    def log(self, record: dict[str, Any]) -> None:
        self.left -= self.event in (None, record["event"])
        if self.left == 0:
            self.left = -1
            os.kill(os.getpid(), signal.SIGINT)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("case", ["list", "packed", "eval_steps", "float64"])
def test_a_run_that_died_goes_on_from_its_newest_step(tmp_path, case):
    expected, total = straight(case)
    for micro_batch in range(1, total + 1, 1 if case == "list" else 5):
        folder = tmp_path / str(micro_batch)
        with pytest.raises(Crash):
            start(case, folder, loss_fn=counting(crash_at(micro_batch)))
        assert_same(outcome(start(case, folder)), expected, f"died at {micro_batch}")


def test_a_run_that_died_has_recorded_every_finished_step(tmp_path):
    trainer = trainer_of(configure(tmp_path, logging_steps=4), loss_fn=counting(crash_at(6)))
    with pytest.raises(Crash):
        trainer.train(loader_of("list"))
    assert trainer.step == 3
    assert_recorded_to_the_last_step(trainer)


@pytest.mark.parametrize("lost", [slice(None), slice(1, 3), slice(-1, None)], ids=["all", "some", "the last"])
def test_lines_that_the_log_has_lost_are_written_again_from_the_checkpoint(tmp_path, lost):
    start("list", tmp_path, loss_fn=counting(interrupt_at(13)))
    log = tmp_path / "toy" / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    del lines[lost]
    log.write_bytes(b"".join(lines))
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


def test_patience_is_counted_on_across_a_stop(tmp_path):
    losses = iter([3.0, 2.0, 2.5, 2.25, 1.0])  # stopped after the third; patience runs out at the fourth

    def train(**parts: Any) -> Trainer:
        trainer = trainer_of(configure(tmp_path, num_epochs=5, early_stopping_patience=2), **parts)
        trainer.evaluate = lambda *_: {"val_loss": next(losses)}  # type: ignore[method-assign]
        trainer.train(loader_of("list"), loader_of("list"))
        return trainer

    first = train(observers=[SignalAtStart(validation=3)])
    assert (first.interrupted, first.epoch) == (signal.SIGINT, 3)
    second = train()
    assert (second.interrupted, second.epoch, second.best_loss) == (None, 4, 2.0)


def test_a_run_goes_on_from_a_step_when_its_last_state_is_lost(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(9)))
    (tmp_path / "toy" / "checkpoint_last.safetensors").unlink()
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


@pytest.mark.filterwarnings("ignore:passing over a checkpoint")
def test_a_run_goes_on_when_its_last_state_is_damaged(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(9)))
    path = tmp_path / "toy" / "checkpoint_last.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


@pytest.mark.parametrize("save", range(1, 11))
def test_a_run_that_died_just_before_it_saved_goes_on(tmp_path, monkeypatch, save):
    saves = 0

    def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
        nonlocal saves
        saves += 1
        if saves == save:
            raise Crash
        original(path, state)

    original = course_lm.trainer.loop.save_checkpoint
    monkeypatch.setattr(course_lm.trainer.loop, "save_checkpoint", save_checkpoint)
    with pytest.raises(Crash):
        start("list", tmp_path)
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


def without_errors(outcome: dict[str, Any]) -> dict[str, Any]:
    """Without standard errors: data that may be lost are no loader of ours, and do not tell their documents."""
    parts = {name: [{**one, "val_loss_se": None} for one in outcome[name]] for name in ("history", "lines")}
    return {**outcome, **parts}


class DyingAt:
    """Validation data that is lost at the n-th reading."""

    def __init__(self, reading: int, kind: str = "list") -> None:
        self.left = iter(range(reading - 1))  # validation reads copies, which share it
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        if next(self.left, None) is None:
            raise Crash
        return iter(loader_of(self.kind))


@pytest.mark.parametrize("reading", [1, 2, 3])
def test_a_run_that_died_while_it_validated_goes_on(tmp_path, reading):
    with pytest.raises(Crash):
        trainer_of(configure(tmp_path)).train(loader_of("list"), DyingAt(reading))
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


@pytest.mark.parametrize("case", ["list", "eval_steps"])
@pytest.mark.parametrize("reading", [1, 2, 3])
def test_a_validation_that_an_error_broke_off_is_made_up_for(tmp_path, case, reading):
    """In the same process: a cell of a notebook that is run again after a second Ctrl-C."""
    settings = dict(CASES[case])
    kind = settings.pop("kind")
    trainer, data = trainer_of(configure(tmp_path, save_total_limit=None, **settings)), loader_of(kind)
    with pytest.raises(Crash):
        trainer.train(data, DyingAt(reading, kind))
    trainer.train(data, loader_of(kind))
    expected = without_errors(straight(case)[0])
    assert_same({**without_errors(outcome(trainer)), "steps": expected["steps"]}, expected)
    ends = sorted(path.stem for path in (tmp_path / "toy").glob("checkpoint_epoch_*.safetensors"))
    assert ends == ["checkpoint_epoch_1", "checkpoint_epoch_2", "checkpoint_epoch_3"]


def test_a_finished_run_is_not_trained_again(tmp_path, capsys):
    start("list", tmp_path)
    again = start("list", tmp_path)
    assert "resumed" in capsys.readouterr().out
    assert_same(outcome(again), straight("list")[0])


def test_a_finished_run_that_is_started_again_over_the_same_list_saves_the_same_position(tmp_path):
    trainer = trainer_of(configure(tmp_path))
    trainer.train(batch_list(), batch_list())
    last = tmp_path / "toy" / "checkpoint_last.safetensors"
    before = load_checkpoint(last)["data"]
    trainer.train(batch_list(), batch_list())
    assert_same(load_checkpoint(last)["data"], before)


def test_a_run_goes_on_in_the_same_process(tmp_path):
    trainer = trainer_of(configure(tmp_path), loss_fn=counting(interrupt_at(8)))
    trainer.train(loader_of("fixed"), loader_of("fixed"))
    assert trainer.interrupted
    trainer.train(loader_of("fixed"), loader_of("fixed"))
    assert_same(outcome(trainer), straight("fixed")[0])


def test_a_run_without_a_folder_goes_on_in_the_same_process():
    config = configure(Path(), output_dir=None)
    trainer = trainer_of(config, loss_fn=counting(interrupt_at(8)))
    data = loader_of("list")
    trainer.train(data, data)
    trainer.train(data, data)
    assert_same(dict(trainer.model.state_dict()), straight("list")[0]["weights"])


@pytest.mark.parametrize("micro_batch", [1, 3, 6, 10])
def test_workers_change_nothing(tmp_path, micro_batch):
    def run(act: Act) -> Trainer:
        trainer = trainer_of(configure(tmp_path), loss_fn=counting(act))
        trainer.train(loader_of("fixed", num_workers=1), loader_of("fixed"))
        return trainer

    assert_same(outcome(stop_and_go_on(run, micro_batch)), straight("fixed")[0])


class Shuffled:
    """A loader that can be told the epoch, and nothing else."""

    def __init__(self) -> None:
        self.epoch, self.read = 0, []

    def __len__(self) -> int:
        return 5

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.read.append(self.epoch)
        return iter(batch_list())


def test_a_loader_that_only_knows_epochs_is_told_the_right_one(tmp_path):
    config = configure(tmp_path)
    with pytest.raises(Crash):
        trainer_of(config, loss_fn=counting(crash_at(11))).train(Shuffled())
    loader = Shuffled()
    trainer_of(config).train(loader)
    assert loader.read == [2]


# What a resume refuses


@pytest.mark.parametrize(
    ("section", "change", "parts"),
    [
        ("data", {"corpus": "stories"}, ["data.corpus", "'python-docs'", "'stories'"]),
        ("data", {"max_length": 64}, ["data.max_length", "128", "64"]),
        ("model", {"d_model": 64}, ["model.d_model", "128", "64"]),
        ("model", {"dropout": 0.5}, ["model.dropout", "0.1", "0.5"]),
        ("optimizer", {"type": "sgd"}, ["optimizer.type", "'adamw'", "'sgd'"]),
        ("optimizer", {"weight_decay": 0.5}, ["optimizer.weight_decay", "0.01", "0.5"]),
        ("optimizer", {"beta2": 0.95}, ["optimizer.beta2", "0.999", "0.95"]),
        ("training", {"batch_size": 8}, ["training.batch_size", "32", "8"]),
        ("training", {"gradient_accumulation_steps": 1}, ["training.gradient_accumulation_steps", "2", "1"]),
        ("training", {"seed": 1}, ["training.seed", "42", "1"]),
    ],
)
def test_a_resume_with_another_setting_is_refused(tmp_path, section, change, parts):
    config = configure(tmp_path)
    start("list", tmp_path, loss_fn=counting(interrupt_at(3)))
    changed = replace(config, **{section: replace(getattr(config, section), **change)})
    with pytest.raises(ValueError) as caught:
        trainer_of(changed).train(batch_list())
    for part in [*parts, "training.resume"]:
        assert part in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refused_resume_leaves_the_run_as_it_was(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(3)))
    with pytest.raises(ValueError):
        trainer_of(configure(tmp_path, seed=1)).train(batch_list())
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


def test_a_resume_with_a_model_of_another_size_is_refused_in_one_line(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(3)))
    other = GPT(ModelConfig(n_layer=1, n_head=2, d_model=16), VOCABULARY, LENGTH)
    with pytest.raises(ValueError) as caught:
        Trainer(other, configure(tmp_path)).train(batch_list())
    assert "\n" not in str(caught.value)


CONSTANT = ScheduleConfig(type="constant", warmup_steps=2)


def test_a_run_can_be_made_longer_under_a_schedule_that_does_not_look_at_its_end(tmp_path, capsys):
    short, long = (replace(configure(tmp_path, num_epochs=epochs), lr_scheduler=CONSTANT) for epochs in (3, 5))
    trainer_of(short).train(loader_of("fixed"))
    trainer = trainer_of(long)
    trainer.train(loader_of("fixed"))
    unbroken = trainer_of(replace(long, experiment_name="unbroken"))
    unbroken.train(loader_of("fixed"))
    assert "goes on to step" in capsys.readouterr().out
    assert trainer.epoch == 5
    for part in ("model", "optimizer", "data"):
        assert_same(trainer.state_dict()[part], unbroken.state_dict()[part], part)
    assert TrainingConfig.from_yaml(tmp_path / "toy" / "config.yaml") == long


@pytest.mark.parametrize("change", [{"num_epochs": 5}, {"num_epochs": 1}, {"max_steps": 100}, {"max_steps": 2}])
def test_another_length_under_a_schedule_that_spans_the_run_is_refused(tmp_path, change):
    start("list", tmp_path, loss_fn=counting(interrupt_at(7)))  # three steps an epoch: in the second one
    with pytest.raises(ValueError) as caught:
        trainer_of(configure(tmp_path, **change)).train(batch_list())
    assert "training.resume" in str(caught.value) and "\n" not in str(caught.value)
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


def test_a_decay_that_has_not_begun_can_be_put_off():
    """A run under warmup_stable_decay may be given more steps until its decay begins, and no longer."""
    config = ScheduleConfig(type="warmup_stable_decay", warmup_steps=10, decay_ratio=0.2)
    saved: dict[str, Any] = {
        "own_schedule": False,
        "last_rate": 1.0,
        "total_steps": 100,
    }
    saved["config"] = {
        "training": asdict(LoopConfig(max_steps=100)),
        "lr_scheduler": asdict(config),
        "optimizer": {"learning_rate": 1.0},
    }
    longer, now = build_schedule(config, peak_lr=1.0, total_steps=200), LoopConfig(max_steps=200)
    check_rates({**saved, "step": 81}, longer, 200, now)
    with pytest.raises(
        ValueError, match=r"step 82 was taken with learning rate 0.95, and would now have 1: training.max_steps was 100"
    ):
        check_rates({**saved, "step": 82}, longer, 200, now)


def test_another_schedule_function_is_refused(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(7)), schedule=lambda step: 1e-3)
    with pytest.raises(ValueError, match=r"taken with learning rate 0\.001, and would now have 0\.002"):
        start("list", tmp_path, schedule=lambda step: 2e-3)
    start("list", tmp_path, schedule=lambda step: 1e-3)


DECIDES = {
    "data": {
        "corpus": "stories",
        "vocab_size": 300,
        "max_length": 9,
        "batching": "fixed",
        "val_fraction": 0.5,
        "test_fraction": 0.1,
    },
    "model": {"n_layer": 9, "n_head": 2, "d_model": 64, "dropout": 0.7, "positions": "rotary"},
    "loss": {"label_smoothing": 0.1, "z_loss": 1e-4},
    "optimizer": {
        "type": "sgd",
        "learning_rate": 0.5,
        "beta1": 0.5,
        "beta2": 0.5,
        "epsilon": 0.5,
        "weight_decay": 0.5,
        "momentum": 0.5,
    },
    "lr_scheduler": {
        "type": "linear",
        "warmup_ratio": 0.5,
        "warmup_steps": 1,
        "num_cycles": 2.0,
        "min_lr": 1e-9,
        "milestones": [1],
        "step_size": 3,
        "gamma": 0.5,
        "timescale": 3,
        "decay_ratio": 0.5,
    },
    "training": {
        "batch_size": 9,
        "gradient_accumulation_steps": 9,
        "max_grad_norm": 0.5,
        "max_grad_value": 0.5,
        "precision": "bf16",
        "on_nonfinite": "skip",
        "eval_steps": 5,
        "eval_tokens": 5,
        "early_stopping_threshold": 0.5,
        "average_weights": 0.5,
        "seed": 1,
    },
}


@pytest.mark.parametrize(("section", "key"), [(section, key) for section in DECIDES for key in DECIDES[section]])
def test_a_key_that_decides_the_run_cannot_change(section, key):
    config = configure(Path())
    part = replace(getattr(config, section), **{key: DECIDES[section][key]})
    with pytest.raises(ValueError, match=rf"saved with {section}\.{key} .*, this run has .*training.resume") as caught:
        check_same_run(replace(config, **{section: part}), asdict(config))
    assert "\n" not in str(caught.value)


def test_every_key_of_the_configuration_decides_the_run_or_is_declared_to_be_free():
    keys = {
        f"{name}.{key}"
        for name, section in asdict(TrainingConfig()).items()
        if isinstance(section, dict)
        for key in section
    }
    decides = {f"{section}.{key}" for section in DECIDES for key in DECIDES[section]}
    curriculum = {key for key in keys if key.startswith("curriculum.")}
    free = resume.MAY_CHANGE | resume.LENGTH | resume.ROUNDING
    assert decides | curriculum | free == keys | {"experiment_name"}


def test_settings_that_no_step_depends_on_may_change():
    config = configure(Path())
    other = replace(config, training=replace(config.training, logging_steps=99, save_steps=1, save_total_limit=1))
    workers = replace(config.data, num_workers=2, pin_memory=False)
    check_same_run(replace(other, data=workers, experiment_name="other"), asdict(config))


def test_a_setting_that_changes_rounding_alone_is_warned_of():
    config = configure(Path())
    other = replace(config, training=replace(config.training, compile=True))
    with pytest.warns(UserWarning, match=r"saved with training.compile False, this run has True: it may not go on bit"):
        check_same_run(other, asdict(config))


def half_the_loss(logits: Tensor, labels: Tensor, reduction: Reduction = "mean") -> Tensor:
    return next_token_loss(logits, labels, reduction=reduction) / 2


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"loss_fn": half_the_loss}, "the loss_fn is not .* had next_token_loss for half_the_loss: "),
        (
            {"loss_fn": build_loss(LossConfig(z_loss=1e-4))},
            r"the loss_fn is not .* for next_token_loss\(label_smoothing=0.0, z_loss=0.0001\)",
        ),
        (
            {"clip": partial(nn.utils.clip_grad_norm_, norm_type=1.0)},
            r"the clip is not .* had clip_gradients for clip_grad_norm_\(norm_type=1.0\)",
        ),
        ({"dropout": 0.4}, "the model is not .*p=0.2.* for .*p=0.4"),
    ],
)
def test_a_run_that_would_go_on_with_another_part_is_refused(tmp_path, parts, message):
    """Neither a function nor a model that is built in code has a key in the configuration."""
    trainer_of(configure(tmp_path, num_epochs=1)).train(batch_list())
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=parts.pop("dropout", 0.2)), VOCABULARY, LENGTH)
    trainer = Trainer(model, configure(tmp_path, num_epochs=1), **parts)
    with pytest.raises(ValueError, match=message) as caught:
        trainer.train(batch_list())
    assert str(caught.value).endswith(resume.WHAT_TO_DO) and "\n" not in str(caught.value)


class StrangeSGD(torch.optim.SGD):
    """Remembers, from its first step on, what no checkpoint can hold."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["remembered"] = object()
        return loss


def test_a_state_that_cannot_be_saved_is_found_after_the_first_step(tmp_path):
    trainer = trainer_of(configure(tmp_path, save_steps=100))
    strange = StrangeSGD(trainer.model.parameters(), lr=trainer.config.optimizer.learning_rate)
    trainer = Trainer(trainer.model, trainer.config, optimizer=strange)
    with pytest.raises(ValueError, match="remembered") as caught:
        trainer.train(batch_list())
    assert trainer.step == 1 and "\n" not in str(caught.value)


def test_what_precision_auto_meant_is_saved(tmp_path):
    trainer = trainer_of(configure(tmp_path, precision="auto", num_epochs=1))
    trainer.train(batch_list())
    assert TrainingConfig.from_yaml(tmp_path / "toy" / "config.yaml").training.precision == trainer.precision.name


def test_a_refused_run_leaves_the_saved_settings_alone(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(3)))
    before = {path.name: path.read_bytes() for path in (tmp_path / "toy").iterdir() if path.is_file()}
    with pytest.raises(ValueError):
        trainer_of(configure(tmp_path, max_grad_norm=0.5)).train(batch_list())
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "toy").iterdir() if path.is_file()}


def test_a_patience_given_later_counts_from_the_start(tmp_path):
    hopeless: dict[str, Any] = {"early_stopping_threshold": 9.0}
    run_with(configure(tmp_path, early_stopping_patience=None, **hopeless), loss_fn=counting(interrupt_at(8)))
    patient = configure(tmp_path, early_stopping_patience=2, **hopeless)
    trainer = run_with(patient)
    unbroken = run_with(replace(patient, experiment_name="unbroken"))
    assert (trainer.step, trainer.epoch) == (unbroken.step, unbroken.epoch) == (9, 3)


def test_a_finished_run_says_so(tmp_path, capsys):
    start("list", tmp_path)
    start("list", tmp_path)
    out = capsys.readouterr().out
    assert "the run has come to its end after step 9: nothing is left to train" in out
    assert f"those in {tmp_path / 'toy'}; to train anew, choose another experiment_name" in out


def test_a_run_that_nobody_named_says_loudly_that_it_goes_on_with_an_old_one(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    nameless = replace(TrainingConfig(), training=LoopConfig(max_steps=2, precision="fp32", device="cpu"))
    for named in (nameless, replace(nameless, experiment_name="mine")):
        for _ in range(2):
            run_with(named)
    (warned,) = [str(one.message) for one in recwarn if "experiment_name" in str(one.message)]
    assert "goes on with the one in runs/my-lm" in warned and "training.resume to never" in warned


def test_a_finished_run_that_is_given_other_data_is_refused(tmp_path):
    start("fixed", tmp_path)
    other = make_loader(DOCUMENTS[1:6], TOKENIZER, mode="fixed", batch_size=4, max_length=LENGTH, seed=7)
    with pytest.raises(ValueError, match="saved over other data") as caught:
        trainer_of(configure(tmp_path)).train(other, other)
    assert "\n" not in str(caught.value)
    assert_same(outcome(start("fixed", tmp_path)), straight("fixed")[0])


def test_a_state_loaded_by_hand_does_not_overwrite_another_run(tmp_path):
    start("list", tmp_path)
    other = run_with(configure(tmp_path / "other"), loss_fn=counting(interrupt_at(3)))
    assert other.folder is not None
    trainer = trainer_of(configure(tmp_path))
    trainer.load_checkpoint(other.folder / "checkpoint_last.safetensors")
    with pytest.raises(ValueError, match="holds another run"):
        trainer.train(batch_list())


def test_a_run_can_be_taken_up_at_an_older_checkpoint_of_its_own(tmp_path):
    start("list", tmp_path)
    trainer = trainer_of(configure(tmp_path))
    trainer.load_checkpoint(tmp_path / "toy" / "checkpoint_epoch_2.safetensors")
    trainer.train(batch_list(), batch_list())
    assert_same(outcome(trainer)["weights"], straight("list")[0]["weights"])


def test_what_is_drawn_between_two_calls_changes_nothing(tmp_path):
    trainer = trainer_of(configure(tmp_path), loss_fn=counting(interrupt_at(8)))
    trainer.train(loader_of("list"), loader_of("list"))
    torch.rand(7)
    trainer.save_checkpoint(tmp_path / "toy" / "checkpoint_last.safetensors")
    trainer.train(loader_of("list"), loader_of("list"))
    assert_same(outcome(trainer)["weights"], straight("list")[0]["weights"])
    assert_same(outcome(start("list", tmp_path))["weights"], straight("list")[0]["weights"])


def test_a_run_leaves_the_settings_of_the_process_as_it_found_them(tmp_path, monkeypatch):
    """Kernels, memory filling and the environment: with each of the values that may be found."""
    memory: Any = importlib.import_module("torch.utils.deterministic")

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for found in (False, True):
        torch.use_deterministic_algorithms(found, warn_only=found)
        memory.fill_uninitialized_memory = found
        trainer_of(configure(tmp_path, resume="never", deterministic=not found, num_epochs=1)).train(batch_list())
        assert torch.are_deterministic_algorithms_enabled() is found
        assert torch.is_deterministic_algorithms_warn_only_enabled() is found
        assert memory.fill_uninitialized_memory is found
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    torch.use_deterministic_algorithms(False)
    memory.fill_uninitialized_memory = True


def test_resume_never_starts_anew_and_keeps_the_old_run(tmp_path):
    first = start("list", tmp_path)
    for number in (1, 2):
        trainer = trainer_of(configure(tmp_path, resume="never"))
        trainer.train(loader_of("list"), loader_of("list"))
        assert_same(trainer.history.records[0]["loss"], first.history.records[0]["loss"])
        assert (tmp_path / f"toy.{number}" / "checkpoint_last.safetensors").exists()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["toy", "toy.1", "toy.2"]


# The folder and its loggers


def test_resume_never_leaves_one_folder_where_there_was_none(tmp_path):
    run_with(configure(tmp_path, resume="never"))
    assert [path.name for path in tmp_path.glob("toy*")] == ["toy"]


def test_the_folder_carries_the_name_of_the_run():
    assert run_folder(configure(Path("somewhere"))) == Path("somewhere/toy")


def test_without_an_output_folder_there_is_no_run_folder():
    assert run_folder(configure(Path(), output_dir=None)) is None


def test_a_run_without_a_folder_has_a_progress_bar_and_no_metrics_file():
    names = [type(observer).__name__ for observer in default_observers(configure(Path(), output_dir=None), History())]
    assert names == ["ProgressBar"]


# Signals


def test_the_step_in_which_the_signal_comes_is_finished(tmp_path):
    trainer = start("list", tmp_path, loss_fn=counting(interrupt_at(3)))
    assert (trainer.step, trainer.batch) == (2, 4)
    assert load_checkpoint(tmp_path / "toy" / "checkpoint_last.safetensors")["step"] == 2


def test_a_stopped_run_says_so_in_one_line(tmp_path, capsys):
    start("list", tmp_path, loss_fn=counting(interrupt_at(3)))
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"stopped by SIGINT after step 2: run it again to go on from {tmp_path / 'toy'}"


def test_a_stopped_run_without_a_folder_says_that_nothing_is_saved(capsys):
    trainer_of(configure(Path(), output_dir=None), loss_fn=counting(interrupt_at(3))).train(batch_list())
    assert "after step 2: nothing was saved" in capsys.readouterr().out


def test_a_signal_during_the_last_validation_is_no_loss(tmp_path):
    class Interrupting:
        def __iter__(self) -> Iterator[Any]:
            os.kill(os.getpid(), signal.SIGINT)
            return iter(batch_list())

    settings = {"max_steps": 4, "eval_steps": 100, "save_steps": 100}
    trainer = trainer_of(configure(tmp_path, **settings))
    try:
        trainer.train(batch_list(), Interrupting())
    except KeyboardInterrupt:
        pytest.fail("the signal ended the run before it was saved")
    assert load_checkpoint(tmp_path / "toy" / "checkpoint_last.safetensors")["step"] == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_are_given_back(number):
    before = signal.getsignal(number)
    with on_interrupt(lambda number: None):
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("found", [signal.SIG_IGN, None])
def test_a_signal_that_is_ignored_or_handled_outside_python_is_left_alone(monkeypatch, found):
    """None is what Python answers for a handler that was installed from C: it could not be given back."""
    installed: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: found)
    monkeypatch.setattr(signal, "signal", lambda number, handler: installed.append(number))
    with on_interrupt(lambda number: None):
        pass
    assert installed == []


def test_stop_from_another_thread_leaves_a_run_that_goes_on(tmp_path):
    stopping = threading.Event()
    trainer = trainer_of(configure(tmp_path), loss_fn=counting(lambda count: stopping.set() if count == 5 else None))

    def stop() -> None:
        stopping.wait()
        trainer.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    trainer.train(batch_list(), batch_list())
    thread.join()
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


def test_a_run_that_never_resumes_says_what_to_set_to_go_on(tmp_path, capsys):
    run_with(configure(tmp_path, resume="never"), loss_fn=counting(interrupt_at(3)))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"run it again with training.resume auto to go on from {tmp_path / 'toy'}")


def test_a_folder_is_free_again_when_its_process_has_died(tmp_path):
    program = tmp_path / "hold.py"
    program.write_text(f"""
import pathlib, time
from course_lm.trainer.run import sole_writer
with sole_writer(pathlib.Path({str(tmp_path / "toy")!r})):
    print("in", flush=True)
    time.sleep(60)
""")
    with started(tmp_path, [sys.executable, str(program)]) as other:
        other.wait_until(lambda: other.texts()[0], "the lock of the folder")
        with pytest.raises(BlockingIOError, match="another process is training in"):
            start("list", tmp_path)
        other.process.kill()
        other.end()
    assert_same(outcome(start("list", tmp_path)), straight("list")[0])


def test_the_best_weights_that_cannot_be_read_leave_the_last_ones_with_a_warning(tmp_path):
    trainer = start("list", tmp_path)
    (tmp_path / "toy" / "checkpoint_best.safetensors").unlink()
    last = {name: part.clone() for name, part in trainer.model.state_dict().items()}
    with pytest.warns(UserWarning, match="the model keeps its last weights"):
        trainer.restore_best()
    assert_same(dict(trainer.model.state_dict()), last)


def test_the_first_signal_notifies_and_the_second_has_its_usual_effect():
    numbers: list[int] = []
    with pytest.raises(KeyboardInterrupt), on_interrupt(numbers.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert numbers == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
    assert numbers == [signal.SIGINT]


def test_training_runs_outside_the_main_thread(tmp_path):
    steps: list[int] = []
    thread = threading.Thread(target=lambda: steps.append(start("list", tmp_path).step))
    thread.start()
    thread.join()
    assert steps == [9]
