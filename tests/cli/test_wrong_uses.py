"""Claims about wrong uses: a command refuses each of them in one line that says what was wrong, and changes no file.

A use is the command's arguments as they stand in a shell; after them comes what the line must hold.
"""

import argparse
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lm.classroom import lessons, workspace
from course_lm.cli.commands import COMMANDS
from tests.cli.answers import assert_refused
from tests.cli.small_course import make_course
from tests.cli.small_runs import write_text

# Arguments that a command takes; to these comes what it refuses. Of several commands with one way to read an argument,
# the table below has the wrong uses of one.
RIGHT = {
    "release": "new",
    "train": "text.txt",
    "find-lr": "text.txt",
    "plan": "--ranks=2",
    "profile": "text.txt",
    "inspect": "text.txt",
    "audit": "loops.py:sound",
    "speedrun": "loops.py:sound",
    "plot": "toy",
    "generate": "toy",
    "evaluate": "toy",
    "export": "toy --to=new",
    "completion": "bash",
}
WRONG: dict[str, list[tuple[str, ...]]] = {
    "lab": [
        ("--fresh 99", "there is no lesson '99'; there are 00, 01"),
        ("--fresh 00 zero", "there is no lesson 'zero'"),
        ("--fresh -1", "there is no lesson '-1'"),
        ("--workspace notes.txt", "must be a folder", "notes.txt"),
        ("--workspace notes.txt/deep", "notes.txt/deep"),
        ("--workspace course", "another folder than the course's own"),
        ("--workspace ~nobody-has-this-name/course", "no home folder for ~nobody-has-this-name/course"),
        ("--workspace spoilt", "spoilt/.course_lm.json is damaged"),
    ],
    "progress": [
        ("--workspace nowhere", "nowhere", "course-lm lab makes them"),
        ("--workspace copies", "copies/notebooks/01_second.ipynb is no notebook that can be read"),
        ("--page notes.txt", "--page must be a new file that ends in .html, got notes.txt"),
        ("--page printed.html", "--page must be a new file that ends in .html, got printed.html"),
        ("--page nodir/new.html", "--page must lie in a folder that is there, got nodir/new.html"),
        ("--csv nowhere", "nowhere must be a folder that holds one folder for each learner"),
        ("--csv notes.txt", "notes.txt must be a folder"),
        ("--csv bare", "no folder in bare holds a lesson, such as LEARNER/notebooks/00_first.ipynb"),
        ("--csv copies", "copies is the folder of one learner; give the one that holds it"),
        ("--csv bare --page new.html", "--csv goes with neither --page nor --workspace"),
        ("--csv bare --workspace copies", "--csv goes with neither --page nor --workspace"),
        ("--rerun", "--rerun needs --csv FOLDER"),
    ],
    "release": [
        ("", "required", "FOLDER"),
        ("notes.txt", "must be a folder, got the file", "notes.txt"),
        ("copies", "the folder must be new or empty", "copies"),
        ("course", "another folder than the course's own"),
        ("notes.txt/new", "notes.txt/new must be a folder, got the file", "notes.txt"),
    ],
    "lessons": [
        ("99", "there is no lesson '99'; there are 00, 01, 02"),
        ("''", "must not be empty"),
        ("notebooks/00_first.ipynb", "there is no lesson 'notebooks/00_first.ipynb'"),
        ("00 02 --write", "02_torn.ipynb is no notebook that can be read"),
    ],
    "train": [
        ("text.txt more.txt", "unrecognized argument more.txt", "several are a glob in quotation marks"),
        ("nowhere.txt", "there is no file nowhere.txt"),
        ("--data.corpus=storys", "'storys'", "stories", "python-docs"),
        ("bare", "bare is a folder", "bare/*.txt"),
        ("empty.txt", "empty.txt", "empty"),
        ("blank.txt", "blank.txt", "empty"),
        ("latin.txt", "latin.txt", "0xe9", "offset 14"),
        ("short.txt", "split", "val_fraction"),
        ("-", "a text on standard input can be read only once; write it to a file"),
        ("text.txt --training.output_dir=~nobody-has-this-name/runs", "no home folder for ~nobody-has-this-name/runs"),
        ("'*.md'", "no file matches *.md"),
        ("''", "data.corpus must be a name", "got ''"),
        ("runs/toy/checkpoint_last.safetensors", "checkpoint_last.safetensors is not UTF-8 text"),
        ("text.txt --data.corpus=stories", "TEXT is 'text.txt' and --data.corpus 'stories'", "give one of them"),
        ("text.txt --data.vocab_size=50000", "vocab_size", "50000", "merges for"),
        ("--data.batching=paked", "data.batching must be one of", "'paked'; did you mean packed?"),
        ("--data.val_fraction=0.5 --data.test_fraction=0.5", "data.test_fraction must be in [0, 0.5)", "got 0.5"),
        ("--data.corpsu my.txt", "did you mean --data.corpus?"),
        ("--training.batch_size", "training.batch_size", "expected one argument"),
        ("--training.output_dir=notes.txt/deep", "cannot write into notes.txt/deep/", "notes.txt is no folder"),
        ("text.txt --config=small.yaml --training.device=cuda", "training.device", "'cuda'", "it has"),
        ("text.txt --lr_scheduler.min_lr=5", "min_lr must be at most the peak learning rate 0.02, got 5"),
        ("--training.max_steps=3 --lr_scheduler.warmup_steps=5", "warmup_steps must be at most", "3 steps, got 5"),
        ("--confi tiny", "--confi", "did you mean --config?"),
        ("--config", "--config", "expected one argument"),
        ("--config=", "--config", "must not be empty"),
        ("--config=tny", "no configuration tny", "did you mean tiny?"),
        ("--config=nowhere.yaml", "nowhere.yaml", "python-docs"),
        ("--config=bare", "no configuration bare"),
        ("--config=torn.yaml", "torn.yaml", "not a YAML file"),
        ("--config=latin.txt", "latin.txt is not a YAML file", "0xe9"),
        ("--config=zero.yaml", "zero.yaml", "training.batch_size", "got 0"),
        ("--config=notes.txt", "notes.txt", "keys and values", "my notes"),
        ("--config=runs/strange/config.yaml", "runs/strange/config.yaml is not a YAML file"),
    ],
    "find-lr": [
        ("text.txt --start_lr=0", "start_lr must be a positive number, got 0"),
        ("text.txt --png=nowhere/picture.png", "nowhere", "picture.png"),
        ("text.txt --png=bare", "cannot write bare: it is a folder"),
    ],
    "plan": [
        ("--ranks=0", "error: ranks must be a whole number of at least 1, got 0"),
        ("--ranks=2 my.txt", "unrecognized argument my.txt"),
        ("--ranks=4 --distributed.strategy=hybrid", "command line: distributed.shard_size must be "),
        (
            "--ranks=4 --distributed.strategy=fsdp --optimizer.type=adafactor",
            "error: optimizer must be one that torch can shard, for fsdp, got 'adafactor'",
        ),
        (
            "--ranks=4 --curriculum.enabled=true --training.num_epochs=1 --curriculum.warmup_epochs=3",
            "error: curriculum.",
        ),
    ],
    "profile": [
        ("text.txt --repeats=0", "--repeats must be at least 1, got 0"),
        ("text.txt --output=notes.txt/deep", "cannot write into notes.txt/deep: notes.txt is no folder"),
        ("text.txt --training.compile=true", "training.compile must be false"),
    ],
    "inspect": [
        ("", "required: TEXT"),
        ("text.txt --data.corpus=stories", "data.corpus", "TEXT"),
    ],
    "preflight": [("small.yaml", "small.yaml is read as a text: give a configuration as --config")],
    "audit": [
        ("''", "FILE.py:FUNCTION", "must not be empty"),
        ("loops.py", "the target must be FILE.py:FUNCTION, got loops.py"),
        ("loops.py:", "the target must be FILE.py:FUNCTION, got loops.py:"),
        ("none.py:train", "no such file: none.py"),
        ("folder.py:train", "no such file: folder.py"),
        ("notes.txt:train", "a file that ends in .py"),
        ("loops.py:shound", "loops.py has no shound; did you mean sound?"),
        ("loops.py:NUMBER", "must be a function, got int"),
        ("loops.py:of_two", "of_two must be callable as of_two(model, epochs, settings), it takes (model, loader)"),
        ("loops.py:of_two --adapter=step_function", "of_two must take model, batch and optimizer"),
        ("broken.py:train", "broken.py cannot be run: ModuleNotFoundError"),
        ("torn.py:train", "torn.py cannot be run: SyntaxError"),
        ("leaves.py:train", "leaves.py cannot be run: SystemExit: 0"),
        ("loops.py:sound --parts lose", "parts must be some of"),
        ("loops.py:sound --parts", "--parts", "expected at least one argument"),
        ("loops.py:sound --resume --ranks 2", "--resume cannot be given with --ranks"),
        ("loops.py:sound --resume --parts data", "--resume cannot be given with --parts"),
        ("loops.py:sound --resume --adapter step_function", "--resume cannot be given with --adapter"),
    ],
    "runs": [
        ("nowhere", "nowhere is not there"),
        ("notes.txt", "notes.txt is no folder"),
        ("bare", "bare holds no run"),
        ("runs/toy", "it is a run itself"),
        ("''", "must not be empty"),
        ("course", "course holds no run", "no config.yaml"),
    ],
    "plot": [
        ("toy runs/toy", "toy twice"),
        ("toy plian", "the run plian is not there", "did you mean plain?"),
        ("toy bare", "bare is no run's folder: it has no config.yaml"),
        ("silent", "silent holds no record"),
        ("toy runs", "runs is no run itself", "it holds the runs"),
        ("strange", "error: runs/strange/config.yaml is not a YAML file of settings: line"),
        ("toy foreign", "runs/foreign/config.yaml has no section training"),
        ("toy odd", "runs/odd/config.yaml: training.max_steps must be a whole number", "'many'"),
        ("toy torn", "runs/torn/metrics.jsonl is broken: line 1"),
        ("words", "runs/words/metrics.jsonl is broken: line 2"),
        ("toy --png runs/toy/config.yaml", "--png must be a file that ends in .png, got runs/toy/config.yaml"),
    ],
    "generate": [
        ("tooy", "the run tooy is not there", "did you mean toy?"),
        ("runs/toyy", "runs/toyy is not there", "did you mean runs/toy?"),
        ("''", "got an empty name"),
        ("toy --max_new_tokens=0", "max_new_tokens must be at least 1, got 0"),
        ("toy --temperature=-1", "temperature must be in [0, inf), got -1.0"),
        ("toy --seed=-1", "seed must be in [0, 2**63), got -1"),
        ("toy --number=0", "number must be at least 1, got 0"),
        ("toy --prompt caf\udce9", "the prompt must be valid UTF-8"),
    ],
    "evaluate": [
        ("runs/toy/config.yaml", "the run runs/toy/config.yaml is no folder"),
        ("plain --split=test", "data.test_fraction is 0", "--split validation"),
        ("toy --split=test --data.corpus=stories", "--split names a part of the run's own text", "give one"),
        ("toy --data.corpus=storys", "'storys'", "did you mean stories?"),
        ("toy --data.corpus=gone.txt", "gone.txt"),
        ("toy --data.corpus=", "--data.corpus must be", "got an empty one"),
        ("toy --training.device=cuda", "'cuda' is not on this machine"),
    ],
    "export": [
        ("", "required", "RUN", "--to"),
        ("toy --to=", "argument --to: must not be empty"),
        ("toy --to=notes.txt", "--to must be a folder, notes.txt is a file"),
        ("toy --to=notes.txt/new", "cannot write into notes.txt/new: notes.txt is no folder"),
        ("toy --to=.", "--to must be another folder than the current one, got ."),
        ("toy --to=runs/toy", "runs/toy holds something else"),
    ],
    "completion": [
        ("bsh", "'bsh'", "did you mean bash?"),
        ("''", "invalid choice: ''"),
        ("bash zsh", "unrecognized argument zsh"),
    ],
}


def own_options(command: str) -> Iterator[tuple[str, argparse.Action]]:
    """The options that are the command's own, and not keys of the configuration."""
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[command].add_arguments(parser)
    return ((action.option_strings[0], action) for action in parser._actions if action.option_strings)


def generic_uses() -> Iterator[tuple[str, ...]]:
    """Of every command an option that it has not, and of every option of its own the values that its kind has not."""
    for command in COMMANDS:
        yield command, "--nonsense=1", "unrecognized argument --nonsense; ", f"see course-lm {command} --help"
        for option, action in own_options(command):
            if not action.required:
                yield command, f"{option}x", f"unrecognized argument {option}x; did you mean {option}?"
            if action.nargs == 0:  # a flag
                yield command, f"{option}=yes", option, "'yes'"
                continue
            number = "one" if action.nargs is None else "at least one"
            yield command, option, f"argument {option}: expected {number} argument"
            if action.type in (int, float):
                yield command, f"{option}=many", f"argument {option}: invalid {action.type.__name__} value: 'many'"
            elif action.choices is not None:
                yield command, f"{option}=none", f"argument {option}: invalid choice: 'none'"
            elif action.type is not None:
                yield command, f"{option}=", f"argument {option}: must not be empty"


USES = [
    pytest.param(command, arguments, parts, id=ascii(f"{command} {arguments}"))
    for command, arguments, *parts in (
        *((command, *use) for command, uses in WRONG.items() for use in uses),
        *((command, f"{RIGHT.get(command, '')} {more}", *parts) for command, more, *parts in generic_uses()),
    )
]

TEXTS = {
    "empty.txt": "",
    "blank.txt": "\n \n\n",
    "short.txt": "one paragraph",
    "notes.txt": "my notes",
    "printed.html": "<p>mine",
    "torn.yaml": "training: {batch_size: [",
    "zero.yaml": "training: {batch_size: 0}",
    "loops.py": "NUMBER = 3\n\n\ndef sound(model, epochs, settings): ...\n\n\ndef of_two(model, loader): ...\n",
    "broken.py": "import no_such_module\n",
    "torn.py": "def train(:\n",
    "leaves.py": "raise SystemExit(0)\n",
}
# Runs by what is wrong with them: a file, and what stands in it in place of the run's own.
SPOILT = {
    "strange": ("config.yaml", "model: ["),
    "foreign": ("config.yaml", "training: 5"),
    "odd": ("config.yaml", "training: {max_steps: many}"),
    "torn": ("metrics.jsonl", '{"event": "tr\n{"event": "train", "step": 1, "loss": 1}\n'),
    "words": ("metrics.jsonl", '{"event": "epoch", "step": 1}\n{"event": "train", "step": 1, "loss": 1, "lr": "x"}\n{'),
    "silent": ("metrics.jsonl", ""),
}


@pytest.fixture(scope="module")
def folder(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts and configurations, good and bad; runs, whole and spoilt; a course, and copies of its lessons."""
    folder = tmp_path_factory.mktemp("wrong")
    write_text(folder / "text.txt")
    (folder / "latin.txt").write_bytes(b"some text\n\ncaf\xe9\n")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    for name in ("bare", "folder.py"):
        (folder / name).mkdir()
    make_runs(folder, finished)
    make_lessons(folder)
    return folder


def make_runs(folder: Path, finished: Path) -> None:
    for name in ("toy", "plain", *SPOILT):
        shutil.copytree(finished, folder / "runs" / name)
    shutil.copy(finished / "config.yaml", folder / "small.yaml")
    plain = folder / "runs" / "plain" / "config.yaml"
    plain.write_text(plain.read_text().replace("test_fraction: 0.2", "test_fraction: 0.0"))
    for name, (file, text) in SPOILT.items():
        (folder / "runs" / name / file).write_text(text)


def make_lessons(folder: Path) -> None:
    make_course(folder / "course")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "PACKAGE", folder / "course" / "course_lm")
        for name in ("copies", "spoilt"):
            workspace.prepare(folder / name)
    (folder / "copies" / "notebooks" / "01_second.ipynb").write_text("{")
    (folder / "spoilt" / ".course_lm.json").write_text("{")
    (folder / "course" / "notebooks" / "02_torn.ipynb").write_text("{")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the current folder of a machine without a GPU, where no lesson is opened or run."""

    def unexpected(*arguments: object, **options: object) -> None:
        pytest.fail(f"the command did something: {arguments}")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(workspace, "PACKAGE", folder / "course" / "course_lm")
    monkeypatch.setattr(lessons, "_serve", unexpected)
    monkeypatch.setattr(lessons, "_run_all", unexpected)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return folder


def files_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """When each file was written, and its size; without the empty locks of runs, and what Python compiles."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".lock", ".pyc")]
    found = {path: path.stat() for path in paths}
    return {path: (state.st_mtime_ns, state.st_size) for path, state in found.items()}


@pytest.mark.parametrize(("command", "arguments", "parts"), USES)
def test_a_wrong_use_is_refused_in_one_line_and_changes_no_file(here, capsys, command, arguments, parts):
    before = files_in(here)
    assert_refused(capsys, [command, *shlex.split(arguments)], *parts)
    assert files_in(here) == before
