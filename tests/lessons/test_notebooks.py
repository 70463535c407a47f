"""Every stored lesson keeps the rules, each rule can fail, and each lesson turns red when the package is broken."""

import copy
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lm.classroom.stored_outputs import WIDGET_VIEW, clean
from tests.lessons import notebook_rules as rules

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))

ABOUT = tomllib.loads((ROOT / "tests" / "lessons" / "taught.toml").read_text(encoding="utf-8"))


def run_nbval(lesson: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one lesson under nbval in a process of its own, with `environment` added to this one's."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-rf"]
    command += ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "600"]
    command += ["--nbval-sanitize-with", str(ROOT / "tests" / "lessons" / "nbval_sanitize.cfg"), *options, str(lesson)]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=570)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_stored_lesson_keeps_the_rule(lesson, rule):
    assert rule(nbformat.read(lesson, as_version=4)) == []


def figure(alt="A line that falls."):
    picture = f'<img alt="{alt}" width="1" height="1" src="data:image/png;base64,iVBOR+/a/b/c/w0=">'
    return new_output("display_data", data={"text/html": picture, "text/plain": alt})


def shown(data):
    return new_output("display_data", data=data)


# What stands behind the names that a lesson uses, and refuses what they cannot take.
BEHIND = re.compile(
    r"check_\w+|adapt_loss|loss_sum|name_of|as_plain|describe|is_dense|keep|load_weights|load_optimizer"
    r"|saved_step|prepare_save|write_checkpoint|optimizer_state|undone_on_error|leave|exit_code_of|RankError"
    r"|LossConfig|build_loss|count_correct|\w+_rate|\w+_rates|fix_lr_scales|fills_a_block"
)


@pytest.mark.parametrize(
    ("lesson", "module"),
    [(lesson, module) for lesson in LESSONS for module in ABOUT[lesson.stem]["taught"]],
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_lesson_uses_every_public_name_of_its_modules(lesson, module):
    taught = importlib.import_module(f"course_lm.{module}")
    names = getattr(taught, "__all__", None) or [
        name for name, thing in vars(taught).items() if getattr(thing, "__module__", "") == taught.__name__
    ]
    source = "\n".join(cell.source for cell in rules.code_cells(nbformat.read(lesson, as_version=4)))
    used = set(re.findall(r"\w+", source))
    taught = [name for name in names if not name.startswith("_") and not BEHIND.fullmatch(name)]
    assert [name for name in taught if name not in used] == []


@pytest.fixture
def good() -> Any:
    """A lesson that keeps every rule: 20 cells of code, 20 of prose, 5 figures."""
    setup = new_code_cell("from course_lm.classroom import lessons\nfrom course_lm import loss\nlessons.setup()")
    setup.metadata["tags"] = ["nbval-ignore-output"]
    code = [setup, *(new_code_cell(f"x = {number}\nprint(x)") for number in range(18))]
    for cell in code[10:13]:
        cell.metadata["tags"] = ["exercise"]
    for cell in code[13:15]:
        cell.source = 'checks.predict("loss", "which")'
    code.append(new_code_cell("loss.next_token_loss", metadata={"tags": ["prove"]}))
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        cell.outputs = [new_output("stream", text=f"{number} tokens/s\n"), *([figure()] if number <= 5 else [])]
    prose = [new_markdown_cell("one two three four five " * 10) for _ in range(20)]
    prose[0].source += "\n\n**Time** 10 minutes to read, 9 more for the exercises; about 20 seconds to run."
    for number, minutes in ((11, 4), (12, 5)):
        prose[number].source += f"\n\n### Exercise {number - 10} ●○○ · {minutes} minutes"
    cells = [cell for pair in zip(prose, code, strict=True) for cell in pair]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    notebook = new_notebook(cells=cells)
    clean(notebook)
    return notebook


def put(cell: int, name: str, value: Any) -> Callable[[Any], None]:
    return lambda notebook: setattr(notebook.cells[cell], name, value)


def add(*cells: Any) -> Callable[[Any], None]:
    return lambda notebook: notebook.cells.extend(copy.deepcopy(cells))


EXPLORER = '<div class="course-explorer"></div><script type="module">old</script>'
BREAKS = [
    (rules.executed_in_order, "a null count", put(5, "execution_count", None)),
    (rules.executed_in_order, "run twice", put(5, "execution_count", 41)),
    (rules.figures_have_alternative_text, "no HTML", put(1, "outputs", [shown({"image/png": ""})])),
    (rules.figures_have_alternative_text, "no alt", put(1, "outputs", [shown({"text/html": "<img src=''>"})])),
    (rules.figures_have_alternative_text, "an empty alt", put(1, "outputs", [figure(alt=" ")])),
    (rules.figures_have_alternative_text, "a linked picture", put(0, "source", "![](loop.png)")),
    (
        rules.explorers_are_drawn_by_the_present_script,
        "an old one",
        put(1, "outputs", [shown({"text/html": EXPLORER})]),
    ),
    (rules.is_clean, "metadata", lambda nb: nb.metadata.language_info.update(version="3.11.7")),
    (rules.is_clean, "a cell's metadata", put(3, "metadata", {"file": "a.py"})),
    (rules.is_clean, "a colour", put(3, "outputs", [new_output("stream", text="\x1b[31mred\x1b[0m")])),
    (rules.is_clean, "a widget", put(3, "outputs", [shown({WIDGET_VIEW: {"model_id": "1"}, "text/plain": "x"})])),
    (rules.no_absolute_paths, "in an output", put(3, "outputs", [new_output("stream", text="at /home/ada/x.pt")])),
    (rules.no_stored_errors, "a stored error", put(3, "outputs", [new_output("error", ename="KeyError")])),
    (rules.no_unexpected_warnings, "a font", put(1, "outputs", [new_output("stream", name="stderr", text="x")])),
    (rules.starts_with_setup, "no setup", put(1, "source", "x = 1")),
    (rules.starts_with_setup, "setup's output compared", put(1, "metadata", {})),
    (rules.has_a_proof, "no proof", put(39, "metadata", {})),
    (rules.of_the_usual_size, "too few cells", lambda nb: nb.update(cells=nb.cells[:29])),
    (rules.of_the_usual_size, "too many cells", add(*[new_markdown_cell("more")] * 21)),
    (rules.of_the_usual_size, "too many words", put(0, "source", "word " * 1100)),
    (rules.of_the_usual_size, "too many figures", put(1, "outputs", [figure()] * 5)),
    (rules.of_the_usual_size, "too few exercises", put(21, "metadata", {})),
    (rules.short_code_cells, "a long cell", put(5, "source", "x = 1\n" * 26)),
    (rules.short_code_cells, "long cells", lambda nb: [put(n, "source", "x = 1\n" * 7)(nb) for n in range(1, 39, 2)]),
    (rules.predictions_tell_nothing, "too few", put(27, "source", "x = 1")),
    (rules.predictions_tell_nothing, "an answer", put(27, "source", 'checks.predict("Which?", {"a": "Yes."})')),
    (rules.minutes_of_the_card, "none", put(0, "source", "one two three")),
    (rules.minutes_of_the_card, "other minutes", put(22, "source", "### Exercise 1 ●○○ · 5 minutes")),
    (rules.public_names, "imported", put(3, "source", "from course_lm.loss import _check_inputs")),
    (rules.public_names, "an attribute", put(3, "source", "course_lm.loss._check_inputs(1)")),
]


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_good_notebook_passes(good, rule):
    assert rule(good) == []


@pytest.mark.parametrize(
    ("rule", "name", "damage"), BREAKS, ids=[f"{rule.__name__}-{name}" for rule, name, _ in BREAKS]
)
def test_a_broken_notebook_fails_the_rule(good, rule, name, damage):
    damage(good)
    assert rule(good) != []


def test_every_rule_is_seen_to_fail():
    assert {rule for rule, _, _ in BREAKS} == set(rules.RULES)


def test_what_folds_away_is_not_counted_as_words(good):
    good.cells[0].source += "<details><summary>Solution</summary>" + "word " * 3000 + "</details>"
    assert rules.of_the_usual_size(good) == []


def test_nbval_refuses_an_output_that_has_changed(tmp_path):
    lesson = tmp_path / "00_small.ipynb"
    cells = [new_code_cell("1 + 1", execution_count=1), new_code_cell("print('3')", execution_count=2)]
    cells[0].outputs = [new_output("execute_result", data={"text/plain": "2"}, execution_count=1)]
    cells[1].outputs = [new_output("stream", text="4\n")]
    nbformat.write(new_notebook(cells=cells), lesson)
    result = run_nbval(lesson)
    assert result.returncode == 1
    assert "1 failed, 1 passed" in result.stdout


def test_the_readme_has_a_row_for_every_lesson_in_order():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.*\]\(notebooks/(.*)\.ipynb\) \|", readme, re.MULTILINE) == sorted(ABOUT)


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", ABOUT)
def test_a_broken_package_turns_the_lesson_red_at_its_proof(name, tmp_path):
    file, right, wrong = ABOUT[name]["sabotage"]
    for folder in ("course_lm", "data"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = (tmp_path / "course_lm" / file).read_text()
    assert source.count(right) == 1, f"{file} no longer holds the line that this test breaks"
    (tmp_path / "course_lm" / file).write_text(source.replace(right, wrong))
    lesson = ROOT / "notebooks" / f"{name}.ipynb"
    result = run_nbval(lesson, "-x", PYTHONPATH=str(tmp_path))
    red = [int(number) for number in re.findall(r"^FAILED .*::Cell (\d+)", result.stdout, re.MULTILINE)]
    proofs = [
        number
        for number, cell in enumerate(rules.code_cells(nbformat.read(lesson, as_version=4)))
        if "prove" in cell.metadata.get("tags", [])
    ]
    assert len(red) == 1 and red[0] in proofs, f"red: {red}, proofs: {proofs}\n{result.stdout[-3000:]}"
