"""Processes that need not import torch: one server has imported it, and forks a process for each order.

A process of the server has a session, files, a folder and an environment of its own. Signals end it as any other, and
it ends as the interpreter ends. What only the start of an interpreter gives, it has from the server: the hash seed, and
what libraries read of the environment when they are imported. `started` gives it whole commands, torchrun and the ranks
that torchrun starts among them; with `start=anew` a command is a real one, for tests of what the server might hide.

For each order two processes are forked: a guard, and the process that was asked for. The guard tells how that one
ended, and kills it when the client is gone, so nothing is left of a test that was killed.
"""

import gc
import importlib
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import psutil  # it comes with ipykernel

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 240  # for one command, on a machine that does other things too
START = 120  # seconds for the server to import torch
SERVER = """
import atexit, sys
atexit.register(lambda: fork_server.end_at_once())  # the first, so it comes after all others
from tests import fork_server
sys.exit(fork_server.serve(*sys.argv[1:]))
"""
# What commands import, as far as it takes time; not what they run as a program, which runpy would warn of. Without the
# last, the first optimizer of each process would import it, for more than a second.
IMPORTED = ("course_lm.cli.train", "course_lm.cli.configured", "torch.distributed.launcher.api", "torch._dynamo")
RANKS = "ranks"  # the file in which a forked torchrun notes its ranks


class Process:
    """A process of the server, with what tests and torchrun use of `subprocess.Popen`.

    function: one that the server can import; what it returns is the exit code. It gets the arguments, and then the
        numbers of its files. files: open ones of this process.
    """

    def __init__(self, function: Callable[..., int | None], *arguments: Any, files: Sequence[int]) -> None:
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(_place() / "socket"))
        socket.send_fds(line, [b"files"], files)
        self._line = Connection(line.detach())
        self._line.send((function, arguments))
        self.pid = self._hear(START)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None and self._line.poll():
            self.returncode = self._hear(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        if self.returncode is None and not self._line.poll(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; one that is gone gets none."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def _hear(self, seconds: float) -> int:
        with suppress(EOFError, ConnectionError):
            if self._line.poll(seconds):
                return self._line.recv()
        raise RuntimeError(f"the fork server gives no answer:\n{read_log()}")


# The server


def _place() -> Path:
    """The folder of the server's socket and log; the first call of a session starts the server."""
    if not _server:
        _start_server()
    return _server["place"]


# The "place"; the "process", which is kept so that its standard input stays open; in a process of it, its exit "code".
_server: dict[str, Any] = {}


def read_log() -> str:
    """What the server has printed, and those of its processes that have no files to print to."""
    return (_place() / "log").read_text()


def _start_server() -> None:
    if not hasattr(os, "pidfd_open"):
        import pytest  # not in the server, whose processes have all that it imports

        pytest.skip("needs Linux: the server waits for processes by their handles")
    place = Path(tempfile.mkdtemp(prefix="fork"))
    with socket.socket(socket.AF_UNIX) as door, open(place / "log", "wb") as log:
        door.bind(str(place / "socket"))
        door.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(door.fileno()), str(place)],
            stdin=subprocess.PIPE,  # closed when this process ends
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=environment(TORCH_CPP_LOG_LEVEL="ERROR"),  # as course_lm/__main__.py has it
            pass_fds=[door.fileno()],
            start_new_session=True,  # Ctrl-C is for the tests
        )
    _server.update(place=place, process=process)


def environment(**changes: str) -> dict[str, str]:
    """The variables of a command: one thread, and this repository's package and tests."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **changes}


def serve(door: str, place: str) -> int | str | None:
    """Fork a guard for each client, until the process that has started this one is gone.

    Threads do not outlive a fork, so this process has one alone, and computes nothing.
    """
    for name in IMPORTED:
        importlib.import_module(name)
    handlers = importlib.import_module("torch.distributed.elastic.multiprocessing.subprocess_handler")
    handlers.SubprocessHandler._popen = _fork_rank
    vars(handlers)["os"] = _Signals()
    os.fsync = lambda fd: None  # as in conftest.py
    _server["place"] = Path(place)  # where torchrun, a process of this server, orders its ranks
    gc.collect()
    gc.freeze()  # else the collector of each process would copy all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for guards
    with socket.socket(fileno=int(door)) as listener:
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            line, _ = listener.accept()
            if not os.fork():
                listener.close()
                return _guard(line)
            line.close()
    return 0


def end_at_once() -> None:
    """End without taking apart all that torch is made of, for half a second; an error is left to the interpreter."""
    if "code" in _server:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_server["code"])


def _guard(line: socket.socket) -> int | str | None:
    """Fork the process that a client asks for; the guard goes no further, and the process returns its exit code."""
    _, files, *_ = socket.recv_fds(line, 5, 16)
    client = Connection(line.detach())
    function, arguments = client.recv()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        os.setsid()
        client.send(os.getpid())
        client.close()
        try:
            code = function(*arguments, *files)
        except SystemExit as end:
            code = end.code
        if isinstance(code, int | None):
            _server["code"] = code or 0
        return code
    for file in files:
        os.close(file)
    if client in wait([client, os.pidfd_open(child)]):  # a client says nothing more: it is gone
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        client.send(os.waitstatus_to_exitcode(status))
    os._exit(0)


# Commands


def python(words: Sequence[str], folder: Path, variables: dict[str, str], out: int, err: int) -> None:
    """Be the interpreter that these words start, with a module or a script."""
    for number, file in enumerate((os.open(os.devnull, os.O_RDWR), out, err)):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    np.random.seed()  # random.random() has another seed in each process anyway, and torch the same in all
    words = words[1:]
    line_by_line = words[0] == "-u"
    if line_by_line:
        words = words[1:]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1 if line_by_line else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if words[0] == "-m":
        sys.argv = [*words[1:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [*words], str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


class _Signals:
    """`os` as torchrun's handler of a rank sees it: a rank that has just ended takes its signal.

    A child of torchrun itself stays a zombie, which does, until torchrun waits for it; here the guard waits at once.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def killpg(self, group: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def _fork_rank(handler: object, words: Sequence[str], variables: dict[str, str]) -> Process:
    """What torchrun calls in place of its own start of a process."""
    rank = Process(python, words, Path.cwd(), variables, files=[1, 2])
    with open(RANKS, "a") as file:
        file.write(f"{variables['RANK']} {rank.pid}\n")
    return rank


Started = Process | subprocess.Popen[bytes]
Start = Callable[[Sequence[str], Path, dict[str, str], BinaryIO, BinaryIO], Started]


def forked(words: Sequence[str], folder: Path, variables: dict[str, str], out: BinaryIO, err: BinaryIO) -> Started:
    """Start a command that begins with `python` as a process of the server."""
    return Process(python, words, folder, variables, files=[out.fileno(), err.fileno()])


def anew(words: Sequence[str], folder: Path, variables: dict[str, str], out: BinaryIO, err: BinaryIO) -> Started:
    """Start a command as a shell does."""
    return subprocess.Popen(words, cwd=folder, env=variables, stdout=out, stderr=err, start_new_session=True)


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
    """A command that runs in `folder`, its output kept in two files."""

    def __init__(self, process: Started, folder: Path, files: tuple[Path, Path]) -> None:
        self.process, self.folder, self.files = process, folder, files

    def ranks(self) -> dict[int, int]:
        """The processes of the ranks that run now, by rank; of a forked torchrun."""
        lines = [line.split() for line in (self.folder / RANKS).read_text().splitlines()]
        return {int(rank): int(pid) for rank, pid in lines if psutil.pid_exists(int(pid))}

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
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command did not end in {seconds} s: {self.texts()[1]}") from None
        return Ended(code, *self.texts())

    def texts(self) -> tuple[str, str]:
        """What the command has printed so far."""
        out, err = (file.read_text(encoding="utf-8", errors="replace") for file in self.files)
        return out, err


@contextmanager
def started(
    folder: Path, words: Sequence[str], variables: dict[str, str] | None = None, start: Start = forked
) -> Iterator[Command]:
    """A command in a session of its own, of which nothing is left when the body ends.

    folder: where the command is started, and where its output is kept. variables: added to this process's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RANKS).write_text("")
    number = len(list(folder.glob("*.out")))
    files = folder / f"{number}.out", folder / f"{number}.err"
    with files[0].open("wb") as out, files[1].open("wb") as err:
        process = start(words, folder, environment(**(variables or {})), out, err)
    try:
        yield Command(process, folder, files)
    finally:
        if process.poll() is None:  # torchrun gives its ranks sessions of their own
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait(SECONDS)
