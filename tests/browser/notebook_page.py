"""One notebook open in JupyterLab, as a learner sees it: run it, read what happened, look at it."""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize

from course_lm.classroom.stored_outputs import without_pictures

from .lab import Lab

RUN_SECONDS = 600  # for what hangs; a lesson takes a minute, on a slow machine several
OPEN_SECONDS = 60
SCREEN: ViewportSize = {"width": 1280, "height": 900}
SCROLLER = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer"

PANEL = "window.jupyterapp?.shell.currentWidget"
IS_READY = f"{PANEL}?.context?.sessionContext?.session?.kernel?.status === 'idle'"
CODE_CELLS = f"{PANEL}.content.widgets.filter(cell => cell.model.type === 'code')"
CELLS = f"""() => {CODE_CELLS}.map(cell => ({{
    number: {PANEL}.content.widgets.indexOf(cell),
    source: cell.model.sharedModel.getSource(),
    count: cell.model.executionCount,
    outputs: cell.model.outputs.toJSON(),
}}))"""
# Asked many times a second: nothing here may copy the outputs.
WAITS = """(cell => cell.model.executionState === 'running'
    || cell.node.querySelector('.jp-InputPrompt').textContent.includes('*'))"""
HAS_STARTED = f"{CODE_CELLS}.some(cell => cell.model.executionCount || {WAITS}(cell))"
HAS_ENDED = f"{IS_READY} && !{CODE_CELLS}.some({WAITS})"
# From the first cell to the end of the last one (the page can be scrolled further), and most of a screen.
HEIGHTS = """scroller => {
    const ends = Array.from(scroller.querySelectorAll('.jp-Cell'), cell => cell.getBoundingClientRect().bottom)
    const top = scroller.getBoundingClientRect().top - scroller.scrollTop
    return [Math.round(Math.max(...ends) - top), scroller.clientHeight - 60]
}"""
CUT_OFF = """() => Array.from(document.querySelectorAll('.jp-Notebook .jp-Cell')).flatMap((cell, number) =>
    Array.from(cell.querySelectorAll('.cm-scroller, .jp-OutputArea-output, .jp-MarkdownOutput'))
        .filter(part => part.clientWidth && part.scrollWidth > part.clientWidth + 1)
        .map(part => `cell ${number}: ${part.scrollWidth} pixels in ${part.clientWidth}`))"""
TALL = """() => Array.from(document.querySelectorAll('.jp-Notebook .jp-Cell')).flatMap((cell, number) =>
    Array.from(cell.querySelectorAll('.jp-OutputArea-output img'))
        .filter(image => image.clientHeight > innerHeight)
        .map(image => `cell ${number}: ${image.clientHeight} pixels`))"""


# What a lesson shows; the rest of the page is JupyterLab's own.
OURS = {"include": [[".jp-Notebook .jp-OutputArea-output"], [".jp-Notebook .jp-RenderedMarkdown"]]}
WCAG = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
THEMES = ("JupyterLab Light", "JupyterLab Dark")
CHANGE_THEME = """async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', {theme})
    document.querySelectorAll('details').forEach(fold => { fold.open = true })
}"""
HAS_THEME = "light => document.body.dataset.jpThemeLight === light"
# An explorer is as tall as the screen at most, its controls stand beside the picture, and nothing of it is hidden.
EXPLORERS = """wide => Array.from(document.querySelectorAll('.course-explorer')).flatMap((explorer, number) => {
    const [controls, result] = Array.from(explorer.children, part => part.getBoundingClientRect())
    const screen = explorer.closest('.jp-WindowedPanel-outer').clientHeight
    const found = []
    if (wide && explorer.clientHeight > screen) found.push(`is ${explorer.clientHeight} pixels tall on ${screen}`)
    if (wide && controls.right > result.left + 1) found.push('has its picture below its controls')
    for (const part of [explorer, ...explorer.querySelectorAll('.widget-readout, pre, .jupyter-widgets')])
        if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth)
            found.push(`cuts off ${part.className || part.tagName}: ${part.scrollWidth} pixels in ${part.clientWidth}`)
    return found.map(problem => `explorer ${number + 1} ${problem}`)
})"""
# JupyterLab calls an image of HTML that has no description "Image".
UNDESCRIBED = """() => Array.from(document.querySelectorAll('.jp-Notebook .jp-Cell')).flatMap((cell, number) =>
    Array.from(cell.querySelectorAll('img'))
        .filter(image => ['', 'Image'].includes(image.alt.trim()))
        .map(() => `cell ${number}`))"""


@dataclass(frozen=True)
class Cell:
    """A code cell: its place in the notebook, its source, its execution count or None, and its outputs as in a file."""

    number: int
    source: str
    count: int | None
    outputs: list[dict[str, Any]]

    @property
    def errors(self) -> list[str]:
        """The errors that it ended in."""
        return [f"{output['ename']}: {output['evalue']}" for output in self.outputs if output["output_type"] == "error"]


def texts_of(outputs: list[dict[str, Any]]) -> dict[str, str]:
    """What a cell has printed and shown, by stream and by kind of data; addresses and names of widgets say nothing."""
    texts: defaultdict[str, str] = defaultdict(str)
    for output in outputs:
        for kind, text in output.get("data", {output.get("name", "error"): output.get("text", "")}).items():
            words = re.sub(r'(width|height)="\d+"', "", without_pictures(str(text)))
            texts[kind] += re.sub(r"0x[0-9a-f]+", "0x…", words)
    texts.pop("application/vnd.jupyter.widget-view+json", None)
    return dict(texts)


@dataclass
class NotebookPage:
    """A page with one notebook; what it asked for outside this machine and the errors it logged."""

    page: Page = field(repr=False)
    lab: Lab = field(repr=False)
    console_errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._requests: list[str] = []
        self._hosts_before, self._labels_before = len(self.lab.outside_hosts()), len(self.lab.faint_labels())
        self.page.on("request", lambda request: self._note_request(request.url))
        self.page.on("websocket", lambda socket: self._note_request(socket.url))
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))

    def outside(self) -> list[str]:
        """What the page asked for, and the hosts that server and kernel looked for, outside this machine."""
        return self._requests + self.lab.outside_hosts()[self._hosts_before :]

    def cells(self) -> list[Cell]:
        """The code cells as they are now."""
        return [Cell(**cell) for cell in self.page.evaluate(CELLS)]

    def run_all(self) -> None:
        """Clear the stored outputs, press Run > Run All Cells, and wait until no cell waits and the kernel is idle."""
        self._choose("Edit", "Clear Outputs of All Cells")
        assert all(cell.count is None for cell in self.cells()), "the stored outputs were not cleared"
        self._choose("Run", "Run All Cells")
        self.page.wait_for_function(HAS_STARTED, timeout=1000 * OPEN_SECONDS)
        self.wait_until_idle(every=500)

    def wait_until_idle(self, every: float | Literal["raf"] = "raf") -> None:
        """Wait until the kernel has nothing left to do; asked each so many milliseconds, or with each frame."""
        self.page.wait_for_function(HAS_ENDED, timeout=1000 * RUN_SECONDS, polling=every)

    def problems(self) -> list[str]:
        """The cells that ended in an error or did not run."""
        problems = [f"cell {cell.number}: {error}" for cell in self.cells() for error in cell.errors]
        return problems + [f"cell {cell.number}: did not run" for cell in self.cells() if cell.count is None]

    def wide_cells(self) -> list[str]:
        """The cells of which a part is hidden to the right."""
        return self.page.evaluate(CUT_OFF)

    def tall_pictures(self) -> list[str]:
        """The cells with a picture that does not fit on the screen."""
        return self.page.evaluate(TALL)

    def misplaced_explorers(self, width: int, height: int, wide: bool) -> list[str]:
        """What of an explorer is not on one screen of this size, and, where it is `wide`, not side by side."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_timeout(300)  # for JupyterLab to follow
        problems = self.page.evaluate(EXPLORERS, wide)
        self.page.set_viewport_size(SCREEN)
        return problems

    def undescribed_pictures(self) -> list[str]:
        """The cells with a picture that has no alternative text."""
        return self.page.evaluate(UNDESCRIBED)

    def faint_labels(self) -> list[str]:
        """The words of figures that are hard to read, see faint_labels.py."""
        return self.lab.faint_labels()[self._labels_before :]

    def violations(self, theme: str) -> list[str]:
        """What axe-core finds against WCAG 2, levels A and AA, in what the lesson shows, in a theme of JupyterLab."""
        self.page.evaluate(CHANGE_THEME, theme)
        self.page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === String(light)", arg="Light" in theme
        )
        found = Axe().run(self.page, context=OURS, options=WCAG).response["violations"]
        self.page.evaluate(CHANGE_THEME, THEMES[0])  # the one in which the lesson was opened
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]
        ]

    def take_screenshots(self, folder: Path, name: str) -> list[Path]:
        """Pictures of the notebook from top to bottom, one screen each: `folder/name-01.png`, …"""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-[0-9][0-9].png"):
            old.unlink()
        scroller = self.page.locator(SCROLLER)
        height, step = scroller.evaluate(HEIGHTS)
        files = []
        for number, top in enumerate(range(0, height, step), start=1):
            scroller.evaluate("(element, top) => { element.scrollTop = top }", top)
            self.page.wait_for_timeout(100)
            files.append(folder / f"{name}-{number:02}.png")
            self.page.screenshot(path=files[-1])
        return files

    def _choose(self, menu: str, entry: str) -> None:
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        self.page.get_by_role("menuitem", name=entry, exact=True).click()

    def _note_request(self, url: str) -> None:
        address = urlsplit(url)
        if address.scheme not in ("blob", "data") and address.hostname not in ("localhost", "127.0.0.1"):
            self._requests.append(url)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.console_errors.append(f"{message.text} ({message.location.get('url')})")


@contextmanager
def opened(browser: Browser, lab: Lab, notebook: Path) -> Iterator[NotebookPage]:
    """A notebook of the lab's folder in a browser without memory, its kernel ready; the kernel ends with it."""
    context = browser.new_context(viewport=SCREEN, permissions=["clipboard-read", "clipboard-write"])
    notebook_page = NotebookPage(context.new_page(), lab)
    page = notebook_page.page
    try:
        page.goto(lab.address(notebook))
        page.wait_for_function(IS_READY, timeout=1000 * OPEN_SECONDS)
        yield notebook_page
    finally:
        with suppress(Error):  # a page that never came up has no kernel
            page.evaluate("window.jupyterapp.serviceManager.sessions.shutdownAll()")
        context.close()
