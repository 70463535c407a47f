"""Explorers and predictions, worked with the keyboard as a learner without a mouse works them."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from playwright.sync_api import Locator, TimeoutError

from .notebook_page import NotebookPage

PRESSES = 5  # a step, both ends, and back
PATIENCE_SECONDS = 15
REST_SECONDS = 1

EXPLORER = ".jp-OutputArea-output .course-explorer"
PREDICTION = ".jp-OutputArea-output .course-predict"
MOVED = "[type=checkbox], [type=radio], [type=number]"
OTHER_CONTROL = f"textarea, button:not(.widget-toggle-button, [data-text]), input:not({MOVED})"

LABEL = """element => {
    const widget = element.closest('.widget-inline-hbox, .widget-toggle-buttons, .widget-radio') ?? element
    return widget.innerText.replaceAll('\\u200b', '').trim().split('\\n')[0]
}"""
# The clock runs from the key to the moment when the new picture is there.
START_CLOCK = """explorer => {
    let pressed = 0
    const press = () => { pressed = performance.now() }
    window.addEventListener('keydown', press, true)
    window.addEventListener('input', press, true)
    explorer.redraws = []
    const redraw = () => explorer.redraws.push(performance.now() - pressed)
    explorer.addEventListener('load', redraw, true)  // of each new img, which the event does not leave
    explorer.words = () => explorer.querySelector('pre[aria-live]').innerText
}"""
STATE = "explorer => ({redraws: explorer.redraws.length, words: explorer.words()})"
SOMETHING_FOLLOWED = "([explorer, was]) => explorer.redraws.length > was.redraws || explorer.words() !== was.words"
ALL_FOLLOWED = SOMETHING_FOLLOWED.replace("||", "&&")
PICTURE = """async explorer => {
    const bytes = new TextEncoder().encode(explorer.querySelector('img').src)
    const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))
    return Array.from(digest).join(' ')
}"""


def _slide(handle: Locator) -> Iterator[str]:
    """A step, both ends, then steps there and back."""

    def place() -> int:
        value, low, high = (float(handle.get_attribute(f"aria-value{name}") or 0) for name in ("now", "min", "max"))
        return 1 if value >= high else -1 if value <= low else 0

    yield "ArrowLeft" if place() == 1 else "ArrowRight"
    yield from ("End", "Home") if place() == -1 else ("Home", "End")
    key = "ArrowRight"
    while True:
        key = {1: "ArrowLeft", 0: key, -1: "ArrowRight"}[place()]
        yield key


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
    Kind(".noUi-handle", _slide),
    Kind("select", _pick),
    Kind("input[type=number]", _step),
    Kind("input[type=checkbox]", _switch),
    Kind(".widget-toggle-button:not(.widget-toggle-buttons *)", _switch),
    Kind(".widget-toggle-buttons", _switch, part="button:not(.mod-active)"),
    Kind(".widget-radio", _switch, part="input:not(:checked)"),
)


@dataclass
class Explored:
    """What the keyboard did to one explorer: milliseconds per redraw for each control, and what went wrong."""

    redraws: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def medians(self) -> Iterator[tuple[str, float]]:
        """Each control and its median redraw time in milliseconds."""
        return ((label, statistics.median(times)) for label, times in self.redraws.items() if times)


class Explorer:
    """Controls, a picture, and words that follow them."""

    def __init__(self, notebook: NotebookPage, root: Locator, patience: float = PATIENCE_SECONDS) -> None:
        self.notebook, self.root, self.patience = notebook, root, patience
        self.root.evaluate(START_CLOCK)

    def explore(self, presses: int = PRESSES) -> Explored:
        """Move every control with the keyboard, so many presses each."""
        explored = Explored()
        for label in self._unknown_controls():
            explored.problems.append(f"{label}: the test knows no keys for this kind of control")
        for kind in KINDS:
            for control in self.root.locator(kind.selector).all():
                self._explore_control(kind, control, presses, explored)
        if not explored.redraws:
            explored.problems.append("an explorer without a control")
        return explored

    def _unknown_controls(self) -> list[str]:
        return [control.evaluate(LABEL) for control in self.root.locator(OTHER_CONTROL).all()]

    def _explore_control(self, kind: Kind, control: Locator, presses: int, explored: Explored) -> None:
        label = control.evaluate(LABEL)
        times = explored.redraws.setdefault(label, [])
        picture = self.root.evaluate(PICTURE)
        for number, keys in zip(range(presses), kind.keys(control), strict=False):
            before = self.root.evaluate(STATE)
            if not self._press(control.locator(kind.part).first if kind.part else control, keys, before):
                explored.problems.append(f"{label}: press {number + 1}, {keys}, changes nothing")
                return
            times += self.root.evaluate("explorer => explorer.redraws")[before["redraws"] :][:1]
            # Later presses may change only one of the two: a bar at 100 % stays there.
            if number == 0 and self.root.evaluate(PICTURE) == picture:
                explored.problems.append(f"{label}: {keys} leaves the picture as it was")
            if number == 0 and self.root.evaluate(STATE)["words"] == before["words"]:
                explored.problems.append(f"{label}: {keys} leaves the words as they were")

    def _press(self, target: Locator, keys: str, before: dict[str, object]) -> bool:
        """Press the keys; whether the picture or the words follow. Waits until both have had the time to."""
        target.focus()
        for key in keys.split():
            self.notebook.page.keyboard.press(key)
        if not self._holds(SOMETHING_FOLLOWED, before, self.patience):
            return False
        self.notebook.wait_until_idle()
        self._holds(ALL_FOLLOWED, before, REST_SECONDS)
        return True

    def _holds(self, condition: str, before: dict[str, object], seconds: float) -> bool:
        arguments = [self.root.element_handle(), before]
        try:
            self.notebook.page.wait_for_function(condition, arg=arguments, timeout=1000 * seconds)
        except TimeoutError:
            return False
        return True


def explorers(notebook: NotebookPage, patience: float = PATIENCE_SECONDS) -> list[Explorer]:
    """The explorers of the notebook, in order; `patience` is the longest that a redraw may take, in seconds."""
    return [Explorer(notebook, root, patience) for root in notebook.page.locator(EXPLORER).all()]


def predictions(notebook: NotebookPage) -> list[Locator]:
    """The questions of the notebook, in order."""
    return notebook.page.locator(PREDICTION).all()


def answer(notebook: NotebookPage, prediction: Locator, patience: float = PATIENCE_SECONDS) -> list[str]:
    """Choose the last option with the keyboard; return what is missing afterwards."""
    options = prediction.locator(".course-predict-option")
    answer = prediction.locator(".course-predict-answer")
    labels = options.all_inner_texts()
    problems = ["an answer stands there before the choice"] if answer.inner_text().strip() else []
    options.first.focus()
    for _ in labels[1:]:
        notebook.page.keyboard.press("Tab")
    notebook.page.keyboard.press("Enter")
    try:
        answer.get_by_text("Yes.").wait_for(timeout=1000 * patience)
    except TimeoutError:
        return [*problems, "no explanation appears"]
    words = answer.inner_text()
    problems += [f"{label!r} is not explained" for label in labels if label.strip() not in words]
    if (words.count("Yes."), words.count("No.")) != (1, len(labels) - 1):
        problems.append(f"not one Yes. and {len(labels) - 1} No.: {words}")
    if not all(option.is_disabled() for option in options.all()):
        problems.append("a second choice is possible")
    return problems
