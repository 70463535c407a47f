"""One notebook open in JupyterLab, as a learner sees it: run it, read what happened, look at it."""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize

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
            texts[kind] += re.sub(r"0x[0-9a-f]+", "0x…", str(text))
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
        self._hosts_before = len(self.lab.outside_hosts())
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
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until the kernel has nothing left to do."""
        self.page.wait_for_function(HAS_ENDED, timeout=1000 * RUN_SECONDS)

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
    context = browser.new_context(viewport=SCREEN)
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
