"""The processes of lesson 14: they run what a notebook defines, say which rank failed and where, and come back."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lm.classroom.ranks import Ranks

FACTOR = 3.0

# As in a notebook: the function is in no module that a spawned process could import.
PROGRAM = """
import torch, torch.distributed as dist
from course_lm.classroom.ranks import Ranks

factor = 3.0

def scaled(x):
    return x * factor

def total(start):
    x = torch.tensor(start + dist.get_rank())
    dist.all_reduce(x)
    return scaled(x)
"""


@pytest.fixture(scope="module")
def two():
    with Ranks(2) as ranks:
        yield ranks


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def total(start):
    x = torch.tensor(start + dist.get_rank())
    dist.all_reduce(x)
    return x * FACTOR


def leaves_early():
    if dist.get_rank() == 0:
        return
    dist.all_reduce(torch.zeros(1))


def raises_on_rank_1():
    if dist.get_rank() == 1:
        raise ValueError("two\nlines")
    dist.all_reduce(torch.zeros(1))


def dies():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))


def test_results_of_one_group_of_single_threads_come_rank_by_rank(two):
    assert two.run(dist.get_rank) == [0, 1] and two.run(torch.get_num_threads) == [1, 1]
    assert [float(x) for x in two.run(total, 1.0)] == [9.0, 9.0]


def test_a_group_of_none_is_refused():
    with pytest.raises(ValueError, match="world must be at least 1, got 0"):
        Ranks(0)


def test_a_function_of_a_notebook_arrives_with_what_it_uses():
    end = "with Ranks(2) as ranks:\n    print([float(x) for x in ranks.run(total, 1.0)])"
    assert python(PROGRAM + end).stdout == "[9.0, 9.0]\n"


def test_a_partial_and_a_lambda_run_too(two):
    assert two.run(partial(total, 0.0)) == two.run(lambda: total(0.0))


def test_what_ranks_print_is_shown_once_with_their_number(two, capsys):
    two.run(lambda: print("here", dist.get_rank()))
    assert capsys.readouterr().out == "rank 0: here 0\nrank 1: here 1\n"


def test_where_all_raise_the_first_rank_is_named(two):
    with pytest.raises(RuntimeError, match=r"^rank 0: ZeroDivisionError"):
        two.run(lambda: 1 / 0)


def test_all_hung_ranks_are_named():
    with (
        Ranks(3) as three,
        pytest.raises(TimeoutError, match=r"done; ranks 1 and 2 are still waiting in all_r"),
    ):
        three.run(leaves_early, timeout_seconds=1)


LINE = leaves_early.__code__.co_firstlineno + 3
FAULTS = [
    (raises_on_rank_1, RuntimeError, r"rank 1: ValueError: two lines \(in line \d+ of raises_on_rank_1\)"),
    (
        leaves_early,
        TimeoutError,
        f"after 1 s rank 0 is done; rank 1 is still waiting in all_reduce, called by leaves_early in line {LINE}",
    ),
    (dies, RuntimeError, "rank 1: its process ended, exit code -9.*"),
]


@pytest.mark.parametrize(("fault", "error", "said"), FAULTS)
def test_a_rank_that_raises_hangs_or_dies_is_told_in_one_line_and_the_next_call_works(two, fault, error, said):
    with pytest.raises(error, match=f"^{said}$"):
        two.run(fault, timeout_seconds=1)
    assert [float(x) for x in two.run(total, 1.0)] == [9.0, 9.0]


def test_a_result_that_cannot_be_sent_is_an_error_of_its_rank(two):
    with pytest.raises(RuntimeError, match=r"^rank 0: TypeError: cannot pickle"):
        two.run(lambda: (number for number in range(3)))


def test_after_close_run_starts_new_processes():
    ranks = Ranks(2)
    before = ranks.run(os.getpid)
    ranks.close()
    assert set(before).isdisjoint(ranks.run(os.getpid))
    ranks.close()


KILL = "import threading, os, signal; threading.Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start();"


@pytest.mark.parametrize("end", ["pass", KILL, f"{KILL} import time; ranks.run(time.sleep, 60)"])
def test_no_rank_outlives_the_kernel(end):
    told = python(PROGRAM + f"import os\nranks = Ranks(2)\nprint(*ranks.run(os.getpid), flush=True)\n{end}")
    ranks = [int(number) for number in told.stdout.split()]
    until = time.monotonic() + 10
    while any(map(is_running, ranks)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(ranks) == 2 and not any(map(is_running, ranks))


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
