"""A question before a surprise: the learner commits to an answer, then reads why each one is right or wrong.

The questions stand in `predictions/`, a file for each lesson, and not in the notebooks: where a notebook is only looked
at, as on GitHub, the source of a cell would tell the answer.
"""

import html
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parent / "predictions"


def predict(lesson: str, name: str) -> None:
    """Ask the question of this name in `predictions/LESSON.toml`: see `ask`.

    Raises ValueError for a question that is not there.
    """
    path = FOLDER / f"{lesson}.toml"
    questions = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if name not in questions:
        known = ", ".join(questions) or "none"
        raise ValueError(f"lesson {lesson!r} has no question {name!r}; there are: {known}")
    ask(questions[name]["question"], dict(questions[name]["options"]))


def ask(question: str, options: Mapping[str, str]) -> None:
    """Ask `question`; each option folds open and says why it is right or wrong. Never waits for an answer.

    It is HTML that needs no kernel; a terminal shows everything as text. The order of the options is drawn from the
    question: it is the same for every reader, and tells nothing of an author's habit to write the right one first or
    last.

    Args:
        question: one sentence.
        options: each answer with its explanation, which starts with "Yes." for the right one, "No." for the others.
    """
    from IPython.display import display

    options = dict(Random(question).sample(list(options.items()), len(options)))
    display({"text/plain": _as_text(question, options), "text/html": _as_html(question, options)}, raw=True)


def _as_text(question: str, options: Mapping[str, str]) -> str:
    return "\n".join([f"Predict: {question}", *(f"- {option}: {why}" for option, why in options.items())])


def _as_html(question: str, options: Mapping[str, str]) -> str:
    answers = (
        f"<details><summary>{_marked_up(option)}</summary><p>{_marked_up(why)}</p></details>"
        for option, why in options.items()
    )
    asked = f"<p><b>Predict.</b> {_marked_up(question)}</p>"
    return f"<div class='course-predict'>{asked}{''.join(answers)}</div>"


def _marked_up(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
