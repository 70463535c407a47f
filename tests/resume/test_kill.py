"""Claims about runs that are ended from outside: whenever that is, they go on and end where they would have ended.

Every test ends real processes and compares, bit for bit, all checkpoints, records and settings that the run leaves
with those of a run that nobody ended (C13, C14, C18). `-s` prints where each process was.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from course_lm.checkpoints import latest_checkpoint, load_checkpoint
from tests.full_disk import leaving_free, small_disk
from tests.resume.kill_server import Child, Server
from tests.training_run import NAME, assert_same, outcome

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: a process is ended by its handle")
LONG_RUN = {"num_epochs": 32}
SHORT_RUN = {"num_epochs": 5}
KILLS = ["in a save"] * 17 + ["in training"] * 5 + ["anywhere"] * 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


class Straight:
    """A run that nobody ends: what it leaves, and how long its parts take."""

    def __init__(self, server: Server, folder: Path, config: dict[str, Any]) -> None:
        started = time.perf_counter()
        child = server.start(folder, **config)
        assert child.finish() == 0, server.log.read_text()
        self.outcome = outcome(folder)
        times = {kind: [when for when, event in child.seen if event.startswith(kind)] for kind in ("writing", "wrote")}
        self.seconds_of_a_save = mean(end - begin for begin, end in zip(times["writing"], times["wrote"], strict=True))
        self.seconds_between_saves = (child.seen[-1][0] - started) / len(times["wrote"])


@pytest.fixture(scope="module")
def long_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return Straight(server, tmp_path_factory.mktemp("long"), LONG_RUN)


@pytest.fixture(scope="module")
def short_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return Straight(server, tmp_path_factory.mktemp("short"), SHORT_RUN)


def wait_for_moment(child: Child, where: str, straight: Straight, draw: random.Random, far: int) -> None:
    """Let the child run to a random moment; `far` bounds how many saves it gets done."""
    if where == "in a save":
        child.wait_for("writing", draw.randint(1, far))
        time.sleep(draw.uniform(0, 0.85 * straight.seconds_of_a_save))
    elif where == "in training":
        child.wait_for("batch", draw.randint(1, 5 * far))
        time.sleep(draw.uniform(0, straight.seconds_between_saves / 4))
    else:
        time.sleep(draw.uniform(0, 2 * straight.seconds_between_saves))


def newest(folder: Path) -> str:
    path = latest_checkpoint(folder / NAME)
    return "no checkpoint" if path is None else f"{path.name} after step {load_checkpoint(path)['step']}"


def kill_and_go_on(
    server: Server, straight: Straight, folder: Path, config: dict[str, Any], plan: list[str], far: int
) -> int:
    """Kill the run once for each entry of the plan, let it end, and compare; return the kills inside a save."""
    draw = random.Random(1)
    hits = []
    for where in plan:
        child = server.start(folder, **config)
        wait_for_moment(child, where, straight, draw, far)
        child.send(signal.SIGKILL)
        assert child.finish() == -signal.SIGKILL, f"the run was over before it was killed {len(plan)} times: {hits}"
        hits.append(child.hit)
        print(f"kill {len(hits):2} while {child.hit}; newest whole: {newest(folder)}")
    assert server.start(folder, **config).finish() == 0, server.log.read_text()
    assert_same(outcome(folder), straight.outcome)
    counts = Counter(hit.split()[0] for hit in hits)
    print(dict(counts))
    return counts["writing"]


@pytest.mark.long
def test_a_run_killed_three_times_ends_like_one_never_killed(server, short_run, tmp_path):
    kill_and_go_on(server, short_run, tmp_path, SHORT_RUN, ["in a save", "in training", "in a save"], far=2)


@pytest.mark.slow(seconds=60)
def test_a_run_killed_at_25_random_moments_ends_like_one_never_killed(server, long_run, tmp_path):
    plan = random.Random(0).sample(KILLS, len(KILLS))
    inside = kill_and_go_on(server, long_run, tmp_path, LONG_RUN, plan, far=6)
    assert len(plan) == 25 and inside >= 10


def terminate_and_go_on(server: Server, straight: Straight, folder: Path, config: dict[str, Any], times: int) -> None:
    draw = random.Random(2)
    for number in range(times):
        child = server.start(folder, **config)
        # not "anywhere": before the run starts, SIGTERM finds Python's own handling
        wait_for_moment(child, ("in training", "in a save")[number % 2], straight, draw, far=2)
        child.send(signal.SIGTERM)
        assert child.finish() == 128 + signal.SIGTERM, server.log.read_text()
        print(f"stop {number + 1:2} while {child.hit}; newest whole: {newest(folder)}")
    assert server.start(folder, **config).finish() == 0, server.log.read_text()
    assert_same(outcome(folder), straight.outcome)


@pytest.mark.slow(seconds=10)
def test_a_run_terminated_three_times_ends_like_one_never_stopped(server, short_run, tmp_path):
    terminate_and_go_on(server, short_run, tmp_path, SHORT_RUN, times=3)


@pytest.mark.slow(seconds=60)
def test_a_run_terminated_at_25_random_moments_ends_like_one_never_stopped(server, long_run, tmp_path):
    terminate_and_go_on(server, long_run, tmp_path, LONG_RUN, times=25)


@pytest.mark.slow(seconds=60)
def test_a_run_killed_while_it_obeys_a_first_signal_ends_like_one_never_stopped(server, long_run, tmp_path):
    draw = random.Random(3)
    for _ in range(15):
        child = server.start(tmp_path, **LONG_RUN)
        wait_for_moment(child, "in training", long_run, draw, far=2)
        child.send(signal.SIGTERM)
        time.sleep(draw.uniform(0, 2 * long_run.seconds_of_a_save))
        child.send(signal.SIGKILL)
        assert child.finish() in (-signal.SIGKILL, 128 + signal.SIGTERM)
    assert server.start(tmp_path, **LONG_RUN).finish() == 0, server.log.read_text()
    assert_same(outcome(tmp_path), long_run.outcome)


# No room


def last_words(server: Server) -> str:
    return server.log.read_text().splitlines()[-1]


@pytest.mark.slow(seconds=10)
def test_a_run_whose_files_may_not_grow_stops_with_one_error_and_goes_on_when_they_may(server, short_run, tmp_path):
    draw = random.Random(4)
    for _ in range(3):
        child = server.start(tmp_path, room=(draw.randint(1, 4), draw.randint(5_000, 70_000)), **SHORT_RUN)
        assert child.finish() == 2, server.log.read_text()
        assert "cannot write" in last_words(server) and "File too large" in last_words(server)
    assert server.start(tmp_path, **SHORT_RUN).finish() == 0, server.log.read_text()
    assert_same(outcome(tmp_path), short_run.outcome)


@pytest.mark.long
def test_a_run_on_a_disk_that_fills_up_stops_with_one_error_and_goes_on_when_there_is_room(server, short_run, tmp_path):
    draw = random.Random(5)
    with small_disk(tmp_path / "disk", megabytes=4) as disk:
        rooms = [0, 2_000, draw.randrange(80_000, 200_000), *(draw.randrange(70_000) for _ in range(3)), 0]
        for room in rooms:
            before = newest(disk)
            with leaving_free(disk, room):
                status = server.start(disk, **SHORT_RUN).finish()
            assert status == 2, f"the run was over with {room} bytes of room"
            assert "No space left on device" in last_words(server)
            assert newest(disk) == before or room > 70_000
        assert server.start(disk, **SHORT_RUN).finish() == 0, server.log.read_text()
        assert_same(outcome(disk), short_run.outcome)
