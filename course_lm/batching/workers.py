"""How a worker process of a loader takes signals: a run that is told to stop still needs its batches.

Ctrl-C, torchrun, a job's scheduler and a terminal that is closed signal all processes of a run. The run finishes its
step and saves; a worker that died at once would end it with an error instead.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = {number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")}


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold what ends a run back, here and in the workers that start: one might come before a worker can take it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heed_parent_alone(worker: int) -> None:
    """In a worker process: ignore what ends a run, but SIGTERM that comes from the process that reads the batches."""
    for number in _ENDING - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_parent, daemon=True).start()
    elif hasattr(signal, "pthread_sigmask"):  # macOS, where SIGTERM keeps its effect
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _wait_for_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
