"""Claims about wrong uses: a command refuses each of them in one line that says what was wrong, and changes no file.

A use is the command's arguments as they stand in a shell; after them comes what the line must hold.
"""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from course_lm import cli
from course_lm.classroom import lessons, workspace
from tests.cli.refusals import assert_refused
from tests.cli.small_course import make_course
from tests.cli.small_runs import write_text

WRONG: dict[str, list[tuple[str, ...]]] = {
    "lab": [
        ("stray", "unrecognized argument stray", "course-lm lab --help"),
        ("--fres 00", "unrecognized argument --fres", "did you mean --fresh?"),
        ("--fresh", "--fresh", "expected at least one argument"),
        ("--fresh ''", "--fresh", "must not be empty"),
        ("--fresh 99", "there is no lesson '99'; there are 00, 01"),
        ("--fresh 00 zero", "there is no lesson 'zero'"),
        ("--fresh -1", "there is no lesson '-1'"),
        ("--fresh 1.5", "there is no lesson '1.5'"),
        ("--workspace", "--workspace", "expected one argument"),
        ("--workspace ''", "--workspace", "must not be empty"),
        ("--workspace notes.txt", "must be a folder", "notes.txt"),
        ("--workspace notes.txt/deep", "notes.txt/deep"),
        ("--workspace course", "another folder than the course's own"),
        ("--workspace copies --workspace notes.txt", "must be a folder", "notes.txt"),
        ("--workspace ~nobody-has-this-name/course", "no home folder for ~nobody-has-this-name/course"),
        ("--workspace spoilt", "spoilt/.course_lm.json is damaged"),
        ("--port 8889", "unrecognized argument --port"),
    ],
    "progress": [
        ("06", "unrecognized argument 06", "course-lm progress --help"),
        ("--json", "unrecognized argument --json"),
        ("--workspac copies", "unrecognized argument --workspac", "did you mean --workspace?"),
        ("--workspace", "--workspace", "expected one argument"),
        ("--workspace ''", "--workspace", "must not be empty"),
        ("--workspace notes.txt", "must be a folder", "notes.txt"),
        ("--workspace nowhere", "nowhere", "course-lm lab makes them"),
        ("--workspace bare", "bare", "course-lm lab makes them"),
        ("--workspace course", "another folder than the course's own"),
        ("--workspace copies 00", "unrecognized argument 00"),
        ("--workspace ~nobody-has-this-name", "no home folder for ~nobody-has-this-name"),
        ("--workspace copies", "copies/notebooks/01_second.ipynb is no notebook that can be read"),
    ],
    "lessons": [
        ("99", "there is no lesson '99'; there are 00, 01, 02"),
        ("zero", "there is no lesson 'zero'"),
        ("''", "must not be empty"),
        ("00 99", "there is no lesson '99'"),
        ("-1", "there is no lesson '-1'"),
        ("1.5", "there is no lesson '1.5'"),
        ("00,01", "there is no lesson '00,01'"),
        ("00_firs", "there is no lesson '00_firs'"),
        ("notebooks/00_first.ipynb", "there is no lesson 'notebooks/00_first.ipynb'"),
        ("99 --writ", "unrecognized argument --writ", "did you mean --write?"),
        ("00 --write=yes", "--write", "'yes'"),
        ("00 --jobs 2", "unrecognized argument --jobs"),
        ("02", "02_torn.ipynb is no notebook that can be read"),
        ("00 02 --write", "02_torn.ipynb is no notebook that can be read"),
    ],
    "train": [
        ("text.txt more.txt", "unrecognized argument more.txt", "several files are a glob in quotation marks"),
        ("nowhere.txt", "there is no file nowhere.txt"),
        ("--data.corpus=deep/nowhere.txt", "deep/nowhere.txt"),
        ("--data.corpus=storys", "'storys'", "stories", "python-docs"),
        ("stray", "stray"),
        ("bare", "bare is a folder", "bare/*.txt"),
        ("empty.txt", "empty.txt", "empty"),
        ("blank.txt", "blank.txt", "empty"),
        ("latin.txt", "latin.txt", "0xe9", "offset 14"),
        ("short.txt", "split", "val_fraction"),
        ("'*.md'", "no file matches *.md"),
        ("''", "data.corpus must be a name", "got ''"),
        ("runs/toy/checkpoint_last.safetensors", "checkpoint_last.safetensors is not UTF-8 text"),
        ("text.txt --data.corpus=stories", "TEXT is 'text.txt' and --data.corpus 'stories'", "give one of them"),
        ("text.txt --data.vocab_size=50000", "vocab_size", "50000", "merges for"),
        ("--data.vocab_size=3", "data.vocab_size must be from 258", "got 3"),
        ("--data.max_length=1", "data.max_length", "at least 2", "got 1"),
        ("--data.max_length=1000000000", "data.max_length must be at most 1,048,576, got 1000000000"),
        ("--data.batching=paked", "data.batching must be one of", "'paked'; did you mean packed?"),
        ("--data.val_fraction=.nan", "data.val_fraction must be in (0, 1), got nan"),
        ("--data.val_fraction=0.5 --data.test_fraction=0.5", "data.test_fraction must be in [0, 0.5)", "got 0.5"),
        ("--data.corpsu my.txt", "did you mean --data.corpus?"),
        ("--training.batch_size=0", "training.batch_size", "at least 1", "got 0"),
        ("--training.batch_size=many", "training.batch_size", "int", "many"),
        ("--training.batch_size", "training.batch_size", "expected one argument"),
        ("--training.batchsize=4", "training.batchsize", "did you mean --training.batch_size?"),
        ("--trainig.max_steps 3", "did you mean --training.max_steps?"),
        ("--training.seed=-1", "training.seed must be in [0, 2**32), got -1"),
        ("--training.time_budget=.inf", "training.time_budget must be a positive and finite number", "got inf"),
        ("--training.output_dir=", "training.output_dir must be a folder, or null, got ''"),
        ("--training.output_dir=notes.txt/deep", "cannot write into notes.txt/deep/", "notes.txt is no folder"),
        ("--training.output_dir=notes.txt", "cannot write into notes.txt/python-docs: notes.txt is no folder"),
        ("text.txt --config=small.yaml --training.device=cuda", "training.device", "'cuda'", "it has"),
        ("--training.learning_rate=1", "did you mean --optimizer.learning_rate?"),
        ("--optimizer.learning_rat=1e-3", "unrecognized", "did you mean --optimizer.learning_rate?"),
        ("--optimzer.learning_rate=1", "did you mean --optimizer.learning_rate?"),
        ("--optimizer.learning_rate=.nan", "optimizer.learning_rate must be a positive number, got nan"),
        ("--optimizer.type=lion", "optimizer.type", "adamw", "lion"),
        ("--optimizer.type=adafacter", "'adafacter'; did you mean adafactor?"),
        ("text.txt --lr_scheduler.min_lr=5", "min_lr must be at most the peak learning rate 0.02, got 5"),
        ("--training.max_steps=3 --lr_scheduler.warmup_steps=5", "warmup_steps must be at most", "3 steps, got 5"),
        ("--model.d_model=10000000000", "model.d_model must be at most 1,048,576, got 10000000000"),
        ("--curriculum.strategy=hard", "curriculum.strategy", "morphological", "hard"),
        ("--curriculum.strategy=lenght", "'lenght'; did you mean length?"),
        ("'--curriculum.settings={max_len: 3}'", "curriculum.combined", "unknown key max_len", "length_weight"),
        ("--curriculum.step_epochs=[3,1]", "curriculum.step_epochs", "rising", "[3, 1]"),
        ("--experiment_name=a/b", "experiment_name must be a folder name, got 'a/b'"),
        ("--confi tiny", "--confi", "did you mean --config?"),
        ("--config", "--config", "expected one argument"),
        ("--config=", "--config", "must not be empty"),
        ("--config=tny", "no configuration tny", "did you mean tiny?"),
        ("--config=nowhere.yaml", "nowhere.yaml", "python-docs"),
        ("--config=bare", "no configuration bare"),
        ("--config=torn.yaml", "torn.yaml", "not a YAML file"),
        ("--config=latin.txt", "latin.txt is not a YAML file", "0xe9"),
        ("--config=unknown_key.yaml", "unknown_key.yaml", "training.batch_sise", "did you mean training.batch_size?"),
        ("--config=zero.yaml", "zero.yaml", "training.batch_size", "got 0"),
        ("--config=choice.yaml", "choice.yaml", "data.batching", "'paked'; did you mean packed?"),
        ("--config=null.yaml", "null.yaml", "training.batch_size"),
        ("--config=word.yaml", "word.yaml", "optimizer.learning_rate", "fast"),
        ("--config=notes.txt", "notes.txt", "keys and values", "my notes"),
        ("--config=runs/strange/config.yaml", "runs/strange/config.yaml is not a YAML file"),
    ],
    "find-lr": [
        ("text.txt --start_lr=0", "start_lr must be a positive number, got 0"),
        ("text.txt --start_lr=nan", "start_lr must be a positive number, got nan"),
        ("text.txt --start_lr", "--start_lr", "expected one argument"),
        ("text.txt --start_lr=1e-4 --end_lr=1e-5", "end_lr", "above start_lr (0.0001)", "got 1e-05"),
        ("text.txt --end_lr=inf", "end_lr", "above start_lr (1e-06)", "got inf"),
        ("text.txt --num_iter=1", "num_iter", "at least 2", "got 1"),
        ("text.txt --num_iter=few", "num_iter", "int", "few"),
        ("--num_ite 3", "--num_ite", "did you mean --num_iter?"),
        ("text.txt --held_out=yes", "--held_out", "'yes'"),
        ("text.txt --png=nowhere/picture.png", "nowhere", "picture.png"),
        ("text.txt --png=bare", "cannot write bare: it is a folder"),
        ("text.txt --png=text.txt", "--png must be a file that ends in .png, got text.txt"),
        ("text.txt --png=", "--png", "must not be empty"),
        ("text.txt --training.batch_size=0", "training.batch_size", "at least 1", "got 0"),
        ("text.txt --training.learning_rate=1", "training.learning_rate"),
        ("text.txt --optimizer.type=lion", "optimizer.type", "adamw", "lion"),
        ("text.txt --config=nowhere.yaml", "nowhere.yaml", "python-docs"),
        ("text.txt --config=small.yaml --training.device=cuda", "training.device 'cuda' is not on this machine"),
        ("--data.corpus=storys", "'storys'", "stories", "python-docs"),
        ("stray", "stray"),
        ("text.txt more.txt", "unrecognized argument more.txt"),
        ("latin.txt", "latin.txt is not UTF-8"),
    ],
    "plan": [
        ("", "error: command line: the following arguments are required: --ranks"),
        ("--ranks", "--ranks", "expected one argument"),
        ("--ranks=0", "error: ranks must be a whole number of at least 1, got 0"),
        ("--ranks=-2", "error: ranks must be a whole number of at least 1, got -2"),
        ("--ranks=x", "error: command line: argument --ranks: invalid int value: 'x'"),
        ("--ranks=2 --ranks=1.5", "error: command line: argument --ranks: invalid int value: '1.5'"),
        ("--ranks=4 --rank=1", "error: command line: unrecognized argument --rank; did you mean --ranks? "),
        ("--ranks=2 my.txt", "unrecognized argument my.txt"),
        ("--ranks=2 --json", "unrecognized argument --json"),
        ("--ranks=2 --config=tny", "no configuration tny", "did you mean tiny?"),
        ("--ranks=4 --distributed.strategy=zero", "command line: distributed.strategy must be one of auto, ddp, "),
        ("--ranks=4 --distributed.strategy=hybrid", "command line: distributed.shard_size must be a number of ranks"),
        (
            "--ranks=4 --distributed.shard_size=2",
            'error: command line: distributed.shard_size must be null for strategy "au',
        ),
        (
            "--ranks=4 --optimizer.type=adamw --distributed.strategy=hybrid --distributed.shard_size=3",
            "error: shard_size must be a divisor of the 4 ranks for hybrid, got 3",
        ),
        (
            "--ranks=4 --distributed.strategy=fsdp --optimizer.type=adafactor",
            "error: optimizer must be one that torch can shard, for fsdp, got 'adafactor'",
        ),
        ("--ranks=4 --model.n_head=5", "error: command line: model.d_model must be a multiple of n_head (5), got 192"),
        ("--ranks=4 --model.d_model=10000000000", "model.d_model must be at most 1,048,576, got 10000000000"),
        (
            "--ranks=4 --curriculum.enabled=true --training.num_epochs=1 --curriculum.warmup_epochs=3",
            "error: curriculum.",
        ),
    ],
    "profile": [
        ("text.txt --repeats=0", "--repeats must be at least 1, got 0"),
        ("text.txt --repeats=many", "--repeats", "'many'"),
        ("text.txt --repeats", "--repeats", "expected one argument"),
        ("text.txt --repeat=3", "--repeat", "did you mean --repeats?"),
        ("text.txt --output=notes.txt", "cannot write into notes.txt: notes.txt is no folder"),
        ("text.txt --output=notes.txt/deep", "cannot write into notes.txt/deep: notes.txt is no folder"),
        ("text.txt --output=", "--output", "must not be empty"),
        ("text.txt --png=x.png", "unrecognized argument --png"),
        ("text.txt --training.compile=true", "training.compile must be false"),
        ("text.txt --model.n_head=5", "model.d_model must be a multiple of n_head (5)"),
        ("text.txt --config=small.yaml --training.device=cuda", "training.device 'cuda' is not on this machine"),
        ("text.txt --config=torn.yaml", "torn.yaml", "not a YAML file"),
        ("--data.corpus=none.txt", "none.txt"),
        ("text.txt more.txt", "unrecognized argument more.txt"),
        ("empty.txt", "empty.txt is empty"),
        ("bare", "bare is a folder"),
    ],
    "inspect": [
        ("", "required: TEXT"),
        ("nowhere.txt", "nowhere.txt"),
        ("storys", "'storys'", "did you mean stories?"),
        (".", "is a folder"),
        ("text.txt other.txt", "other.txt"),
        ("blank.txt", "blank.txt is empty"),
        ("latin.txt", "latin.txt is not UTF-8"),
        ("text.txt --data.vocab_size=3", "data.vocab_size", "got 3"),
        ("text.txt --data.vocabsize=300", "did you mean --data.vocab_size?"),
        ("text.txt --jsn", "--jsn", "did you mean --json?"),
        ("text.txt --json=yes", "--json", "'yes'"),
        ("text.txt --config=nowhere.yaml", "nowhere.yaml"),
        ("text.txt --data.corpus=stories", "data.corpus", "TEXT"),
        ("text.txt --model.d_model=10000000000", "model.d_model must be at most 1,048,576, got 10000000000"),
        ("'' --data.vocab_size=300", "corpus"),
    ],
    "audit": [
        ("", "required: FILE.py:FUNCTION"),
        ("''", "FILE.py:FUNCTION", "must not be empty"),
        ("loops.py", "audit needs FILE.py:FUNCTION, got loops.py"),
        ("loops.py:", "audit needs FILE.py:FUNCTION, got loops.py:"),
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
        ("loops.py:sound --precision=fp8", "--precision"),
        ("loop.py:train --precision=fp64", "--precision", "'fp64'"),
        ("loops.py:sound --adapter=keras", "--adapter"),
        ("loops.py:sound --parts lose", "parts must be some of"),
        ("loops.py:sound --parts", "--parts", "expected at least one argument"),
        ("loops.py:sound --jsn", "unrecognized argument --jsn"),
        ("loops.py:sound loops.py:of_two", "unrecognized argument loops.py:of_two"),
    ],
    "runs": [
        ("nowhere", "nowhere is not there"),
        ("notes.txt", "notes.txt is no folder"),
        ("bare", "bare holds no run"),
        ("runs/toy", "it is a run itself"),
        ("runs/strange", "it is a run itself"),
        ("runs more", "more"),
        ("--jso", "--jso", "did you mean --json?"),
        ("--json=yes", "--json"),
        ("''", "must not be empty"),
        ("runs/toy/config.yaml", "is no folder"),
        ("--png a.png", "--png"),
        ("course", "course holds no run", "no config.yaml"),
    ],
    "compare": [
        ("", "RUN"),
        ("toy", "two runs or more, got 1"),
        ("toy toy", "toy twice"),
        ("toy runs/toy", "toy twice"),
        ("toy plian", "the run plian is not there", "did you mean plain?"),
        ("toy ''", "got an empty name"),
        ("toy bare", "bare is no run's folder: it has no config.yaml"),
        ("toy silent", "silent holds no record"),
        ("toy notes.txt", "notes.txt is no folder"),
        ("toy runs", "runs is no run itself"),
        ("toy strange", "runs/strange/config.yaml is broken"),
        ("toy foreign", "runs/foreign/config.yaml has no section training"),
        ("toy odd", "runs/odd/config.yaml: training.max_steps must be an int", "'many'"),
        ("toy torn", "runs/torn/metrics.jsonl is broken: line 1"),
        ("toy words", "runs/words/metrics.jsonl is broken: line 2"),
        ("toy plain --png nowhere/a.png", "no folder nowhere"),
        ("toy plain --png bare", "it is a folder"),
        ("toy plain --png runs/toy/config.yaml", "--png must be a file that ends in .png, got runs/toy/config.yaml"),
        ("toy plain --png=", "--png", "must not be empty"),
        ("toy plain --pgn a.png", "--pgn", "did you mean --png?"),
    ],
    "plot": [
        ("", "RUN"),
        ("toy plain", "plain"),
        ("nowhere", "the run nowhere is not there"),
        ("bare", "has no config.yaml"),
        ("silent", "holds no record"),
        ("notes.txt", "is no folder"),
        ("toy --png", "--png"),
        ("toy --png bare", "it is a folder"),
        ("toy --png nowhere/a.png", "no folder nowhere"),
        ("toy --png toy.pdf", "--png must be a file that ends in .png, got toy.pdf"),
        ("toy --json", "--json"),
        ("''", "got an empty name"),
        ("strange", "runs/strange/config.yaml is broken"),
        ("odd", "runs/odd/config.yaml: training.max_steps must be an int", "'many'"),
        ("torn", "runs/torn/metrics.jsonl is broken: line 1"),
        ("words", "runs/words/metrics.jsonl is broken: line 2"),
    ],
    "generate": [
        ("", "required: RUN"),
        ("tooy", "the run tooy is not there", "did you mean toy?"),
        ("unfinished", "runs/unfinished is not finished: it has no model.safetensors"),
        ("toy --max_new_tokens=0", "max_new_tokens must be at least 1, got 0"),
        ("toy --max_new_tokens=many", "--max_new_tokens", "many"),
        ("toy --temperature=-1", "temperature must be a finite number of at least 0, got -1.0"),
        ("toy --temperature=nan", "temperature must be a finite number of at least 0, got nan"),
        ("toy --temperature=inf", "temperature must be a finite number of at least 0, got inf"),
        ("toy --temperature=0,8", "--temperature", "'0,8'"),
        ("toy --top_k=0", "top_k must be", "at least 1", "got 0"),
        ("toy --top_p=1.2", "top_p must be", "(0, 1]", "got 1.2"),
        ("toy --seed=-1", "seed must be in [0, 2**63), got -1"),
        ("toy --number=0", "number must be at least 1, got 0"),
        ("toy --top-k=3", "unrecognized argument --top-k", "did you mean --top_k?"),
        ("toy --prompt", "--prompt", "expected one argument"),
        ("toy --prompt caf\udce9", "the prompt must be valid UTF-8"),
        ("toy another", "unrecognized argument another"),
    ],
    "evaluate": [
        ("", "required: RUN"),
        ("cut", "runs/cut/model.safetensors cannot be used", "goes on from its checkpoint"),
        ("runs/toy/config.yaml", "the run runs/toy/config.yaml is no folder"),
        ("toy --split=tests", "--split", "tests", "validation"),
        ("toy --split=tst", "'tst'", "did you mean test?"),
        ("plain --split=test", "data.test_fraction is 0", "--split validation"),
        ("toy --split=test --data.corpus=stories", "--split names a part of the run's own text", "give one"),
        ("toy --data.corpus=storys", "'storys'", "did you mean stories?"),
        ("toy --data.corpus=gone.txt", "gone.txt"),
        ("toy --data.corpus=", "--data.corpus must be", "got an empty one"),
        ("toy --data.corpus=bare", "bare is a folder"),
        ("toy --data.corpus=latin.txt", "latin.txt is not UTF-8"),
        ("toy --training.batch_size=0", "training.batch_size must be at least 1, got 0"),
        ("toy --training.batch_size=big", "--training.batch_size", "big"),
        ("toy --training.precision=fp8", "--training.precision", "fp8"),
        ("toy --training.device=tpu", "--training.device", "tpu"),
        ("toy --training.device=cuda", "'cuda' is not on this machine"),
        ("toy --batch_size=4", "unrecognized argument --batch_size", "did you mean --training.batch_size?"),
        ("toy --jsn", "unrecognized argument --jsn", "did you mean --json?"),
        ("toy another", "unrecognized argument another"),
    ],
    "export": [
        ("", "required", "RUN", "--to"),
        ("toy", "required", "--to"),
        ("--to=new", "required", "RUN"),
        ("toy --to", "--to", "expected one argument"),
        ("toy --to=", "--to must be a folder, got an empty name"),
        ("toy --to=notes.txt", "--to must be a folder, notes.txt is a file"),
        ("toy --to=notes.txt/new", "cannot write into notes.txt/new: notes.txt is no folder"),
        ("toy --to=.", "--to must be another folder than the current one, got ."),
        ("toy --to=runs/toy", "runs/toy holds something else"),
        ("toy --too=new", "required", "--to"),
        ("toy --to=new --dtype=bf16", "unrecognized argument --dtype"),
        ("toy --to=new another", "unrecognized argument another"),
        ("gone --to=new", "gone is not there"),
        ("unfinished --to=new", "runs/unfinished is not finished: it has no model.safetensors"),
    ],
    "completion": [
        ("", "required: shell"),
        ("fish", "'fish'", "'bash', 'zsh', 'tcsh'"),
        ("bsh", "'bsh'", "did you mean bash?"),
        ("BASH", "'BASH'", "'bash', 'zsh', 'tcsh'"),
        ("/bin/bash", "'/bin/bash'", "did you mean bash?"),
        ("''", "invalid choice: ''"),
        ("--shell=bash", "required: shell"),
        ("bash zsh", "unrecognized argument zsh"),
        ("bash --quiet", "unrecognized argument --quiet"),
        ("bash --to=notes.txt", "unrecognized argument --to"),
    ],
}
USES = [
    pytest.param(command, arguments, parts, id=ascii(f"{command} {arguments}"))
    for command, uses in WRONG.items()
    for arguments, *parts in uses
]

TEXTS = {
    "empty.txt": "",
    "blank.txt": "\n \n\n",
    "short.txt": "one paragraph",
    "notes.txt": "my notes",
    "torn.yaml": "training: {batch_size: [",
    "unknown_key.yaml": "training: {batch_sise: 3}",
    "zero.yaml": "training: {batch_size: 0}",
    "choice.yaml": "data: {batching: paked}",
    "null.yaml": "training: {batch_size: null}",
    "word.yaml": "optimizer: {learning_rate: fast}",
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
    for name in ("toy", "plain", "cut", "unfinished", *SPOILT):
        shutil.copytree(finished, folder / "runs" / name)
    shutil.copy(finished / "config.yaml", folder / "small.yaml")
    plain = folder / "runs" / "plain" / "config.yaml"
    plain.write_text(plain.read_text().replace("test_fraction: 0.2", "test_fraction: 0.0"))
    os.truncate(folder / "runs" / "cut" / "model.safetensors", 3000)
    (folder / "runs" / "unfinished" / "model.safetensors").unlink()
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


@pytest.mark.parametrize("command", cli.parsers_of_commands(cli._parser()))
def test_each_command_has_ten_wrong_uses_or_more(command):
    assert len({tuple(shlex.split(arguments)) for arguments, *_ in WRONG[command]}) == len(WRONG[command]) >= 10
