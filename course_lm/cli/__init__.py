"""The command line: for the lessons `course-lm lab | progress | release | lessons`, for a training loop `train |
find-lr | plan | profile | audit | speedrun`, to look at texts and runs `inspect | preflight | runs | plot`, to use a
trained model `generate | evaluate | export`, and `completion` for a shell. `commands.py` is the table of them.

Exit codes: 0 done, 1 the run failed, 2 bad input (one line says what); interrupted and resumable: 128 and the number of
the signal, 130 for Ctrl-C, 143 for SIGTERM, 129 for a terminal that was closed.
"""

import errno
import gc
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from typing import Any, NoReturn

from course_lm.cli.commands import COMMANDS, make_parser
from course_lm.cli.output import outlast
from course_lm.validation import named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Of several ranks, rank 0 alone writes to standard output."""
    formatted, warnings.formatwarning = warnings.formatwarning, _one_line_warning
    code = 0
    shown: AbstractContextManager[Any] = nullcontext()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a notebook has another kind
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that its encoding lacks come as escapes
        if sys.stdout.isatty():
            shown = redirect_stdout(_Terminal(sys.stdout))
    outlast(sys.stderr)
    try:
        with shown, _silent() if _follows() else nullcontext():
            try:
                code = read_arguments(arguments)()
            except SystemExit as end:  # of --help and --version
                code = int(end.code or 0)
            print(end="", flush=True)
            return code
    # A loss or gradient that is not finite, too little memory, a rank that hangs: the input was good, the run failed.
    except (FloatingPointError, MemoryError, TimeoutError) as error:
        return _fail(_told(error), 1)
    except (ValueError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and not _notes(error):  # nobody reads on, as after `| head`
            return code  # of an audit it is the verdict
        return _fail(_told(error), 2)
    except KeyboardInterrupt as error:
        return _fail("; ".join(["interrupted", *_notes(error)]), 130)
    except Exception as error:
        of_rank = getattr(error, "exit_code", None)  # of RankError, whose module takes seconds to import
        if of_rank is not None:
            return _fail(_told(error), of_rank)
        # What nobody foresaw, named by its class, and by its place where no run has said what it has saved.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if _notes(error) else f" ({place.filename}, line {place.lineno})"
        return _fail(_told(error, f"{named(error)}{where}"), 1)
    finally:
        warnings.formatwarning = formatted
        outlast(sys.stdout)  # Python flushes it once more when it ends, and would then complain


def run() -> NoReturn:
    """Run the command that the process was started for; end the process with its exit code."""
    code = main()
    joining = sys.modules.get("course_lm.distributed.joining")
    # Not by the interpreter's own end where it meets threads of torch's connections, which now and then abort the
    # process ("terminate called without an active exception") after all its work is done. Nor where a file was audited:
    # it may leave a thread that never ends, or with `atexit` a function that changes the exit code.
    if "course_lm.cli.audit" in sys.modules or (joining is not None and joining.joined_group() is not None):
        print(end="", flush=True)
        print(end="", flush=True, file=sys.stderr)
        os._exit(code)
    sys.exit(code)


class _Terminal:
    """A terminal that shows as an escape, such as \\x1b, what it would obey: a text or a model may hold anything."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self.stream, self.flush = stream, stream.flush

    def __getattr__(self, name: str) -> Any:
        """What else a stream has, such as its encoding."""
        return getattr(self.stream, name)

    def write(self, text: str, /) -> int:
        return self.stream.write(_escaped(text))


def _escaped(text: str) -> str:
    """The text with control characters, but for tabs and line ends, and changes of direction as escapes."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def read_arguments(arguments: Sequence[str] | None) -> Callable[[], int]:
    """What the arguments of a command line ask for, to be called.

    Raises:
        ValueError, OSError: bad arguments, or a configuration that cannot be read.
        SystemExit: `--help` or `--version`, which is printed.
    """
    options, rest = make_parser().parse_known_args(arguments)
    command = COMMANDS[options.command]
    if command.text is None:
        options.parser.refuse(rest)
        return partial(command.load(), options)
    with _uncollected():
        from course_lm.cli.configured import configured  # loads torch

        # Parsed once more: the values of the file are the defaults that options override and --help shows.
        config, given = configured(options.command, options.config, rest)
    return partial(command.load(), config, given)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of garbage, which would take a third of the time that `--help` has.

    It would go through all that torch is made of while that is imported, and once more where `--help` ends the process.
    """
    gc.disable()
    try:
        yield
    except SystemExit:
        gc.freeze()
        raise
    finally:
        gc.enable()


def _notes(error: BaseException) -> Sequence[str]:
    """What was added to the error, such as what was saved before it."""
    return getattr(error, "__notes__", ())


def _told(error: Exception, text: str = "") -> str:
    text = text or str(error).strip() or type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    if number in _UNNAMED and text == f"[Errno {number}] {os.strerror(number)}":  # a file would be named
        text = f"{text}: {_UNNAMED[number]}"
    return "; ".join([f"error: {text}", *_notes(error)])


_STREAM = "standard output, or standard input"
_UNNAMED = {errno.ENOENT: "the current folder", errno.ENOSPC: _STREAM, errno.EISDIR: _STREAM}


def _fail(text: str, code: int) -> int:
    if _speaks():
        print(f"course-lm: {_escaped(' '.join(text.split()))}", file=sys.stderr)
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
    return f"course-lm: warning: {_escaped(' '.join(str(message).split()))}\n"
