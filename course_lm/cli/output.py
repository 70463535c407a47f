"""Standard output as a pipe or a terminal of any encoding may have it."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
