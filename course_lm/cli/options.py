"""The keys of a configuration as options of a command: `--section.key`, each with its default in `--help`."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser

from course_lm.cli.parser import CommandParser
from course_lm.config import TrainingConfig
from course_lm.curriculum.settings import OWNERS, SETTINGS
from course_lm.validation import one_line, readable
from course_lm.yaml_tree import load_yaml

NULL = ("null", "~")


def config_parser(prog: str, config: TrainingConfig, text: str | None = None) -> CommandParser:
    """A parser with an option for every key of the tree, such as `--optimizer.learning_rate`.

    `--help` shows the values of `config` as defaults. What is parsed holds only what was given.

    Args:
        text: "TEXT" where the command must be given one, "[TEXT]" where it may; None where it takes none.
    """
    usage = f"{prog} {text} [--config CONFIG]" if text else f"{prog} [--config CONFIG]"
    parser = CommandParser(
        prog, f"{usage} [--section.key VALUE ...]", allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    if text:
        help = "a path, a glob in quotation marks, hf:<dataset> or a shipped corpus; the same as --data.corpus"
        parser.add_argument("text", nargs=None if text == "TEXT" else "?", metavar="TEXT", help=help)
    help = "name of a shipped configuration, or YAML file that is laid over python-docs; options override either"
    parser.add_argument("--config", help=help)
    _add_options(parser, config)
    group = parser.add_argument_group("curriculum, settings of its strategy")
    for key, strategies in OWNERS.items():
        if key not in vars(config.curriculum):  # else the option of the section counts for its strategy too
            # Two spellings of one option; the last one given counts, as with any other.
            names = (f"--curriculum.{key}", f"--curriculum.settings.{key}")
            texts = [f'"{strategy}": {_described(SETTINGS[strategy], key)}]' for strategy in strategies]
            help = " ".join(texts).replace("%", "%%")
            group.add_argument(*names, dest=names[0][2:], type=_yaml, metavar=key.upper(), help=help)
    return parser


def parse_config(
    parser: CommandParser, config: TrainingConfig, arguments: Sequence[str]
) -> tuple[TrainingConfig, argparse.Namespace]:
    """`config` with the values that `arguments` give, and everything that was parsed, for options of other kinds.

    Raises:
        ValueError: names the key, the value and what is accepted.
    """
    options, unknown = parser.parse_known_args(arguments)
    text = vars(options).get("text", "")
    # argparse takes an option that it does not know for a TEXT where there is a space in its value
    parser.refuse([text, *unknown] if text.startswith("-") and text != "-" else unknown)
    tree: dict[str, Any] = {}
    for name, value in vars(options).items():
        # What has no section is a key of the root, or an option of the command itself, which the caller reads.
        section, _, key = name.rpartition(".")
        if section:
            tree.setdefault(section, {})[key] = value
        elif key in vars(config):
            tree[key] = value
    return config.updated(tree, "command line"), options


@cache
def _sentences(section: type) -> dict[str, str]:
    """What the docstring of a dataclass says of each key, or that of a class which it inherits the key from."""
    described = [docstring_parser.parse(kind.__doc__ or "") for kind in reversed(section.__mro__)]
    return {one.arg_name: one.description or "" for parsed in described for one in parsed.params}


def _described(section: type, key: str) -> str:
    """What a key is, and in a bracket, left open, what it takes."""
    hint = get_type_hints(section, include_extras=True)[key]
    return f"{_sentences(section).get(key, '')} [{'keys and values' if is_dataclass(hint) else readable(hint)}"


def _add_options(parser: CommandParser, section: Any, where: str = "") -> None:
    description = docstring_parser.parse(type(section).__doc__ or "").short_description
    group = parser.add_argument_group(where.rstrip(".") or "the run", description)
    for key, hint in get_type_hints(type(section)).items():
        value = vars(section)[key]
        if is_dataclass(value):
            _add_options(parser, value, f"{where}{key}.")
            continue
        # argparse formats help with %, so a percent sign stands twice.
        text = f"{_described(type(section), key)}; default: {json.dumps(value)}]".strip().replace("%", "%%")
        group.add_argument(f"--{where}{key}", type=_reader(hint), metavar=key.upper(), help=text)


def _reader(hint: Any) -> Callable[[str], Any]:
    """How the argument for a key of this kind is read: as YAML, or as it stands where the key takes nothing but text.

    So a corpus may be `*.txt` and a name `3`, without quotation marks.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not all(kind in (str, NoneType) or get_origin(kind) is Literal for kind in kinds):
        return _yaml
    return _text_or_null if NoneType in kinds else str


def _yaml(text: str) -> Any:
    """The value that a YAML text holds; what is empty stays text, so that a shell's unset variable is not null."""
    try:
        value = load_yaml(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, got {one_line(text)}") from None
    return text if value is None and text not in NULL else value


def _text_or_null(text: str) -> str | None:
    return None if text in NULL else text
