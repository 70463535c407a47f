"""Whole commands as a person gives them, with torchrun or without, in processes of their own.

Each command has a time limit; whatever is left of it afterwards is killed, the ranks too, to which torchrun gives
sessions of their own.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SECONDS = 240  # for one command, on a machine that does other things too
NAME = "toy"
SMALL = [
    "--config=tiny",
    f"--experiment_name={NAME}",
    "--data.vocab_size=300",
    "--data.max_length=32",
    "--data.val_fraction=0.2",
    "--model.d_model=32",
    "--training.batch_size=4",
    "--training.gradient_accumulation_steps=3",
    "--training.precision=fp32",
    "--training.device=cpu",
    "--training.max_steps=12",
    "--training.logging_steps=1",
    "--training.eval_steps=5",
    "--training.save_steps=3",
]


@dataclass(frozen=True)
class Ended:
    """A command that is over: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def own(self) -> list[str]:
        """What course_lm says on standard error, torchrun's report left out; it may follow a bar in the same line."""
        return re.findall(r"course-lm: .*", self.err)


class Command:
    """A command that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", files: tuple[Path, Path]) -> None:
        self.process, self.files = process, files

    def ranks(self) -> dict[int, int]:
        """The processes of the ranks that run now, by rank."""
        return {rank: pid for pid in children(self.process.pid) if (rank := rank_of(pid)) is not None}

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Return once the condition holds; an AssertionError says what did not come."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, f"the command ended before {what}: {self.texts()[1]}"
            assert time.monotonic() < deadline, f"{what} did not come in {SECONDS} s: {self.texts()[1]}"
            time.sleep(0.005)

    def end(self, seconds: float = SECONDS) -> Ended:
        """Wait for the end of the command; an AssertionError where it does not come in time."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command did not end in {seconds} s: {self.texts()[1]}") from None
        return Ended(self.process.returncode, *self.texts())

    def texts(self) -> tuple[str, str]:
        """What the command has printed so far."""
        out, err = (file.read_text(encoding="utf-8", errors="replace") for file in self.files)
        return out, err


@contextmanager
def started(folder: Path, words: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[Command]:
    """A command in a session of its own, of which nothing is left when the body ends.

    folder: where the command is started, and where its output is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.out")))
    files = folder / f"{number}.out", folder / f"{number}.err"
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    given = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **(environment or {})}
    with files[0].open("wb") as out, files[1].open("wb") as err:
        process = subprocess.Popen(
            words, cwd=folder, env=inherited | given, stdout=out, stderr=err, start_new_session=True
        )
    try:
        yield Command(process, files)
    finally:
        for pid in (*children(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        process.wait()


def torchrun(ranks: int, *options: str, program: Sequence[str] = ("-m", "course_lm")) -> list[str]:
    """The words that start a program on so many ranks of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, *options, *program]


def course_lm(ranks: int | None, *arguments: str) -> list[str]:
    """The words of a `course-lm` command: on so many ranks, or by itself."""
    return [*([sys.executable, "-m", "course_lm"] if ranks is None else torchrun(ranks)), *arguments]


def train(text: Path, output: Path, *arguments: str) -> list[str]:
    """The arguments that train a small model on `text`."""
    return ["train", *SMALL, f"--data.corpus={text}", f"--training.output_dir={output}", *arguments]


def write_text(path: Path) -> Path:
    """A text of 120 short paragraphs."""
    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "cow", "sat", "ran", "slept", "on", "under", "near", "mat", "hat", "bed"]
    path.write_text("\n\n".join(" ".join(draw.choices(words, k=9)) for _ in range(120)), encoding="utf-8")
    return path


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are there."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent_of(entry) == pid]


def _parent_of(entry: Path) -> int | None:
    with suppress(OSError):
        # the name, which comes before, stands in brackets and may hold blanks
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return None


def rank_of(pid: int) -> int | None:
    """The rank that torchrun has given a process; None for a process that is none, or gone."""
    with suppress(OSError):
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"RANK="):
                return int(word.removeprefix(b"RANK="))
    return None
