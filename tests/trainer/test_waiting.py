"""Threads wait without spinning while other work wants the cores, and no bit of a result changes."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from course_lm.trainer import waiting

# What follows is about two threads, and tests run on one.
CHILD = """
import os, subprocess, sys, threading, time, torch
from course_lm.trainer import waiting

def holds():
    return any(thread.name == "idle threads" for thread in threading.enumerate())

x = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
def compute():
    return (x @ x).softmax(-1).sum(0)

def processor_seconds(regions=60):
    "of regions with a pause after each, in which the threads wait for the next one"
    begin = time.process_time()
    for _ in range(regions):
        torch.add(x, 1)
        time.sleep(0.02)
    return time.process_time() - begin
"""
SAVES = f"""{CHILD}
openmp, straight = waiting._libgomp(), compute()
spinning = processor_seconds()
over = threading.Event()
owner = threading.Thread(target=waiting._hold_idle_threads, args=(openmp, over), daemon=True)
owner.start()
time.sleep(0.5)
calm, same = processor_seconds(), torch.equal(compute(), straight)
over.set()
owner.join()
print(spinning, calm, processor_seconds(), same)
"""
NOTICES = f"""{CHILD}
assert waiting.share_cores() and waiting.share_cores()
assert sum(thread.name == "share_cores" for thread in threading.enumerate()) == 1
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
until = time.monotonic() + 60
while not holds() and time.monotonic() < until:
    compute()
for one in busy:
    one.kill()
print(holds())
"""

needs_libgomp = pytest.mark.skipif(
    waiting._libgomp() is None or (os.cpu_count() or 1) < 2, reason="needs Linux, GNU's OpenMP and two cores"
)


def child(program: str, **environment: str) -> list[str]:
    variables = {name: value for name, value in os.environ.items() if name not in waiting.SET_BY_USER}
    command, variables = [sys.executable, "-c", program], variables | {"OMP_NUM_THREADS": "2"} | environment
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@needs_libgomp
def test_while_idle_threads_are_held_the_others_do_not_spin_and_compute_the_same_bits():
    spinning, calm, afterwards, same = child(SAVES)
    assert float(calm) < 0.5 * min(float(spinning), float(afterwards))
    assert same == "True"


@needs_libgomp
def test_other_work_is_noticed():
    assert child(NOTICES) == ["True"]


def test_it_holds_while_threads_wait_for_cores_and_no_longer(monkeypatch):
    """Shares of a second: quiet, crowded, less so, quiet again, in between."""
    shares, held = [0.01, 0.5, 0.05, 0.01, 0.05], []
    total, clock = iter([0.0, *(sum(shares[: n + 1]) for n in range(len(shares)))]), iter(range(99))

    def thread(**_: object) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: held.append(len(seen)))

    def event() -> SimpleNamespace:
        return SimpleNamespace(set=lambda: held.append(-len(seen)))

    seen: list[float] = []
    monkeypatch.setattr(waiting, "threading", SimpleNamespace(Thread=thread, Event=event))
    monkeypatch.setattr(waiting, "seconds_waited", lambda: next(total))
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(waiting.time, "sleep", seen.append)
    with pytest.raises(StopIteration):
        waiting._watch(None)  # type: ignore[arg-type]
    assert held == [2, -4]


def test_a_user_who_has_said_how_threads_wait_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(waiting, "_libgomp", lambda: pytest.fail("looked for the library"))
    for name in waiting.SET_BY_USER:
        with monkeypatch.context() as patch:
            patch.setenv(name, "1000")
            assert waiting.share_cores() is False


def test_where_there_is_no_libgomp_nothing_happens(monkeypatch):
    for name in waiting.SET_BY_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(waiting, "_libgomp", lambda: None)
    monkeypatch.setattr(waiting, "_watcher", None)
    assert waiting.share_cores() is False
