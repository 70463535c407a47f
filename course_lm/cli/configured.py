"""The configuration that a command is given: a file, options over it, and the sizes of a run that it begins with."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from course_lm.cli.commands import COMMANDS, DEFAULT_CONFIG
from course_lm.cli.options import config_parser, parse_config
from course_lm.cli.parser import CommandParser
from course_lm.cli.text import with_text
from course_lm.config import TrainingConfig, shipped_configs
from course_lm.tokenizer import bytes_per_token
from course_lm.validation import ensure


def configured(name: str, file: str, rest: Sequence[str]) -> tuple[TrainingConfig, Namespace]:
    """The configuration that the arguments of the command `name` ask for, and what it was given besides.

    Args:
        file: of `--config`, the name of a shipped configuration or a file of the user's. That is laid over the default
            job, as options are: the same line in it is the same experiment.
        rest: all other arguments.

    Raises:
        ValueError, OSError: names the key or the file, the value and what is accepted.
    """
    shipped = file in shipped_configs()
    base = TrainingConfig.from_yaml(file if shipped else DEFAULT_CONFIG)

    def read(base: TrainingConfig) -> tuple[TrainingConfig, Namespace]:
        own = base if shipped else TrainingConfig.from_yaml(file, base)
        return parse_config(configured_parser(name, own), own, rest)

    config, given = read(base)
    if config.training.init_from is not None:
        from course_lm.trainer.init_from import check_sizes, settings_from  # only now: --help does without it

        sizes = settings_from(config.training.init_from)
        config, given = read(base.updated(sizes, f"training.init_from {config.training.init_from}"))
        check_sizes(config, sizes)
    named = with_text(config, given, base, file)
    if named.data.tokenizer is not None:
        from course_lm.cli.preparation import own_tokenizer

        source = f"data.tokenizer {named.data.tokenizer}"
        both = config.training.init_from is not None
        ensure(not both, f"{source} beside training.init_from, which brings a tokenizer: leave data.tokenizer out")
        tokenizer = own_tokenizer(named)
        assert tokenizer is not None
        size = len(bytes_per_token(tokenizer))  # of the ids, which may have gaps
        config, given = read(base.updated({"data": {"vocab_size": size}}, source))
        asked = config.data.vocab_size
        ensure(asked == size, f"data.vocab_size is {asked}, and {source} has {size} tokens: leave data.vocab_size out")
    # in Python, what a file leaves out has the defaults of the classes, beside which it may be refused
    alone = None
    with suppress(ValueError):
        alone = TrainingConfig.from_yaml(file)
    if not shipped and alone != TrainingConfig.from_yaml(file, base):
        place = sys.stderr if getattr(given, "json", False) else sys.stdout
        print(f"what {file} leaves out is that of the shipped configuration {DEFAULT_CONFIG}", file=place)
    return with_text(config, given, base, file), given


def configured_parser(name: str, config: TrainingConfig) -> CommandParser:
    """The parser of a command that takes every key of the configuration; `--help` shows the values of `config`."""
    parser = config_parser(f"course-lm {name}", config, COMMANDS[name].text or None)
    COMMANDS[name].add_arguments(parser.add_argument_group(name))
    return parser
