"""Find the data files that come with the package."""

from __future__ import annotations

from pathlib import Path


def data_file(name: str) -> Path:
    """Where a shipped file lies: inside the installed package, or in `data/` of a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_data" / name
    return installed if installed.exists() else package.parent / "data" / name
