"""Explorers and predictions, worked with the keyboard as a learner without a mouse works them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from playwright.sync_api import Locator, TimeoutError

from .notebook_page import IS_READY, PANEL, NotebookPage

PRESSES = 4
PATIENCE_SECONDS = 15
REST_SECONDS = 1

EXPLORER = ".jp-OutputArea-output .course-explorer"
PREDICTION = ".jp-OutputArea-output .course-predict"
OTHER_CONTROL = "textarea, input:not([type=range], [type=checkbox], [type=radio], [type=number])"

LABEL = """element => element.ariaLabel ??
    (element.querySelector('legend') ?? element.closest('label, .widget-inline-hbox')).textContent"""
WATCH = """explorer => {
    const part = selector => explorer.querySelector(selector)
    explorer.shown = () => [part('svg')?.innerHTML ?? part('img').src, part('pre[aria-live]').textContent]
    explorer.before = explorer.shown()
}"""
# Whether the picture and the words are others than before; told when both have had the time to follow.
FOLLOWED = f"""async (explorer, [patience, rest]) => {{
    const changed = () => {{
        return explorer.shown().map((part, number) => part !== explorer.before[number])
    }}
    const until = async (holds, seconds) => {{
        const end = performance.now() + 1000 * seconds
        while (!holds() && performance.now() < end) await new Promise(next => setTimeout(next, 10))
    }}
    await until(() => changed().includes(true), patience)
    await until(() => {IS_READY} || !{PANEL}.context.sessionContext.session, patience)
    if (changed().includes(true)) await until(() => !changed().includes(false), rest)
    const found = changed()
    explorer.before = explorer.shown()
    return found
}}"""


def _slide(handle: Locator) -> Iterator[str]:
    """A step, both ends, and some steps back: at an end another control may have nothing to change."""

    def place() -> int:
        value, low, high = handle.evaluate("input => [input.value, input.min, input.max].map(Number)")
        return 1 if value >= high else -1 if value <= low else 0

    yield "ArrowLeft" if place() == 1 else "ArrowRight"
    yield from ("End", "Home", "PageUp") if place() == -1 else ("Home", "End", "PageDown")


def _pick(dropdown: Locator) -> Iterator[str]:
    """Open it first: in command mode JupyterLab takes the arrow keys of a closed one for itself."""
    key = "ArrowDown"
    while True:
        place, last = dropdown.evaluate("select => [select.selectedIndex, select.length - 1]")
        key = "ArrowUp" if place == last else "ArrowDown" if place == 0 else key
        yield f"Space {key} Enter"


def _step(number: Locator) -> Iterator[str]:
    while True:
        yield "ArrowUp"
        yield "ArrowDown"


def _switch(_: Locator) -> Iterator[str]:
    while True:
        yield "Space"


@dataclass(frozen=True)
class Kind:
    """How to find a kind of control, which part of it takes the focus, and which keys to press there."""

    selector: str
    keys: Callable[[Locator], Iterator[str]]
    part: str | None = None


KINDS = (
    Kind("input[type=range]", _slide),
    Kind("select", _pick),
    Kind("input[type=number]:enabled", _step),
    Kind("input[type=checkbox]", _switch),
    Kind("fieldset", _switch, part="input:enabled:not(:checked)"),
)


class Explorer:
    """Controls, a picture, and words that follow them."""

    def __init__(self, notebook: NotebookPage, root: Locator, patience: float = PATIENCE_SECONDS) -> None:
        self.notebook, self.root, self.patience = notebook, root, patience
        self.moved: list[str] = []

    def explore(self) -> list[str]:
        """Move every control with the keyboard; return what does not follow."""
        self.root.evaluate(WATCH)
        unknown = [control.evaluate(LABEL) for control in self.root.locator(OTHER_CONTROL).all()]
        problems = [f"{label}: the test knows no keys for this kind of control" for label in unknown]
        for kind in KINDS:
            for control in self.root.locator(kind.selector).all():
                self.moved.append(control.evaluate(LABEL))
                problems += [f"{self.moved[-1]}: {problem}" for problem in self._move(kind, control)]
        return problems if self.moved else [*problems, "an explorer without a control"]

    def _move(self, kind: Kind, control: Locator) -> Iterator[str]:
        for number, keys in zip(range(PRESSES), kind.keys(control), strict=False):
            (control.locator(kind.part).first if kind.part else control).focus()
            for key in keys.split():
                self.notebook.page.keyboard.press(key)
            # Later presses may change only one of the two: a bar at 100 % stays there.
            rest = REST_SECONDS if number == 0 else 0
            picture, words = self.root.evaluate(FOLLOWED, [self.patience, rest])
            if not picture and not words:
                yield f"press {number + 1}, {keys}, changes nothing"
                return
            if number == 0 and not picture:
                yield f"{keys} leaves the picture as it was"
            if number == 0 and not words:
                yield f"{keys} leaves the words as they were"


def explorers(notebook: NotebookPage, patience: float = PATIENCE_SECONDS) -> list[Explorer]:
    """The explorers of the notebook, in order; `patience` is the longest that a redraw may take, in seconds."""
    return [Explorer(notebook, root, patience) for root in notebook.page.locator(EXPLORER).all()]


def predictions(notebook: NotebookPage) -> list[Locator]:
    """The questions of the notebook, in order."""
    return notebook.page.locator(PREDICTION).all()


def answer(notebook: NotebookPage, prediction: Locator, patience: float = PATIENCE_SECONDS) -> list[str]:
    """Open every option with the keyboard; return what is missing afterwards."""
    problems = []
    for option in prediction.locator("summary").all():
        why = option.locator("xpath=following-sibling::p")
        label = option.inner_text()
        if why.is_visible():
            problems.append(f"{label!r} is explained before it is chosen")
        option.focus()
        notebook.page.keyboard.press("Enter")
        try:
            why.wait_for(timeout=1000 * patience)
        except TimeoutError:
            problems.append(f"{label!r} is not explained")
    words = prediction.inner_text()
    others = prediction.locator("summary").count() - 1
    if (words.count("Yes."), words.count("No.")) != (1, others):
        problems.append(f"not one Yes. and {others} No.: {words}")
    return problems
