"""The rules that every stored lesson keeps. Each takes a notebook and returns its violations, a line each."""

import copy
import re
import statistics
from collections.abc import Iterator
from typing import Any

from course_lm.classroom.stored_outputs import clean, refuse_absolute_paths
from course_lm.classroom.widgets.explorer import script

DETAILS = re.compile(r"<details.*?</details>", re.DOTALL)
CODE_FENCE = re.compile(r"```.*?```", re.DOTALL)
MARKUP = re.compile(r"<[^>]+>|\]\([^)]*\)")
PICTURE_WITHOUT_ALT = re.compile(r"!\[\s*\]\(|<img(?![^>]*alt=)")
PICTURE = re.compile(r"<img [^>]*>")
DESCRIBED = re.compile(r' alt="[^"]*[^"\s]')
WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> Iterator[tuple[int, Any]]:
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            yield number, output


def executed_in_order(notebook: Any) -> list[str]:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts == list(range(1, len(counts) + 1)):
        return []
    return [f"execution counts are {counts}, not 1 to {len(counts)} in order"]


def pictures(data: dict[str, Any]) -> list[str]:
    """The `<img>` elements of an output."""
    return PICTURE.findall(data.get("text/html", ""))


def figures_have_alternative_text(notebook: Any) -> list[str]:
    problems = []
    for number, output in outputs(notebook):
        data = output.get("data", {})
        # Of an output that is a picture alone viewers show no alternative text.
        bare = any(kind.startswith("image/") for kind in data)
        if bare or any(not DESCRIBED.search(picture) for picture in pictures(data)):
            problems.append(f"cell {number}: a figure without alternative text")
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and PICTURE_WITHOUT_ALT.search(cell.source):
            problems.append(f"cell {number}: a picture without alternative text")
    return problems


def is_clean(notebook: Any) -> list[str]:
    """A lesson is stored as `course-lm lessons --write` stores it: without colours, widgets and what a machine adds."""
    cleaned = copy.deepcopy(notebook)
    clean(cleaned)
    problems = [] if cleaned.metadata == notebook.metadata else ["other metadata than a stored lesson has"]
    cells = enumerate(zip(notebook.cells, cleaned.cells, strict=True))
    return problems + [f"cell {number}: not as it would be stored" for number, (old, new) in cells if old != new]


def no_absolute_paths(notebook: Any) -> list[str]:
    try:
        refuse_absolute_paths("the lesson", notebook)
    except ValueError as error:
        return [str(error)]
    return []


def no_stored_errors(notebook: Any) -> list[str]:
    errors = [(number, output) for number, output in outputs(notebook) if output.output_type == "error"]
    return [f"cell {number}: a stored error, {output.ename}" for number, output in errors]


def no_unexpected_warnings(notebook: Any) -> list[str]:
    """What a lesson shows on standard error is compared; else it may be any word of the machine that ran it."""
    return [
        f"cell {number}: standard error that nothing compares: {output.text.splitlines()[0]}"
        for number, output in outputs(notebook)
        if output.get("name") == "stderr" and "nbval-ignore-output" in notebook.cells[number].metadata.get("tags", [])
    ]


def starts_with_setup(notebook: Any) -> list[str]:
    for cell in code_cells(notebook)[:1]:
        if "setup(" in cell.source and "nbval-ignore-output" in cell.metadata.get("tags", []):
            return []
    return ["the first code cell does not call lessons.setup(), tagged nbval-ignore-output"]


def has_a_proof(notebook: Any) -> list[str]:
    proofs = [cell for cell in code_cells(notebook) if "prove" in cell.metadata.get("tags", [])]
    return [] if proofs else ["no code cell is tagged `prove`"]


def of_the_usual_size(notebook: Any) -> list[str]:
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    prose = MARKUP.sub(" ", CODE_FENCE.sub(" ", DETAILS.sub(" ", "\n".join(texts))))
    shown = [output.get("data", {}).get("text/html", "") for _, output in outputs(notebook)]
    figures = sum(len(PICTURE.findall(page)) + page.count('class="course-explorer"') for page in shown)
    exercises = sum("exercise" in cell.metadata.get("tags", []) for cell in code_cells(notebook))
    return [
        *_between("cells", len(notebook.cells), 30, 50),
        *_between("words", len(WORD.findall(prose)), 900, 1800),
        *_between("figures", figures, 4, 8),
        *_between("exercises", exercises, 3, 5),
    ]


def short_code_cells(notebook: Any) -> list[str]:
    lengths = [len(cell.source.splitlines()) for cell in code_cells(notebook)]
    median, longest = statistics.median(lengths), max(lengths)
    problems = [f"the median code cell has {median} lines, more than 6"] if median > 6 else []
    return problems + ([f"the longest code cell has {longest} lines, more than 25"] if longest > 25 else [])


ASKED = re.compile(r'checks\.predict\("(\w+)", "(\w+)"\)')


def predictions_tell_nothing(notebook: Any) -> list[str]:
    """A prediction's cell names its question: what explains the options stands where no page shows it."""
    cells = [cell for cell in code_cells(notebook) if cell.source.startswith("checks.predict(")]
    telling = [cell.id for cell in cells if not ASKED.fullmatch(cell.source)]
    return [f"{cell}: a prediction with more than its name" for cell in telling] + _between(
        "predictions", len(cells), 2, 6
    )


def _between(what: str, count: int, low: int, high: int) -> list[str]:
    return [] if low <= count <= high else [f"{count} {what}, not {low} to {high}"]


def minutes_of_the_card(notebook: Any) -> list[str]:
    texts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    card = re.search(r"^\*\*Time\*\* (\d+) minutes to read, (\d+) (?:more )?for the\s+exercises;", texts, re.MULTILINE)
    if not card:
        return ["the card does not say '**Time** N minutes to read, M for the exercises;'"]
    exercises = sum(map(int, re.findall(r"^### Exercise .* (\d+) minutes?$", texts, re.MULTILINE)))
    return [] if int(card[2]) == exercises else [f"the card says {card[2]} minutes, its exercises together {exercises}"]


# From an import or as an attribute; torch's own, and those of a NamedTuple, have no other name.
PRIVATE = re.compile(
    r"^from course_lm\S* import .*\b_\w+|(?<![\w.])(?!torch\b)[a-z]\w*(?:\.\w+)*\._(?!asdict|replace)[a-z]\w*", re.M
)


def public_names(notebook: Any) -> list[str]:
    """What a lesson shows, a reader may use. That a name exists is seen when the lesson runs."""
    private = PRIVATE.findall("\n".join(cell.source for cell in code_cells(notebook)))
    return [f"a private name: {name}" for name in private]


def explorers_are_drawn_by_the_present_script(notebook: Any) -> list[str]:
    pages = [(number, output.get("data", {}).get("text/html", "")) for number, output in outputs(notebook)]
    old = [number for number, page in pages if 'class="course-explorer"' in page and script() not in page]
    return [f"cell {number}: an explorer of an earlier explorer.js; store the lesson anew" for number in old]


RULES = (
    executed_in_order,
    explorers_are_drawn_by_the_present_script,
    figures_have_alternative_text,
    is_clean,
    no_absolute_paths,
    no_stored_errors,
    no_unexpected_warnings,
    starts_with_setup,
    has_a_proof,
    of_the_usual_size,
    short_code_cells,
    predictions_tell_nothing,
    minutes_of_the_card,
    public_names,
)
