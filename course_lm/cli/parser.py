"""What the commands share: a parser that takes no abbreviations and refuses in one line, with a suggestion."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from course_lm.validation import did_you_mean, expanded, one_line, place_of

Arguments = argparse._ActionsContainer  # to which arguments are added: a parser, or a group of one


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ValueError, naming the argument, where argparse would print its usage and exit."""

    color = False  # of Python 3.14 on: a terminal is shown escapes as text, see `cli._Terminal`

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise ValueError(f"command line: {message}")

    def refuse(self, arguments: Sequence[str]) -> None:
        """Refuse `arguments`, which no option takes, if there are any; the first is compared with the options."""
        if arguments:
            name = arguments[0].split("=")[0]
            key, options = name.lstrip("-").replace("-", "_").rpartition(".")[2], self._option_string_actions
            hint = place_of(key, options, "--") or did_you_mean(name, options)
            if not name.startswith("-") and any(action.dest == "text" for action in self._actions):
                hint = "TEXT is one path, before options; several are a glob in quotation marks, such as '*.txt'; "
            self.error(f"unrecognized argument {one_line(name)}; {hint}see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse calls this for every argument that has choices, the names of commands among them
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            question = did_you_mean(value, map(str, action.choices or ())).strip()
            raise argparse.ArgumentError(action, error.message + (question and f"; {question}")) from None


def not_empty(text: str) -> str:
    """An argument that holds something, which a shell's unset variable does not."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def whole(text: str) -> int:
    """An argument that is a whole number, which may have an exponent, as 1e9."""
    with suppress(ValueError):
        if (number := float(not_empty(text))).is_integer():
            return int(number)
    raise argparse.ArgumentTypeError(f"must be a whole number, such as 1e9, got {one_line(repr(text))}")


def path(text: str) -> Path:
    """An argument that names a file or a folder, where `~` stands for a home folder: after `=` no shell replaces it.

    An empty one would be the current folder.
    """
    try:
        return expanded(not_empty(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
