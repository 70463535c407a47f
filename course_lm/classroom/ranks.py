"""The ranks of a lesson: a function on each of them, or a command that starts them as torchrun does, watched."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from course_lm.use.ranks import Ranks

__all__ = ["Ranks", "Watched", "watch"]


class Watched(NamedTuple):
    """What was seen of a run: (seconds since its start, last step in its log), again and again; and at its kill."""

    seen: list[tuple[float, int]]
    killed: tuple[float, int] | None


def watch(command: Sequence[str], log: str | os.PathLike[str], *, kill_at: int | None = None) -> Watched:
    """Run `command`, which starts ranks as torchrun does, to its end; tell how far its `log`, a metrics.jsonl, grew.

    With `kill_at`, one rank is killed with SIGKILL once the log holds that step. Raises RuntimeError where the command
    fails, with the last lines that it printed.
    """
    with tempfile.TemporaryFile("w+") as printed:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as torchrun does where the kernel's has no number
        run = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=environment)
        try:
            began, seen, killed = time.monotonic(), [(0.0, 0)], None
            while run.poll() is None:
                time.sleep(0.05)
                seen.append((time.monotonic() - began, _last_step(Path(log))))
                if kill_at is not None and killed is None and seen[-1][1] >= kill_at:
                    _kill_one_rank(run.pid)
                    killed = seen[-1]
        finally:
            run.kill()  # where the kernel was interrupted; ranks end with torchrun
        if run.returncode:
            printed.seek(0)
            last = printed.read().strip().splitlines()[-20:]
            raise RuntimeError("\n".join([f"the run ended with exit code {run.returncode}", *last]))
    return Watched(seen, killed)


def _last_step(log: Path) -> int:
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    whole = [line for line in lines if line.endswith("}")]  # the last one may be half written
    return json.loads(whole[-1])["step"] if whole else 0


def _kill_one_rank(torchrun: int) -> None:
    import psutil  # it comes with ipykernel

    ranks = [child for child in psutil.Process(torchrun).children() if "RANK" in child.environ()]
    next(rank for rank in ranks if rank.environ()["RANK"] != "0").kill()
