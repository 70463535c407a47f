"""Claims about the options that a configuration's keys have on the command line."""

import argparse
import dataclasses
import json
import re
from typing import get_type_hints

import pytest

from course_lm.cli.commands import COMMANDS, make_parser, parsers_of_commands
from course_lm.cli.configured import configured_parser
from course_lm.cli.options import config_parser, parse_config
from course_lm.config import TrainingConfig, sections
from course_lm.curriculum.settings import SETTINGS, CurriculumConfig, keys_of
from course_lm.validation import readable


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
        ("--training.max_steps=", "max_steps must be a whole number, at least 1, or null, got ''"),
        ("--training.batchsize=1", "unrecognized argument --training.batchsize; did you mean --training.batch_size?"),
        ("--curriculum.max_lenght=1", "argument --curriculum.max_lenght; did you mean --curriculum.max_length?"),
        ("--curriculum.seed=1", "unknown key curriculum.seed; it belongs to random; accepted: enabled, "),
        ("--training.seed=" + "9" * 5000, "an int of more than 4,300 digits, got 999"),
        ("--curriculum.settings={a: &a [*a]}", "aliases such as *a are not accepted"),
        ("--curriculum.settings=" + "[" * 999, "nested too deep"),
        ("--experiment_name=\ud800", "experiment_name must be text of valid Unicode"),
        ("--optimizer.momentum=0.5", "optimizer.momentum must be left out, as nothing reads it beside type adamw, got"),
        ("--learning-rate=1", "unrecognized argument --learning-rate; here it is --optimizer.learning_rate; see"),
        ("--training.warmup_steps=1", "here it is --lr_scheduler.warmup_steps or --curriculum.warmup_steps; see"),
        ("--fp16=true", "here it is --training.precision; see"),
        ("--data=3", "unrecognized argument --data"),
        ("stray", "unrecognized argument stray; see course-lm train --help"),
    ],
)
def test_a_bad_argument_is_blamed_on_the_command_line(argument, message):
    file = TrainingConfig().updated({}, "the-file.yaml")
    with pytest.raises(ValueError, match=rf"^command line: .*{re.escape(message)}") as caught:
        parsed(argument, config=file)
    assert "the-file.yaml" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_argument_joins_the_settings_of_the_file():
    tree = {"curriculum": {"strategy": "length", "max_length": 40, "settings": {"min_length": 2}}}
    file = TrainingConfig().updated(tree, "here")
    joined = parsed("--curriculum.max_length", "9", config=file).curriculum
    assert joined.settings == {"max_length": 9, "min_length": 2}
    assert parsed("--curriculum.settings={max_length: 9}", config=file).curriculum.settings == {"max_length": 9}


@pytest.mark.parametrize("text", ["*.txt", "3", "null", "a: b", "x # y", "'quoted'", "[a]", "1e3", ""])
def test_text_is_taken_as_it_stands(text):
    assert parsed(f"--wandb.project={text}").wandb.project == text


@pytest.mark.parametrize(("text", "value"), [("null", None), ("~", None), ("3", "3"), ("runs", "runs")])
def test_text_that_may_be_null_is_null_where_it_says_so(text, value):
    assert parsed(f"--training.output_dir={text}").training.output_dir == value


def test_every_key_has_an_option_whose_help_says_what_it_takes_and_the_value_of_the_file():
    config = TrainingConfig.from_yaml("tiny")
    text = help_of(config)
    for name, section in sections().items():
        for key, hint in get_type_hints(section, include_extras=True).items():
            default = json.dumps(getattr(getattr(config, name), key))
            taken = re.escape(f" [{readable(hint)}; default: {default}]")
            assert re.search(rf"--{name}.{key} {key.upper()} ((?! --).)*{taken}", text), f"{name}.{key}"
    assert 'names the run\'s folder. [text, a folder name; default: "tiny"]' in text


def test_every_setting_of_a_strategy_has_an_option_whose_help_says_what_it_takes():
    text = help_of(TrainingConfig())
    for strategy, section in SETTINGS.items():
        for key, hint in get_type_hints(section, include_extras=True).items():
            taken = "keys and values" if dataclasses.is_dataclass(hint) else re.escape(readable(hint))
            option = rf"--curriculum.{key} {key.upper()}((?! --).)*"
            if key not in keys_of(CurriculumConfig):
                option += rf"(, --curriculum.settings.{key} {key.upper()} )((?! --).)*\"{strategy}\": ((?! --).)*"
            assert re.search(rf"{option} \[{taken}[;\]]", text), (strategy, key)


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
        sentence = (action.help or "").partition(" [")[0]  # without the kind and the default of a key
        assert len(sentence.split()) > 1, action.option_strings or action.metavar


@pytest.mark.parametrize("option", ["--curriculum.max_length", "--curriculum.settings.max_length"])
def test_a_setting_may_be_named_with_or_without_the_key_that_holds_it(option):
    curriculum = parsed("--curriculum.strategy=length", option, "9").curriculum
    assert curriculum.settings == {"max_length": 9}
