"""What a lesson stores of its outputs: the same bytes on every run, nothing of the machine that made them."""

import re
from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
_ANSI_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# The name of a cell's file holds the process id of its kernel. It is looked for from the start of a word alone, since a
# picture is one word of 100,000 letters.
_KERNEL_FILE = re.compile(r"(?<!\S)\S*ipykernel_\d+[/\\]+\d+\.py")
_PICTURE = re.compile(r"(data:image/[\w+]+;base64,|\"stored\":\")[\w+/=]+")  # "stored" are an explorer's views
# With the spaces before it, since a table pads a shorter number.
_NUMBER = re.compile(r"\s*[-+]?\d[\d.,:]*(?:e[-+]?\d+)?")
_ABSOLUTE_PATH = re.compile(
    r"""file://\S+
    | (?<![\w.~<:/\\)\]}]) /(?:[\w.+-]+/)+[\w.+-]+  # two segments, so that nats/s passes
    | (?<![\w.~<:/\\)\]}]) /(?:home|root|Users|tmp|var|usr|opt|mnt|private)\b
    | \b[A-Za-z]:\\{1,2}\w[\w .-]*\\  # C:\Users\
    """,
    re.VERBOSE,
)


def without_pictures(html: str) -> str:
    """HTML whose pictures have no bytes any more: they differ between machines, and say nothing as text."""
    return _PICTURE.sub(r"\1", html)


def find_absolute_path(text: str) -> str | None:
    """The first thing in `text` that looks like an absolute file path; None where there is none."""
    match = _ABSOLUTE_PATH.search(without_pictures(text))
    return match.group(0) if match else None


def clean(notebook: Any) -> None:
    """Strip an executed notebook, in place, of all that differs between runs or machines.

    A widget keeps its text (`IntSlider(value=3)`), which nbval compares; where nothing is compared, it goes.
    """
    notebook.metadata = {"kernelspec": dict(_KERNELSPEC), "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        # Ids that are drawn at random would change at every run.
        cell.setdefault("id", f"cell-{number:02d}")
        cell.metadata = {key: cell.metadata[key] for key in ("tags", "jupyter") if key in cell.metadata}
        if cell.cell_type == "code":
            if "nbval-ignore-output" in cell.metadata.get("tags", []):
                cell.outputs = [output for output in cell.outputs if WIDGET_VIEW not in output.get("data", {})]
            cell.outputs = [_clean_output(output) for output in cell.outputs]


def _clean_output(output: Any) -> Any:
    # It names a model that lived in the kernel of this run.
    output.get("data", {}).pop(WIDGET_VIEW, None)
    if "text" in output:
        output.text = _clean_text(output.text)
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = _clean_text(value)
    return output


def _clean_text(text: str) -> str:
    return _KERNEL_FILE.sub("<cell>", _ANSI_CODE.sub("", text))


def keep_timings(notebook: Any, stored: Any) -> None:
    """Give the `timing` cells of `notebook` back their `stored` outputs where only numbers or figures changed in all.

    Clock times differ on every run; without this, so would the files. All or none, since a table and the figure of it
    must be of one run.
    """
    new, old = _timed(notebook), _timed(stored)
    shapes = [{place: [*map(_shape, cell.outputs)] for place, cell in timed.items()} for timed in (new, old)]
    if shapes[0] == shapes[1]:
        for place, cell in new.items():
            cell.outputs = old[place].outputs


def _timed(notebook: Any) -> dict[tuple[str, str], Any]:
    """The `timing` cells, by their id and source."""
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    return {(cell.get("id"), cell.source): cell for cell in code if "timing" in cell.metadata.get("tags", [])}


def _shape(output: Any) -> Any:
    data = {"text": output["text"]} if "text" in output else output.get("data", {})
    # Without the numbers; of a picture only its description.
    return {kind: _NUMBER.sub("#", without_pictures(text)) for kind, text in data.items()}


def refuse_absolute_paths(name: str, notebook: Any) -> None:
    """Raise ValueError where an output of `notebook` (the lesson `name`) holds an absolute path."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            found = find_absolute_path("\n".join(_texts(output)))
            if found:
                raise ValueError(f"{name}: the output of cell {number} holds an absolute path: {found}")


def _texts(output: Any) -> list[str]:
    data = output.get("data", {})
    return [output.get("text", ""), *(data[kind] for kind in data if kind.startswith("text/"))]
