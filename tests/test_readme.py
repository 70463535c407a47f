"""What README and the pages in `docs/` tell a reader to type works: README's blocks are run, all commands are parsed.

Lines of README that are not run, and why: `make lab` and `course-lm lab` open JupyterLab, `course-lm progress` needs
what they make; `make book` takes minutes. Of the targets of make it is asked that they are there. `tests/cli/` has
tests of `lab`, without JupyterLab, and of `progress`; `tests/test_packaging.py` follows what make installs, and
`tests/test_book.py` builds the book. A run of training is cut to three steps.
"""

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from course_lm import cli
from course_lm.cli.commands import COMMANDS
from course_lm.config import TrainingConfig
from course_lm.corpus import load_corpus
from course_lm.tokenizer import train_tokenizer
from tests.fork_server import anew, forked, started

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "index")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ("make", ".venv/bin/course-lm lab", ".venv/bin/course-lm progress")
SHORTER = dict.fromkeys((".venv/bin/course-lm train", ".venv/bin/course-lm train my.txt"), "--training.max_steps=3")
PICTURE = re.compile(
    r'<source media="\(prefers-color-scheme: dark\)" srcset="(.*?)">\s*<img [^>]*?alt="([^"]+)" src="(.*?)">'
)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def blocks(page, language):
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def commands(block):
    """The lines of a block that are typed, without comments: all, or those after a `$` where others are output."""
    lines = block.replace("\\\n", " ").splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
    return [bare for line in typed if (bare := re.sub(r"\s+# .*$|^#.*$", "", line).strip())]


def transcript(block):
    """The one command of a block that shows its output, and that output."""
    command, _, output = block.removeprefix("$ ").partition("\n")
    return command, output.splitlines()


def problem_with(command):
    """Why this command of a page cannot be typed as it stands, in words; None where it can."""
    if inner := re.fullmatch(r'eval "\$\((.*)\)"', command):
        command = inner[1]
    words = shlex.split(re.sub(r"<[^>]*>", "FILL_IN", re.split(r" [|>] ", command)[0]))
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    program, arguments = words[0], words[1:]
    match program:
        case ".venv/bin/course-lm" | "course-lm":
            return problem_with_arguments(arguments)
        case "torchrun":
            ours = arguments.index("course_lm")
            return problem_with_arguments(arguments[ours + 1 :])
        case "make":
            gone = [target for target in arguments if target not in TARGETS and not target.startswith(".venv/.")]
            return f"no target {gone}" if gone else None
        case "cd" | "conda" | "git" | "python3" | ".venv/bin/pip":
            return None
    return f"nobody can tell what {program} is"


def problem_with_arguments(arguments):
    """What `course-lm` says of these arguments before it does anything; None where it takes them."""
    try:
        cli.read_arguments(arguments)
    except (ValueError, OSError) as error:
        return str(error)
    except SystemExit as end:  # of --help
        return None if end.code in (0, None) else f"exit code {end.code}"
    return None


def typed_on(page):
    return [command for block in blocks(page, "") for command in commands(block)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader types: the commands in .venv/bin, a text, and the configuration of an earlier run."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    documents = load_corpus("stories").documents[:600]
    (tmp_path / "my.txt").write_text("\n\n".join(documents), encoding="utf-8")
    train_tokenizer(documents, 300).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "runs" / "my").mkdir(parents=True)
    for source in ("my", "tiny"):  # runs that have ended
        (tmp_path / "runs" / source).mkdir(exist_ok=True)
        TrainingConfig.from_yaml("python-docs").to_yaml(tmp_path / "runs" / source / "config.yaml")
        (tmp_path / "runs" / source / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder, command):
    """What comes of a line of a page; the command itself, and Python, are forked from a process that has torch."""
    words = shlex.split(command)
    programs = {".venv/bin/course-lm": [sys.executable, "-m", "course_lm"], ".venv/bin/python": [sys.executable]}
    forks = words[0] in programs
    words = [*programs[words[0]], *words[1:]] if forks else ["bash", "-c", command]
    with started(folder, words, start=forked if forks else anew) as running:
        return running.end(300)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (".venv/bin/course-lm trian my.txt", "trian"),
        (".venv/bin/course-lm train my.txt --training.max_stepz 3", "max_stepz"),
        (".venv/bin/course-lm train --training.time_budget soon", "soon"),
        (".venv/bin/course-lm generate runs/my --promt 'One morning'", "promt"),
        (".venv/bin/course-lm export runs/my", "--to"),
        ('eval "$(.venv/bin/course-lm completion bsh)"', "bsh"),
        ("torchrun --nproc-per-node 2 -m course_lm train --config smal", "smal"),
        ("make labb", "labb"),
        ("curse-lm lab", "curse-lm"),
    ],
)
def test_the_check_of_commands_finds_a_misspelt_word(folder, command, word):
    assert word in str(problem_with(command))


def test_comments_outputs_and_broken_lines_are_told_from_commands():
    assert commands("a b   # why\n# all of it\nc \\\n  d\n") == ["a b", "c    d"]
    assert commands("$ a b\nsaid\n$ c\n") == ["a b", "c"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_taken_as_it_stands(folder, page):
    problems = {command: problem_with(command) for command in typed_on(page)}
    assert {command: problem for command, problem in problems.items() if problem} == {}


def test_every_command_stands_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in [*PAGES, ROOT / "CONTRIBUTING.md"])
    assert [name for name in COMMANDS if f"course-lm {name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_python_on_a_page_is_python(page):
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")


def test_every_picture_of_readme_is_small_has_words_and_is_there_in_both_themes():
    text = README.read_text(encoding="utf-8")
    pictures = PICTURE.findall(text)
    assert len(pictures) == text.count("<img ") == text.count("<picture>") > 0
    for dark, words, light in pictures:
        assert len(words.split()) > 20 and dark == light.replace(".png", "_dark.png")
        assert max((ROOT / file).stat().st_size for file in (dark, light)) < 150_000


def test_what_readme_says_of_speed_stands_in_the_tables():
    tables = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    rows = {
        "`Trainer`, compiled": "476,443",
        "nanoGPT, compiled": "470,816",
        "Lightning": "33,526",
        "`Trainer`": "40,891",
    }
    for row, figure in rows.items():
        assert f"\n| {row} | {figure} |" in tables and f"{figure}" in text


def test_what_readme_says_of_its_size_holds():
    assert len(README.read_text(encoding="utf-8").split()) < 2500


def test_the_commands_of_the_readme_run_one_after_the_other(folder):
    shutil.rmtree(folder / "runs")
    shown = [command for block in blocks(README, "") if not block.startswith("$ ") for command in commands(block)]
    typed = [command for command in shown if not command.startswith(NOT_RUN)]
    failed = {}
    for command in typed:
        result = run(folder, " ".join([command, *([SHORTER[command]] if command in SHORTER else [])]))
        if result.code != 0:
            failed[command] = result.out[-500:] + result.err[-500:]
    assert failed == {}
    assert set(SHORTER) <= set(typed)
    for block in blocks(README, "python"):
        if "def train(" not in block:
            (folder / "block.py").write_text(block, encoding="utf-8")
            result = run(folder, ".venv/bin/python block.py")
            assert result.code == 0, result.err
            assert result.out.startswith("One morning")


def test_the_audit_says_of_the_loop_on_the_readme_what_stands_there(folder):
    (loop,) = [block for block in blocks(README, "python") if "def train(" in block]
    (folder / "my_loop.py").write_text(loop, encoding="utf-8")
    (shown,) = [block for block in blocks(README, "") if block.startswith("$ ")]
    command, output = transcript(shown)
    result = run(folder, command)
    assert result.code == 1, result.err
    assert result.out.splitlines()[:-1] == output[:-1]  # the last line has the seconds


def test_the_trainer_in_python_runs_as_it_stands(folder):
    import torch

    from course_lm.batching import make_loader
    from course_lm.model import GPT, ModelConfig

    (block,) = blocks(ROOT / "docs" / "training.md", "python")
    documents = load_corpus("stories").documents[:40]
    tokenizer = train_tokenizer(documents, 300)
    loader = make_loader(documents, tokenizer, mode="packed", batch_size=2, max_length=32)
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=1, d_model=8, dropout=0.0), 300, 32)
    Path("config.yaml").write_text("training: {max_steps: 2, device: cpu}\n", encoding="utf-8")
    names: dict[str, Any] = {"model": model, "train_loader": loader, "val_loader": loader}
    exec(block, names)
    assert names["history"].records[-1]["step"] == 2
