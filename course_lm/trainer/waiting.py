"""How the threads of one computation wait for each other, on a machine that does other work too.

A thread of OpenMP that has done its part waits for the others, and it waits by spinning, for milliseconds. Where
every thread has a core of its own, that is faster than to sleep and be woken. Where another process wants a core as
well, the thread that is waited for does not run, and the one that spins keeps a core from it: beside one busy process
a step then takes three times as long, and each of two trainings at once five times (`python
benchmarks/other_work.py`).

GNU's libgomp spins 100 rounds in place of 300,000 while it manages more threads than there are CPUs (its manual, under
GOMP_SPINCOUNT). So a process can choose, and choose again: a watcher looks how long this process's threads have waited
for a core, and starts as many idle threads as tip that balance, or ends them. The number of threads that compute does
not change, so no bit of a result does.
"""

import ctypes
import os
import threading
import time
from pathlib import Path

import torch

SECONDS = 0.5  # between two looks
# Seconds that the threads waited for a core, in each second. A quiet machine shows 0.01, one busy process 0.5.
CROWDED, QUIET = 0.1, 0.03
SET_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")

_watcher: threading.Thread | None = None


def share_cores() -> bool:
    """Let this process's threads wait without spinning whenever other work wants the cores; return whether it can.

    It can on Linux with GNU's OpenMP, which torch's own wheels bring. It leaves alone a process with one thread, and
    one for which the user has said how threads wait, by OMP_WAIT_POLICY or GOMP_SPINCOUNT. Called again, it does
    nothing more. Like `tune_allocator` it is process-wide: call it from a program, not on import.
    """
    global _watcher
    if any(name in os.environ for name in SET_BY_USER) or torch.get_num_threads() == 1:
        return False
    if _watcher is None:
        openmp = _libgomp()
        if openmp is None:
            return False
        _watcher = threading.Thread(target=_watch, args=(openmp,), name="share_cores", daemon=True)
        _watcher.start()
    return True


def _libgomp() -> ctypes.CDLL | None:
    """The library that torch has loaded, where there is one and the kernel tells how long threads wait."""
    if not Path("/proc/self/schedstat").exists():
        return None
    paths = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libgomp" in line)
    path = next(paths, None)
    return None if path is None else ctypes.CDLL(path)


def _watch(openmp: ctypes.CDLL) -> None:
    over: threading.Event | None = None  # of the idle threads, while they are held
    waited, now = seconds_waited(), time.perf_counter()
    while True:
        time.sleep(SECONDS)
        waited_before, before = waited, now
        waited, now = seconds_waited(), time.perf_counter()
        share = (waited - waited_before) / (now - before)
        if over is None and share > CROWDED:
            over = threading.Event()
            threading.Thread(target=_hold_idle_threads, args=(openmp, over), name="idle threads", daemon=True).start()
        elif over is not None and share <= QUIET:
            over.set()
            over = None


def seconds_waited() -> float:
    """For how long the threads of this process have been ready to run and had no core, all together."""
    nanoseconds = 0
    for thread in Path("/proc/self/task").iterdir():
        try:
            nanoseconds += int((thread / "schedstat").read_text().split()[1])  # field 2: see the kernel's sched-stats
        except OSError:  # the thread has ended
            continue
    return nanoseconds / 1e9


def _hold_idle_threads(openmp: ctypes.CDLL, over: threading.Event) -> None:
    """Let libgomp manage as many idle threads more as there are CPUs, until it is over.

    libgomp keeps the threads of a team for as long as the thread that started it lives: this one.
    """
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # what each thread of the team calls, with NULL
    openmp.GOMP_parallel(nothing, None, (os.cpu_count() or 1) + 1, 0)
    over.wait()
