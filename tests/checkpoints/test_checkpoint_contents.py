"""Claims about what a run's checkpoint holds, and about what a run refuses to go on from."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lm import checkpoints
from course_lm.batching import loader as batching
from course_lm.batching import make_loader
from course_lm.config import TrainingConfig
from course_lm.model import GPT, ModelConfig
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from tests.refusals import refused
from tests.training_run import (
    DOCUMENTS,
    LENGTH,
    NAME,
    TOKENIZER,
    VOCABULARY,
    configure,
    counting,
    interrupt_at,
    loaders,
    model_of,
    start,
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped in its second epoch, after 7 of 10 steps."""
    folder = tmp_path_factory.mktemp("stopped")
    trainer = start(configure(folder), *loaders("bucketed"), counting(interrupt_at(18)))
    assert (trainer.step, trainer.epoch, trainer.batch) == (7, 1, 6)
    return folder


@pytest.fixture(scope="module")
def state(stopped: Path) -> dict[str, Any]:
    """What is in the newest checkpoint."""
    return checkpoints.load_checkpoint(stopped / NAME / "checkpoint_last.safetensors")


# What it holds


def test_a_checkpoint_says_where_the_run_is(state):
    assert {key: state[key] for key in ("step", "epoch", "batch")} == {"step": 7, "epoch": 1, "batch": 6}
    assert state["data"]["own"] == {"epoch": 1, "batch": 6}


def test_a_checkpoint_says_how_good_the_run_is(state, stopped):
    lines = (stopped / NAME / "metrics.jsonl").read_text().splitlines()
    nulls = {"parse_constant": lambda _: None}  # a NaN stands in the log as null, as other programs read it
    records = [json.loads(line, **nulls) for line in bytes(state["history"].numpy()).splitlines()]
    assert records == [record for record in map(json.loads, lines) if not record.get("partial")] != []
    assert {record["event"] for record in records} == {"train", "validation", "epoch"}


def test_a_checkpoint_holds_all_that_the_run_is_made_of(state, stopped):
    assert state["config"] == asdict(TrainingConfig.from_yaml(stopped / NAME / "config.yaml"))
    assert (state["own_schedule"], state["total_steps"]) == (False, 10)
    libraries = {"python", "course_lm", "torch", "numpy", "tokenizers"}
    assert set(state["machine"]) == libraries | {"threads", "processor", "instructions", "float32 products"}
    assert state["optimizer"]["groups"][0]["lr"] < 3e-3
    assert state["scaler"] == {}


# What is refused


def test_another_vocabulary_is_refused_with_both_shapes(stopped):
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.2), VOCABULARY + 1, LENGTH)
    with refused(ValueError, r"of another model: token_embedding\.weight is \(262, 8\) float32 .* \(263, 8\)"):
        Trainer(model, configure(stopped)).train(*loaders("bucketed"))


def other_data(kind: str) -> Any:
    texts = DOCUMENTS
    tokenizer = TOKENIZER
    if kind == "text":
        texts = [*DOCUMENTS[:-1], "the cat sat on another mat"]
    if kind == "vocabulary":
        tokenizer = train_tokenizer(["zebra quagga okapi"] * 9, VOCABULARY)
    settings = {"mode": "bucketed", "batch_size": 4, "max_length": LENGTH, "seed": 8 if kind == "order" else 7}
    return make_loader(texts, tokenizer, **settings)


@pytest.mark.parametrize("kind", ["text", "vocabulary", "order"])
def test_other_data_of_the_same_form_is_refused_in_one_line(stopped, kind):
    told = "saved over other data: the text, its vocabulary or its batches|the training data has another length"
    with refused(ValueError, told):
        start(configure(stopped), other_data(kind), loaders("bucketed")[1])


def test_the_same_data_has_the_same_fingerprint_and_costs_nothing_twice(monkeypatch):
    one, other = loaders("packed")[0], loaders("packed")[0]
    assert one.fingerprint == other.fingerprint
    one.set_epoch(3)
    assert one.fingerprint == other.fingerprint
    monkeypatch.setattr(batching, "hashlib", None)
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("mode", ["fixed", "dynamic", "bucketed"])
def test_every_way_to_batch_has_a_fingerprint_of_its_own(mode):
    assert len({loaders(kind)[0].fingerprint for kind in ("packed", mode)}) == 2


@pytest.mark.filterwarnings("ignore:passing over")
def test_a_folder_in_which_every_checkpoint_is_damaged_is_not_written_over(stopped, tmp_path):
    run = tmp_path / NAME
    run.mkdir()
    for path in (stopped / NAME).glob("*.safetensors"):
        (run / path.name).write_bytes(path.read_bytes()[:-1])
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(ValueError, match=r"no checkpoint in \S+ can be read; training\.resume never"):
        start(configure(tmp_path), *loaders("bucketed"))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_other_versions_are_a_warning_that_names_them(stopped, state):
    trainer = Trainer(model_of(), configure(stopped))
    with pytest.warns(UserWarning, match=r"saved with torch 1\.0 \(now 2\.\S+\): it may not go on bit for bit"):
        trainer.load_state_dict({**state, "machine": {**state["machine"], "torch": "1.0"}})
    threads = r"saved with threads 64 \(now \d+\), processor an abacus \(now .+\): it may not go on bit for bit"
    with pytest.warns(UserWarning, match=threads):
        trainer.load_state_dict({**state, "machine": {**state["machine"], "threads": "64", "processor": "an abacus"}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the loss_fn is not the one")  # the run was stopped by a loss of its own
        trainer.load_state_dict(state)


@pytest.mark.parametrize("name", ["checkpoint_last.pt", "checkpoint_step_8.pt", "checkpoint_best.pt"])
def test_no_run_begins_or_goes_on_beside_a_file_of_the_old_format(tmp_path, name):
    (tmp_path / NAME).mkdir()
    torch.save({"step": 8}, tmp_path / NAME / name)
    with refused(ValueError, r"no checkpoint in \S+ can be read; training\.resume never"):
        start(configure(tmp_path), *loaders("bucketed"))
    assert [path.name for path in (tmp_path / NAME).glob("checkpoint_*")] == [name]
