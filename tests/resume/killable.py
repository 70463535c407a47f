"""A training process that tells where it is, so that a test can end it there.

It writes its place to a pipe: a line for every micro-batch, and one before and one after every checkpoint. With "room",
its files cannot grow beyond so many bytes from its n-th save on, as on a disk that is full.
"""

import os
import resource
import select
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from tests.fork_server import SECONDS, Process

PAUSE = 5e-5  # seconds in the middle of every write, which makes a save long enough to be hit


class Child:
    """A process that starts, or goes on with, the run in a folder; seen from the test."""

    def __init__(self, folder: Path, room: tuple[int, int] | None = None, **config: Any) -> None:
        reading, writing = os.pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = Process(train, folder, config, room, files=[writing, self.log.fileno()])
        os.close(writing)
        self.events = FileIO(reading)
        self.seen: list[tuple[float, str]] = []
        self.hit = ""
        self.is_gone = False

    def next_event(self) -> None:
        """Read a line, without reading ahead, so that `select` sees what is left."""
        assert select.select([self.events], [], [], SECONDS)[0], f"the run hangs: {self.said()}"
        line = self.events.readline().decode().strip()
        self.is_gone = not line
        self.seen.append((time.perf_counter(), line))

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Read until an event has come so often, or the child is gone."""
        while count and not self.is_gone:
            self.next_event()
            count -= self.seen[-1][1].startswith(kind)

    def send(self, number: int) -> None:
        """Send a signal; `hit` tells where the child was when it came."""
        while not self.is_gone and select.select([self.events], [], [], 0)[0]:
            self.next_event()
        if not self.is_gone:
            self.hit = self.seen[-1][1] if self.seen else "setting up"
            self.process.send_signal(number)

    def finish(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        while not self.is_gone:
            self.next_event()
        self.events.close()
        return self.process.wait(SECONDS)

    def said(self) -> str:
        """What the child has printed."""
        self.log.seek(0)
        return self.log.read().decode()


def train(folder: Path, config: dict[str, Any], room: tuple[int, int] | None, events: int, log: int) -> int:
    """Train to the end, or to a signal; the exit code. 2 where a file cannot be written."""
    from tests import training_run

    os.dup2(log, 1)
    os.dup2(log, 2)
    announce_writes(events, room)
    try:
        trainer = training_run.start(
            training_run.configure(folder, **config),
            *training_run.loaders("bucketed"),
            training_run.counting(lambda count: tell(events, f"batch {count}")),
        )
    except OSError as error:
        print(f"OSError: {error}")
        return 2
    tell(events, "done")
    return 0 if trainer.interrupted is None else 128 + trainer.interrupted


def tell(events: int, text: str) -> None:
    os.write(events, f"{text}\n".encode())


def announce_writes(events: int, room: tuple[int, int] | None) -> None:
    """Make every save of this process tell where it begins and ends, and take its time in between."""
    from course_lm.checkpoints import files as checkpoints

    atomic_file, saves = checkpoints.atomic_file, 0

    @contextmanager
    def announced(path: Path) -> Iterator[SlowFile]:
        nonlocal saves
        saves += 1
        if room is not None and saves == room[0]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room[1], resource.RLIM_INFINITY))
        tell(events, f"writing {path.name}")
        with atomic_file(path) as file:
            yield SlowFile(file)
        tell(events, f"wrote {path.name}")

    checkpoints.atomic_file = announced  # type: ignore[assignment]
    os.fsync = unhurried(lambda descriptor: None)  # what is written outlives a process that is killed
    os.replace = unhurried(os.replace)


class SlowFile:
    """A file that takes its time in the middle of every write, with half of it on the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes | memoryview) -> None:
        half = len(data) // 2
        self.file.write(data[:half])
        self.file.flush()
        time.sleep(PAUSE)
        self.file.write(data[half:])


def unhurried(call: Any) -> Any:
    """The call, with time to be killed before and after it."""

    def slowly(*arguments: Any) -> Any:
        time.sleep(40 * PAUSE)
        result = call(*arguments)
        time.sleep(40 * PAUSE)
        return result

    return slowly
