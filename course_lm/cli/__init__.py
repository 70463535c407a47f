"""The command line: `course-lm lab | lessons | train | find-lr | plan | profile`.

Exit codes: 0 done, 1 the run failed, 2 bad input (one line says what), 130 or 143 interrupted and resumable.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

from course_lm import __version__
from course_lm.cli.parser import CommandParser

DEFAULT_CONFIG = "python-docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Of several ranks, rank 0 alone writes to standard output."""
    formatted, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    try:
        with _silent() if _follows() else nullcontext():
            options, rest = _parser().parse_known_args(arguments)
            return options.command(options, rest)
    # A loss or gradient that is not finite, too little memory, a rank that hangs: the input was good, the run failed.
    except (FloatingPointError, MemoryError, TimeoutError) as error:
        return _fail(f"error: {error}", 1)
    except (ValueError, OSError, ImportError) as error:
        return _fail(f"error: {error}", 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Exception as error:
        code = getattr(error, "exit_code", None)  # of RankError, whose module takes seconds to import
        if code is not None:
            return _fail(f"error: {error}", code)
        if _speaks():
            raise
        return 1
    finally:
        warnings.formatwarning = formatted


def _fail(text: str, code: int) -> int:
    if _speaks():
        print(f"course-lm: {' '.join(text.split())}", file=sys.stderr)
    return code


def _speaks() -> bool:
    """Whether this process prints an error: of the ranks that torchrun has started, the first that has one."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    from course_lm.distributed.joining import speaks_first

    return speaks_first()


def _follows() -> bool:
    """Whether this process is a rank other than 0, which says the same."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


@contextmanager
def _silent() -> Iterator[None]:
    """No output and no warnings; errors are printed all the same."""
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    """A warning without the line of code that it comes from, which helps nobody at a command line."""
    return f"course-lm: warning: {' '.join(str(message).split())}\n"


def _parser() -> CommandParser:
    """The commands. Each imports what it needs when it runs, so that `--help` need not wait for torch."""
    description = "The training loop of a language model, and the course that builds it."
    parser = CommandParser("course-lm", description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"course-lm {__version__}")
    commands = parser.add_subparsers(required=True)
    lab = commands.add_parser("lab", help="open the lessons in JupyterLab", allow_abbrev=False)
    lab.set_defaults(command=_lab, parser=lab)
    purpose = "run lessons from top to bottom, without a browser"
    lessons = commands.add_parser("lessons", help=purpose, allow_abbrev=False)
    lessons.add_argument("numbers", nargs="*", metavar="NN", help="lesson numbers; all of them by default")
    lessons.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    lessons.set_defaults(command=_lessons, parser=lessons)
    configured = (
        ("train", _train, "train a model on a text"),
        ("find-lr", _find_lr, "look for a learning rate"),
        ("plan", _plan, "what each of many processes would hold and send"),
        ("profile", _profile, "where the time and the memory of a step go"),
    )
    for name, command, purpose in configured:
        # Without help of its own: the parser of all keys, made once the file is read, shows the file's values.
        run = commands.add_parser(name, help=purpose, add_help=False, allow_abbrev=False)
        run.add_argument("--config", default=DEFAULT_CONFIG)
        run.set_defaults(command=command)
    return parser


def _lab(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.classroom.lessons import open_lab

    return open_lab()


def _lessons(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.classroom import lessons

    paths = lessons.lesson_paths(options.numbers or None)
    results = lessons.write(paths) if options.write else lessons.run(paths)
    return 1 if any(result.error for result in results) else 0


def _train(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.cli.options import config_parser, parse_config
    from course_lm.cli.train import train_on_text
    from course_lm.config import TrainingConfig

    config = TrainingConfig.from_yaml(options.config)
    # Twice parsed: --config first, since the file's values are the defaults that options override and --help shows.
    config, _ = parse_config(config_parser("course-lm train", config), config, rest)
    return train_on_text(config)


def _find_lr(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.cli.find_lr import find_lr_on_text
    from course_lm.cli.options import config_parser, parse_config
    from course_lm.config import TrainingConfig

    config = TrainingConfig.from_yaml(options.config)
    parser = config_parser("course-lm find-lr", config)
    sweep = parser.add_argument_group("the sweep")
    sweep.add_argument("--start_lr", type=float, default=1e-6, help="first learning rate [default: %(default)s]")
    sweep.add_argument("--end_lr", type=float, default=1.0, help="last learning rate [default: %(default)s]")
    sweep.add_argument("--num_iter", type=int, default=100, help="optimizer steps [default: %(default)s]")
    sweep.add_argument("--held_out", action="store_true", default=False, help="measure each point on held-out text")
    sweep.add_argument("--png", type=Path, default="lr_finder.png", help="file for the picture [default: %(default)s]")
    config, given = parse_config(parser, config, rest)
    return find_lr_on_text(
        config,
        given.png,
        start_lr=given.start_lr,
        end_lr=given.end_lr,
        num_iter=given.num_iter,
        held_out=given.held_out,
    )


def _plan(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.cli.options import config_parser, parse_config
    from course_lm.cli.plan import plan_run
    from course_lm.config import TrainingConfig

    config = TrainingConfig.from_yaml(options.config)
    parser = config_parser("course-lm plan", config)
    ranks = parser.add_argument_group("the ranks")
    ranks.add_argument("--ranks", type=int, required=True, help="processes of the run, one for each GPU")
    config, given = parse_config(parser, config, rest)
    return plan_run(config, given.ranks)


def _profile(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from course_lm.cli.options import config_parser, parse_config
    from course_lm.cli.profile import profile_run
    from course_lm.config import TrainingConfig

    config = TrainingConfig.from_yaml(options.config)
    parser = config_parser("course-lm profile", config)
    profiled = parser.add_argument_group("the profile")
    profiled.add_argument("--output", type=Path, default="profile", help="folder for its files [default: %(default)s]")
    profiled.add_argument("--repeats", type=int, default=5, help="steps that are measured [default: %(default)s]")
    config, given = parse_config(parser, config, rest)
    return profile_run(config, given.output, given.repeats)
