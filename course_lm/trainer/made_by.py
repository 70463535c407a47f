"""How a run was made: the file `made_by.json` in its folder, with an entry for each session."""

import json
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from course_lm import __version__
from course_lm.checkpoints import atomic_file
from course_lm.monitoring import Record
from course_lm.run_records import SESSIONS, read_sessions
from course_lm.trainer.init_from import Beginning

GIT_SECONDS = 5.0


class SessionLog:
    """An observer that notes in `folder`/made_by.json how each session of a run was made; nothing is drawn from it.

    An entry has "command" (the arguments of `course-lm`; null where another program, or a notebook, made the trainer:
    its arguments are its own affair), "commit" and "dirty" of the working directory (null outside a repository),
    "course_lm", "torch" and "python" (versions), "processor", "threads", "started" (UTC), "step" and "total_steps"; of
    a run that began with the weights of another one also "weights", see `Beginning`.
    """

    def __init__(self, folder: Path, beginning: Beginning | None = None) -> None:
        self.folder = folder
        self.beginning = {} if beginning is None else {"weights": asdict(beginning)}

    def start(self, step: int, total_steps: int | None) -> None:
        """Add an entry for the session that begins after `step` completed steps."""
        sessions = [
            *read_sessions(self.folder),
            {**describe_session(), "step": step, "total_steps": total_steps, **self.beginning},
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.folder / SESSIONS) as file:
            file.write((json.dumps({"sessions": sessions}, indent=1, ensure_ascii=False) + "\n").encode())

    def log(self, record: Record) -> None:
        """Records stand in `metrics.jsonl`."""

    def close(self) -> None:
        """Nothing is open."""


def describe_session() -> dict[str, Any]:
    """What made this process compute as it does; see `SessionLog`."""
    commit, dirty = git_state(Path.cwd())
    return {
        "command": _own_command(sys.argv),
        "commit": commit,
        "dirty": dirty,
        "course_lm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """The commit that is checked out in `folder`, and whether a tracked file differs from it.

    Both None outside a repository, before its first commit, and where git is missing or does not answer.
    """
    # the commit, named by no tag, with "-dirty" after it where a tracked file differs
    # --no-optional-locks: another git command of the same moment must not find the index locked
    command = ["git", "--no-optional-locks", "describe", "--always", "--exclude=*", "--abbrev=64", "--dirty"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, None
    commit, _, dirty = done.stdout.strip().partition("-")
    return (None, None) if done.returncode else (commit, bool(dirty))


@cache
def processor() -> str:
    """The name of this machine's processor, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except (OSError, ValueError, IndexError):
        pass
    return platform.processor() or platform.machine()


def _own_command(argv: list[str]) -> list[str] | None:
    program = Path(argv[0] if argv else "")
    ours = program.stem == "course-lm" or program.parts[-2:] == ("course_lm", "__main__.py")
    return ["course-lm", *argv[1:]] if ours else None
