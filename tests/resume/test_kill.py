"""Claims about runs that are ended from outside: whenever that is, they go on and end where they would have ended.

Every test ends real processes and compares, bit for bit, all checkpoints, records and settings that the run leaves
with those of a run that nobody ended (C13, C14, C18). The moments are the day's. `-s` prints where each process was.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from course_lm.checkpoints import latest_checkpoint, load_checkpoint
from tests.full_disk import leaving_free, small_disk
from tests.resume.killable import Child
from tests.sets import draws, of_set
from tests.training_run import NAME, assert_same, outcome

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: a process is ended by its handle")
RUN = {"num_epochs": of_set(8, 32)}
TIMES = of_set(8, 25)
PLACES = ["in a save", "in training", "anywhere"]


class Straight:
    """A run that nobody ends: what it leaves, and how long its parts take."""

    def __init__(self, folder: Path) -> None:
        started = time.perf_counter()
        child = Child(folder, **RUN)
        assert child.finish() == 0, child.said()
        self.outcome = outcome(folder)
        times = {kind: [when for when, event in child.seen if event.startswith(kind)] for kind in ("writing", "wrote")}
        self.seconds_of_a_save = mean(end - begin for begin, end in zip(times["writing"], times["wrote"], strict=True))
        self.seconds_between_saves = (child.seen[-1][0] - started) / len(times["wrote"])

    def assert_ends_like_this(self, folder: Path) -> None:
        """Go on with the run in the folder, to its end, and compare."""
        child = Child(folder, **RUN)
        assert child.finish() == 0, child.said()
        assert_same(outcome(folder), self.outcome)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return Straight(tmp_path_factory.mktemp("straight"))


def wait_for_moment(child: Child, where: str, straight: Straight, draw: random.Random) -> None:
    """Let the child run to a random moment, at most two or three saves on."""
    if where == "in a save":
        child.wait_for("writing", draw.randint(1, 3))
        time.sleep(draw.uniform(0, 0.85 * straight.seconds_of_a_save))
    elif where == "in training":
        child.wait_for("batch", draw.randint(1, 10))
        time.sleep(draw.uniform(0, straight.seconds_between_saves / 4))
    else:
        time.sleep(draw.uniform(0, 2 * straight.seconds_between_saves))


def newest(folder: Path) -> str:
    path = latest_checkpoint(folder / NAME)
    return "no checkpoint" if path is None else f"{path.name} after step {load_checkpoint(path)['step']}"


def end_again_and_again(folder: Path, end: Callable[[Child, int], None], *codes: int) -> list[str]:
    """Start the run, or go on with it, and `end` it, the n-th time as `end` is told; where it was each time."""
    hits: list[str] = []
    for number in range(TIMES):
        child = Child(folder, **RUN)
        end(child, number)
        assert child.finish() in codes, f"the run was over before it was ended {TIMES} times: {hits} {child.said()}"
        hits.append(child.hit)
        print(f"end {number + 1:2} while {child.hit}; newest whole: {newest(folder)}")
    return hits


@pytest.mark.parametrize("where", PLACES)
def test_a_run_killed_at_random_moments_ends_like_one_never_killed(straight, tmp_path, where):
    draw = draws(f"killed {where}")

    def kill(child: Child, number: int) -> None:
        wait_for_moment(child, where, straight, draw)
        child.send(signal.SIGKILL)

    hits = end_again_and_again(tmp_path, kill, -signal.SIGKILL)
    straight.assert_ends_like_this(tmp_path)
    assert where != "in a save" or sum(hit.startswith("writing") for hit in hits) >= TIMES // 2


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_terminated_and_perhaps_killed_while_it_obeys_ends_like_one_never_stopped(straight, tmp_path, killed):
    draw = draws(f"terminated, killed: {killed}")

    def terminate(child: Child, number: int) -> None:
        # not "anywhere": before the run starts, SIGTERM finds Python's own handling
        wait_for_moment(child, "in training" if killed else PLACES[number % 2], straight, draw)
        child.send(signal.SIGTERM)
        if killed:
            time.sleep(draw.uniform(0, 2 * straight.seconds_of_a_save))
            child.send(signal.SIGKILL)

    end_again_and_again(tmp_path, terminate, 128 + signal.SIGTERM, *[-signal.SIGKILL] * killed)
    straight.assert_ends_like_this(tmp_path)


def test_a_run_whose_files_may_not_grow_stops_with_one_error_and_goes_on_when_they_may(straight, tmp_path):
    draw = draws("files may not grow")
    for _ in range(of_set(3, 8)):
        child = Child(tmp_path, room=(draw.randint(1, 4), draw.randint(5_000, 50_000)), **RUN)
        assert child.finish() == 2, child.said()
        last = child.said().splitlines()[-1]
        assert "cannot write" in last and "File too large" in last
    straight.assert_ends_like_this(tmp_path)


def test_a_run_on_a_disk_that_fills_up_stops_with_one_error_and_goes_on_when_there_is_room(straight, tmp_path):
    draw = draws("disk that fills up")
    with small_disk(tmp_path / "disk", megabytes=4) as disk:
        for room in [0, 2_000, draw.randrange(80_000, 200_000), *(draw.randrange(50_000) for _ in range(3)), 0]:
            before = newest(disk)
            with leaving_free(disk, room):
                child = Child(disk, **RUN)
                code = child.finish()
            assert code == 2, f"the run was over with {room} bytes of room"
            assert "No space left on device" in child.said().splitlines()[-1]
            assert newest(disk) == before or room > 50_000
        straight.assert_ends_like_this(disk)
