"""What commands write: to standard output, which a pipe or a terminal of any encoding may be, and to a picture."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course_lm.validation import ensure, one_line


@contextmanager
def written_out() -> Iterator[None]:
    """Print in the body: whole, in any encoding, and no further than somebody reads.

    Characters that the encoding lacks come as escapes. Where standard output is closed, as by `| head`, the body ends
    there without an error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a notebook has another kind
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more when it ends, and would then complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_picture(png: Path) -> None:
    """Refuse a file that the picture of a command cannot have: called before the work, whose result would be lost."""
    if not png.parent.is_dir() or png.is_dir():
        raise OSError(f"cannot write {png}: " + ("it is a folder" if png.is_dir() else f"no folder {png.parent}"))
    # A file of another kind holds something else, and would be overwritten.
    ensure(png.suffix.lower() == ".png", f"--png must be a file that ends in .png, got {one_line(png)}")
