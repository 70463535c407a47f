"""JupyterLab in a browser, as a learner sees it: open a notebook, run it, read what happened, look at it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from axe_playwright_python.sync_playwright import Axe
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize

from course_lm.classroom.plots import LEGIBLE
from course_lm.classroom.stored_outputs import without_pictures

from .lab import Lab

RUN_SECONDS = 600  # for what hangs; a lesson takes a minute, on a slow machine several
OPEN_SECONDS = 60
POLLED = 200  # milliseconds: what is asked with each frame keeps a core busy
SCREEN: ViewportSize = {"width": 1280, "height": 900}
SCREENS: tuple[ViewportSize, ...] = (SCREEN, {"width": 1600, "height": 1000}, {"width": 640, "height": 900})
NARROW = 1000  # pixels of a screen on which an explorer's picture stands below its controls

PANEL = "window.jupyterapp?.shell.currentWidget"
# As by "Open With > Notebook (no kernel)", where no kernel is asked for.
OPEN = """async ([path, kernel]) => {
    const kernelPreference = kernel ? undefined : {shouldStart: false, shouldReuse: false}
    const options = {path, factory: 'Notebook', kernelPreference}
    const panel = await window.jupyterapp.commands.execute('docmanager:open', options)
    await panel.revealed
    await Promise.all(panel.content.widgets.map(cell => cell.ready))
}"""
CLOSE = f"async () => {{ const panel = {PANEL}; await panel.sessionContext.shutdown(); panel.dispose() }}"
IS_SHOWN = f"""{PANEL}.content.widgets.every(cell => !cell.rendered
        || cell.node.querySelector('.jp-MarkdownOutput:not(.lm-mod-hidden)')?.childElementCount)
    && Array.from({PANEL}.node.querySelectorAll('img')).every(image => image.complete)"""
IS_READY = f"{PANEL}?.context?.sessionContext?.session?.kernel?.status === 'idle'"
CODE_CELLS = f"{PANEL}.content.widgets.filter(cell => cell.model.type === 'code')"
CELLS = f"{PANEL}.content.model.toJSON().cells"
# Asked several times a second: nothing here may copy the outputs.
WAITS = """(cell => cell.model.executionState === 'running'
    || cell.node.querySelector('.jp-InputPrompt').textContent.includes('*'))"""
HAS_STARTED = f"{CODE_CELLS}.some(cell => cell.model.executionCount || {WAITS}(cell))"
HAS_ENDED = f"{IS_READY} && !{CODE_CELLS}.some({WAITS})"
# JupyterLab calls an image of HTML that has no description "Image".
FLAWS = """() => Array.from(document.querySelectorAll('.jp-Notebook .jp-Cell')).flatMap((cell, number) => {
    const parts = (selector, holds) => Array.from(cell.querySelectorAll(selector)).filter(holds)
    const problems = [
        ...parts('img', image => ['', 'Image'].includes(image.alt.trim())).map(() => 'a picture without words'),
        ...parts('.jp-OutputArea-output img', image => image.clientHeight > innerHeight)
            .map(image => `a picture of ${image.clientHeight} pixels in height`),
        ...parts('.cm-scroller, .jp-OutputArea-output, .jp-MarkdownOutput',
                part => part.clientWidth && part.scrollWidth > part.clientWidth + 1)
            .map(part => `cut off, ${part.scrollWidth} pixels in ${part.clientWidth}`),
    ]
    return problems.map(problem => `cell ${number}: ${problem}`)
})"""

# What a lesson shows; the rest of the page is JupyterLab's own.
OURS = {"include": [[".jp-Notebook .jp-OutputArea-output"], [".jp-Notebook .jp-RenderedMarkdown"]]}
WCAG = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
VIOLATIONS = "async ([context, options]) => (await axe.run(context, options)).violations"
# The words of explorers, whose contrast with the page axe does not compute: they are SVG.
FAINT_WORDS = """least => {
    const numbers = colour => {
        const brush = Object.assign(document.createElement('canvas').getContext('2d'), {fillStyle: colour})
        brush.fillRect(0, 0, 1, 1)
        return Array.from(brush.getImageData(0, 0, 1, 1).data.slice(0, 3), part => part / 255)
    }
    const light = colour => [0.2126, 0.7152, 0.0722].reduce((sum, weight, n) => {
        const part = numbers(colour)[n]
        return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    }, 0)
    const ground = light(getComputedStyle(document.body).getPropertyValue('--jp-layout-color0'))
    return Array.from(document.querySelectorAll('.course-explorer svg text')).flatMap(text => {
        const ink = light(getComputedStyle(text).fill)
        const contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)
        return contrast < least ? [`${text.textContent}: ${contrast.toFixed(1)}`] : []
    })
}"""
THEMES = ("JupyterLab Light", "JupyterLab Dark")
CHANGE_THEME = """async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', {theme})
    document.querySelectorAll('details').forEach(fold => { fold.open = true })
}"""
HAS_THEME = "theme => document.body.dataset.jpThemeName === theme"
# An explorer is as tall as the screen at most, its controls stand beside the picture, and nothing of it is hidden.
EXPLORERS = """wide => Array.from(document.querySelectorAll('.course-explorer')).flatMap((explorer, number) => {
    const [controls, result] = (explorer.querySelector('form') ? ['form', '.result'] : [':scope > *', ':scope > * + *'])
        .map(part => explorer.querySelector(part).getBoundingClientRect())
    const screen = explorer.closest('.jp-WindowedPanel-outer').clientHeight
    const found = []
    if (wide && explorer.clientHeight > screen) found.push(`is ${explorer.clientHeight} pixels tall on ${screen}`)
    if (wide && controls.right > result.left + 1) found.push('has its picture below its controls')
    for (const part of [explorer, ...explorer.querySelectorAll('output, pre, label')])
        if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth)
            found.push(`cuts off ${part.className || part.tagName}: ${part.scrollWidth} pixels in ${part.clientWidth}`)
    return found.map(problem => `explorer ${number + 1} ${problem}`)
})"""


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
    """A page with one notebook at a time; what it asked for outside this machine and the errors it logged meanwhile."""

    page: Page = field(repr=False)
    lab: Lab = field(repr=False)
    console_errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._requests: list[str] = []
        self._forget()
        self.page.on("request", lambda request: self._note_request(request.url))
        self.page.on("websocket", lambda socket: self._note_request(socket.url))
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))

    @contextmanager
    def opened(self, notebook: Path, kernel: bool = True) -> Iterator[None]:
        """Open a notebook of the lab's folder, as it is stored; a kernel starts and ends with it."""
        try:
            self.page.evaluate(OPEN, [notebook.name, kernel])
            self._wait_for(IS_SHOWN, OPEN_SECONDS)
            if kernel:
                self._wait_for(IS_READY, OPEN_SECONDS)
            yield
        finally:
            with suppress(Error):  # a notebook that never came up
                self.page.evaluate(CLOSE)
            self._forget()

    def outside(self) -> list[str]:
        """What the page asked for, and the hosts that server and kernel looked for, outside this machine."""
        return self._requests + self.lab.outside_hosts()[self._hosts_before :]

    def cells(self) -> list[dict[str, Any]]:
        """The cells as they are now, as in a file."""
        return self.page.evaluate(CELLS)

    def run_all(self) -> None:
        """Clear the stored outputs, press Run > Run All Cells, and wait until no cell waits and the kernel is idle."""
        self._choose("Edit", "Clear Outputs of All Cells")
        assert not any(cell.get("execution_count") for cell in self.cells()), "the stored outputs were not cleared"
        self._choose("Run", "Run All Cells")
        self._wait_for(HAS_STARTED, OPEN_SECONDS)
        self._wait_for(HAS_ENDED, RUN_SECONDS)

    def problems(self) -> list[str]:
        """The cells that ended in an error or did not run."""
        problems = []
        for number, cell in enumerate(self.cells()):
            found = [f"{part['ename']}: {part['evalue']}" for part in cell.get("outputs", []) if "ename" in part]
            if cell["cell_type"] == "code" and cell["execution_count"] is None:
                found.append("did not run")
            problems += [f"cell {number}: {problem}" for problem in found]
        return problems

    def flaws(self) -> list[str]:
        """The cells with a picture that no words describe or that no screen holds, and those cut off at the right."""
        return self.page.evaluate(FLAWS)

    def misplaced_explorers(self) -> list[str]:
        """What of an explorer is not on one screen of several sizes, and, where they are wide, not side by side."""
        problems = []
        for size in SCREENS:
            self._resize(size)
            found = self.page.evaluate(EXPLORERS, size["width"] > NARROW)
            problems += [f"{problem}, screen of {size['width']} × {size['height']}" for problem in found]
        self._resize(SCREEN)
        return problems

    def faint_labels(self) -> list[str]:
        """The words of figures that are hard to read, see faint_labels.py."""
        return self.lab.faint_labels()[self._labels_before :]

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2, levels A and AA, in what the notebook shows, in each theme."""
        on = self.page.evaluate("document.body.dataset.jpThemeName")
        violations = []
        for theme in sorted(THEMES, key=lambda theme: theme != on):  # to change it takes longer than to look
            self.page.evaluate(CHANGE_THEME, theme)
            self.page.wait_for_function(HAS_THEME, arg=theme)
            violations += [f"{theme}: {words}" for words in self.page.evaluate(FAINT_WORDS, LEGIBLE - 0.2)]
            violations += [
                f"{theme}: {rule['id']}: {node['html'][:200]} {node['failureSummary']}"
                for rule in self.page.evaluate(VIOLATIONS, [OURS, WCAG])
                for node in rule["nodes"]
            ]
        return violations

    def _resize(self, size: ViewportSize) -> None:
        self.page.set_viewport_size(size)
        self.page.wait_for_timeout(300)  # for JupyterLab to follow

    def _forget(self) -> None:
        self._requests.clear()
        self.console_errors.clear()
        self._hosts_before, self._labels_before = len(self.lab.outside_hosts()), len(self.lab.faint_labels())

    def _wait_for(self, condition: str, seconds: float) -> None:
        self.page.wait_for_function(condition, timeout=1000 * seconds, polling=POLLED)

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
def lab_page(browser: Browser, lab: Lab) -> Iterator[NotebookPage]:
    """JupyterLab in a browser without memory, no notebook open."""
    context = browser.new_context(viewport=SCREEN, permissions=["clipboard-read", "clipboard-write"])
    context.add_init_script(Axe().axe_script)
    try:
        page = NotebookPage(context.new_page(), lab)
        page.page.goto(lab.address)
        page.page.wait_for_function("window.jupyterapp?.restored.then(() => true)", polling=POLLED)
        yield page
    finally:
        context.close()


def write_notebook(path: Path, cells: Iterable[str | dict[str, Any]]) -> Path:
    """A notebook for this Python; a cell of code may be given as its source alone."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path
