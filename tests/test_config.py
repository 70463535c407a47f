"""Claims about the configuration: every documented key is read, every mistake is refused in one line."""

import dataclasses
import math
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.config import DataConfig, LoopConfig, TrainingConfig, find_config
from course_lm.loss import LossConfig
from course_lm.model import ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.schedules import ScheduleConfig

DOCUMENTED_TREE = """
experiment_name: my-lm
data: {corpus: python-docs, vocab_size: 2048, max_length: 128, batching: packed, val_fraction: 0.1}
model: {n_layer: 4, n_head: 4, d_model: 128, dropout: 0.1, gradient_checkpointing: false, positions: learned}
optimizer: {type: adamw, learning_rate: 3e-4, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01}
lr_scheduler: {type: cosine_with_warmup, warmup_ratio: 0.1, num_cycles: 0.5, min_lr: 0.0}
curriculum: {enabled: false, strategy: combined, schedule: linear, start_threshold: 0.2, end_threshold: 1.0, num_epochs: 10, warmup_epochs: 2}
training: {batch_size: 32, gradient_accumulation_steps: 4, num_epochs: 10, max_steps: null, max_grad_norm: 1.0, precision: auto, device: auto, on_nonfinite: raise,
           logging_steps: 10, eval_steps: null, save_steps: 500, save_total_limit: 3, early_stopping_patience: null, early_stopping_threshold: 0.0,
           seed: 42, deterministic: true, compile: false, resume: auto, output_dir: runs}
tensorboard: {enabled: false}
wandb: {enabled: false, project: my-lm, name: null, mode: offline}
"""  # noqa: E501  # exactly as it is documented
EXPECTED_TREE: dict[str, Any] = {
    "experiment_name": "my-lm",
    "data": {
        "corpus": "python-docs",
        "vocab_size": 2048,
        "max_length": 128,
        "batching": "packed",
        "val_fraction": 0.1,
        "test_fraction": 0.0,
        "num_workers": 0,
        "pin_memory": True,
    },
    "loss": {"label_smoothing": 0.0, "z_loss": 0.0},
    "model": {
        "n_layer": 4,
        "n_head": 4,
        "d_model": 128,
        "dropout": 0.1,
        "positions": "learned",
        "gradient_checkpointing": False,
    },
    "optimizer": {
        "type": "adamw",
        "learning_rate": 3e-4,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.01,
    },
    "lr_scheduler": {"type": "cosine_with_warmup", "warmup_ratio": 0.1, "num_cycles": 0.5, "min_lr": 0.0},
    "curriculum": {
        "enabled": False,
        "strategy": "combined",
        "schedule": "linear",
        "start_threshold": 0.2,
        "end_threshold": 1.0,
        "num_epochs": 10,
        "warmup_epochs": 2,
    },
    "training": {
        "batch_size": 32,
        "gradient_accumulation_steps": 4,
        "num_epochs": 10,
        "max_steps": None,
        "max_grad_norm": 1.0,
        "max_grad_value": None,
        "layer_statistics": None,
        "precision": "auto",
        "device": "auto",
        "on_nonfinite": "raise",
        "logging_steps": 10,
        "eval_steps": None,
        "save_steps": 500,
        "save_total_limit": 3,
        "early_stopping_patience": None,
        "early_stopping_threshold": 0.0,
        "seed": 42,
        "deterministic": True,
        "compile": False,
        "resume": "auto",
        "output_dir": "runs",
    },
    "tensorboard": {"enabled": False},
    "wandb": {"enabled": False, "project": "my-lm", "name": None, "mode": "offline"},
}


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    """The one line with which `text` is refused."""
    path = write(folder, text)
    with pytest.raises(ValueError) as caught:
        TrainingConfig.from_yaml(path)
    message = str(caught.value)
    assert "\n" not in message, message
    assert str(path) in message, message
    return message


def test_the_documented_tree_loads_as_it_stands(tmp_path):
    read = dataclasses.asdict(TrainingConfig.from_yaml(write(tmp_path, DOCUMENTED_TREE)))
    for name, expected in EXPECTED_TREE.items():
        got = read[name]
        shown = {key: got[key] for key in expected} if isinstance(expected, dict) else got
        assert shown == expected, name


def test_the_documented_values_are_the_defaults_but_for_times_that_follow_the_run():
    defaults: dict[str, Any] = dataclasses.asdict(TrainingConfig())
    follow_the_run = {"num_epochs": None, "warmup_epochs": None}
    curriculum = {**EXPECTED_TREE["curriculum"], **follow_the_run}
    for name, expected in {**EXPECTED_TREE, "curriculum": curriculum}.items():
        got = defaults[name]
        shown = {key: got[key] for key in expected} if isinstance(expected, dict) else got
        assert shown == expected, name


def test_an_empty_file_gives_the_defaults(tmp_path):
    assert TrainingConfig.from_yaml(write(tmp_path, "")) == TrainingConfig()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("experiment_nam: x", ["unknown key experiment_nam", "did you mean experiment_name?", "accepted:"]),
        ("trainning: {}", ["unknown key trainning", "did you mean training?"]),
        ("data: {max_lenght: 4}", ["unknown key data.max_lenght", "did you mean data.max_length?"]),
        ("model: {layers: 4}", ["unknown key model.layers", "n_layer, n_head, d_model"]),
        ("loss: {smoothing: 0.1}", ["unknown key loss.smoothing", "label_smoothing, z_loss"]),
        ("optimizer: {learning_rat: 1}", ["optimizer.learning_rat", "did you mean optimizer.learning_rate?"]),
        ("lr_scheduler: {warmup: 1}", ["unknown key lr_scheduler.warmup", "warmup_ratio"]),
        ("curriculum: {on: 1}", ["unknown key curriculum."]),
        ("curriculum: {settings: {frequency: {ref: x}}}", ["combined: unknown key frequency.ref", "reference"]),
        ("training: {batchsize: 1}", ["training.batchsize", "did you mean training.batch_size?"]),
        ("tensorboard: {enable: true}", ["tensorboard.enable", "did you mean tensorboard.enabled?"]),
        ("wandb: {projekt: x}", ["wandb.projekt", "did you mean wandb.project?"]),
        ("7: 1", ["unknown key 7"]),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(tmp_path, text, parts):
    message = refusal(tmp_path, text)
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("data: {vocab_size: 257}", "data.vocab_size", "257"),
        ("data: {max_length: 1}", "data.max_length", "1"),
        ("data: {val_fraction: 1.0}", "data.val_fraction", "1.0"),
        ("data: {test_fraction: 0.9}", "data.test_fraction", "0.9"),
        ("data: {val_fraction: .nan}", "data.val_fraction", "nan"),
        ("data: {num_workers: -1}", "data.num_workers", "-1"),
        ("data: {num_workers: 1000000}", "data.num_workers", "1000000"),
        ("loss: {label_smoothing: 1.5}", "loss.label_smoothing", "1.5"),
        ("loss: {label_smoothing: .nan}", "loss.label_smoothing", "nan"),
        ("loss: {z_loss: -1}", "loss.z_loss", "-1"),
        ("loss: {z_loss: .inf}", "loss.z_loss", "inf"),
        ("model: {n_layer: 0}", "model.n_layer", "0"),
        ("model: {d_model: 30, n_head: 4}", "model.d_model", "30"),
        ("model: {dropout: 1.0}", "model.dropout", "1.0"),
        ("optimizer: {learning_rate: 0}", "optimizer.learning_rate", "0"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate", "nan"),
        ("optimizer: {beta2: 1}", "optimizer.beta2", "1"),
        ("optimizer: {weight_decay: -0.5}", "optimizer.weight_decay", "-0.5"),
        ("lr_scheduler: {warmup_ratio: 1.5}", "lr_scheduler.warmup_ratio", "1.5"),
        ("lr_scheduler: {warmup_steps: -1}", "lr_scheduler.warmup_steps", "-1"),
        ("curriculum: {start_threshold: 1.5}", "curriculum.start_threshold", "1.5"),
        ("curriculum: {num_epochs: 2, warmup_epochs: 2}", "curriculum.warmup_epochs", "2"),
        ("curriculum: {schedule: geom, start_threshold: 0}", "curriculum.start_threshold", "0"),
        ("curriculum: {strategy: length, settings: {min_length: -1}}", "curriculum.length: min_length", "-1"),
        ("training: {batch_size: 0}", "training.batch_size", "0"),
        ("training: {gradient_accumulation_steps: 0}", "training.gradient_accumulation_steps", "0"),
        ("training: {num_epochs: 0}", "training.num_epochs", "0"),
        ("training: {max_steps: 0}", "training.max_steps", "0"),
        ("training: {max_grad_norm: 0}", "training.max_grad_norm", "0"),
        ("training: {max_grad_norm: .nan}", "training.max_grad_norm", "nan"),
        ("training: {max_grad_value: 0}", "training.max_grad_value", "0"),
        ("training: {max_grad_value: .nan}", "training.max_grad_value", "nan"),
        ("training: {layer_statistics: 0}", "training.layer_statistics", "0"),
        ("training: {logging_steps: 0}", "training.logging_steps", "0"),
        ("training: {eval_steps: 0}", "training.eval_steps", "0"),
        ("training: {eval_tokens: 0}", "training.eval_tokens", "0"),
        ("training: {save_steps: -1}", "training.save_steps", "-1"),
        ("training: {save_total_limit: 0}", "training.save_total_limit", "0"),
        ("training: {early_stopping_patience: 0}", "training.early_stopping_patience", "0"),
        ("training: {early_stopping_threshold: -1}", "training.early_stopping_threshold", "-1"),
        ("training: {seed: -1}", "training.seed", "-1"),
        ("wandb: {mode: sometimes}", " wandb.mode", "sometimes"),
        ("experiment_name: a/b", "experiment_name", "a/b"),
        ("experiment_name: ..", "experiment_name", ".."),
    ],
)
def test_a_value_outside_its_range_is_refused(tmp_path, text, key, value):
    message = refusal(tmp_path, text)
    assert f"{key} must be " in message, message
    assert value in message.split("got ")[-1], message


@pytest.mark.parametrize(
    ("text", "key", "accepted", "value"),
    [
        ("training: {batch_size: many}", "training.batch_size", "int", "many"),
        ("training: {batch_size: 2.5}", "training.batch_size", "int", "2.5"),
        ("training: {batch_size: true}", "training.batch_size", "int", "True"),
        ("training: {batch_size: [2]}", "training.batch_size", "int", "2"),
        ("training: {max_steps: soon}", "training.max_steps", "int", "soon"),
        ("training: {deterministic: 3}", "training.deterministic", "bool", "3"),
        ("training: {layer_statistics: true}", "training.layer_statistics", "int", "True"),
        ("data: {num_workers: 1.5}", "data.num_workers", "int", "1.5"),
        ("data: {pin_memory: 1}", "data.pin_memory", "bool", "1"),
        ("optimizer: {learning_rate: fast}", "optimizer.learning_rate", "float", "fast"),
        ("experiment_name: 3", "experiment_name", "str", "3"),
        ("data: {corpus: [a, b]}", "data.corpus", "str", "a"),
        ("data: {batching: sorted}", "data.batching", "packed", "sorted"),
        ("optimizer: {type: lion}", "optimizer.type", "adafactor", "lion"),
        ("curriculum: {strategy: hard}", "curriculum.strategy", "random", "hard"),
        ("curriculum: {schedule: cubic}", "curriculum.schedule", "geom", "cubic"),
        ("lr_scheduler: {type: wave}", "lr_scheduler.type", "inverse_sqrt", "wave"),
        ("training: {precision: int8}", "training.precision", "bf16", "int8"),
        ("training: {device: tpu}", "training.device", "cuda", "tpu"),
        ("training: {on_nonfinite: ignore}", "training.on_nonfinite", "skip", "ignore"),
        ("training: {resume: always}", "training.resume", "never", "always"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(tmp_path, text, key, accepted, value):
    message = refusal(tmp_path, text)
    for part in (key, accepted, value):
        assert part in message, message


@pytest.mark.parametrize(
    "key",
    ["experiment_name", "data.corpus", "model.n_layer", "optimizer.learning_rate", "training.batch_size"],
)
def test_null_is_refused_where_a_key_needs_a_value(tmp_path, key):
    section, _, name = key.rpartition(".")
    message = refusal(tmp_path, f"{section}: {{{name}: null}}" if section else f"{name}: null")
    assert key in message, message


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "training: 3", "just words", "a: b: c", "\t: x"])
def test_a_file_that_holds_no_tree_is_refused(tmp_path, text):
    message = refusal(tmp_path, text)
    assert "is not a YAML file" in message or "must be keys and values" in message, message


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_bytes(b"experiment_name: caf\xe9\n")
    with pytest.raises(ValueError, match="not a YAML file") as caught:
        TrainingConfig.from_yaml(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (DataConfig, {"batching": "sorted"}),
        (LoopConfig, {"device": "tpu"}),
        (LoopConfig, {"on_nonfinite": "ignore"}),
        (LoopConfig, {"resume": "Never"}),
        (LoopConfig, {"precision": "int8"}),
    ],
)
def test_a_section_built_in_python_refuses_an_unknown_choice(section, values):
    (key,) = values
    with pytest.raises(ValueError, match=f"{key} must be one of"):
        section(**values)


names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\\0", exclude_categories=["Cc"]), min_size=1, max_size=20
)
positive = st.floats(1e-12, 1e6, exclude_min=True)
trees = st.builds(
    TrainingConfig,
    experiment_name=names.filter(lambda name: name not in (".", "..")),
    data=st.builds(DataConfig, corpus=names, val_fraction=st.floats(0.001, 0.999)),
    model=st.builds(
        ModelConfig,
        n_layer=st.integers(1, 99),
        n_head=st.just(1),
        d_model=st.integers(1, 999),
        gradient_checkpointing=st.booleans(),
    ),
    loss=st.builds(LossConfig, label_smoothing=st.floats(0, 1), z_loss=st.floats(0, 1e3)),
    optimizer=st.builds(
        OptimizerConfig, type=st.sampled_from(["adamw", "sgd", "muon"]), learning_rate=positive, epsilon=positive
    ),
    lr_scheduler=st.builds(ScheduleConfig, warmup_steps=st.none() | st.integers(0, 10**6), min_lr=st.floats(0, 1e3)),
    training=st.builds(
        LoopConfig,
        max_steps=st.none() | st.integers(1, 10**9),
        max_grad_norm=st.none() | positive | st.just(math.inf),
        max_grad_value=st.none() | positive | st.just(math.inf),
        layer_statistics=st.none() | st.integers(1, 10**9),
        average_weights=st.none() | st.floats(0.001, 0.999),
        output_dir=st.none() | st.just("runs") | st.just("some folder/deeper"),
        seed=st.integers(0, 2**32 - 1),
    ),
)


@settings(max_examples=40)
@given(config=trees)
def test_what_is_written_reads_back_as_the_same_configuration(config, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    config.to_yaml(path)
    assert TrainingConfig.from_yaml(path) == config


@pytest.mark.parametrize("spelling", ["3e-4", "3.0e-4", "3E-4", "0.0003", ".0003"])
def test_every_spelling_of_a_float_is_read(tmp_path, spelling):
    config = TrainingConfig.from_yaml(write(tmp_path, f"optimizer: {{learning_rate: {spelling}}}"))
    assert config.optimizer.learning_rate == 3e-4


def shipped() -> list[str]:
    return sorted(Path(entry.name).stem for entry in resources.files("course_lm").joinpath("configs").iterdir())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_configuration_loads_by_name(name):
    assert TrainingConfig.from_yaml(name).experiment_name


def test_the_default_configuration_is_shipped():
    assert "python-docs" in shipped()


def test_a_path_is_found_as_it_is(tmp_path):
    path = write(tmp_path, "")
    assert find_config(path) == path == find_config(str(path))


def test_a_missing_configuration_is_refused_with_the_shipped_names(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.yaml: give a YAML file or one of .*python-docs"):
        find_config(tmp_path / "nothing.yaml")
