"""A disk of a given size, to be filled."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a memory disk of this size at `folder`; the test is skipped where that is not allowed."""
    folder.mkdir()
    try:
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def leaving_free(folder: Path, size: int) -> Iterator[None]:
    """Fill the disk at `folder` up to `size` bytes."""
    filler = folder / "filler"
    with open(filler, "wb") as file:
        statistics = os.statvfs(folder)
        free = statistics.f_bavail * statistics.f_frsize
        file.write(bytes(max(0, free - size)))
    try:
        yield
    finally:
        filler.unlink()
