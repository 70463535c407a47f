"""README's pictures of JupyterLab, in its light and its dark theme: `python -m tools.screenshots` writes them to docs/.

It needs what the tests of the browser need: Chromium, and the extra `test`. One picture is of lesson 00's last
exercise, whose check names the mistake in an answer, one of lesson 05's explorer of schedules.
"""

import io
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell
from PIL import Image
from playwright.sync_api import Page

from tests.browser.lab import find_chromium, running_browser, running_lab
from tests.browser.notebook_page import CHANGE_THEME, HAS_THEME, NotebookPage, lab_page, write_notebook

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
THEMES = {"": "JupyterLab Light", "_dark": "JupyterLab Dark"}
IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom course_lm.classroom import checks, widgets"
EXPLORER = "widgets.schedule_explorer()"
# The labels are not shifted, as in the third panel of README's first picture.
ANSWER = """def train_steps(model, batches, optimizer, lr_at):
    for k, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(k)
        optimizer.zero_grad()
        logits = model(batch["input_ids"], batch["attention_mask"])
        F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()


checks.train_steps(train_steps)"""


def notebook(folder: Path) -> Path:
    """A notebook with the last exercise of lesson 00, answered wrongly, and the explorer."""
    lesson = nbformat.read(ROOT / "notebooks" / "00_the_whole_loop.ipynb", as_version=4)
    (place,) = [n for n, cell in enumerate(lesson.cells) if "checks.train_steps(" in cell.source]
    task = "### Exercise" + lesson.cells[place - 1].source.rpartition("### Exercise")[2]
    return write_notebook(folder / "pictures.ipynb", [IMPORTS, new_markdown_cell(task), ANSWER, EXPLORER])


def take(page: NotebookPage, name: str, first: str, last: str) -> None:
    """Write a picture in each theme: of what lies between two elements, from the top of one to the end of the other."""
    for suffix, theme in THEMES.items():
        page.page.evaluate(CHANGE_THEME, theme)
        page.page.wait_for_function(HAS_THEME, arg=theme)
        page.page.wait_for_timeout(1000)  # for what is drawn anew
        save(page.page, DOCS / f"{name}{suffix}.png", first, last)


def save(page: Page, file: Path, first: str, last: str) -> None:
    """Write the part of the page in few colours."""
    page.locator(first).first.scroll_into_view_if_needed()
    top, end = (page.locator(place).first.bounding_box() for place in (first, last))
    assert top is not None and end is not None, f"{first} or {last} is not on the page"
    height = end["y"] + end["height"] - top["y"]
    picture = Image.open(io.BytesIO(page.screenshot(clip={**top, "height": height})))
    picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {picture.width} × {picture.height} pixels, {file.stat().st_size // 1024} KiB")


def main() -> None:
    """Open both notebooks in a JupyterLab of their own, and write all pictures."""
    with (
        tempfile.TemporaryDirectory() as home,
        running_lab(Path(home)) as lab,
        running_browser(find_chromium()) as browser,
        lab_page(browser, lab) as page,
    ):
        page.page.evaluate("window.jupyterapp.shell.collapseLeft()")
        with page.opened(notebook(lab.root)):
            page.run_all()
            page.page.set_viewport_size({"width": 860, "height": 1600})
            take(page, "named_mistake", ".jp-Cell:nth-of-type(2)", ".jp-Cell:nth-of-type(3)")
            page.page.set_viewport_size({"width": 1000, "height": 1600})
            take(page, "schedule_explorer", ".course-explorer", ".course-explorer button[data-text]")


if __name__ == "__main__":
    main()
