"""Files that appear whole or not at all, whenever the process or the machine dies.

The new content goes to a temporary file in the same folder, is forced to the disk, and only then takes the name: a
rename replaces a directory entry in one step (`man 2 rename`). Then the folder is forced to the disk too: otherwise a
power failure could undo the rename.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

LEFTOVER_SECONDS = 600.0  # since the last write to the file

_TEMPORARY = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")  # the names that `atomic_file` gives


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that takes the name `path` when the body ends. It can be read back while it is written.

    Until then, and for good where the body fails, what was there stays, and no partial file. Raises OSError in one
    line that names the file when it cannot be written (full disk, read-only or missing folder).
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "it is a device or a pipe, whose place a file would take")
        try:
            with open(temporary, "x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)
    except OSError as error:
        reason = f"{error.strerror or error} (what was saved before is untouched)"
        raise OSError(error.errno, f"cannot write {path}: {reason}") from error


def check_folder(folder: Path) -> None:
    """Raise OSError, which says what is in the way, for a folder that cannot be made or written to."""
    existing = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not existing.is_dir():
        raise NotADirectoryError(f"cannot write into {folder}: {existing} is no folder")
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"cannot write into {folder}: no permission in {existing}")


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed processes; a younger one may belong to a process that is still writing."""
    for leftover in Path(folder).glob(".*.tmp"):
        with suppress(OSError):
            old = time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS
            if old and _TEMPORARY.fullmatch(leftover.name):
                leftover.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and a rename is durable by itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network and shared folders cannot
            raise
    finally:
        os.close(descriptor)
