"""What the pages of the project name is there: files, functions, lessons and tests."""

import ast
import json
import re
from pathlib import Path

import pytest

from course_lm.audit.spec import FAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
CODE = re.compile(r"^(`{3,})\w*\n.*?\n\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^]\[]+)\]\((?!http)([^)#]+)[^)]*\)")


def text_of(page):
    return CODE.sub("", page.read_text(encoding="utf-8"))


def names_in(file):
    """What a module defines, with the methods of its classes as `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def missing_from(page):
    """The page's links that lead nowhere: no such file, or no such name in it."""
    for label, target in LINK.findall(text_of(page)):
        file = (page.parent / target).resolve()
        if not file.exists():
            yield target
        elif file.suffix == ".py" and label.startswith("`") and label.strip("`") not in names_in(file):
            yield f"{label} in {target}"


def test_the_check_of_links_finds_a_file_and_a_name_that_are_not_there(tmp_path):
    (tmp_path / "module.py").write_text("class Loader:\n    def order(self): ...\n")
    page = tmp_path / "page.md"
    page.write_text("[`Loader.order`](module.py) [`Loader.gone`](module.py) [`order`](module.py) [a page](gone.md)")
    assert list(missing_from(page)) == ["`Loader.gone` in module.py", "`order` in module.py", "gone.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_name_that_are_there(page):
    assert list(missing_from(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    text = re.sub(r"^New file `.*`:$", "", text_of(page), flags=re.MULTILINE)  # a recipe makes it
    folders, endings = "benchmarks|course_lm|tests|docs|data|notebooks|tools", "py|md|jsonl?|ipynb|yaml"
    named = re.findall(rf"`(?:python )?((?:{folders})/[^`\s]+\.(?:{endings}))`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_promise_of_the_contract_stands_on_the_way_of_a_batch():
    text = (ROOT / "docs" / "way_of_a_batch.md").read_text(encoding="utf-8")
    kept = {number for numbers in re.findall(r"\*\*(C[\d, C]+)\*\*", text) for number in numbers.split(", ")}
    assert kept == {f"C{number}" for number in range(1, 19)}


def test_the_contract_names_only_tests_and_lessons_that_there_are():
    text = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    places = re.findall(r"`(tests/[^`]+)`", text)
    assert len(re.findall(r"^\| \*\*C\d+ ", text, re.MULTILINE)) == 18
    assert [place for place in places if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_link_of_a_lesson_leads_to_a_file_that_is_there(lesson):
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    targets = [target for _, target in LINK.findall(CODE.sub("", text))]
    assert targets, "a lesson names the next one, and those that it needs"
    assert [target for target in targets if not (lesson.parent / target).exists()] == []


def test_the_readme_counts_the_mistakes_that_the_specification_knows():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"each of (\d+) known mistakes", readme) == [str(len(FAULTS))]
