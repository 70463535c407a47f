"""The recipes in CONTRIBUTING.md are complete: followed to the letter in a copy of the repository, each one works."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Recipes")[2]
BLOCK = re.compile(r"^(`{3,})\w+\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^([^\n]+(?:\n[^\n]+)*:)\n\n(`{3,})\w+\n(.*?)\n\2$", re.MULTILINE | re.DOTALL)
EDIT = re.compile(r"In `([^`]+)`, (above|below) the line `([^`]+)`:")
NEW_FILE = re.compile(r"New file `([^`]+)`:")
COPIED = ("course_lm", "data", "notebooks", "tests", "README.md", "pyproject.toml")
# A run of three steps in a second; what the recipes configure comes on top.
SMALL: dict[str, dict[str, Any]] = {
    "data": {"vocab_size": 300, "max_length": 16, "batching": "fixed"},
    "model": {"n_layer": 1, "n_head": 1, "d_model": 8},
    "training": {"max_steps": 3, "gradient_accumulation_steps": 1, "logging_steps": 1, "device": "cpu"},
}

TRAIN = """
import contextlib, io, json
from course_lm.checkpoints import load_checkpoint
from course_lm.cli import main
from course_lm.config import TrainingConfig
from course_lm.curriculum import create_curriculum_strategy
from course_lm.model import GPT
from course_lm.optim import build_optimizer
from course_lm.trainer import resume

said = io.StringIO()
with contextlib.redirect_stdout(said):
    assert main(["train", "--config", "run.yaml"]) == 0
    with contextlib.suppress(SystemExit):
        main(["train", "--help"])
config = TrainingConfig.from_yaml("runs/my-lm/config.yaml")
optimizer = build_optimizer(GPT(config.model, 300, 16), config.optimizer)
print(json.dumps({
    "help": said.getvalue(),
    "corpus": load_checkpoint("runs/my-lm/checkpoint_last.safetensors")["config"]["data"]["corpus"],
    "optimizer": type(optimizer).__name__,
    "scores": create_curriculum_strategy("word_length", {"letters": 4}).compute_difficulty(["a bb", "dddd", ""]),
    "strategy": config.curriculum.strategy,
    "settings": config.curriculum.settings,
    "free": "table.enabled" in resume.MAY_CHANGE,
    "table": open("runs/my-lm/losses.csv").read(),
}))
"""


def follow(folder, instruction, block):
    """Do one step; return what it adds to a run's configuration."""
    if edit := EDIT.fullmatch(instruction):
        insert(folder / edit[1], edit[2], edit[3], block)
    elif new := NEW_FILE.fullmatch(instruction):
        assert not (folder / new[1]).exists(), instruction
        (folder / new[1]).write_text(f"{block}\n", encoding="utf-8")
    elif instruction.startswith("Run once"):
        run(folder, "-c", block)
    else:
        assert instruction == "In a run's configuration:", f"nobody can tell where this code goes: {instruction}"
        return yaml.safe_load(block)
    return {}


def insert(path, side, beginning, block):
    lines = path.read_text(encoding="utf-8").splitlines()
    places = [number for number, line in enumerate(lines) if line.strip().startswith(beginning)]
    assert len(places) == 1, f"{len(places)} lines of {path.name} begin with {beginning!r}"
    apart = ["", ""] if block.startswith(("def", "class", "@")) else []
    lines[places[0] + (side == "below") : places[0] + (side == "below")] = [*block.splitlines(), *apart]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(folder, *arguments):
    variables = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "COURSE_TESTS": ""}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of the repository in which every recipe was followed, with the configuration that they add up to."""
    folder = tmp_path_factory.mktemp("followed")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    config = dict(SMALL)
    for instruction, _, block in STEP.findall(RECIPES):
        for section, values in follow(folder, instruction, block).items():
            config[section] = {**config.get(section, {}), **values}
    (folder / "run.yaml").write_text(yaml.safe_dump({**config, "experiment_name": "my-lm"}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(followed):
    return json.loads(run(followed, "-c", TRAIN).splitlines()[-1])


def test_there_is_a_recipe_for_each_kind_of_thing():
    titles = re.findall(r"^### (.*)$", RECIPES, re.MULTILINE)
    assert titles == ["A schedule", "An optimizer", "A strategy", "A logger", "A corpus", "A lesson", "An exercise"]


def test_every_block_of_code_says_where_it_goes():
    assert len(STEP.findall(RECIPES)) == len(BLOCK.findall(RECIPES))


def test_what_the_recipes_add_keeps_the_style_of_the_code(followed):
    run(followed, "-m", "ruff", "check", "--no-cache", "course_lm", "tests/lessons")
    run(followed, "-m", "ruff", "format", "--no-cache", "--check", "course_lm", "tests/lessons")


def test_the_new_schedule_gives_the_rates_and_the_new_logger_writes_them(trained):
    head, *lines = trained["table"].splitlines()
    steps, losses, rates = zip(*(map(float, line.split(",")) for line in lines))
    assert head == "step,loss,lr" and steps == (1, 2, 3) and all(5 < loss < 7 for loss in losses)
    assert rates == pytest.approx([1e-3, 1e-3 / 3, 1e-3 / 3])


def test_a_run_may_go_on_with_the_new_logger_switched_off(trained):
    assert trained["free"]


def test_the_new_optimizer_is_the_one_of_the_run(trained):
    assert trained["optimizer"] == "RAdam"


def test_the_new_strategy_scores_and_takes_its_settings(trained):
    assert trained["scores"] == [0.375, 1.0, 0.0]
    assert (trained["strategy"], trained["settings"]) == ("word_length", {"letters": 12})


def test_the_new_corpus_is_trained_on(trained):
    assert trained["corpus"] == "docstrings"


@pytest.mark.parametrize("name", ["triangular", "radam", "word_length", "--table.enabled"])
def test_the_command_line_lists_what_is_new(trained, name):
    assert name in trained["help"]


def run_tests(folder, which, *files):
    """Run the tests of the copy whose names `which` chooses; return what pytest lists as passed."""
    files = [f"tests/{file}" for file in files]
    told = run(folder, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--color=no", "-k", which, *files)
    return " ".join(re.findall(r"^\S+::(\S+) PASSED", told, re.MULTILINE))


def test_what_holds_for_all_of_a_kind_holds_for_what_is_new(followed):
    files = ("test_schedules.py", "test_optim.py", "curriculum/test_curriculum_difficulty.py")
    passed = run_tests(followed, "triangular or radam or word_length", *files)
    for name in ("[triangular]", "[radam]", "[word_length]"):
        assert name in passed


def test_the_new_lesson_runs_and_keeps_the_promises_of_a_lesson(followed):
    run(followed, "-c", "import sys; from course_lm.cli import main; sys.exit(main(['lessons', '18', '--write']))")
    lesson = "public_name or at_its_proof or words_expected or most_of_which"
    which = f"18-weight or every_check or readme or (18_weight and ({lesson}))"
    files = ("test_checks.py", "test_answers.py", "test_notebooks.py")
    passed = run_tests(followed, which, *(f"lessons/{file}" for file in files))
    for claim in (
        "told_apart_from_the_others[18-",
        "in_the_words_expected[18_",
        "every_check",
        "readme_has_a_row",
        "every_public_name",
        "at_its_proof[18_",
    ):
        assert claim in passed
