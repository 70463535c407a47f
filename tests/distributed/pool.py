"""Ranks for tests: processes that join over gloo, run one function of a test module together, and wait for the next.

The fork server starts them once a session, and they join again after an error, which parts them. A function that
hangs costs its test the time-out, and the processes, which are then started anew.
"""

import importlib
import multiprocessing
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil
import torch.distributed as dist

from tests.fork_server import Process, read_log

JOINED = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
)
TIMEOUT = 90.0  # of a test's function, in seconds; the start of the processes is in it
WAIT = 45.0  # of a rank for another
THREADS = 60  # of a rank that goes on; four ranks of 700 threads each kept two cores busy with that alone


@dataclass
class Outcome:
    """What one rank's call came to.

    Attributes:
        value: what the function returned. error: what it raised, or None.
        seconds: from the start of the call to its end.
    """

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


class Pool:
    """`world` processes that are the ranks of one group; with one alone, the group of one that torchrun makes."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._processes: list[Process] = []
        self._connections: list[Connection] = []
        self._joined = False

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> list[Any]:
        """Call `function(*args)` on every rank, return what it gives on each, or raise the first error.

        function: one at the top of a module in this folder. An error that says that another rank failed comes last.
        """
        outcomes = self.outcomes(function, *args, timeout=timeout)
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        own = [error for error in errors if type(error).__name__ != "RankError"]
        for error in own or errors:
            raise error
        return [outcome.value for outcome in outcomes]

    def outcomes(
        self, function: Callable[..., Any], *args: Any, timeout: float = TIMEOUT, ends: bool = False
    ) -> list[Outcome]:
        """The same, with each rank's own error in place of its value; TimeoutError where a rank does not come back.

        ends: let an error end the process of its rank, as it ends a program. Gloo closes no connection before.
        """
        if not self._processes:
            self._start()
        port = None if self._joined else self._new_store()
        # pytest imports a test module under its bare name
        name = f"tests.distributed.{function.__module__.rpartition('.')[2]}"
        task = pickle.dumps((port, name, function.__name__, args, ends))
        for connection in self._connections:
            connection.send_bytes(task)
        deadline = time.monotonic() + timeout
        answers: dict[int, Outcome] = {}
        while len(answers) < self.world:
            waiting = [one for rank, one in enumerate(self._connections) if rank not in answers]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = [rank for rank in range(self.world) if rank not in answers]
                self.close()
                told = "; ".join(f"rank {rank}: {answer.error}" for rank, answer in sorted(answers.items()))
                raise TimeoutError(f"no answer from ranks {missing} within {timeout:g} s; the others: {told or 'none'}")
            for connection in ready:
                rank = self._connections.index(connection)  # type: ignore[arg-type]
                try:
                    answers[rank] = pickle.loads(self._connections[rank].recv_bytes())
                except EOFError:
                    ends = True  # none can be asked again
                    answers[rank] = Outcome(error=RuntimeError(f"the process of rank {rank} died:\n{read_log()}"))
        outcomes = [answers[rank] for rank in range(self.world)]
        self._joined = all(outcome.error is None for outcome in outcomes)
        if ends or not all(process.poll() is None for process in self._processes) or self._is_crowded():
            self.close()
        return outcomes

    def part(self) -> None:
        """Let the ranks join anew for the next call."""
        self._joined = False

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes, self._connections, self._joined = [], [], False

    def _is_crowded(self) -> bool:
        """Whether groups that calls have made and left behind are many: gloo's threads wake all the time."""
        return psutil.Process(self._processes[0].pid).num_threads() > THREADS

    def _new_store(self) -> int:
        """Where the ranks find each other and leave their words; as torchrun's, it outlives them."""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return self._store.port

    def _start(self) -> None:
        for rank in range(self.world):
            here, there = multiprocessing.Pipe()
            self._processes.append(Process(serve, rank, self.world, files=[there.fileno()]))
            there.close()
            self._connections.append(here)


Ranks = Callable[[int], Pool]  # of the fixture `ranks`


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def serve(rank: int, world: int, pipe: int) -> None:
    """The life of one rank: join, call, answer."""
    from course_lm.distributed import connect, leave

    sys.path.append(os.path.dirname(__file__))  # pytest imports a test module under its bare name
    connection = Connection(pipe)
    while True:
        try:
            port, module, name, args, ends = pickle.loads(connection.recv_bytes())
        except EOFError:  # the tests have ended
            return
        started = time.monotonic()
        outcome = Outcome()
        try:
            if port is not None:
                leave()
                if dist.is_initialized():  # by a test itself
                    dist.destroy_process_group()
                values = (rank, rank, world, "127.0.0.1", port, "tests", True)
                os.environ.update({key: str(value) for key, value in zip(JOINED, values)})
                connect(timeout_seconds=WAIT)
            outcome.value = getattr(importlib.import_module(module), name)(*args)
        except BaseException as error:
            outcome.error = error
        outcome.seconds = time.monotonic() - started
        connection.send_bytes(packed(outcome))
        if ends and outcome.error is not None:
            os._exit(1)


def packed(outcome: Outcome) -> bytes:
    """The outcome as bytes; an error that cannot be sent is told in words."""
    try:
        content = pickle.dumps(outcome)
        pickle.loads(content)
        return content
    except Exception as error:
        said = f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else f"cannot be sent: {error}"
        return pickle.dumps(Outcome(error=RuntimeError(said), seconds=outcome.seconds))
