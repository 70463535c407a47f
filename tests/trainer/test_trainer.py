"""Claims about the loop: what one call of `train` does, in which order, and what it leaves behind."""

import json
import math
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from course_lm.batching import Loader, labels_of, make_loader
from course_lm.checkpoints import load_checkpoint
from course_lm.clipping import clip_gradients
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.curriculum import CurriculumConfig, LengthBasedCurriculum
from course_lm.loss import LossConfig, next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.optim import OPTIMIZERS, OptimizerConfig, build_optimizer
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.step import NonFiniteGradientError, train_step
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from course_lm.trainer.log import MAX_SKIPPED_IN_A_ROW
from tests.records import Recorder
from tests.small_run import small_batches, small_trainer
from tests.training_run import assert_same, without_measures

VOCABULARY, LENGTH = 13, 8
DOCUMENTS = [f"the {animal} sat on the {place}" for animal in ("cat", "dog", "cow") for place in ("mat", "hat", "sun")]


def batch_of(starts: list[int], length: int = LENGTH) -> dict[str, Any]:
    """Rows that count upwards from their first token, so that the next token is always known."""
    ids = (torch.tensor(starts)[:, None] + torch.arange(length)) % VOCABULARY
    mask = torch.ones_like(ids)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels_of(ids, mask), "num_bytes": ids.numel()}


def empty_batch() -> dict[str, Any]:
    """A batch without a target token."""
    return batch_of([1]) | {"labels": torch.full((1, LENGTH), -100)}


def toy_batches(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Batches of different sizes and lengths."""
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(VOCABULARY, (1 + i % 3,), generator=draw).tolist() for i in range(count)]
    return [batch_of(starts, LENGTH - i % 4) for i, starts in enumerate(rows)]


def tiny_gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=16, dropout=dropout), VOCABULARY, LENGTH)


def configure(lr: float = 1e-2, schedule: ScheduleConfig | None = None, **training: Any) -> TrainingConfig:
    """A small run on the CPU that logs every step and writes nothing, unless told otherwise."""
    quiet: dict[str, Any] = {"gradient_accumulation_steps": 1, "num_epochs": 1, "precision": "fp32", "device": "cpu"}
    return TrainingConfig(
        experiment_name="toy",
        optimizer=OptimizerConfig(learning_rate=lr),
        lr_scheduler=schedule or ScheduleConfig(),
        training=LoopConfig(**(quiet | {"logging_steps": 1, "output_dir": None} | training)),
    )


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: part.clone() for name, part in model.state_dict().items()}


def assert_same_weights(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    torch.testing.assert_close(mine, other, rtol=0, atol=0)


def steps_of(records: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in records]


def validated_as(trainer: Trainer, values: list[float]) -> Trainer:
    """The trainer, its validations measuring these losses in turn."""
    rest = iter(values)
    trainer.evaluate = lambda *_: {"val_loss": next(rest)}  # type: ignore[method-assign]
    return trainer


# The loop


@settings(max_examples=15)
@given(batches=st.integers(1, 7), accumulation=st.integers(1, 4), epochs=st.integers(1, 3))
def test_a_run_takes_as_many_steps_as_it_says(batches, accumulation, epochs):
    observer = Recorder()
    config = configure(gradient_accumulation_steps=accumulation, num_epochs=epochs)
    trainer = Trainer(tiny_gpt(), config, observers=[observer])
    trainer.train(toy_batches(batches))
    assert observer.told[0] == ("start", 0, trainer.step)
    assert trainer.step == epochs * math.ceil(batches / accumulation)


def test_the_run_equals_the_same_windows_stepped_by_hand():
    batches, config = toy_batches(5), configure(gradient_accumulation_steps=3, num_epochs=2)
    trainer = Trainer(tiny_gpt(), config)
    trainer.train(batches)
    model = tiny_gpt()
    optimizer = build_optimizer(model, config.optimizer)
    schedule = build_schedule(config.lr_scheduler, peak_lr=1e-2, total_steps=4)
    for step, window in enumerate([batches[:3], batches[3:]] * 2):
        train_step(model, window, optimizer, lr=schedule(step))
    assert_same_weights(weights_of(trainer.model), weights_of(model))


@pytest.mark.parametrize(
    ("settings", "batches", "validated_at"),
    [
        ({"num_epochs": 3}, 2, [2, 4, 6]),
        ({"num_epochs": 2, "eval_steps": 3}, 4, [3, 6, 8]),
        ({"num_epochs": 2, "eval_steps": 2, "max_steps": 4}, 2, [2, 4]),  # where both fall together, once
        ({"num_epochs": 9, "max_steps": 4}, 3, [3, 4]),  # in the middle of an epoch
        ({"num_epochs": 1, "max_steps": 7}, 4, [4, 7]),  # beyond the last one
    ],
)
def test_a_run_is_validated_after_each_epoch_or_so_many_steps_and_where_it_ends(settings, batches, validated_at):
    trainer = Trainer(tiny_gpt(), configure(**settings))
    history = trainer.train(toy_batches(batches), toy_batches(1))
    assert steps_of(history.validation) == validated_at
    assert trainer.step == trainer.epoch * batches + trainer.batch == validated_at[-1]


def test_one_epoch_can_be_trained_by_hand(tmp_path):
    trainer = Trainer(tiny_gpt(), configure(num_epochs=3, logging_steps=100, output_dir=str(tmp_path)))
    trainer.train_epoch(toy_batches(2))
    assert (trainer.step, trainer.epoch, trainer.batch) == (2, 1, 0)
    assert (tmp_path / "toy" / "checkpoint_epoch_1.safetensors").exists()


def test_an_epoch_by_hand_refuses_validation_data_that_can_be_read_once():
    trainer = Trainer(tiny_gpt(), configure(num_epochs=3))
    with pytest.raises(ValueError, match="the validation loader is an iterator"):
        trainer.train_epoch(toy_batches(2), iter(toy_batches(1)))


# Loaders


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(toy_batches(3))


class Endless:
    """A loader that holds nothing, and gives up on a caller that does not."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.asked = batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.asked += 1
        assert self.asked < 5, "an epoch without a step was followed by another, and another"
        return iter(self.batches)


@pytest.mark.filterwarnings("ignore:skipped a step")
@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (lambda: [], {}, "is empty"),
        (lambda: Endless([batch_of([1])]), {}, r"has no len\(\): set training\.max_steps"),
        (lambda: DataLoader(Stream(), batch_size=None), {}, r"has no len\(\): set training\.max_steps"),
        (lambda: Endless([]), {"max_steps": 2}, "held no target token in a whole epoch"),
        (lambda: Endless([empty_batch()]), {"max_steps": 2}, "held no target token in a whole epoch"),
    ],
)
def test_a_loader_that_no_run_can_be_made_of_is_refused(make, settings, said):
    with pytest.raises(ValueError, match=f"the training loader .*{said}"):
        Trainer(tiny_gpt(), configure(**settings)).train(make())


class Secretive(torch.optim.SGD):
    """Its state appears with its first step, and no checkpoint can hold it."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["secret"] = object()
        return result


def test_an_optimizer_whose_state_no_checkpoint_can_hold_is_found_after_its_first_step(tmp_path):
    model = tiny_gpt()
    config = configure(max_steps=5, save_steps=4, output_dir=str(tmp_path))
    trainer = Trainer(model, config, optimizer=Secretive(model.parameters(), lr=config.optimizer.learning_rate))
    with pytest.raises((TypeError, ValueError), match="secret"):
        trainer.train(toy_batches(5))
    assert trainer.step == 1


def test_a_state_brings_its_schedule_to_a_trainer_that_has_made_none():
    trained, fresh = (Trainer(tiny_gpt(), configure(num_epochs=2)) for _ in range(2))
    trained.train(toy_batches(3))
    assert fresh.total_steps is None
    fresh.load_state_dict(trained.state_dict())
    assert fresh.total_steps == trained.total_steps == 6


def test_on_a_cpu_the_allocator_is_told_to_keep_what_a_step_frees(monkeypatch):
    told = []
    monkeypatch.setattr("course_lm.trainer.loop.tune_allocator", lambda: told.append(True))
    Trainer(tiny_gpt(), configure(num_epochs=1))
    assert told == [True]


# What is recorded


def test_steps_after_the_last_log_point_are_logged_at_the_end():
    history = Trainer(tiny_gpt(), configure(logging_steps=2, num_epochs=1)).train(toy_batches(5))
    assert steps_of(history.train) == [2, 4, 5]


def test_a_record_holds_every_metric():
    history = Trainer(tiny_gpt(), configure()).train(toy_batches(2), toy_batches(1))
    train = {"loss", "perplexity", "lr", "grad_norm", "grad_norm_max", "tokens", "skipped"}
    machine = {"tokens_per_second", "peak_memory_bytes"}
    assert history.train[0].keys() == {"event", "step", "epoch"} | train | machine
    validation = {"val_loss", "val_loss_se", "perplexity", "bits_per_byte", "accuracy"}
    assert history.validation[0].keys() == {"event", "step", "epoch"} | validation


def test_only_the_plain_loss_has_a_perplexity():
    (plain,) = Trainer(tiny_gpt(), configure()).train(toy_batches(1)).train
    (other,) = Trainer(tiny_gpt(), configure(), loss_fn=smoothed).train(toy_batches(1)).train
    assert plain["perplexity"] == math.exp(plain["loss"])
    assert math.isnan(other["perplexity"])


def test_a_spike_of_the_norm_between_two_log_points_is_recorded():
    batches = toy_batches(5)
    every = Trainer(tiny_gpt(), configure()).train(batches).train
    (record,) = Trainer(tiny_gpt(), configure(logging_steps=5)).train(batches).train
    assert record["grad_norm_max"] == max(each["grad_norm"] for each in every) > record["grad_norm"]


def test_throughput_leaves_out_what_observers_take_to_start():
    class Slow(Recorder):
        def start(self, step: int, total_steps: int | None) -> None:
            time.sleep(0.5)

    history = Trainer(tiny_gpt(), configure(), observers=[Slow()]).train(toy_batches(2))
    assert history.train[0]["tokens"] / history.train[0]["tokens_per_second"] < 0.4


def test_a_run_that_fails_has_recorded_the_steps_before():
    trainer = Trainer(tiny_gpt(), configure(logging_steps=100), loss_fn=exploding_at(3))
    with pytest.raises(NonFiniteGradientError):
        trainer.train(toy_batches(4))
    (record,) = trainer.history.train
    assert (record["step"], record["partial"]) == (2, True)


def test_the_metrics_file_holds_the_history(tmp_path):
    trainer = Trainer(tiny_gpt(), configure(num_epochs=2, output_dir=str(tmp_path)))
    without_bytes = [{key: part for key, part in batch_of([1]).items() if key != "num_bytes"}]
    history = trainer.train(toy_batches(3), without_bytes)
    lines = (tmp_path / "toy" / "metrics.jsonl").read_text().splitlines()
    finite = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in record.items()}
        for record in history.records
    ]
    assert [json.loads(line) for line in lines] == finite
    assert finite[-1]["bits_per_byte"] is None


def test_observers_hear_the_start_every_record_and_the_end():
    observer = Recorder()
    history = Trainer(tiny_gpt(), configure(), observers=[observer]).train(toy_batches(2), toy_batches(1))
    assert observer.told == [("start", 0, 2), *history.records, "close"]


# Validation and the best weights


def test_validation_is_the_plain_loss_whatever_loss_is_trained():
    trainer = Trainer(tiny_gpt(), configure(), loss_fn=smoothed)
    history = trainer.train(toy_batches(2), toy_batches(3))
    assert history.validation[-1]["val_loss"] == evaluate(trainer.model, toy_batches(3))["val_loss"]


def smoothed(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
    return next_token_loss(logits, labels, reduction=reduction, label_smoothing=0.3, z_loss=0.1)


class Counting:
    """A thousand batches of seven targets each, and the numbers of those that were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 1000

    def __iter__(self) -> Iterator[Any]:
        for number in range(1000):
            self.read.append(number)
            yield batch_of([number % VOCABULARY])


@pytest.mark.parametrize(("eval_tokens", "read"), [(50, 8), (7, 1), (None, 1000), (10**6, 1000)])
def test_a_validation_reads_no_more_than_was_asked_for(eval_tokens, read):
    held_out = Counting()
    trainer = Trainer(tiny_gpt(), configure(eval_tokens=eval_tokens))
    trainer.train(toy_batches(1), held_out)
    assert held_out.read == list(range(read))
    assert trainer.evaluate(held_out)["tokens"] == 7000


def packed_texts() -> Loader:
    return make_loader(DOCUMENTS, train_tokenizer(DOCUMENTS, 262), mode="packed", batch_size=2, max_length=12)


def trained_on_texts(**training: Any) -> Trainer:
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=16, dropout=0.0), 262, 12)
    trainer = Trainer(model, configure(eval_steps=1, eval_tokens=40, **training))
    trainer.train(packed_texts(), packed_texts())
    return trainer


def test_a_validation_of_our_own_loader_is_of_the_documents_that_the_seed_draws():
    trainer = trained_on_texts(max_steps=2)
    read = evaluate(trainer.model, packed_texts().sample(40, trainer.settings.seed))
    assert 40 <= read["tokens"] < 52 < packed_texts().num_targets
    last = trainer.history.validation[-1]
    assert {name: last[name] for name in ("val_loss", "val_loss_se")} == {
        name: read[name] for name in ("val_loss", "val_loss_se")
    }
    other = trained_on_texts(max_steps=1, seed=1).history.validation[0]
    assert other["val_loss"] != trainer.history.validation[0]["val_loss"]


def test_a_run_that_goes_on_validates_on_the_same_documents(tmp_path):
    whole = trained_on_texts(max_steps=4, schedule=ScheduleConfig(type="constant_with_warmup"))
    for steps in (2, 4):
        stopped = trained_on_texts(max_steps=steps, schedule=whole.config.lr_scheduler, output_dir=str(tmp_path))
    assert stopped.history.validation == whole.history.validation


@pytest.mark.parametrize(
    ("losses", "best"),
    [([3.0, 1.0, 2.0, 1.0], 2), ([math.nan, 2.0, math.nan, 3.0], 2), ([math.nan, math.nan], None)],
)
@pytest.mark.parametrize("in_a_folder", [False, True])
def test_the_best_weights_are_a_copy_from_the_best_validation(tmp_path, in_a_folder, losses, best):
    validated: list[dict[str, Tensor]] = []

    class Copier(Recorder):
        def log(self, record: dict[str, Any]) -> None:
            if record["event"] == "validation":
                validated.append(weights_of(trainer.model))

    config = configure(num_epochs=len(losses), output_dir=str(tmp_path) if in_a_folder else None)
    trainer = validated_as(Trainer(tiny_gpt(), config, observers=[Copier()]), losses)
    history = trainer.train(toy_batches(1), toy_batches(1))
    path = tmp_path / "toy" / "checkpoint_best.safetensors"
    kept = trainer.best_weights if not path.exists() else load_checkpoint(path)["model"]
    if best is None:
        assert kept is history.best is None
    else:
        assert kept is not None and history.best is not None and history.best["step"] == best
        assert trainer.best_loss == losses[best - 1]
        assert_same_weights(kept, validated[best - 1])


@pytest.mark.parametrize(
    ("losses", "threshold", "stops_after"),
    [([3.0, math.nan, math.nan, 1.0], 0.0, 3), ([3.0, 2.95, 2.91, 1.0], 0.1, 3), ([3.0, 2.0, 2.0, 1.0], 0.0, 4)],
)
def test_the_run_stops_early_after_two_validations_without_improvement(losses, threshold, stops_after):
    config = configure(num_epochs=4, early_stopping_patience=2, early_stopping_threshold=threshold)
    trainer = validated_as(Trainer(tiny_gpt(), config), losses)
    trainer.train(toy_batches(1), toy_batches(1))
    assert trainer.step == stops_after


# Files


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_run_leaves_its_last_and_best_state_its_steps_settings_and_metrics(tmp_path):
    config = configure(num_epochs=2, save_steps=2, output_dir=str(tmp_path))
    Trainer(tiny_gpt(), config).train(toy_batches(3), toy_batches(1))
    newest_three = {"checkpoint_epoch_1.safetensors", "checkpoint_step_4.safetensors", "checkpoint_epoch_2.safetensors"}
    others = {
        "checkpoint_last.safetensors",
        "checkpoint_best.safetensors",
        "config.yaml",
        "metrics.jsonl",
        "made_by.json",
    }
    assert files_of(tmp_path / "toy") == newest_three | others


def test_the_best_weights_are_given_back_where_that_is_asked_for_and_the_last_ones_stay_saved(tmp_path):
    def trained(**settings):
        trainer = Trainer(tiny_gpt(), configure(num_epochs=3, **settings), schedule=lambda k: [1e-2, 1e-2, 5.0][k])
        trainer.train(toy_batches(1), toy_batches(1))  # the last step ruins the model
        return trainer

    val_loss = [record["val_loss"] for record in trained().history.validation]
    assert val_loss[1] == min(val_loss) < val_loss[2]
    for place in ({}, {"output_dir": str(tmp_path)}):
        assert trained(**place).evaluate(toy_batches(1))["val_loss"] != val_loss[1]
        shutil.rmtree(tmp_path / "toy", ignore_errors=True)
        best = trained(restore_best=True, **place)
        assert best.evaluate(toy_batches(1))["val_loss"] == val_loss[1]
    last = load_checkpoint(tmp_path / "toy" / "checkpoint_last.safetensors")["model"]
    assert not torch.equal(last["norm.weight"], best.model.state_dict()["norm.weight"])


def test_exhausted_memory_is_answered_with_what_to_lower_first():
    def greedy(logits, labels, reduction):
        return next_token_loss(logits, labels, reduction=reduction) + torch.empty(10**15).sum()

    trainer = Trainer(tiny_gpt(), configure(batch_size=7), loss_fn=greedy)
    with pytest.raises(MemoryError, match="batch_size 7") as caught:
        trainer.train(toy_batches(1))
    named = ["training.batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "max_length"]
    places = [str(caught.value).index(name) for name in named]
    assert places[0] < places[1] < places[2] and "\n" not in str(caught.value)


def test_without_an_output_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trainer(tiny_gpt(), configure(save_steps=1)).train(toy_batches(2), toy_batches(1))
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_saved_by_hand_can_be_gone_on_from_in_a_new_folder(tmp_path):
    straight = Trainer(tiny_gpt(), configure(num_epochs=2))
    straight.train(toy_batches(2))
    first = Trainer(tiny_gpt(), configure(num_epochs=2))
    first.train_epoch(toy_batches(2))
    first.save_checkpoint(tmp_path / "by_hand.safetensors")
    config = configure(num_epochs=2, logging_steps=100, output_dir=str(tmp_path / "new"))
    second = Trainer(tiny_gpt(), config)
    second.load_checkpoint(tmp_path / "by_hand.safetensors")
    second.train(toy_batches(2))
    assert_same_weights(weights_of(second.model), weights_of(straight.model))


def spoil(value: Any) -> None:
    """Change all that can be changed in place."""
    if isinstance(value, Tensor):
        value.copy_(torch.ones_like(value))
    elif isinstance(value, dict | list):
        for part in list(value.values() if isinstance(value, dict) else value):
            spoil(part)
        value.clear()


@pytest.mark.parametrize("spoiled", ["nothing", "the state it gave", "the state it was given", "its history"])
def test_what_a_run_has_given_or_taken_may_be_changed(spoiled):
    def new() -> Trainer:
        return Trainer(tiny_gpt(), configure(num_epochs=2, logging_steps=5, average_weights=0.5))

    straight, run = new(), new()
    straight.train(toy_batches(3), toy_batches(2))
    run.train_epoch(toy_batches(3), toy_batches(2))
    state = run.state_dict()
    if spoiled == "the state it was given":
        run = new()
        run.load_state_dict(state)
    kept = deepcopy(state)
    if spoiled != "nothing":
        spoil(state)
    history = run.train(toy_batches(3), toy_batches(2))
    if spoiled == "its history":
        spoil(history.records)
    if spoiled == "nothing":
        assert_same(state, kept)
    left = without_measures(run.state_dict())
    assert_same(left, without_measures(straight.state_dict()))


@pytest.mark.parametrize(
    "kind", [list, lambda batches: DataLoader(batches, batch_size=None)], ids=["list", "DataLoader"]
)
def test_a_loss_that_writes_into_its_labels_changes_no_batch(kind, tmp_path):
    def loss(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        labels[labels == 5] = -100
        return next_token_loss(logits, labels, reduction=reduction)

    def run(loss_fn: Callable[..., Tensor], epochs: int, folder: Path) -> Trainer:
        config = configure(
            num_epochs=epochs, output_dir=str(folder), schedule=ScheduleConfig(type="constant", warmup_ratio=0.0)
        )
        trainer = Trainer(tiny_gpt(), config, loss_fn=loss_fn)
        trainer.train(kind(toy_batches(3)))
        return trainer

    whole = run(lambda logits, labels, reduction: loss(logits, labels.clone(), reduction), 2, tmp_path / "a")
    run(loss, 1, tmp_path / "b")
    assert_same_weights(weights_of(run(loss, 2, tmp_path / "b").model), weights_of(whole.model))


class WithOddWeights(nn.Module):
    """A bigram model with a single number and a matrix without any among its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)
        self.scale, self.empty = nn.Parameter(torch.ones(())), nn.Parameter(torch.empty(0, 4))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.table(input_ids)) * self.scale + self.empty.sum()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.filterwarnings("error")
def test_weights_of_one_number_and_of_none_train(kind, tmp_path):
    def run(folder: Path, epochs: int) -> Trainer:
        config = configure(num_epochs=epochs, output_dir=str(folder), layer_statistics=1, average_weights=0.5)
        config = replace(config, optimizer=OptimizerConfig(type=kind, learning_rate=1e-2))
        config = replace(config, lr_scheduler=ScheduleConfig(type="constant", warmup_ratio=0.0))
        trainer = Trainer(WithOddWeights(), config)
        trainer.train(toy_batches(3), toy_batches(2))
        return trainer

    run(tmp_path / "a", 1)
    left = run(tmp_path / "a", 2)
    assert_same_weights(weights_of(left.model), weights_of(run(tmp_path / "b", 2).model))
    assert left.model.scale != 1 and left.history.validation[-1]["val_loss"] < left.history.validation[0]["val_loss"]


# What can be put in


RATES: dict[str, tuple[Callable[[GPT], torch.optim.Optimizer], Callable[[GPT], torch.optim.Optimizer]]] = {
    "one rate": (
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda model: torch.optim.Adam(model.parameters()),
    ),
    "a tensor": (
        lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2)),
        lambda model: torch.optim.SGD(model.parameters(), lr=torch.tensor(0.3)),
    ),
    "the largest of two": (
        lambda model: torch.optim.SGD(split(model, {}, {"lr": 1e-3}), lr=1e-2),
        lambda model: torch.optim.SGD(split(model, {}, {"lr": 0.3}), lr=1e-2),
    ),
    "with scales": (
        lambda model: torch.optim.SGD(split(model, {"lr_scale": 1.0}, {"lr_scale": 0.1}), lr=1e-2),
        lambda model: torch.optim.SGD(split(model, {"lr_scale": 1.0}, {"lr_scale": 0.1}), lr=0.3),
    ),
    "after a step": (
        lambda model: stepped(torch.optim.Adam(model.parameters(), lr=1e-2), rate=0.0),
        lambda model: stepped(torch.optim.Adam(model.parameters(), lr=0.3), rate=1e-2),
    ),
    "built by type": (
        lambda model: build_optimizer(model, OptimizerConfig(type="muon", learning_rate=1e-2)),
        lambda model: build_optimizer(model, OptimizerConfig(type="adafactor", learning_rate=0.3)),
    ),
}


def split(model: GPT, *options: dict[str, float]) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[index :: len(options)], **option} for index, option in enumerate(options)]


def stepped(optimizer: torch.optim.Optimizer, rate: float) -> torch.optim.Optimizer:
    """The optimizer as a schedule leaves it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
        group["lr"] = rate
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("case", RATES)
def test_an_optimizer_must_have_the_configured_peak_unless_a_schedule_is_given(case):
    of_the_peak, of_another_rate = RATES[case]
    model = tiny_gpt()
    optimizer = of_the_peak(model)
    assert Trainer(model, configure(lr=1e-2), optimizer=optimizer).optimizer is optimizer
    model = tiny_gpt()
    said = r"rate 0\.\d+ would not be heeded beside optimizer.learning_rate 0.01"
    with pytest.raises(ValueError, match=said) as refusal:
        Trainer(model, configure(lr=1e-2), optimizer=of_another_rate(model))
    assert "\n" not in str(refusal.value)
    Trainer(model, configure(lr=1e-2), optimizer=of_another_rate(model), schedule=lambda step: 0.25)


def by_hand(**changes: Any) -> Callable[[torch.optim.Optimizer], None]:
    """Set these in the first group."""
    return lambda optimizer: optimizer.param_groups[0].update(changes)


def halve(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def unfreeze(optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


HANDS = {"frozen": by_hand(lr=0.0), "halved": halve, "a scale": by_hand(lr_scale=0.5), "one more": unfreeze}


class Hand(Recorder):
    """Changes the rates of a trainer's optimizer once, when it is told of step 3."""

    def __init__(self, act: Callable[[torch.optim.Optimizer], None]) -> None:
        super().__init__()
        self.act = act
        self.trainer: Trainer

    def log(self, record: dict[str, Any]) -> None:
        if record["event"] == "train" and record["step"] == 3:
            self.act(self.trainer.optimizer)


@pytest.mark.parametrize("act", HANDS.values(), ids=HANDS)
@pytest.mark.parametrize("save_steps", [3, 100])
def test_rates_changed_by_hand_in_a_run_are_refused_and_nothing_is_lost(act, save_steps, tmp_path):
    config = configure(max_steps=6, output_dir=str(tmp_path), save_steps=save_steps)
    batches, hand = toy_batches(3), Hand(act)
    hand.trainer = Trainer(tiny_gpt(), config, observers=[hand])
    with pytest.raises(ValueError, match="the schedule sets their rates") as refused:
        hand.trainer.train(batches)
    assert "\n" not in str(refused.value) and "all 3 steps are saved" in refused.value.__notes__[0]
    resumed, whole = Trainer(tiny_gpt(), config), Trainer(tiny_gpt(), configure(max_steps=6))
    resumed.train(batches)
    whole.train(batches)
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))


@pytest.mark.parametrize("act", [HANDS["frozen"], HANDS["halved"]])
@pytest.mark.parametrize("steps", [0, 2])
def test_rates_changed_by_hand_between_calls_are_refused_and_put_back(act, steps):
    trainer, batches = Trainer(tiny_gpt(), configure(max_steps=4)), toy_batches(2)
    if steps:
        trainer.train_epoch(batches)
    act(trainer.optimizer)
    with pytest.raises(ValueError, match="the schedule sets their rates"):
        trainer.train(batches)
    whole = Trainer(tiny_gpt(), configure(max_steps=4))
    for one in (trainer, whole):
        one.train(batches)
    assert_same_weights(weights_of(trainer.model), weights_of(whole.model))


def test_a_scale_may_be_given_before_the_first_step_and_the_run_goes_on_with_it(tmp_path):
    for steps in (2, 4):
        constant = ScheduleConfig("constant", warmup_steps=0)
        trainer = Trainer(tiny_gpt(), configure(schedule=constant, max_steps=steps, output_dir=str(tmp_path)))
        trainer.optimizer.param_groups[0]["lr_scale"] = 0.5
        trainer.train(toy_batches(4))
    assert (trainer.step, trainer.optimizer.param_groups[0]["lr"]) == (4, 0.005)


def test_a_group_may_be_added_before_the_first_step():
    model = tiny_gpt()
    optimizer = torch.optim.SGD([model.norm.weight], lr=1e-2)
    trainer = Trainer(model, configure(max_steps=2), optimizer=optimizer)
    optimizer.add_param_group({"params": [model.norm.bias], "lr_scale": 0.5})
    trainer.train(toy_batches(2))
    assert [group.get("lr_scale", 1.0) for group in optimizer.param_groups] == [1.0, 0.5]


of_trainer: Any = Trainer  # a type checker would refuse the calls as well
length: Any = LengthBasedCurriculum
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "scheduler": (
        lambda: of_trainer(tiny_gpt(), configure(), scheduler=1),
        "'scheduler'; Trainer takes model, config, ",
    ),
    "criterion": (lambda: of_trainer(tiny_gpt(), configure(), criterion=1), "'criterion'; .* loss_fn, "),
    "loader": (
        lambda: of_trainer(tiny_gpt(), configure(), [1]),
        "too many positional .*; Trainer takes model, config, ",
    ),
    "the other way round": (lambda: of_trainer(configure(), tiny_gpt()), "in this order, got TrainingConfig and GPT"),
    "a class": (lambda: of_trainer(GPT, configure()), "in this order, got type and TrainingConfig"),
    "keywords": (lambda: length(max_length=3), "LengthBasedCurriculum takes config"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_of_another_form_is_told_what_is_taken(case):
    call, said = CALLS[case]
    with pytest.raises(TypeError, match=said) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_keys_and_values_are_a_configuration():
    tree = {"optimizer": {"learning_rate": 0.5}, "training": {"output_dir": None, "device": "cpu"}}
    assert Trainer(tiny_gpt(), tree).config.optimizer.learning_rate == 0.5
    with pytest.raises(ValueError, match=r"^the config of a Trainer: unknown key lr; here it is optimizer\.learning_"):
        Trainer(tiny_gpt(), {"lr": 0.5})


def test_what_the_loaders_do_not_give_is_said():
    config = replace(configure(early_stopping_patience=2), curriculum=CurriculumConfig(strategy="length"))
    with pytest.warns(UserWarning) as told:
        Trainer(tiny_gpt(), config).train(toy_batches(1))
    assert [str(one.message).partition(" ")[0] for one in told] == [
        "curriculum.enabled",
        "training.early_stopping_patience",
    ]


LOSS, SMOOTHED = LossConfig(label_smoothing=0.3, z_loss=0.1), {"label_smoothing": 0.3, "z_loss": 0.1}


def test_the_section_loss_trains_on_that_loss():
    by_section = Trainer(tiny_gpt(), replace(configure(), loss=LOSS))
    by_hand = Trainer(tiny_gpt(), configure(), loss_fn=partial(next_token_loss, **SMOOTHED))
    for trainer in (by_section, by_hand):
        trainer.train(toy_batches(2))
    assert_same_weights(weights_of(by_section.model), weights_of(by_hand.model))


@pytest.mark.parametrize(
    ("config", "given", "said"),
    [
        (replace(configure(), loss=LOSS), {"loss_fn": next_token_loss}, "loss.label_smoothing 0.3, loss.z_loss 0.1"),
        (configure(max_grad_value=0.5), {"clip": clip_gradients}, "training.max_grad_value 0.5"),
        (configure(schedule=ScheduleConfig("linear")), {"schedule": lambda step: 0.1}, "lr_scheduler.type 'linear'"),
    ],
)
def test_a_function_beside_one_that_the_configuration_asks_for_is_refused(config, given, said):
    (name,) = given
    with pytest.raises(ValueError, match=f"{said} would not be heeded beside a {name} of your own: give one"):
        Trainer(tiny_gpt(), config, **given)


def test_an_own_clip_is_used():
    bounds: list[float | None] = []

    def clip(parameters: Any, max_norm: float | None) -> Tensor:
        bounds.append(max_norm)
        return clip_gradients(parameters, max_norm)

    Trainer(tiny_gpt(), configure(max_grad_norm=0.7), clip=clip).train(toy_batches(2))
    assert bounds == [0.7, 0.7]


# Gradients that are not finite


def exploding_at(*calls: int) -> Callable[..., Tensor]:
    """A loss that is NaN at these micro-batches, counted from 1."""
    count = 0

    def loss_fn(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        nonlocal count
        count += torch.is_grad_enabled()  # without gradients it is only asked whether it sums
        return next_token_loss(logits, labels, reduction=reduction) * (math.nan if count in calls else 1.0)

    return loss_fn


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_step():
    trainer = Trainer(tiny_gpt(), configure(), loss_fn=exploding_at(3))
    with pytest.raises(NonFiniteGradientError, match=r"^step 3: .*loss nan.*token_embedding"):
        trainer.train(toy_batches(4))
    assert trainer.step == 2
    assert all(part.isfinite().all() for part in trainer.model.state_dict().values())


def test_a_skipped_step_changes_nothing_and_is_counted():
    kept = toy_batches(4)
    with_nan = Trainer(
        tiny_gpt(), configure(on_nonfinite="skip"), loss_fn=exploding_at(2), schedule=lambda k: 1e-2 / (k + 1)
    )
    history = with_nan.train([kept[0], kept[3], kept[1], kept[2]])
    without = Trainer(tiny_gpt(), configure(), schedule=lambda k: 1e-2 / (k + 1))
    without.train(kept[:3])
    assert (with_nan.step, with_nan.log.skipped, history.train[-1]["skipped"]) == (3, 1, 1)
    assert_same_weights(weights_of(with_nan.model), weights_of(without.model))


@pytest.mark.parametrize("completed", [set(), {MAX_SKIPPED_IN_A_ROW}])
def test_too_many_skipped_steps_in_a_row_end_the_run(completed):
    """A completed step starts the count again; one without a target token neither counts nor ends it."""
    calls = set(range(2, 2 * MAX_SKIPPED_IN_A_ROW)) - completed
    trainer = Trainer(tiny_gpt(), configure(on_nonfinite="skip"), loss_fn=exploding_at(*calls))
    batches = [batch_of([1])] * 10 + [empty_batch()] * MAX_SKIPPED_IN_A_ROW + [batch_of([1])] * 40
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="skipped a step")
        if completed:
            trainer.train(batches)
            assert trainer.step == 50 - 2 * (MAX_SKIPPED_IN_A_ROW - 1) + 1
        else:
            with pytest.raises(NonFiniteGradientError, match=f"{MAX_SKIPPED_IN_A_ROW} steps .* after step 1"):
                trainer.train(batches)


# What the first batch shows


class Unmasked(nn.Module):
    """Attention that sees the whole row."""

    def __init__(self, tokens: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, 8), nn.Linear(8, tokens)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        return self.head(x + nn.functional.scaled_dot_product_attention(x, x, x))


class Shifted(Dataset):
    """The nanoGPT way: pairs of rows (T,), inputs and the token that follows each; as dicts where `named`."""

    def __init__(self, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        row = torch.arange(index, index + LENGTH + 1) % VOCABULARY
        return {"input_ids": row[:-1], "labels": row[1:]} if self.named else (row[:-1], row[1:])


class Anew:
    """An iterable of one's own."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


LABELS_SHIFTED, PAIRS = DataLoader(Shifted(named=True), 2), DataLoader(Shifted(named=False), 2)
SHIFTED, NO_DICT = "labels must stand at their own tokens", "must be a dict with input_ids and labels, got list of 2"


@pytest.mark.parametrize(
    ("make", "batches", "said"),
    [
        (Unmasked, toy_batches(3), "Unmasked sees the future"),
        (tiny_gpt, list(LABELS_SHIFTED), SHIFTED),
        (tiny_gpt, LABELS_SHIFTED, SHIFTED),
        (tiny_gpt, Anew(LABELS_SHIFTED), SHIFTED),
        (tiny_gpt, (batch for batch in PAIRS), NO_DICT),
    ],
)
def test_what_the_first_batch_shows_is_refused_before_the_first_step_and_nothing_is_written(
    make, batches, said, tmp_path
):
    trainer = Trainer(make(), configure(max_steps=2, output_dir=str(tmp_path)))
    before = weights_of(trainer.model)
    with pytest.raises((TypeError, ValueError), match=said) as refusal:
        trainer.train(batches)
    assert "\n" not in str(refusal.value)
    assert_same_weights(weights_of(trainer.model), before)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("batches", "said"), [(list(LABELS_SHIFTED), SHIFTED), (PAIRS, NO_DICT)])
def test_a_validation_loader_of_such_batches_is_refused_before_the_first_step(batches, said):
    trainer = Trainer(tiny_gpt(), configure())
    with pytest.raises((TypeError, ValueError), match=f"the validation loader: .*{said}"):
        trainer.train(toy_batches(2), batches)
    assert trainer.step == 0


def test_it_is_tried_once_whether_a_model_sees_the_future():
    model, rows = tiny_gpt(), []
    model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])) if not module.training else None)
    for _ in range(2):
        Trainer(model, configure(max_steps=4)).train(Anew(toy_batches(3)) if rows else toy_batches(3))
    assert rows == [3, 3]  # a row three times, and between others with another end


def halved(model: nn.Module) -> None:
    model.half()


def assigned(model: nn.Module) -> None:
    model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize(("change", "said"), [
    (halved, "trainable weights must be float32 or float64, got torch.float16"),
    (assigned, "got one that holds none of its trainable ones"),
])  # fmt: skip
def test_a_model_with_other_weights_than_its_trainer_was_made_for_is_refused(change, said):
    for epochs in (0, 1):
        trainer = small_trainer(9)
        for _ in range(epochs):
            trainer.train_epoch(small_batches(3))
        change(trainer.model)
        for run in (trainer.train, trainer.train_epoch):
            with pytest.raises(ValueError, match=said):
                run(small_batches(3))


def test_an_average_of_weights_that_the_model_no_longer_has_is_refused():
    trainer = small_trainer(3, average_weights=0.5)
    layer: Any = trainer.model.get_submodule("blocks.0")
    layer.up = nn.Linear(32, 128)
    trainer.optimizer.add_param_group({"params": [*layer.up.parameters()]})
    with pytest.raises(ValueError, match="the averaged weights must be the model's, got others"):
        trainer.train(small_batches(3))


def test_a_schedule_without_an_answer_for_a_step_ends_the_run_saved(tmp_path):
    config = {"training": {"output_dir": str(tmp_path), "max_steps": 5, "device": "cpu"}}
    schedule: Any = lambda k: 0.01 if k < 2 else None  # noqa: E731
    trainer = Trainer(small_trainer(1).model, config, schedule=schedule)
    with pytest.raises(TypeError, match="the schedule's rate of step 3 must be a finite number") as caught:
        trainer.train(small_batches(5))
    assert "all 2 steps are saved" in caught.value.__notes__[0]


@pytest.mark.parametrize("observers", [print, [print], None, [object()]])
def test_what_is_no_observer_is_refused(observers):
    with pytest.raises(TypeError, match=r"observers? must (be a list of observers|have start, log and close), got "):
        small_trainer(1, observers)


def test_two_threads_of_a_process_do_not_train_at_once():
    refused: list[BaseException] = []

    def other() -> None:
        try:
            small_trainer(1).train(small_batches(1))
        except BlockingIOError as error:
            refused.append(error)

    class Starts(Recorder):
        def start(self, step: int, total_steps: int | None) -> None:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    assert small_trainer(1, [Starts()]).train(small_batches(1)).records
    assert "another thread of this process is training" in str(refused[0])
    small_trainer(1).train(small_batches(1))
