"""The command `completion`: a script that lets a shell complete commands, their options, and keys."""

from argparse import Namespace

import shtab

from course_lm.cli.commands import COMMANDS, DEFAULT_CONFIG, make_parser, parsers_of_commands
from course_lm.cli.configured import configured_parser
from course_lm.config import TrainingConfig


def print_script(options: Namespace) -> int:
    """Print the script for the given `shell`; return 0."""
    parser = make_parser()
    commands, config = parsers_of_commands(parser), TrainingConfig.from_yaml(DEFAULT_CONFIG)
    for name in COMMANDS:
        if COMMANDS[name].text is not None:
            commands[name] = configured_parser(name, config)
        for action in commands[name]._actions:
            if action.dest == "text":
                vars(action)["complete"] = shtab.FILE
    print(shtab.complete(parser, options.shell))
    return 0
