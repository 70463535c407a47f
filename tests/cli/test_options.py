"""Claims about the options that a configuration's keys have on the command line."""

import argparse
import dataclasses
import json
import re

import pytest

from course_lm.cli import options
from course_lm.cli.commands import COMMANDS, make_parser, parsers_of_commands
from course_lm.cli.configured import configured_parser
from course_lm.cli.options import config_parser, parse_config
from course_lm.config import TrainingConfig, sections
from course_lm.curriculum.settings import SETTINGS


def parsed(*arguments: str, config: TrainingConfig | None = None) -> TrainingConfig:
    config = config or TrainingConfig()
    return parse_config(config_parser("course-lm train", config), config, arguments)[0]


def help_of(config: TrainingConfig) -> str:
    """In one line, so that its words stand where they stand however wide the terminal is."""
    return " ".join(config_parser("course-lm train", config).format_help().split())


def test_command_line_arguments_win_over_the_file():
    file = TrainingConfig().updated({"training": {"batch_size": 3, "seed": 5}}, "here")
    config = parsed("--training.batch_size=7", "--training.max_steps=null", config=file)
    assert (config.training.batch_size, config.training.seed, config.training.max_steps) == (7, 5, None)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--training.batch_size=0", "training.batch_size must be at least 1, got 0"),
        ("--training.batch_size=x", "training.batch_size must be an int (of at most 64 bits), got 'x'"),
        ("--training.batch_size=3.0", "training.batch_size must be an int (of at most 64 bits), got 3.0"),
        ("--training.max_steps=", "training.max_steps must be an int (of at most 64 bits) or null, got ''"),
        ("--training.resume=x", "training.resume must be one of auto, never, got 'x'"),
        ("--training.batchsize=1", "unrecognized argument --training.batchsize; did you mean --training.batch_size?"),
        ("--curriculum.max_lenght=1", "argument --curriculum.max_lenght; did you mean --curriculum.max_length?"),
        ("--curriculum.seed=1", "unknown key curriculum.seed; it belongs to random; accepted: enabled, "),
        ("stray", "unrecognized argument stray; see course-lm train --help"),
    ],
)
def test_a_bad_argument_is_blamed_on_the_command_line(argument, message):
    file = TrainingConfig().updated({}, "the-file.yaml")
    with pytest.raises(ValueError, match=rf"^command line: .*{re.escape(message)}") as caught:
        parsed(argument, config=file)
    assert "the-file.yaml" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_value_has_the_same_message_in_a_file_and_as_an_argument():
    with pytest.raises(ValueError) as in_file:
        TrainingConfig().updated({"optimizer": {"type": "lion"}}, "command line")
    with pytest.raises(ValueError) as as_argument:
        parsed("--optimizer.type=lion")
    assert str(in_file.value) == str(as_argument.value)


@pytest.mark.parametrize("text", ["*.txt", "3", "null", "a: b", "x # y", "'quoted'", "[a]", "1e3", ""])
def test_text_is_taken_as_it_stands(text):
    assert parsed(f"--wandb.project={text}").wandb.project == text


@pytest.mark.parametrize(("text", "value"), [("null", None), ("~", None), ("3", "3"), ("runs", "runs")])
def test_text_that_may_be_null_is_null_where_it_says_so(text, value):
    assert parsed(f"--training.output_dir={text}").training.output_dir == value


def test_every_key_has_an_option_and_its_help_shows_the_value_of_the_file():
    config = TrainingConfig.from_yaml("tiny")
    text = help_of(config)
    for name in sections():
        for key, value in vars(getattr(config, name)).items():
            option = re.escape(f"--{name}.{key} {key.upper()} ")
            default = re.escape(f"default: {json.dumps(value)}]")
            assert re.search(rf"{option}((?! --).)*{default}", text), f"{name}.{key}"
    assert 'names the run\'s folder. [a str (of valid Unicode); default: "tiny"]' in text


def test_every_setting_of_a_strategy_has_an_option():
    text = help_of(TrainingConfig())
    for strategy, kind in SETTINGS.items():
        for part in dataclasses.fields(kind):
            assert f"--curriculum.{part.name} " in text, (strategy, part.name)


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    config, parsers = TrainingConfig(), parsers_of_commands(make_parser())
    return {
        name: parsers[name] if command.text is None else configured_parser(name, config)
        for name, command in COMMANDS.items()
    }


@pytest.mark.parametrize("command", commands())
def test_no_option_lacks_a_sentence(command):
    for action in commands()[command]._actions:
        sentence = re.sub(r"\[[^\[]*\]$", "", action.help or "")  # without the kind and the default of a key
        assert len(sentence.split()) > 1, action.option_strings or action.metavar


def test_no_setting_of_a_strategy_lacks_a_sentence():
    for strategy, kind in SETTINGS.items():
        for part in dataclasses.fields(kind):
            assert options._sentences(kind).get(part.name), (strategy, part.name)


@pytest.mark.parametrize("option", ["--curriculum.max_length", "--curriculum.settings.max_length"])
def test_a_setting_may_be_named_with_or_without_the_key_that_holds_it(option):
    curriculum = parsed("--curriculum.strategy=length", option, "9").curriculum
    assert curriculum.settings == {"max_length": 9}
