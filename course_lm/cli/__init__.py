"""The command line: `course-lm lab | lessons | train | find-lr`.

Exit codes: 0 done, 1 the run failed, 2 bad input (one line says what), 130 or 143 interrupted and resumable.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_lm import __version__

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from course_lm.config import TrainingConfig

DEFAULT_CONFIG = "python-docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command not in (_train, _find_lr):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    formatted, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    try:
        return options.command(options, rest)
    except (ValueError, OSError, ImportError) as error:
        return _fail(error, 2)
    except (FloatingPointError, MemoryError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("course-lm: interrupted", file=sys.stderr)
        return 130
    finally:
        warnings.formatwarning = formatted


def _fail(error: Exception, code: int) -> int:
    print(f"course-lm: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _one_line_warning(message: Warning | str, *place: object) -> str:
    """A warning without the line of code that it comes from, which helps nobody at a command line."""
    return f"course-lm: warning: {' '.join(str(message).split())}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course-lm", description="The training loop of a language model, and the course that builds it."
    )
    parser.add_argument("--version", action="version", version=f"course-lm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    lab = commands.add_parser("lab", help="open the lessons in JupyterLab")
    lab.set_defaults(command=_lab)
    lessons = commands.add_parser("lessons", help="run lessons from top to bottom, without a browser")
    lessons.add_argument("numbers", nargs="*", metavar="NN", help="lesson numbers; all of them by default")
    lessons.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    lessons.set_defaults(command=_lessons)
    configured = (("train", _train, "train a model on a text"), ("find-lr", _find_lr, "look for a learning rate"))
    for name, command, purpose in configured:
        run = commands.add_parser(name, help=purpose, add_help=False, allow_abbrev=False)
        run.add_argument("--config", default=DEFAULT_CONFIG)
        run.set_defaults(command=command)
    return parser


def _lab(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.classroom.lessons import open_lab

    return open_lab()


def _lessons(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.classroom import lessons

    paths = lessons.lesson_paths(options.numbers or None)
    results = lessons.write(paths) if options.write else lessons.run(paths)
    return 1 if any(result.error for result in results) else 0


def _train(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.cli.train import train_on_text
    from course_lm.config import config_parser

    return train_on_text(_config(config_parser(), options, rest))


def _find_lr(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.cli.find_lr import find_lr_on_text
    from course_lm.config import config_parser

    parser = config_parser()
    parser.prog = "course-lm find-lr"
    parser.add_argument("--start_lr", type=float, default=1e-6, help="first learning rate of the sweep")
    parser.add_argument("--end_lr", type=float, default=1.0, help="last learning rate of the sweep")
    parser.add_argument("--num_iter", type=int, default=100, help="optimizer steps of the sweep")
    parser.add_argument("--png", type=str, default="lr_finder.png", help="file for the picture")
    config = _config(parser, options, rest)
    sweep = parser.parse_args(list(rest))
    rates = {"start_lr": sweep.start_lr, "end_lr": sweep.end_lr}
    return find_lr_on_text(config, Path(sweep.png), **rates, num_iter=sweep.num_iter)


def _config(parser: "ArgumentParser", options: argparse.Namespace, rest: Sequence[str]) -> "TrainingConfig":
    from course_lm.config import find_config, parse_config, read_yaml

    source = find_config(options.config)
    parser.add_argument("--config", help=f"YAML file, or the name of a shipped one (default: {DEFAULT_CONFIG})")
    return parse_config(parser, read_yaml(source), str(source), rest)
