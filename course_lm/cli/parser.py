"""What the commands share: a parser that takes no abbreviations and refuses in one line, with a suggestion."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from course_lm.validation import did_you_mean, one_line


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ValueError, naming the argument, where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise ValueError(f"command line: {message}")

    def refuse(self, arguments: Sequence[str]) -> None:
        """Refuse `arguments`, which no option takes, if there are any; the first is compared with the options."""
        if arguments:
            name = arguments[0].split("=")[0]
            hint = did_you_mean(name, self._option_string_actions)
            self.error(f"unrecognized argument {one_line(name)}; {hint}see {self.prog} --help")
