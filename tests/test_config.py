"""Claims about the configuration: every documented key is read, every mistake is refused in one line."""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.config import OTHER_NAMES, DataConfig, LoopConfig, TrainingConfig, find_config, sections
from course_lm.curriculum import CurriculumConfig
from course_lm.loss import LossConfig
from course_lm.model import ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.schedules import ScheduleConfig

DOCUMENTED_TREE = """
experiment_name: my-lm
data: {corpus: python-docs, vocab_size: 2048, max_length: 128, batching: packed, val_fraction: 0.1, test_fraction: 0.0, num_workers: 0, pin_memory: true}
model: {n_layer: 4, n_head: 4, d_model: 128, dropout: 0.1, gradient_checkpointing: false, positions: learned}
loss: {label_smoothing: 0.0, z_loss: 0.0}
optimizer: {type: adamw, learning_rate: 3e-4, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01}
lr_scheduler: {type: cosine_with_warmup, warmup_ratio: 0.1, num_cycles: 0.5, min_lr: 0.0}
curriculum: {enabled: false, strategy: combined, schedule: linear, start_threshold: 0.2, end_threshold: 1.0, num_epochs: 10, warmup_epochs: 2}
training: {batch_size: 32, gradient_accumulation_steps: 4, num_epochs: 10, max_steps: null, max_grad_norm: 1.0, max_grad_value: null, layer_statistics: null,
           precision: auto, device: auto, on_nonfinite: raise, logging_steps: 10, eval_steps: null, save_steps: 500, save_total_limit: 3,
           early_stopping_patience: null, early_stopping_threshold: 0.0, seed: 42, deterministic: true, compile: false, resume: auto, output_dir: runs}
tensorboard: {enabled: false}
wandb: {enabled: false, project: my-lm, name: null, mode: offline}
"""  # noqa: E501  # exactly as it is documented


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


def test_the_documented_values_are_the_defaults_but_for_times_and_what_compiles_by_itself(tmp_path):
    times = CurriculumConfig(enabled=False, num_epochs=10, warmup_epochs=2)
    documented = TrainingConfig(curriculum=times, training=LoopConfig(compile=False))
    assert TrainingConfig.from_yaml(write(tmp_path, DOCUMENTED_TREE)) == documented


def test_an_empty_file_gives_the_defaults(tmp_path):
    assert TrainingConfig.from_yaml(write(tmp_path, "")) == TrainingConfig()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "experiment_nam: x",
            ["unknown key experiment_nam; did you mean experiment_name?", "accepted: experiment_name, "],
        ),
        ("data: {max_lenght: 4}", ["unknown key data.max_lenght; did you mean data.max_length?"]),
        ("model: {layers: 4}", ["unknown key model.layers; did you mean model.n_layer? accepted: n_layer, n_head"]),
        ("curriculum: {settings: {frequency: {ref: x}}}", ["combined: unknown key frequency.ref", "reference"]),
        ("optimizer: {type: adafacter}", ["optimizer.type must be one of adamw, ", "; did you mean adafactor?"]),
    ],
)
def test_a_refusal_says_what_is_accepted_and_what_was_meant(tmp_path, text, parts):
    message = refusal(tmp_path, text)
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("data: {test_fraction: 0.9}", "data.test_fraction must be in [0, 0.9), beside the validation, got 0.9"),
        ("model: {d_model: 30, n_head: 4}", "model.d_model must be a multiple of n_head (4), got 30"),
        ("distributed: {shard_size: 2}", 'distributed.shard_size must be null for strategy "auto", got 2'),
        ("distributed: {strategy: hybrid}", 'distributed.shard_size must be given for strategy "hybrid", got None'),
        ("training: {lengths: [[0, 5]]}", "training.lengths must be null, or end with max_steps, which is None"),
        ("training: {max_steps: 5, lengths: [[1, 5]]}", "training.lengths must be null, or pairs such as [[0, 1000], "),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused(tmp_path, text, line):
    assert f": {line}" in refusal(tmp_path, text)


PLACED = [
    ({"learning_rate": 1}, "optimizer.learning_rate"),
    ({"seed": 1}, "training.seed"),
    ({"lr": 1}, "optimizer.learning_rate"),
    ({"epochs": 3}, "training.num_epochs"),
    ({"training": {"warmup_steps": 5}}, "lr_scheduler.warmup_steps or curriculum.warmup_steps"),
    ({"training": {"fp16": True}}, "training.precision"),
    ({"data": {"batch_size": 4}}, "training.batch_size"),
    ({"data": {"per_device_train_batch_size": 4}}, "training.batch_size"),
    ({"optimizer": {"gradient_clipping": 1}}, "training.max_grad_norm"),
    ({"optimizer": {"eps": 1}}, "optimizer.epsilon"),
    ({"curriculum": {"patience": 3}}, "training.early_stopping_patience"),
    ({"model": {"checkpoint_dir": "x"}}, "training.output_dir"),
]


@pytest.mark.parametrize(("tree", "place"), PLACED, ids=str)
def test_a_key_at_the_wrong_level_or_of_another_tool_is_told_where_it_stands(tree, place, tmp_path):
    assert f"; here it is {place}; accepted: " in refusal(tmp_path, yaml.safe_dump(tree))
    (name, value), *_ = tree.items()
    kind, values = (sections()[name], value) if isinstance(value, dict) else (TrainingConfig, tree)
    with pytest.raises(ValueError, match=f"^unknown key .*; here it is {place}; accepted: "):
        kind(**values)


def test_every_name_of_another_tool_stands_for_a_key_and_is_none():
    for place in OTHER_NAMES:
        section, key = place.split(".")
        assert key in vars(sections()[section]())
    keys = {key for kind in sections().values() for key in vars(kind())}
    assert not keys & {name for names in OTHER_NAMES.values() for name in names.split()}


def test_a_choice_may_have_capitals(tmp_path):
    text = "optimizer: {type: AdamW}\nlr_scheduler: {type: Cosine}\ntraining: {precision: BF16}\n"
    config = TrainingConfig.from_yaml(write(tmp_path, text + "curriculum: {strategy: Length, max_length: 3}"))
    assert (config.optimizer.type, config.lr_scheduler.type) == ("adamw", "cosine")
    assert (config.training.precision, config.curriculum.strategy) == ("bf16", "length")


@pytest.mark.parametrize("value", [np.bool_(True), np.array([8]), torch.tensor([8]), 1j], ids=repr)
def test_what_no_file_can_hold_is_refused_in_python(value):
    with pytest.raises(ValueError, match=r"^batch_size must be a whole number, .*, got "):
        LoopConfig(batch_size=value)
    with pytest.raises(ValueError, match=r"^val_fraction must be a number.*, got "):
        DataConfig(val_fraction=value)


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_a_number_of_numpy_or_torch_becomes_a_plain_one(tmp_path, value):
    """So that a rate which some function of NumPy computed does not make the first save fail."""
    section = ModelConfig(dropout=value)
    assert (section.dropout, type(section.dropout)) == (0.5, float)
    TrainingConfig(model=section).to_yaml(tmp_path / "saved.yaml")
    assert TrainingConfig.from_yaml(tmp_path / "saved.yaml").model == section


def test_an_int_serves_as_a_float(tmp_path):
    assert TrainingConfig.from_yaml(write(tmp_path, "training: {max_grad_norm: 1}")) == TrainingConfig()


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
    optimizer=st.builds(OptimizerConfig, type=st.just("adamw"), learning_rate=positive, epsilon=positive)
    | st.builds(OptimizerConfig, type=st.sampled_from(["sgd", "muon"]), learning_rate=positive),
    lr_scheduler=st.builds(ScheduleConfig, warmup_steps=st.none() | st.integers(0, 10**6), min_lr=st.floats(0, 1e3)),
    training=st.builds(
        LoopConfig,
        max_steps=st.none() | st.integers(1, 10**9),
        max_grad_norm=st.none() | positive,
        max_grad_value=st.none() | positive,
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
