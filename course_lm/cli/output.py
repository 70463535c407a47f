"""What commands give: text that somebody reads, or nobody, JSON, and a picture."""

import io
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from course_lm.validation import ensure, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def outlast(stream: TextIO | None, told: str = "") -> None:
    """Drop what is printed where the stream can be written to no more, as after `| head`; warn of it as `told`."""
    buffer = getattr(stream, "buffer", None)
    file = getattr(buffer, "raw", buffer)
    if not isinstance(file, io.FileIO):  # of a notebook, or closed
        return

    def write(data: Any) -> int | None:
        try:
            return io.FileIO.write(file, data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            if told:
                warnings.warn(f"{told} ({error})", stacklevel=2)
            return len(data)

    file.write = write  # type: ignore[method-assign]  # what the streams above it call


@contextmanager
def to_standard_error() -> Iterator[None]:
    """What the body writes to standard output goes to standard error, that of its child processes too."""
    with redirect_stdout(sys.stderr), ExitStack() as stack:
        if sys.__stdout__ is not None and sys.__stderr__ is not None:  # else another file may have the descriptor
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            stack.callback(sys.__stdout__.flush)  # what the body has left in its buffer
            os.dup2(2, 1)
        yield


def as_json(value: Any) -> str:
    """Plain data as JSON, in which null stands for a number that is not finite: JSON has none of these."""
    return json.dumps(_finite(value), indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_picture(png: Path) -> None:
    """Refuse a file that the picture of a command cannot have: called before the work, whose result would be lost."""
    if not png.parent.is_dir() or png.is_dir():
        raise OSError(f"cannot write {png}: " + ("it is a folder" if png.is_dir() else f"no folder {png.parent}"))
    # A file of another kind holds something else, and would be overwritten.
    ensure(png.suffix.lower() == ".png", f"--png must be a file that ends in .png, got {one_line(png)}")


def save_picture(figure: "Figure", png: Path) -> None:
    """Write the figure, trimmed to what is drawn, whole or not at all."""
    from course_lm.checkpoints import atomic_file  # loads torch, as every picture does

    with atomic_file(png) as file:
        figure.savefig(file, format="png", dpi=110, bbox_inches="tight")
