"""Starts training processes that tell where they are, so that a test can end them there.

torch takes seconds to import, so one server imports it, builds the data, and forks a child for every line of JSON on
its standard input: {"folder": …, "config": {…}, "room": null or [save, bytes]}. The children write their place to a
pipe: a line for every micro-batch, and one before and one after every checkpoint. With "room", the files of the child
cannot grow beyond so many bytes from its n-th save on, as on a disk that is full.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

PAUSE = 5e-5  # seconds in the middle of every write, which makes a save long enough to be hit
ROOT = Path(__file__).resolve().parents[2]


class Child:
    """One training process, seen from the test."""

    def __init__(self, pid: int, events: RawIOBase) -> None:
        self.pid, self.events = pid, events
        self.handle = os.pidfd_open(pid)
        self.seen: list[tuple[float, str]] = []
        self.hit = ""

    def next_event(self) -> str:
        line = read_line(self.events)
        self.seen.append((time.perf_counter(), line))
        return line

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Read until an event has come so often, or the child is gone."""
        while count and not self.is_gone:
            count -= self.next_event().startswith(kind)

    def send(self, number: int) -> None:
        """Send a signal; `hit` tells where the child was when it came."""
        self.catch_up()
        if not self.is_gone:
            self.hit = self.seen[-1][1] if self.seen else "setting up"
            signal.pidfd_send_signal(self.handle, number)

    def catch_up(self) -> None:
        """Read the events that are there already."""
        while not self.is_gone and select.select([self.events], [], [], 0)[0]:
            self.next_event()

    def finish(self) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        while not self.is_gone:
            self.next_event()
        os.close(self.handle)
        return int(self.seen[-1][1].split()[1])

    @property
    def is_gone(self) -> bool:
        return bool(self.seen) and self.seen[-1][1].startswith("exit")


class Server:
    """The process that forks the children, seen from the test; it ends when it is closed."""

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "tests.resume.kill_server", str(writing)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.log = folder / "server.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, env=environment, pass_fds=[writing]
            )
        os.close(writing)
        self.events = FileIO(reading)
        assert read_line(self.events) == "ready", self.log.read_text()

    def start(self, folder: Path, room: tuple[int, int] | None = None, **config: Any) -> Child:
        """Start, or go on with, the run in this folder; the log begins anew."""
        assert self.process.stdin is not None
        os.truncate(self.log, 0)  # with "room", the log of earlier children would leave none for an error
        order = {"folder": str(folder), "config": config, "room": room}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        return Child(int(read_line(self.events).split()[1]), self.events)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.events.close()


def serve(events: int) -> None:
    """Fork a child for every order; tell its number, and how it ended."""
    import torch

    torch.set_num_threads(1)
    import torch._dynamo  # what the first optimizer of each child would import, for more than a second

    from tests import training_run

    tell(events, "ready")
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            run_child(events, order, training_run)
        tell(events, f"child {pid}")
        _, status = os.waitpid(pid, 0)
        tell(events, f"exit {os.waitstatus_to_exitcode(status)}")


def read_line(events: RawIOBase) -> str:
    """A line, read without reading ahead, so that `select` sees what is left."""
    line = events.readline().decode().strip()
    assert line, "the server died"
    return line


def tell(events: int, text: str) -> None:
    os.write(events, f"{text}\n".encode())


def run_child(events: int, order: dict[str, Any], training_run: Any) -> None:
    code = 1
    try:
        announce_writes(events, order["room"])
        config = training_run.configure(order["folder"], **order["config"])
        train, validation = training_run.loaders("bucketed")
        loss = training_run.counting(lambda count: tell(events, f"batch {count}"))
        trainer = training_run.start(config, train, validation, loss)
        tell(events, "done")
        code = 0 if trainer.interrupted is None else 128 + trainer.interrupted
    except OSError as error:
        print(f"OSError: {error}", flush=True)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def announce_writes(events: int, room: tuple[int, int] | None) -> None:
    """Make every save of this process tell where it begins and ends, and take its time in between."""
    from course_lm.checkpoints import files as checkpoints

    atomic_file, write, saves = checkpoints.atomic_file, checkpoints._Sink.write, 0

    @contextmanager
    def announced(path: Path) -> Iterator[BinaryIO]:
        nonlocal saves
        saves += 1
        if room is not None and saves == room[0]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room[1], resource.RLIM_INFINITY))
        tell(events, f"writing {path.name}")
        with atomic_file(path) as file:
            yield file
        tell(events, f"wrote {path.name}")

    def slow_write(sink: Any, data: bytes) -> int:
        half = len(data) // 2
        written = write(sink, data[:half])
        sink.file.flush()
        time.sleep(PAUSE)
        return written + write(sink, data[half:])

    checkpoints.atomic_file = announced  # type: ignore[assignment]
    checkpoints._Sink.write = slow_write  # type: ignore[method-assign]
    os.fsync = unhurried(lambda descriptor: None)  # what is written outlives a process that is killed
    os.replace = unhurried(os.replace)


def unhurried(call: Any) -> Any:
    """The call, with time to be killed before and after it."""

    def slowly(*arguments: Any) -> Any:
        time.sleep(40 * PAUSE)
        result = call(*arguments)
        time.sleep(40 * PAUSE)
        return result

    return slowly


if __name__ == "__main__":
    serve(int(sys.argv[1]))
