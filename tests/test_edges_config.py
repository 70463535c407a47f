"""Claims about configurations that nobody expects: each becomes one that repeats itself, or is refused in one line."""

import dataclasses
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from course_lm import cli
from course_lm.cli.options import config_parser, parse_config
from course_lm.config import DataConfig, LoopConfig, TrainingConfig, sections
from course_lm.curriculum import CurriculumConfig, CurriculumTrainingManager
from course_lm.model import ModelConfig
from course_lm.monitoring import TensorBoardConfig, WandbConfig
from course_lm.yaml_tree import MAX_BYTES, dump_yaml, load_yaml
from tests.sets import DAY, of_set


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "settings.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes) -> TrainingConfig:
    return TrainingConfig.from_yaml(write(folder, text))


def refusal(folder: Path, text: str | bytes) -> str:
    """The one line, found within a second, with which a file is refused."""
    path, started = write(folder, text), time.process_time()
    with pytest.raises(ValueError) as caught:
        TrainingConfig.from_yaml(path)
    assert time.process_time() - started < 1
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and len(message) < 1000, message
    return message


def overridden(tree: dict[str, Any], *arguments: str) -> TrainingConfig:
    config = TrainingConfig().updated(tree, "here")
    return parse_config(config_parser("course-lm train", config), config, arguments)[0]


# Files that are meant to do harm, or do it by accident


def billion_laughs() -> str:
    lines = ["a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"{name}: &{name} [{', '.join(['*' + before] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi")]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (billion_laughs(), "more than 5,000 values"),
        ("data: &a {corpus: *a}", "the alias *a stands for what it is part of"),
        ("data: &a [*a]", "the alias *a stands for what it is part of"),
        ("data: " + "[" * 10_000, "nested more than 20 levels deep"),
        ("data: " + "{a: " * 10_000, "nested more than 20 levels deep"),
        ("- " * 10_000, "nested more than 20 levels deep"),
        (f"training: {{seed: {'9' * 5000}}}", "4,300 digits"),
        (f"training: {{seed: {10**4000}}}", "training.seed must be an int"),
        (f"training: {{max_grad_norm: {10**400}}}", "training.max_grad_norm must be a float"),
        ("training: !!python/object/apply:os.system [ls]", "tags such as"),
        ("training: {seed: !!timestamp x}", "tags such as"),
        ("training: {seed: !!int x}", "tags such as"),
        ("training: {seed: 1}\ntraining: {seed: 2}", "line 2, column 1: the key 'training' stands twice"),
        ("training: {seed: 1, seed: 2}", "the key 'seed' stands twice"),
        ("[training]: 1", "a key must be a word"),
        ("training: {{a: 1}: 2}", "a key must be a word"),
        ("1: 2", "unknown key 1"),
        ("training: {null: 2}", "unknown key training.None"),
        ("data: *nobody", "undefined alias"),
        ("a: 1\n---\nb: 2", "single document"),
        ("a: \0", "U+0000"),
        (b"\xff\xfea\0", "can't decode byte 0xff"),
        (b"\x80", "can't decode byte 0x80"),
        ("# much\n" * MAX_BYTES, "more than 64 KiB"),
        ("[" + "1," * 30_000 + "]", "more than 5,000 values"),
        ('experiment_name: "\\ud800"', "experiment_name must be a str"),
        ("training: {seed: 2001-01-01}", "training.seed must be an int"),
        ("training: {seed: 010}", "training.seed must be an int"),
        ("training: {seed: '10'}", "training.seed must be an int"),
        ("training: {seed: 3.0}", "training.seed must be an int"),
        ("training: {seed: .nan}", "training.seed must be an int"),
        ("training: {early_stopping_threshold: .inf}", "training.early_stopping_threshold must be"),
        ("data: {corpus: ''}", "data.corpus must be"),
        ("data: {vocab_size: 1000000000000}", "data.vocab_size must be from 258"),
        ("curriculum: {step_epochs: [1, .nan]}", "curriculum.step_epochs must be"),
        ("curriculum: {step_epochs: []}", "curriculum.step_epochs must be"),
        ("curriculum: {step_thresholds: [.inf]}", "curriculum.step_thresholds must be"),
        ("curriculum: {strategy: []}", "curriculum.strategy must be one of"),
        ("curriculum: {settings: [a]}", "curriculum.settings must be keys and values"),
        ("curriculum: {strategy: frequency, reference: [1, 2]}", "reference must be a list"),
    ],
)
def test_a_harmful_file_is_refused_in_one_line_within_a_second(tmp_path, text, part):
    message = refusal(tmp_path, text)
    assert part in message, message


def test_a_gigabyte_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match="more than 64 KiB"):
        TrainingConfig.from_yaml(path)


@pytest.mark.parametrize("source", ["/dev/zero", "/", "a\0b", "x" * 300])
def test_what_is_no_file_is_refused_as_a_configuration(source):
    with pytest.raises(OSError) as caught:
        TrainingConfig.from_yaml(source)
    assert "\n" not in str(caught.value)


def test_an_alias_that_repeats_little_is_read(tmp_path):
    config = read(tmp_path, "tensorboard: &off {enabled: false}\nwandb: {<<: *off, project: x}")
    assert config.wandb == WandbConfig(project="x")


@pytest.mark.parametrize(
    "text", ["null", "12", "3e-4", "010", "1:30", "2001-01-01", "no", "~", "[a]", "{a: 1}", "=", " ", "é\u2028"]
)
def test_text_stays_the_text_that_it_was(tmp_path, text):
    """Text that looks like another kind of value is the trap: a folder named "null" is not null."""
    config = TrainingConfig(
        experiment_name=text,
        data=DataConfig(corpus=text),
        training=LoopConfig(output_dir=text),
        curriculum=CurriculumConfig(strategy="frequency", settings={"reference": text}),
    )
    config.to_yaml(tmp_path / "saved.yaml")
    assert TrainingConfig.from_yaml(tmp_path / "saved.yaml") == config
    assert overridden(load_yaml((tmp_path / "saved.yaml").read_text()), "--training.seed=42") == config


# One rule for the kinds of values


@pytest.mark.parametrize("value", [np.float64(8), np.array([8]), torch.tensor(8.0), 8.0, True, "8", None, 2**63])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        (LoopConfig, "batch_size"),
        (ModelConfig, "n_layer"),
        (DataConfig, "max_length"),
        (CurriculumConfig, "warmup_steps"),
    ],
)
def test_an_int_is_a_plain_int(section, key, value):
    with pytest.raises(ValueError, match=f"^{key} must be an int") as caught:
        section(**{key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.bool_(True), np.array([0.5]), torch.tensor([0.5]), "0.5", False])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        (LoopConfig, "max_grad_norm"),
        (ModelConfig, "dropout"),
        (DataConfig, "val_fraction"),
        (CurriculumConfig, "end_threshold"),
    ],
)
def test_a_float_is_a_plain_number(section, key, value):
    with pytest.raises(ValueError, match=f"^{key} must be a float"):
        section(**{key: value})


@pytest.mark.parametrize("section", [TensorBoardConfig, WandbConfig, CurriculumConfig])
@pytest.mark.parametrize("value", [1, "yes", None, np.int64(1)])
def test_a_switch_is_true_or_false(section, value):
    with pytest.raises(ValueError, match=r"^enabled must be a bool"):
        section(enabled=value)


def test_a_section_given_as_a_mapping_is_refused():
    with pytest.raises(ValueError, match=r"^data must be DataConfig, got \{"):
        TrainingConfig(data={"corpus": "stories"})  # type: ignore[arg-type]


def test_an_int_serves_as_a_float(tmp_path):
    assert read(tmp_path, "training: {max_grad_norm: 1}") == TrainingConfig()


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_a_number_of_numpy_or_torch_becomes_a_plain_one(tmp_path, value):
    """So that a rate which some function of NumPy computed does not make the first save fail."""
    section = ModelConfig(dropout=value)
    assert (section.dropout, type(section.dropout)) == (0.5, float)
    TrainingConfig(model=section).to_yaml(tmp_path / "saved.yaml")
    assert TrainingConfig.from_yaml(tmp_path / "saved.yaml").model == section


@pytest.mark.parametrize("settings", [{"min_length": np.float64(3)}, {"max_length": torch.tensor(9.0)}])
def test_a_strategy_takes_plain_numbers_too(settings):
    with pytest.raises(ValueError, match="length must be an int"):
        CurriculumConfig(strategy="length", settings=settings)


# The strategy's settings beside the curriculum's own keys

FLAT = [
    ("morphological", {"case_weight": 1.0}),
    ("length", {"max_length": 40}),
    ("frequency", {"reference": "stories"}),
    ("random", {"seed": 3}),
    ("combined", {"morphological_weight": 0.5, "length": {"max_length": 40}}),
    ("dynamic", {"base_strategy": "length", "min_threshold": 0.3}),
]


@pytest.mark.parametrize(("strategy", "settings"), FLAT)
def test_settings_of_the_strategy_may_stand_beside_the_others_in_yaml(tmp_path, strategy, settings):
    config = read(tmp_path, yaml.safe_dump({"curriculum": {"enabled": True, "strategy": strategy, **settings}}))
    assert config.curriculum == CurriculumConfig(enabled=True, strategy=strategy, settings=settings)
    config.to_yaml(tmp_path / "saved.yaml")
    assert TrainingConfig.from_yaml(tmp_path / "saved.yaml") == config


@pytest.mark.parametrize(("strategy", "settings"), FLAT)
def test_settings_of_the_strategy_may_be_given_on_the_command_line(strategy, settings):
    arguments = [f"--curriculum.{key}={value}" for key, value in settings.items()]
    config = overridden({}, f"--curriculum.strategy={strategy}", *arguments)
    assert config.curriculum == CurriculumConfig(strategy=strategy, settings=settings)


def test_an_argument_joins_the_settings_of_the_file():
    tree = {"curriculum": {"strategy": "length", "max_length": 40, "settings": {"min_length": 2}}}
    assert overridden(tree, "--curriculum.max_length", "9").curriculum.settings == {"max_length": 9, "min_length": 2}
    assert overridden(tree, "--curriculum.settings", "{max_length: 9}").curriculum.settings == {"max_length": 9}


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ("strategy: length, case_weight: 1", ["unknown key curriculum.case_weight", "it belongs to morphological"]),
        ("strategy: combined, max_length: 1", ["here under curriculum.length", "it belongs to length"]),
        ("strategy: length, max_lenght: 1", ["did you mean curriculum.max_length?"]),
        ("strategy: length, settings: {case_weight: 1}", ["unknown key case_weight; it belongs to morphological"]),
        (
            "strategy: length, max_length: 1, settings: {max_length: 2}",
            ["curriculum.max_length must be 2, as in settings"],
        ),
        (
            "strategy: dynamic, adaptation_rate: 0.3, settings: {adaptation_rate: 0.4}",
            ["must be 0.3, as adaptation_rate"],
        ),
    ],
)
def test_a_setting_in_the_wrong_place_is_refused_with_the_right_one(tmp_path, section, parts):
    message = refusal(tmp_path, f"curriculum: {{{section}}}")
    for part in parts:
        assert part in message, message


def test_a_setting_given_twice_with_one_value_is_read(tmp_path):
    config = read(tmp_path, "curriculum: {strategy: length, max_length: 2, settings: {max_length: 2}}")
    assert config.curriculum.settings == {"max_length": 2}


# A curriculum's times follow the run


@pytest.mark.parametrize("epochs", [2, 3, 4, 5, 10, 37])
def test_by_default_a_run_of_two_epochs_or_more_comes_to_admit_everything(epochs):
    config = CurriculumConfig().for_run(epochs, None)
    manager = CurriculumTrainingManager("combined", "linear", dataclasses.asdict(config))
    assert manager.threshold(epochs - 1) == 1 and manager.threshold(0) < 1


@pytest.mark.parametrize("steps", [2, 3, 100, 19_000])
def test_a_run_of_steps_has_a_curriculum_of_steps(steps):
    config = CurriculumConfig().for_run(10, steps)
    assert (config.num_steps, config.total, config.warmup) == (steps // 2, steps // 2, 0)


def test_given_times_mean_what_they_say():
    given = CurriculumConfig(num_epochs=10, warmup_epochs=2)
    assert given.for_run(4, None) == given == given.for_run(4, 100)


def test_settling_twice_changes_nothing_more():
    once = CurriculumConfig().for_run(7, None)
    assert once.for_run(100, None) == once


@pytest.mark.parametrize(
    ("given", "run", "message"),
    [
        ({"warmup_epochs": 2}, (4, None), r"warmup_epochs must be below half of the run's 4 epochs.* got 2"),
        ({"warmup_epochs": 1}, (4, 100), r"warmup_epochs must be given with num_epochs in a run of max_steps"),
        ({"warmup_steps": 50}, (4, 100), r"warmup_steps must be below half of the run's 100 steps.* got 50"),
    ],
)
def test_a_warm_up_that_leaves_no_time_is_refused(given, run, message):
    with pytest.raises(ValueError, match=message):
        CurriculumConfig(**given).for_run(*run)


def test_a_warm_up_in_a_unit_that_is_not_counted_is_refused():
    with pytest.raises(ValueError, match="warmup_steps must be given with num_steps"):
        CurriculumConfig(num_epochs=5, warmup_steps=3)


# The command line


@pytest.mark.parametrize(
    "text",
    [
        billion_laughs(),
        "data: &a [*a]",
        "[" * 9999,
        "training: {max_steps: 0}",
        "training: {seed: 1, seed: 2}",
        "a: \0",
    ],
)
def test_the_command_line_refuses_a_file_in_one_line_with_code_2(tmp_path, capsys, text):
    path = write(tmp_path, text)
    assert cli.main(["train", "--config", str(path), "--training.max_steps", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("course-lm: error: ") and str(path) in line


@pytest.mark.parametrize(
    "argument",
    [
        "--training.seed=" + "9" * 5000,
        "--curriculum.settings={a: &a [*a]}",
        "--curriculum.settings=" + "[" * 9999,
        "--curriculum.settings=!!python/name:os.system",
        "--training.max_steps=0",
        "--training.max_steps=3.0",
        "--curriculum.case_weight=x",
        "--curriculum.length={max_length: x}",
        "--experiment_name=a/b",
        "--experiment_name=\ud800",
        "--data={corpus: &a [*a]}",
        "--data=3",
    ],
)
def test_the_command_line_refuses_an_argument_in_one_line_with_code_2(capsys, argument):
    assert cli.main(["train", argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("course-lm: error: command line: ")


# Any file

VALID = [path.read_text() for path in sorted((Path(cli.__file__).parents[1] / "configs").glob("*.yaml"))] + [
    yaml.safe_dump({"curriculum": {"enabled": True, "strategy": strategy, **settings}, "training": {"num_epochs": 4}})
    for strategy, settings in FLAT
]
ODD_VALUES = [
    None, True, 0, 1, -1, 2, 2**31, 2**63, 10**30, 0.0, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
    "", "x", "null", "1", "1e3", "~", "\n", "é\u2028", "a" * 2000, [], [[]], [1, 2], ["a"], {}, {"a": 1},
    {"settings": {}},
]  # fmt: skip
ODD_TEXT = [
    "&a", "*a", "<<: *a", "!!python/name:os.system", "!x", "[", "]", "{", "}", ":", ": ", "- ", "? ", "|\n", ">", "'",
    '"', "#", "%", "@", "`", "\t", "\n", "\r", "\0", "\x85", "\u2028", "\ufeff", "---\n", "...\n", "0o7", "0x1f", "1_0",
    ".inf", ".nan", "2001-01-01", "9" * 5000, "[" * 500, "a: &a [*a, *a]\n", "é",
]  # fmt: skip


def change_tree(tree: Any, chance: random.Random) -> Any:
    """A tree with one value of another kind, one key less, or one more."""
    node = tree
    while isinstance(node, dict) and node:
        key = chance.choice(sorted(node))
        if isinstance(node[key], dict) and chance.random() < 0.8:
            node = node[key]
            continue
        action = chance.randrange(4)
        if action == 0:
            del node[key]
        elif action == 1:
            names = [part.name for kind in sections().values() for part in dataclasses.fields(kind)]
            node[chance.choice([*names, *sections(), "settings", "max_length", "x"])] = node[key]
        else:
            node[key] = chance.choice(ODD_VALUES)
        break
    return tree


def change_text(text: str, chance: random.Random) -> str:
    """Text with a piece less, a piece twice, or something odd put in."""
    start, length = chance.randrange(len(text) + 1), chance.choice([1, 3, 20, 200])
    piece, rest = text[start : start + length], text[start + length :]
    return (
        text[:start] + chance.choice(["", piece * 2, chance.choice(ODD_TEXT), chance.choice(ODD_TEXT) + piece]) + rest
    )


def changed_file(seed: int) -> str:
    chance = random.Random(seed)
    text = chance.choice(VALID)
    if chance.random() < 0.6:
        tree = yaml.safe_load(text)
        for _ in range(chance.choice([1, 1, 2, 4])):
            tree = change_tree(tree, chance)
        text = yaml.safe_dump(tree, allow_unicode=True)
    for _ in range(chance.choice([0, 1, 1, 3])):
        text = change_text(text, chance)
    return text


def outcome(folder: Path, seed: int) -> bool:
    """Whether a changed file is a configuration; it repeats itself, or the refusal is one line, within a second."""
    text = changed_file(seed)
    path, started = write(folder, text.encode("utf-8", "surrogatepass")), time.process_time()
    try:
        config = TrainingConfig.from_yaml(path)
        config.to_yaml(folder / "saved.yaml")
        assert TrainingConfig.from_yaml(folder / "saved.yaml") == config, text
    except ValueError as error:
        assert "\n" not in str(error) and str(path) in str(error), (text, str(error))
        return False
    finally:
        assert time.process_time() - started < 1, text
    return True


def test_changed_files_repeat_themselves_or_are_refused(tmp_path):
    number = of_set(200, 2000)
    first = DAY.toordinal() * number
    read = [outcome(tmp_path, seed) for seed in range(first, first + number)]
    assert 0.1 * number < sum(read) < 0.9 * number  # else the changes prove nothing


def test_changed_files_are_refused_by_the_command_line_with_code_2(tmp_path, capsys):
    for seed in range(3000, 3060):
        path = write(tmp_path, changed_file(seed).encode("utf-8", "surrogatepass"))
        assert cli.main(["train", "--config", str(path), "--training.max_steps", "0"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("course-lm: error: ")


def test_what_is_dumped_is_read_back():
    tree = {"numbers": [1, 1.0, 1e-8, float("inf"), -3, 10**18], "text": ["1", "1e3", "010", "1:30", "", "\n", "~"]}
    assert load_yaml(dump_yaml(tree)) == tree
