"""Claims about a run that begins with the weights of another one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from course_lm.batching import make_loader
from course_lm.checkpoints import export_weights, load_checkpoint, weights_for_use
from course_lm.config import TrainingConfig
from course_lm.model import GPT, ModelConfig
from course_lm.run_records import read_sessions
from course_lm.trainer import Trainer
from course_lm.trainer.init_from import begin_from
from course_lm.trainer.resume import WHAT_TO_DO
from tests.training_run import (
    DOCUMENTS,
    LENGTH,
    TOKENIZER,
    VOCABULARY,
    assert_same,
    configure,
    counting,
    interrupt_at,
    loaders,
    model_of,
    outcome,
    quiet,
    start,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("source")
    start(configure(folder, average_weights=0.5), *loaders("fixed"))
    return folder / "toy"


def new(folder: Path, source: object, **training: Any) -> TrainingConfig:
    return configure(folder, init_from=str(source), **training)


def trained_weights(source: Path) -> dict[str, Any]:
    return weights_for_use(load_checkpoint(source / "checkpoint_best.safetensors"))


@pytest.mark.parametrize("kind", ["run", "checkpoint", "exported file", "folder of it"])
def test_a_run_begins_with_the_weights_and_with_nothing_else(source, tmp_path, kind, capsys):
    (tmp_path / "out").mkdir()
    export_weights(tmp_path / "out" / "model.safetensors", trained_weights(source), {"step": "7"})
    named = {
        "run": source,
        "checkpoint": source / "checkpoint_best.safetensors",
        "exported file": tmp_path / "out" / "model.safetensors",
        "folder of it": tmp_path / "out",
    }[kind]
    trainer = Trainer(model_of(), new(tmp_path, named, num_epochs=1))
    assert_same(dict(trainer.model.state_dict()), trained_weights(source))
    assert (trainer.step, trainer.optimizer.state_dict()["state"]) == (0, {})
    trainer.train(*loaders("fixed"))
    assert trainer.history.train[0]["step"] == 2
    assert f"the run begins with the weights in {named}" in capsys.readouterr().out


def test_the_folder_says_where_the_weights_are_from(source, tmp_path):
    start(new(tmp_path, source, num_epochs=1), *loaders("fixed"))
    (session,) = read_sessions(tmp_path / "toy")
    step = load_checkpoint(source / "checkpoint_best.safetensors")["step"]
    assert session["weights"] | {"sha256": ""} == {
        "init_from": str(source),
        "file": str(source / "checkpoint_best.safetensors"),
        "step": step,
        "sha256": "",
    }
    assert len(session["weights"]["sha256"]) == 64
    assert "weights" not in read_sessions(source)[0]  # of a run without such a start
    assert TrainingConfig.from_yaml(tmp_path / "toy" / "config.yaml").training.init_from == str(source)


def test_a_run_that_is_stopped_goes_on_from_its_own_weights(source, tmp_path):
    for folder, acts in (("straight", [quiet]), ("stopped", [interrupt_at(5), quiet])):
        for act in acts:
            start(new(tmp_path / folder, source), *loaders("fixed"), loss_fn=counting(act))
    mine, other = outcome(tmp_path / "stopped"), outcome(tmp_path / "straight")
    assert_same(mine["checkpoints"], other["checkpoints"])


def test_the_weights_decide_and_not_where_they_lie(source, tmp_path, capsys):
    start(new(tmp_path, source), *loaders("fixed"), loss_fn=counting(interrupt_at(5)))
    moved = shutil.copytree(source, tmp_path / "moved")
    start(new(tmp_path, moved), *loaders("fixed"), loss_fn=counting(interrupt_at(2)))
    assert "resumed" in capsys.readouterr().out
    export_weights(moved / "model.safetensors", model_of().state_dict())
    for config, told in ((new(tmp_path, moved), "moved has changed since"), (configure(tmp_path), "moved for nothing")):
        with pytest.raises(ValueError, match=f"the init_from is not the one .*{told}: ") as caught:
            start(config, *loaders("fixed"))
        assert str(caught.value).endswith(WHAT_TO_DO)


def test_tied_weights_which_are_kept_once_come_back_as_one(tmp_path):
    def tied(seed: int) -> GPT2LMHeadModel:
        torch.manual_seed(seed)
        return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=VOCABULARY, n_positions=LENGTH))

    export_weights(tmp_path / "model.safetensors", tied(0).state_dict())
    model = tied(1)
    begin_from(model, str(tmp_path))
    assert_same(dict(model.state_dict()), dict(tied(0).state_dict()))
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("under", [None, "model_state_dict", "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "net.inner."])
def test_a_file_of_torch_save_can_be_a_start(tmp_path, prefix, under):
    mine = model_of().state_dict()
    weights = {f"{prefix}{name}": tensor for name, tensor in mine.items()}
    torch.save(weights if under is None else {"epoch": 3, under: weights}, tmp_path / "last.pt")
    export_weights(tmp_path / "model.safetensors", weights)
    for file in ("last.pt", "model.safetensors"):
        other = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.2), VOCABULARY, LENGTH)
        begin_from(other, str(tmp_path / file))
        assert_same(dict(other.state_dict()), dict(mine))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_transformers_save_can_be_a_start(tmp_path, dtype):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=VOCABULARY, n_positions=LENGTH)
    theirs, mine = GPT2LMHeadModel(config).to(dtype), GPT2LMHeadModel(config)
    theirs.save_pretrained(tmp_path)  # without one of its tied weights
    begin_from(mine, str(tmp_path))
    assert_same(dict(mine.state_dict()), dict(theirs.float().state_dict()))


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (lambda path: {"model": Touch(path / "ran")}, "save model.state_dict"),
        (lambda path: model_of(), "save model.state_dict"),
        (
            lambda path: {"epoch": 3, "optimizer": {}},
            r"it must hold model.state_dict\(\), .* got \['epoch', 'optimizer'\]",
        ),
        (lambda path: [1], r"it must hold model.state_dict\(\), .* got list"),
        (lambda path: {"weight": torch.ones(1)}, "has no token_embedding.weight and 15 more; this model has no weight"),
        (lambda path: {"a.weight": torch.ones(1)}, "this model has no a.weight"),
        (lambda path: model_of().double().state_dict(), "float64 in the checkpoint and .* float32"),
    ],
)
def test_a_file_of_torch_save_without_such_weights_is_refused(tmp_path, held, told):
    torch.save(held(tmp_path), tmp_path / "last.pt")
    with pytest.raises(ValueError, match=f"training.init_from cannot take {tmp_path}/last.pt: [^\n]*{told}") as caught:
        begin_from(model_of(), str(tmp_path / "last.pt"))
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


def test_a_name_is_looked_up_among_the_runs(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source, tmp_path / "runs" / "old")
    beginning = begin_from(model_of(), "old")
    assert beginning is not None and beginning.file == "runs/old/checkpoint_best.safetensors"


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        ("absent", ["is not there", "give a run's or an exported folder"]),
        ("empty", ["is a folder without weights", "give a run's or an exported folder"]),
        ("no weights", ["cannot take", "model.safetensors"]),
        ("another model", ["cannot take", "weights of another model", "blocks.1"]),
        ("damaged", ["checkpoint_best.safetensors", "its bytes do not match its checksum"]),
    ],
)
def test_what_cannot_be_begun_with_is_refused_in_one_line(source, tmp_path, spoil, parts):
    folder, model = tmp_path / "old", model_of()
    if spoil != "absent":
        folder.mkdir()
    if spoil == "no weights":
        (folder / "model.safetensors").write_text("no weights")
    if spoil in ("another model", "damaged"):
        shutil.copytree(source, folder, dirs_exist_ok=True)
    if spoil == "another model":
        model = GPT(ModelConfig(n_layer=2, n_head=2, d_model=16), VOCABULARY, LENGTH)
    if spoil == "damaged":
        file = folder / "checkpoint_best.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError) as caught:
        Trainer(model, new(tmp_path, folder))
    assert all(part in str(caught.value) for part in [*parts, "training.init_from"]), caught.value
    assert "\n" not in str(caught.value)
    assert_same(dict(model.state_dict()), before)


def test_a_run_that_cannot_be_made_longer_names_the_way(source, tmp_path):
    config = configure(tmp_path, num_epochs=1)
    start(config, *loaders("fixed"))
    longer = replace(config, training=replace(config.training, num_epochs=3))
    with pytest.raises(ValueError, match=r"training.num_epochs was 1 and is 3.*whose training.init_from is the folder"):
        start(longer, *loaders("fixed"))
    turned = make_loader(DOCUMENTS[::-1], TOKENIZER, mode="fixed", batch_size=4, max_length=LENGTH, seed=7)
    with pytest.raises(ValueError, match=r"saved over other data.*training.init_from"):
        start(config, turned, loaders("fixed")[1])
