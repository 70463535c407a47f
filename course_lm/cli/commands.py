"""The table of commands: what each is for, the function that does it, and its arguments.

A command is added by a line in `COMMANDS`, with the function that adds its arguments. Neither the table nor the parser
loads torch, so that `course-lm --help` need not wait for it.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from course_lm import __version__
from course_lm.cli.parser import Arguments, CommandParser, not_empty, path, whole

DEFAULT_CONFIG = "python-docs"


class Command(NamedTuple):
    """A command.

    Attributes:
        purpose: what it is for, as `--help` says it.
        function: "module:name" in this package. It takes the arguments, after the configuration where there is one,
            and returns the exit code.
        add_arguments: adds what is the command's own to a parser, or to a group of one.
        text: of a command that takes every key of the configuration, how it takes a text: "TEXT", "[TEXT]" where that
            may be left out, "" where it takes none. None stands for a command without a configuration.
        aliases: other names.
    """

    purpose: str
    function: str
    add_arguments: Callable[[Arguments], None] = lambda parser: None
    text: str | None = None
    aliases: tuple[str, ...] = ()

    def load(self) -> Callable[..., int]:
        """The function; only now is its module imported, which may take seconds."""
        module, _, name = self.function.partition(":")
        return getattr(import_module(f"course_lm.cli.{module}"), name)


def make_parser() -> CommandParser:
    """The parser of all commands: what it parses has the name of one as `command`, and its parser as `parser`."""
    description = "The training loop of a language model, and the course that builds it."
    parser = CommandParser("course-lm", description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"course-lm {__version__}")
    commands = parser.add_subparsers(required=True)
    for name, (purpose, _, add_arguments, text, aliases) in COMMANDS.items():
        # Without help of its own where all keys come: the parser of these, which shows a file's values, has it.
        made = commands.add_parser(
            name, help=purpose, description=purpose, aliases=aliases, add_help=text is None, allow_abbrev=False
        )
        made.set_defaults(command=name, parser=made)
        if text is None:
            add_arguments(made)
        else:
            made.add_argument("--config", type=not_empty, default=DEFAULT_CONFIG)
    return parser


def parsers_of_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by the command's name and by its other names."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return commands.choices


def _add_lab(parser: Arguments) -> None:
    help = "lessons to copy anew; yours are kept under another name"
    parser.add_argument("--fresh", nargs="+", type=not_empty, default=[], metavar="NN", help=help)
    _add_workspace(parser)


def _add_workspace(parser: Arguments) -> None:
    help = "folder of the copies [default: workspace in a checkout, else course_lm_lessons in this folder]"
    parser.add_argument("--workspace", type=path, metavar="FOLDER", help=help)


def _add_progress(parser: Arguments) -> None:
    _add_workspace(parser)
    help = "also write a page to print, with the hash of each notebook: a new file that ends in .html"
    parser.add_argument("--page", type=path, metavar="FILE", help=help)
    help = "for a teacher: what the notebooks in FOLDER say, which holds one folder for each learner, as CSV"
    parser.add_argument("--csv", type=path, metavar="FOLDER", help=help)
    help = "with --csv: run the answers on this machine, with your rights, and have them checked anew"
    parser.add_argument("--rerun", action="store_true", default=False, help=help)


def _add_release(parser: Arguments) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", help="a new or empty folder")


def _add_lessons(parser: Arguments) -> None:
    help = "lesson numbers; all of them by default"
    parser.add_argument("numbers", nargs="*", type=not_empty, metavar="NN", help=help)
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")


def _add_sweep(parser: Arguments) -> None:
    parser.add_argument("--start_lr", type=float, default=1e-6, help="first learning rate [default: %(default)s]")
    parser.add_argument("--end_lr", type=float, default=1.0, help="last learning rate [default: %(default)s]")
    parser.add_argument("--num_iter", type=int, default=100, help="optimizer steps [default: %(default)s]")
    parser.add_argument("--held_out", action="store_true", default=False, help="measure each point on held-out text")
    _add_png(parser, "lr_finder.png")


def _add_png(parser: Arguments, default: str) -> None:
    parser.add_argument("--png", type=path, default=default, help="file for the picture [default: %(default)s]")


def _add_json(parser: Arguments) -> None:
    parser.add_argument("--json", action="store_true", default=False, help="print all of it as JSON")


def _add_ranks(parser: Arguments) -> None:
    parser.add_argument("--ranks", type=int, required=True, help="processes of the run, one for each GPU")


def _add_profile(parser: Arguments) -> None:
    parser.add_argument("--output", type=path, default="profile", help="folder for its files [default: %(default)s]")
    parser.add_argument("--repeats", type=int, default=5, help="steps that are measured [default: %(default)s]")


# What `settings` has, of spec.Settings, whose module takes seconds to import.
SETTINGS = {
    "optimizer": '"sgd", "adam" (both with coupled decay) or "adamw"',
    "schedule": "schedule(k), the learning rate after k steps; a loop that has none must declare it",
    "beta1": "decay of the first moment of Adam and AdamW",
    "beta2": "decay of their second moment",
    "epsilon": "added to the root of the second moment",
    "weight_decay": "of matrices alone",
    "momentum": "of SGD, in torch's form",
    "accumulation_steps": "micro-batches of one optimizer step",
    "max_grad_norm": "bound on the norm of the gradient; None does not clip",
    "loss_scale": "factor of the loss, of which the gradient is freed before it is clipped",
    "overflow_steps": "windows, counted from 0, whose scaled gradient overflows: each makes no step",
    "on_nonfinite": '"raise" or "skip", for a gradient that is not finite for another reason',
    "validation": "batches to validate on after each epoch",
    "eos_id": "the end-of-text token; the specification alone needs it",
}


def _add_audit(parser: Arguments) -> None:
    help = "the loop, called as loop(model, epochs, settings)"
    parser.add_argument("target", type=not_empty, metavar="FILE.py:FUNCTION", help=help)
    adapters = ("step_function", "huggingface", "lightning")
    parser.add_argument("--adapter", choices=adapters, help="what makes a loop of FUNCTION, which then is none itself")
    help, precisions = "of the model's numbers [default: %(default)s]", ("float64", "float32", "bf16")
    parser.add_argument("--precision", choices=precisions, default="float64", help=help)
    parser.add_argument("--parts", nargs="+", metavar="PART", help="parts of a loop to look at; all of them by default")
    help = "processes that the loop runs in, each with all batches: it takes its share [default: %(default)s]"
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help=help)
    help = "stop it after each step: it is called as loop(model, epochs, settings, folder, stop_after)"
    parser.add_argument("--resume", action="store_true", help=help)
    assert isinstance(parser, argparse.ArgumentParser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # one line for each setting
    lines = [f"  {name:<18}  {what}" for name, what in SETTINGS.items()]
    parser.epilog = "\n".join(["settings, the third argument of the loop, has:", *lines])
    _add_json(parser)


def _add_speedrun(parser: Arguments) -> None:
    help = "the entry, called as entry(new_model, batches, budget)"
    parser.add_argument("target", type=not_empty, metavar="FILE.py:FUNCTION", help=help)
    parser.add_argument("--seed", type=int, default=0, help="of weights and data [default: %(default)s]")
    help = "of the training [default: 1e12]"
    parser.add_argument("--flops", type=whole, metavar="N", help=help)


def _add_runs(parser: Arguments) -> None:
    parser.add_argument("folder", nargs="?", default="runs", type=path, help="where they lie [default: %(default)s]")
    _add_json(parser)


def _add_plot(parser: Arguments) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs, or their names in runs/")
    _add_png(parser, "plot.png")
    _add_json(parser)


def _add_run(parser: Arguments) -> None:
    parser.add_argument("run", metavar="RUN", help="folder of a finished run, such as runs/my-lm")


def _add_generate(parser: Arguments) -> None:
    _add_run(parser)
    help = "how the text begins; - reads it from standard input, as a pipe does; without one a document begins"
    parser.add_argument("--prompt", metavar="TEXT", help=help)
    help = "tokens at most [default: %(default)s]"
    parser.add_argument("--max_new_tokens", type=int, default=200, metavar="N", help=help)
    help = "divides the logits; 0 takes the most probable token [default: %(default)s]"
    parser.add_argument("--temperature", type=float, default=0.8, help=help)
    parser.add_argument("--top_k", type=int, metavar="K", help="draw among the K most probable tokens only")
    help = "draw among the fewest tokens that together have the probability P"
    parser.add_argument("--top_p", type=float, metavar="P", help=help)
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same text [default: %(default)s]")
    help = "texts, divided by blank lines [default: %(default)s]"
    parser.add_argument("--number", type=int, default=1, metavar="N", help=help)


def _add_evaluate(parser: Arguments) -> None:
    _add_run(parser)
    help = "another text, of which all documents count; the same as --data.corpus"
    parser.add_argument("text", nargs="?", metavar="TEXT", help=help)
    help = "part of the run's own text [default: test where the run has one, else validation]"
    parser.add_argument("--split", choices=("train", "validation", "test"), help=help)
    help = "another text, of which all documents count"
    parser.add_argument("--data.corpus", dest="corpus", metavar="CORPUS", help=help)
    help = "rows in a batch [default: the run's]"
    parser.add_argument("--training.batch_size", dest="batch_size", type=int, metavar="N", help=help)
    help, precisions = "of the forward pass [default: the run's]", ("auto", "fp32", "bf16", "fp16")
    parser.add_argument("--training.precision", dest="precision", choices=precisions, help=help)
    help, devices = "what computes [default: the run's, where this machine has it]", ("auto", "cpu", "cuda", "mps")
    parser.add_argument("--training.device", dest="device", choices=devices, help=help)
    _add_json(parser)


def _add_export(parser: Arguments) -> None:
    _add_run(parser)
    help = "a new or empty folder, or that of an earlier export"
    parser.add_argument("--to", type=path, required=True, metavar="FOLDER", help=help)


def _add_completion(parser: Arguments) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that is to run the script")


COMMANDS: dict[str, Command] = {
    "lab": Command("open your copies of the lessons in JupyterLab", "lessons:open_copies", _add_lab),
    "progress": Command("which exercises of your copies are solved", "lessons:show_progress", _add_progress),
    "release": Command("write the lessons without their solutions, for a class", "lessons:write_release", _add_release),
    "lessons": Command("run lessons from top to bottom, without a browser", "lessons:run_lessons", _add_lessons),
    "train": Command("train a model on a text", "train:train_on_text", text="[TEXT]"),
    "find-lr": Command("look for a learning rate", "find_lr:find_lr_on_text", _add_sweep, "[TEXT]"),
    "plan": Command("what each of many processes would hold and send", "plan:plan_run", _add_ranks, ""),
    "profile": Command("where the time and the memory of a step go", "profile:profile_run", _add_profile, "[TEXT]"),
    "inspect": Command("what is wrong with a text, before one trains on it", "inspect:inspect_text", _add_json, "TEXT"),
    "preflight": Command(
        "what would spoil a run, tried before it: 0 go, 1 something is wrong", "preflight:check_run", text="[TEXT]"
    ),
    "audit": Command(
        "compare a training loop with the specification: 0 sound, 1 unsound, 3 crashed: could not be compared",
        "audit:audit_file",
        _add_audit,
    ),
    "speedrun": Command(
        "how near a sound loop comes to the floor with so many FLOPs", "speedrun:run_file", _add_speedrun
    ),
    "runs": Command("a table of all runs in a folder", "runs:list_runs", _add_runs),
    "plot": Command(
        "runs in one picture and one table, with differences to the first",
        "runs:plot_runs",
        _add_plot,
        aliases=("compare",),
    ),
    "generate": Command("continue a text with a trained model", "generate:generate_text", _add_generate),
    "evaluate": Command("measure a trained model on a text", "evaluate:evaluate_run", _add_evaluate),
    "export": Command("write a folder that opens with Hugging Face's transformers", "export:export_run", _add_export),
    "completion": Command(
        "print a script that lets the shell complete commands and options",
        "completion:print_script",
        _add_completion,
    ),
}
