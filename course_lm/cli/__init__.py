"""The command line: for the lessons `course-lm lab | progress | lessons`, for a training loop `train | find-lr | plan |
profile | audit`, to look at texts and runs `inspect | runs | compare | plot`, to use a trained model `generate |
evaluate | export`, and `completion` for a shell.

Exit codes: 0 done, 1 the run failed, 2 bad input (one line says what), 130 or 143 interrupted and resumable.
"""

import argparse
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

from course_lm import __version__
from course_lm.cli.parser import CommandParser, home_path, not_empty, path

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
        return _fail(_told(error), 1)
    except (ValueError, OSError, ImportError) as error:
        return _fail(_told(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except Exception as error:
        code = getattr(error, "exit_code", None)  # of RankError, whose module takes seconds to import
        if code is not None:
            return _fail(_told(error), code)
        if getattr(error, "__notes__", ()):  # a run has saved what it had done: see `Trainer`
            return _fail(_told(error), 1)
        if _speaks():
            raise
        return 1
    finally:
        warnings.formatwarning = formatted


def _told(error: Exception) -> str:
    """The error and its notes, such as what was saved before it."""
    return "; ".join([f"error: {error}", *getattr(error, "__notes__", ())])


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
    _add_lab(commands)
    purpose = "run lessons from top to bottom, without a browser"
    lessons = commands.add_parser("lessons", help=purpose, allow_abbrev=False)
    purpose = "lesson numbers; all of them by default"
    lessons.add_argument("numbers", nargs="*", type=not_empty, metavar="NN", help=purpose)
    lessons.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    lessons.set_defaults(command=_lessons, parser=lessons)
    for name, (command, purpose) in CONFIGURED.items():
        # Without help of its own: the parser of all keys, made once the file is read, shows the file's values.
        run = commands.add_parser(name, help=purpose, add_help=False, allow_abbrev=False)
        run.add_argument("--config", type=not_empty, default=DEFAULT_CONFIG)
        run.set_defaults(command=command)
    _add_audit(commands)
    _add_runs(commands)
    _add_generate(commands)
    _add_evaluate(commands)
    _add_export(commands)
    purpose = "print a script that lets the shell complete commands and options"
    completion = commands.add_parser("completion", help=purpose, description=purpose, allow_abbrev=False)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that is to run the script")
    completion.set_defaults(command=_completion, parser=completion)
    return parser


def _add_lab(commands: Any) -> None:
    lab = commands.add_parser("lab", help="open your copies of the lessons in JupyterLab", allow_abbrev=False)
    purpose = "lessons to copy anew; yours are kept under another name"
    lab.add_argument("--fresh", nargs="+", type=not_empty, default=[], metavar="NN", help=purpose)
    lab.set_defaults(command=_lab, parser=lab)
    purpose = "which exercises of your copies are solved"
    progress = commands.add_parser("progress", help=purpose, description=purpose, allow_abbrev=False)
    progress.set_defaults(command=_progress, parser=progress)
    for parser in (lab, progress):
        purpose = "folder of the copies [default: workspace in a checkout, else course_lm_lessons in this folder]"
        parser.add_argument("--workspace", type=home_path, metavar="FOLDER", help=purpose)


def _add_audit(commands: Any) -> None:
    purpose = "compare a training loop with the specification: 0 sound, 1 unsound"
    audit = commands.add_parser("audit", help=purpose, allow_abbrev=False)
    purpose = "the loop, called as loop(model, epochs, settings)"
    audit.add_argument("target", type=not_empty, metavar="FILE.py:FUNCTION", help=purpose)
    adapters = ("step_function", "huggingface", "lightning")
    audit.add_argument("--adapter", choices=adapters, help="what makes a loop of FUNCTION, which then is none itself")
    precisions = ("float64", "float32", "bf16")
    audit.add_argument(
        "--precision", choices=precisions, default="float64", help="of the model's numbers [default: %(default)s]"
    )
    audit.add_argument("--parts", nargs="+", metavar="PART", help="parts of a loop to look at; all of them by default")
    audit.add_argument("--json", action="store_true", help="print the report as JSON")
    audit.set_defaults(command=_audit, parser=audit)


def _add_runs(commands: Any) -> None:
    runs = commands.add_parser("runs", help="a table of all runs in a folder", allow_abbrev=False)
    runs.add_argument("folder", nargs="?", default="runs", type=path, help="where they lie [default: %(default)s]")
    runs.add_argument("--json", action="store_true", help="print the table as JSON")
    runs.set_defaults(command=_runs, parser=runs)
    purpose = "runs in one picture and one table, with differences to the first"
    compare = commands.add_parser("compare", help=purpose, allow_abbrev=False)
    compare.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs, or their names in runs/")
    compare.add_argument("--png", type=path, default="compare.png", help="file of the picture [default: %(default)s]")
    compare.add_argument("--json", action="store_true", help="print the table as JSON")
    compare.set_defaults(command=_compare, parser=compare)
    plot = commands.add_parser("plot", help="the curves of one run, from its log", allow_abbrev=False)
    plot.add_argument("run", metavar="RUN", help="the folder of a run, or its name in runs/")
    plot.add_argument("--png", type=path, default="plot.png", help="file of the picture [default: %(default)s]")
    plot.set_defaults(command=_plot, parser=plot)


def _add_run(commands: Any, name: str, purpose: str) -> CommandParser:
    """A command on a finished run, which its first argument names."""
    parser = commands.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run, such as runs/my-lm")
    return parser


def _add_generate(commands: Any) -> None:
    generate = _add_run(commands, "generate", "continue a text with a trained model")
    generate.add_argument(
        "--prompt",
        metavar="TEXT",
        help="how the text begins; - reads it from standard input, as a pipe does; without one a document begins",
    )
    generate.add_argument(
        "--max_new_tokens", type=int, default=200, metavar="N", help="tokens at most [default: %(default)s]"
    )
    generate.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="divides the logits; 0 takes the most probable token [default: %(default)s]",
    )
    generate.add_argument("--top_k", type=int, metavar="K", help="draw among the K most probable tokens only")
    generate.add_argument(
        "--top_p", type=float, metavar="P", help="draw among the fewest tokens that together have the probability P"
    )
    generate.add_argument(
        "--seed", type=int, default=0, help="the same seed draws the same text [default: %(default)s]"
    )
    generate.add_argument(
        "--number", type=int, default=1, metavar="N", help="texts, divided by blank lines [default: %(default)s]"
    )
    generate.set_defaults(command=_generate, parser=generate)


def _add_evaluate(commands: Any) -> None:
    evaluate = _add_run(commands, "evaluate", "measure a trained model on a text")
    evaluate.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        help="part of the run's own text [default: test where the run has one, else validation]",
    )
    evaluate.add_argument(
        "--data.corpus", dest="corpus", metavar="CORPUS", help="another text, of which all documents count"
    )
    evaluate.add_argument(
        "--training.batch_size", dest="batch_size", type=int, metavar="N", help="rows in a batch [default: the run's]"
    )
    evaluate.add_argument(
        "--training.precision",
        dest="precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        help="of the forward pass [default: the run's]",
    )
    evaluate.add_argument(
        "--training.device",
        dest="device",
        choices=("auto", "cpu", "cuda", "mps"),
        help="what computes [default: the run's, where this machine has it]",
    )
    evaluate.add_argument("--json", action="store_true", help="print the numbers as JSON")
    evaluate.set_defaults(command=_evaluate, parser=evaluate)


def _add_export(commands: Any) -> None:
    export = _add_run(commands, "export", "write a folder that opens with Hugging Face's transformers")
    export.add_argument(
        "--to", required=True, metavar="FOLDER", help="a new or empty folder, or that of an earlier export"
    )
    export.set_defaults(command=_export, parser=export)


def _lab(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.classroom.lessons import open_lab

    return open_lab(options.workspace, options.fresh)


def _progress(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.classroom.progress import format_table, read_progress
    from course_lm.classroom.workspace import find_workspace, lesson_paths

    print(format_table(read_progress(find_workspace(options.workspace), lesson_paths())))
    return 0


def _audit(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.audit import audit_file

    return audit_file(options.target, options.adapter, options.precision, options.parts, options.json)


def _runs(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.runs import list_runs

    return list_runs(options.folder, options.json)


def _compare(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.runs import compare_runs

    return compare_runs(options.runs, options.png, options.json)


def _plot(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.runs import plot_run

    return plot_run(options.run, options.png)


def _generate(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.generate import generate_text
    from course_lm.generate import Sampling

    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    return generate_text(options.run, options.prompt, options.max_new_tokens, sampling, options.seed, options.number)


def _evaluate(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.evaluate import evaluate_run

    training = {key: getattr(options, key) for key in ("batch_size", "precision", "device")}
    given = {key: value for key, value in training.items() if value is not None}
    return evaluate_run(options.run, options.split, options.corpus, {"training": given}, options.json)


def _export(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.cli.export import export_run

    return export_run(options.run, options.to)


def _lessons(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    from course_lm.classroom import lessons
    from course_lm.classroom.progress import exercises_in
    from course_lm.classroom.workspace import lesson_paths

    paths = lesson_paths(options.numbers or None)
    for lesson in paths:
        exercises_in(lesson)  # refuses what is no notebook, before any is run
    results = lessons.write(paths) if options.write else lessons.run(paths)
    return 1 if any(result.error for result in results) else 0


def _train(options: argparse.Namespace, rest: Sequence[str]) -> int:
    # Twice parsed: --config first, since the file's values are the defaults that options override and --help shows.
    config, _ = _configured("train", options, rest)
    from course_lm.cli.train import train_on_text  # only now: --help does without it, here and below

    return train_on_text(config)


def _find_lr(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config, given = _configured("find-lr", options, rest)
    from course_lm.cli.find_lr import find_lr_on_text

    return find_lr_on_text(
        config,
        given.png,
        start_lr=given.start_lr,
        end_lr=given.end_lr,
        num_iter=given.num_iter,
        held_out=given.held_out,
    )


def _inspect(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config, given = _configured("inspect", options, rest)
    from course_lm.cli.inspect import inspect_text

    return inspect_text(config, given.json)


def _plan(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config, given = _configured("plan", options, rest)
    from course_lm.cli.plan import plan_run

    return plan_run(config, given.ranks)


def _profile(options: argparse.Namespace, rest: Sequence[str]) -> int:
    config, given = _configured("profile", options, rest)
    from course_lm.cli.profile import profile_run

    return profile_run(config, given.output, given.repeats)


def _configured(name: str, options: argparse.Namespace, rest: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """The configuration that the arguments of a command ask for, and what it was given besides."""
    with _uncollected():
        from course_lm.cli.options import parse_config
        from course_lm.cli.text import with_text
        from course_lm.config import TrainingConfig, shipped_configs

        # A file of the user's is laid over the default job, as options are: the same line in it is the same experiment.
        shipped = options.config in shipped_configs()
        base = TrainingConfig.from_yaml(options.config if shipped else DEFAULT_CONFIG)

        def read(base: TrainingConfig) -> tuple[TrainingConfig, argparse.Namespace]:
            own = base if shipped else TrainingConfig.from_yaml(options.config, base)
            return parse_config(_configured_parser(name, own), own, rest)

        config, given = read(base)
        if config.training.init_from is not None:
            from course_lm.trainer.init_from import check_sizes, settings_from

            sizes = settings_from(config.training.init_from)
            config, given = read(base.updated(sizes, f"training.init_from {config.training.init_from}"))
            check_sizes(config, sizes)
        # in Python, what a file leaves out has the defaults of the classes
        alone, laid_over = (TrainingConfig.from_yaml(options.config, over) for over in (None, base))
        if not (shipped or _follows() or alone == laid_over):
            place = sys.stderr if getattr(given, "json", False) else sys.stdout
            print(f"what {options.config} leaves out is that of the shipped configuration {DEFAULT_CONFIG}", file=place)
        return with_text(config, given, base, options.config), given


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of garbage, which would take a third of the time that `--help` has.

    It would go through all that torch is made of while that is imported, and once more where `--help` ends the process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    except SystemExit:
        gc.freeze()
        raise
    finally:
        if enabled:
            gc.enable()


def _configured_parser(name: str, config: Any) -> CommandParser:
    """The parser of a command that takes every key of the configuration, with the command's own options."""
    from course_lm.cli.options import config_parser

    parser = config_parser(f"course-lm {name}", config, _TEXT.get(name))
    match name:
        case "find-lr":
            own = parser.add_argument_group("the sweep")
            own.add_argument("--start_lr", type=float, default=1e-6, help="first learning rate [default: %(default)s]")
            own.add_argument("--end_lr", type=float, default=1.0, help="last learning rate [default: %(default)s]")
            own.add_argument("--num_iter", type=int, default=100, help="optimizer steps [default: %(default)s]")
            own.add_argument(
                "--held_out", action="store_true", default=False, help="measure each point on held-out text"
            )
            own.add_argument(
                "--png", type=path, default="lr_finder.png", help="file for the picture [default: %(default)s]"
            )
        case "inspect":
            own = parser.add_argument_group("the report")
            own.add_argument("--json", action="store_true", default=False, help="print all counts and findings as JSON")
        case "plan":
            own = parser.add_argument_group("the ranks")
            own.add_argument("--ranks", type=int, required=True, help="processes of the run, one for each GPU")
        case "profile":
            own = parser.add_argument_group("the profile")
            own.add_argument(
                "--output", type=path, default="profile", help="folder for its files [default: %(default)s]"
            )
            own.add_argument("--repeats", type=int, default=5, help="steps that are measured [default: %(default)s]")
    return parser


# How the commands that read a text take it: it may be left out, or not.
_TEXT = {"train": "[TEXT]", "find-lr": "[TEXT]", "profile": "[TEXT]", "inspect": "TEXT"}


def _completion(options: argparse.Namespace, rest: Sequence[str]) -> int:
    options.parser.refuse(rest)
    import shtab

    from course_lm.config import TrainingConfig

    parser = _parser()
    commands = parsers_of_commands(parser)
    config = TrainingConfig.from_yaml(DEFAULT_CONFIG)
    for name in CONFIGURED:
        commands[name] = _configured_parser(name, config)
        for action in commands[name]._actions:
            if action.dest == "text":
                vars(action)["complete"] = shtab.FILE
    print(shtab.complete(parser, options.shell))
    return 0


def parsers_of_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by the command's name."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return commands.choices


CONFIGURED = {
    "train": (_train, "train a model on a text"),
    "find-lr": (_find_lr, "look for a learning rate"),
    "plan": (_plan, "what each of many processes would hold and send"),
    "profile": (_profile, "where the time and the memory of a step go"),
    "inspect": (_inspect, "what is wrong with a text, before one trains on it"),
}  # commands that take every key of the configuration
