"""Claims about YAML files: each becomes a configuration that repeats itself, or is refused in one line."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from course_lm import cli
from course_lm.config import DataConfig, LoopConfig, TrainingConfig, sections
from course_lm.curriculum import CurriculumConfig
from course_lm.yaml_tree import MAX_BYTES, dump_yaml, load_yaml
from tests.sets import DAY, of_set


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "settings.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: &a [lol]\ndata: [*a, *a]", "line 2, column 8: aliases such as *a are not accepted"),
        ("data: " + "[" * 2_000, "nested too deep"),
        ("data: " + "{a: " * 2_000, "nested too deep"),
        ("- " * 10_000, "nested too deep"),
        (f"training: {{seed: {'9' * 5000}}}", "4,300 digits"),
        (f"training: {{seed: {10**4000}}}", "training.seed must be a whole number"),
        (f"training: {{max_grad_norm: {10**400}}}", "training.max_grad_norm must be a number"),
        ("training: !!python/object/apply:os.system [ls]", "tags such as"),
        ("training: {seed: !!int x}", "tags such as"),
        ("training: {seed: 1}\ntraining: {seed: 2}", "line 2, column 1: the key 'training' stands twice"),
        ("training: {seed: 1, seed: 2}", "the key 'seed' stands twice"),
        ("[training]: 1", "a key must be a word"),
        ("training: {{a: 1}: 2}", "a key must be a word"),
        ("1: 2", "unknown key 1"),
        ("training: {null: 2}", "unknown key training.None"),
        ("a: 1\n---\nb: 2", "single document"),
        ("a: \0", "U+0000"),
        (b"\xff\xfea\0", "can't decode byte 0xff"),
        ("# much\n" * MAX_BYTES, "more than 64 KiB"),
        ("training: {seed: 2001-01-01}", "training.seed must be a whole number"),
        ("training: {seed: 010}", "training.seed must be a whole number"),
        ("a: [", "is not a YAML file"),
        ("\t: x", "is not a YAML file"),
        ("- 1\n- 2", "must be keys and values"),
        ("just words", "must be keys and values"),
    ],
)
def test_a_file_that_is_no_tree_of_plain_data_is_refused_in_one_line(tmp_path, text, part):
    path = write(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        TrainingConfig.from_yaml(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and len(message) < 1000, message
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


@pytest.mark.parametrize("spelling", ["3e-4", "3.0e-4", "3E-4", "0.0003", ".0003"])
def test_every_spelling_of_a_float_is_read(spelling):
    assert load_yaml(spelling) == 3e-4


# Any file

VALID = [path.read_text() for path in sorted((Path(cli.__file__).parents[1] / "configs").glob("*.yaml"))] + [
    yaml.safe_dump({"curriculum": {"enabled": True, "strategy": strategy, **settings}, "training": {"num_epochs": 4}})
    for strategy, settings in [("length", {"max_length": 40}), ("combined", {"length": {"max_length": 40}})]
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
    """Whether a changed file is a configuration; it repeats itself, or the refusal is one line."""
    text = changed_file(seed)
    path = write(folder, text.encode("utf-8", "surrogatepass"))
    try:
        config = TrainingConfig.from_yaml(path)
        config.to_yaml(folder / "saved.yaml")
        assert TrainingConfig.from_yaml(folder / "saved.yaml") == config, text
    except ValueError as error:
        assert "\n" not in str(error) and str(path) in str(error), (text, str(error))
        return False
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
