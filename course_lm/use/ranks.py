"""A few processes: what a notebook or a script defines runs on every rank of a gloo group on this machine.

`torchrun` starts a program on many ranks; a notebook is none. So each rank here is a Python of its own that waits for
functions. They are sent by value (by cloudpickle, since another process cannot import a notebook), and so are results.
A rank that hangs cannot be asked where: each carries a watchdog that writes its stack and ends it.
"""

import contextlib
import faulthandler
import io
import os
import pickle
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import torch
import torch.distributed as dist

import course_lm
from course_lm.batching.token_store import read_at
from course_lm.trainer.allocator import tune_allocator
from course_lm.validation import require

START_SECONDS = 120.0  # for the processes to import torch and to find each other
STACK_SECONDS = 20  # in which a watchdog has written its stack, on a busy machine too
GRACE_SECONDS = 0.3  # where one rank fails, how long the others may take to fail too
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}  # else gloo asks the network for this machine's own name
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (\S+)$', re.MULTILINE)
_TORCH, _PACKAGE = (os.path.dirname(module.__file__ or "") for module in (torch, course_lm))


class _Answer(NamedTuple):
    """What a rank says at the end of a call: its result, pickled, or its error in one line; and what it printed."""

    result: bytes = b""
    error: str = ""
    printed: str = ""
    died: bool = False


_Answers = queue.Queue[tuple[int, _Answer]]


class Ranks:
    """`world` processes that run a function together, each with one thread; they start at once and stay until `close`.

    `run` may be called any number of times, also after a call that failed: then the processes are new ones. They end
    with the kernel too. `timeout_seconds` is the longest that a call may take. Raises ValueError for a `world` below 1.
    """

    def __init__(self, world: int, *, timeout_seconds: float = 60.0) -> None:
        require(world >= 1, "world", "at least 1", world)
        self.world = world
        self.timeout_seconds = timeout_seconds
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end_all, self._workers)  # runs at the kernel's exit too
        self._start()

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_seconds: float | None = None) -> list[Any]:
        """Call `function(*arguments)` on every rank; return the results, rank by rank.

        The function may use whatever the notebook has defined, and `torch.distributed`, whose default group is joined.
        What a rank prints appears with its number, once all are done.

        Raises:
            RuntimeError: the function raised on a rank; the message names the first such rank and its error.
            TimeoutError: after `timeout_seconds` some ranks were not done; the message says where each of them waits.
        """
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        order = cloudpickle.dumps((function, arguments, seconds))
        if not self._workers:
            self._start()
        whole = False
        try:
            if not self._ready:
                _raise_first_error(self._collect(START_SECONDS))
                self._ready = True
            for worker in self._workers:
                worker.send(order)
            answers = self._collect(seconds + 0.5)
            failed = any(answer.error for answer in answers.values())
            whole = len(answers) == self.world and not failed
            hung = [worker for worker in self._workers if worker.rank not in answers]
            last = time.monotonic() + (0 if failed else STACK_SECONDS)
            while not all(worker.where() for worker in hung) and time.monotonic() < last:
                time.sleep(0.05)
        finally:
            if not whole:  # a collective may be half done, so the group is of no more use
                self.close()
        for rank, answer in sorted(answers.items()):
            for line in answer.printed.splitlines():
                print(f"rank {rank}: {line}")
        if not whole:
            self._start()
            _raise_first_error(answers)
            places = {worker.rank: f"still waiting{worker.where()}" for worker in hung}
            raise TimeoutError(f"after {seconds:g} s {_told(places | dict.fromkeys(answers, 'done'))}")
        return [pickle.loads(answers[rank].result) for rank in range(self.world)]

    def close(self) -> None:
        """End the processes. `run` starts new ones."""
        _end_all(self._workers)

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        address = {"host_name": "127.0.0.1", "port": 0, "is_master": True, "wait_for_workers": False}
        self._store = dist.TCPStore(**address)
        self._answers: _Answers = queue.Queue()
        self._ready = False
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            # as under torchrun: the store is there already, and no rank makes it
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": "1",
        }
        if sys.platform in _LOOPBACK:
            environment.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
        for rank in range(self.world):
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._workers.append(_Worker(rank, environment | numbers, self._answers))

    def _collect(self, seconds: float) -> dict[int, _Answer]:
        """The answers of all ranks, or of those that gave one in time; after an error the others get little time."""
        answers: dict[int, _Answer] = {}
        until = time.monotonic() + seconds
        while len(answers) < self.world:
            try:
                rank, answers[rank] = self._answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if answers[rank].error:
                until = min(until, time.monotonic() + GRACE_SECONDS)
        return answers


class _Worker:
    """One rank's process, and the thread that reads its answers."""

    def __init__(self, rank: int, environment: dict[str, str], answers: _Answers) -> None:
        self.rank = rank
        self.lock = threading.Lock()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, what it writes to stderr, and its stack where it hangs
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from course_lm.use import ranks; ranks.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            start_new_session=True,  # the kernel's interrupt is not theirs
        )
        threading.Thread(target=self._read, args=(answers,), daemon=True).start()

    def send(self, order: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that a process is dead is said by the thread that reads
            pickle.dump(order, self.process.stdin)
            self.process.stdin.flush()

    def where(self) -> str:
        """The collective in which the rank waits, and the line that called it, as its watchdog wrote them."""
        for thread in self._written().split("\n\n"):
            frames = _FRAME.findall(thread)  # innermost first
            if any(name == "_carry_out" for _, _, name in frames):
                return _describe(frames)
        return ""

    def _written(self) -> str:
        """What the process wrote to stderr."""
        with self.lock:  # the thread that reads answers asks too
            file = self.log.fileno()
            return read_at(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def _read(self, answers: _Answers) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                answers.put((self.rank, _Answer(*pickle.load(self.process.stdout))))
        code = self.process.wait()
        last = self._written().strip().splitlines()[-1:]
        answers.put((self.rank, _Answer(error=": ".join([f"its process ended, exit code {code}", *last]), died=True)))


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        assert worker.process.stdin is not None
        with contextlib.suppress(OSError):
            worker.process.stdin.close()
    workers.clear()


def _describe(frames: list[tuple[str, str, str]]) -> str:
    inside = [name for file, _, name in frames if "distributed" in file and name != "wrapper"]
    own = [(line, name) for file, line, name in frames if not file.startswith((_TORCH, _PACKAGE))]
    place = f" in {inside[0] if inside else frames[0][2]}"
    return f"{place}, called by {own[0][1]} in line {own[0][0]}" if own else place


def _told(states: dict[int, str]) -> str:
    """Which ranks are in which state, for each state once: `rank 1 is done; ranks 0 and 2 are still waiting`."""
    said = []
    for state in sorted(set(states.values())):
        ranks = [str(rank) for rank in sorted(states) if states[rank] == state]
        start = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(ranks[:-1])} and {ranks[-1]} are"
        said.append(f"{start} {state}")
    return "; ".join(said)


def _raised_by(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((_TORCH, _PACKAGE))]
    return f" (in line {own[-1].lineno} of {own[-1].name})" if own else ""


def _raise_first_error(answers: dict[int, _Answer]) -> None:
    """A rank that died comes first: it makes the collectives of the others fail."""
    failed = [(not answer.died, rank, answer.error) for rank, answer in answers.items() if answer.error]
    if failed:
        _, rank, error = min(failed)
        raise RuntimeError(f"rank {rank}: {error}")


def serve() -> None:
    """The program of one rank: join the group, then carry out orders from stdin until it is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # answers alone go out: what a library prints would be taken for one
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    tune_allocator()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    answer = _Answer()  # of a rank that is ready
    while True:
        pickle.dump(tuple(answer), answers)
        answers.flush()
        answer = _carry_out(orders.get())


def _listen(orders: "queue.Queue[bytes]") -> None:
    """Read orders in a thread of its own, so that a rank that hangs still ends when its kernel has."""
    with contextlib.suppress(EOFError):
        while True:
            orders.put(pickle.load(sys.stdin.buffer))
    os._exit(0)


def _carry_out(order: bytes) -> _Answer:
    printed, result, error = io.StringIO(), b"", ""
    try:
        function, arguments, seconds = pickle.loads(order)
        faulthandler.dump_traceback_later(seconds)
        with contextlib.redirect_stdout(printed):
            result = cloudpickle.dumps(function(*arguments))
    except BaseException as raised:
        error = " ".join(f"{type(raised).__name__}: {raised}".split()) + _raised_by(raised)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return _Answer(result, error, printed.getvalue())
