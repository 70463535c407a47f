"""Every explorer of the course and some predictions in one notebook, worked with the keyboard in a real browser.

An explorer's cell and the functions that it calls are the lesson's own; the models, texts and runs that a lesson
computes for it are tiny here.
"""

import ast
import json
import re
from functools import cache

import pytest
from nbformat.v4 import new_code_cell

from course_lm.classroom import widgets
from tests.sets import some

from .notebook_page import write_notebook
from .test_stored_lessons import LESSONS
from .widgets import answer, explorers, predictions

SETUP = """
from course_lm.classroom import checks, plots, widgets
from course_lm.classroom.lessons import setup
setup(seed=0)
"""
EXPLORER = r"(\w*explorer)\("
# What an explorer needs of what its lesson has computed; all share one notebook, and so their names.
INPUTS = {
    "00_the_whole_loop": "tokens = list('abcdefghij'); next_logits = torch.linspace(2, -2, 10)",
    "01_text_to_tokens": """
sentences = {"English": "the cat sat on the mat; that cat ate the oats", "German": "über Äpfel, über Äpfel"}
most = dict.fromkeys(("stories", "hindi", "python-docs"), 512)
""",
    "02_batching": """
documents = ["the cat sat on the mat " * (1 + number * number % 23) for number in range(60)]
tokenizer = train_tokenizer(documents, 270)
""",
    "03_loss": """
words, ids = list("abcdefgh"), torch.arange(12).view(2, 6) % 8
tiny = None
kinds = [lambda logits, _, n=n: logits.logsumexp(-1).sum() - 2 * logits[..., n].sum() for n in range(7)]
""",
    "04_optimizers": """
CURVATURE = torch.tensor([1.0, 20.0])
RULES = {"SGD": lambda w, g, _, lr: w - lr * g, "Adam": lambda w, g, _, lr: w - lr * g.sign()}
RULES["momentum"] = lambda w, g, _, lr: w - lr * g / 2
""",
    "06_lr_finder": """
rates = torch.logspace(-6, 0, 100)
losses = 7 - 3 * torch.sigmoid((rates.log10() + 3) / 0.1) + 0.2 * (torch.arange(100) - 80).clamp(min=0)
losses += 0.3 * torch.randn(100, generator=torch.Generator().manual_seed(0))
tests, unigram = {}, 5.0
for steps in (50, 100, 200, 400):
    swept = (losses - steps / 100).tolist()
    tests["stories", steps] = [lr_finder.LRFinderResult(rates.tolist(), swept, "diverged")]
""",
    "08_accumulation": """
model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8), 13, 16)
mask = (torch.arange(12) < torch.tensor([3, 9, 12, 2, 7, 11, 4, 5])[:, None]).long()
tokens8 = torch.randint(13, mask.shape, generator=torch.Generator().manual_seed(0))
ragged = {"input_ids": tokens8, "attention_mask": mask, "labels": tokens8.masked_fill(mask == 0, -100)}
""",
}


@cache
def code_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def names_in(*statements):
    return {node.id for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name)}


def explorer_of(path):
    """What the lesson's explorer needs, and the end of the lesson's cell, after its last figure or print."""
    statements = [ast.parse(source).body for source in code_of(path)]
    (shows,) = (cell for cell in statements if re.search(EXPLORER, ast.unparse(cell)))
    begin = max((place for place, part in enumerate(shows[:-1], 1) if isinstance(part, ast.Expr)), default=0)
    parts = [part for cell in statements for part in cell]
    needed, defined = names_in(*shows[begin:]), []
    for part in reversed(parts):
        if isinstance(part, ast.FunctionDef) and part.name in needed:
            needed |= names_in(part)
            defined.insert(0, part)
    imported = [part for part in parts if isinstance(part, ast.Import | ast.ImportFrom)]
    before, end = ("\n".join(map(ast.unparse, parts)) for parts in ([*imported, *defined], shows[begin:]))
    return f"{before}\n{INPUTS.get(path.stem, '')}\n{end}"


CODE = [source for path in LESSONS for source in code_of(path)]
QUESTIONS = [source for source in CODE if source.startswith("checks.predict(")]
SHOWING = [path for path in LESSONS if any(re.search(EXPLORER, source) for source in code_of(path))]
SOURCES = [SETUP, *map(explorer_of, SHOWING), *some(QUESTIONS, 2)]
# Lines of code that are too long, as these are, would be a flaw of the page.
HIDDEN = {"jupyter": {"source_hidden": True}}


@pytest.fixture(scope="module")
def gallery(page, lab):
    cells = [new_code_cell(source, metadata=HIDDEN) for source in SOURCES]
    with page.opened(write_notebook(lab.root / "gallery.ipynb", cells)):
        page.run_all()
        yield page


def test_every_explorer_of_the_package_and_of_the_lessons_is_in_the_gallery(gallery):
    assert gallery.problems() == []
    called = re.findall(EXPLORER, "\n".join(SOURCES))
    assert {name for name in widgets.__all__ if name.endswith("explorer")} <= {*called}
    assert len(re.findall(EXPLORER, "\n".join(CODE))) == len(called) == len(explorers(gallery))


def test_an_explorer_is_whole_on_one_screen(gallery):
    assert gallery.misplaced_explorers() == []


def test_a_button_that_copies_leaves_its_text_on_the_clipboard(gallery):
    buttons = gallery.page.locator("button[data-text]").all()
    assert buttons
    for button in buttons:
        button.click()
        button.get_by_text("copied").wait_for()
        assert gallery.page.evaluate("navigator.clipboard.readText()") == button.get_attribute("data-text")


@pytest.mark.daily(len(SHOWING))
@pytest.mark.parametrize("number", range(len(SHOWING)), ids=[path.stem for path in SHOWING])
def test_every_control_changes_the_picture_and_the_words(gallery, number):
    assert explorers(gallery)[number].explore() == []


def test_every_prediction_is_answered_from_the_keyboard(gallery):
    found = predictions(gallery)
    assert len(found) == len(some(QUESTIONS, 2))
    assert [problem for prediction in found for problem in answer(gallery, prediction)] == []


def test_the_pictures_have_alternative_texts_and_all_is_whole_on_the_screen(gallery):
    assert gallery.flaws() == []


def test_no_words_of_an_explorer_are_hard_to_read(gallery):
    assert gallery.faint_labels() == []


def test_axe_finds_nothing_in_the_light_and_in_the_dark(gallery):
    assert gallery.violations() == []


def test_no_request_leaves_the_machine(gallery):
    assert gallery.outside() == []


def test_no_error_reaches_the_console(gallery):
    assert gallery.console_errors == []
