"""Claims about `audit` on several ranks: what is right is sound, each fault is named, and no process stays behind."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lm.audit import audit, examine, spec, spec_ranks
from course_lm.audit.locate import PROMISES
from course_lm.audit.on_ranks import RankSpecification, ladder_of_ranks
from course_lm.use import ranks as processes

from .loops import plain, ranked

# A rank counts its own micro-batches under these, and so is no part of one process that has all of them.
OF_ONE_RANK = {"bf16_gradients", "clip_per_micro_batch", "zero_grad_per_micro_batch", "schedule_per_micro_batch"}
OWN_PROCESSES = processes.Ranks  # those that the audit starts and ends itself


@pytest.fixture(scope="module")
def two_processes() -> Iterator[processes.Ranks]:
    """The processes start once for all tests, and the specification makes each run once."""
    with processes.Ranks(2) as pool, pytest.MonkeyPatch.context() as patch:
        specification = RankSpecification(2)
        patch.setattr(examine, "RankSpecification", lambda world: specification)
        patch.setattr(processes, "Ranks", lambda world, timeout_seconds: Lent(pool, timeout_seconds))
        yield pool


class Lent:
    """Processes that go on when their user has ended."""

    def __init__(self, pool: processes.Ranks, timeout_seconds: float) -> None:
        self.pool, self.timeout_seconds = pool, timeout_seconds

    def run(self, *what: Any, timeout_seconds: float | None = None) -> list[Any]:
        return self.pool.run(*what, timeout_seconds=timeout_seconds or self.timeout_seconds)

    def close(self) -> None: ...


def report_of(loop: Any, **options: Any) -> Any:
    return audit(loop, ranks=2, progress=False, **options)


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("loop", [ranked.by_hand, ranked.by_ddp, ranked.by_trainer])
def test_a_right_loop_on_two_ranks_is_sound(loop: Any) -> None:
    report = report_of(loop)
    assert report.sound and report.runs == len(ladder_of_ranks(0, 2)), str(report)


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("fault", spec_ranks.FAULTS)
def test_each_fault_of_ranks_is_named(fault: str) -> None:
    report = report_of(partial(ranked.by_hand, faults={fault}))
    assert report.faults == (fault,) and not report.alternatives, str(report)
    assert fault in str(report) and not report.sound


PAIRS = (
    ("rank_means", "schedule_per_rank"),
    ("clip_before_sum", "rank_skips_alone"),
    ("gradients_not_averaged", "rank_means"),
    ("rank_tail_filled", "same_seed_on_every_rank"),
    ("rank_means", "ranks_added_up"),
)


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_two_faults_of_ranks_are_named(pair: tuple[str, str]) -> None:
    report = report_of(partial(ranked.by_hand, faults=set(pair)))
    assert report.faults == pair and not report.alternatives, str(report)


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("fault", ["rank_means", "ranks_averaged_twice"])
def test_what_loops_under_ddp_get_wrong_is_named(fault: str) -> None:
    assert report_of(partial(ranked.by_ddp, faults={fault})).faults == (fault,)


@pytest.mark.usefixtures("two_processes")
def test_a_loop_for_one_process_reads_all_data_on_each_rank() -> None:
    assert report_of(plain.Plain.loop).faults == ("ranks_read_all",)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("fault", ["", *(fault for fault in spec.FAULTS if fault not in OF_ONE_RANK)][::4])
def test_ranks_without_a_fault_of_their_own_leave_what_one_process_leaves(fault: str, world: int) -> None:
    faults = {fault} - {""}
    for case in ladder_of_ranks(0, world):
        whole = replace(case.settings, accumulation_steps=case.settings.accumulation_steps * world)
        try:
            expected = spec.train(case.model(), case.epochs, whole, faults).weights
        except ZeroDivisionError:
            continue  # a mean over nothing
        for weights in spec_ranks.train(case.model(), case.epochs, case.settings, world, faults):
            for name in expected:
                torch.testing.assert_close(weights[name], expected[name], rtol=1e-9, atol=1e-11, equal_nan=True)


def test_each_run_of_ranks_has_a_name_and_a_promise_of_its_own() -> None:
    cases = ladder_of_ranks(0, 2)
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.promise in PROMISES for case in cases)


# ---- what cannot be compared


def waits_alone(*_: Any) -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.zeros(1))


def raises_on_one(*_: Any) -> None:
    if dist.get_rank() == 1:
        raise KeyError("weights")
    dist.barrier()


def ends(*_: Any) -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (waits_alone, "after 3 s rank 0 is done; rank 1 is still waiting in all_reduce, called by waits_alone in line"),
        (raises_on_one, "rank 1: the loop raised KeyError: 'weights'"),
        (ends, "its process ended, exit code -9"),
    ],
)
def test_a_loop_that_hangs_raises_or_dies_on_a_rank_is_told_in_one_line_and_no_process_stays(
    monkeypatch: pytest.MonkeyPatch, loop: Any, told: str
) -> None:
    monkeypatch.setattr(processes, "Ranks", OWN_PROCESSES)
    before = set(psutil.Process().children(recursive=True))
    report = report_of(loop, timeout=3.0)
    assert told in report.verdict and "\n" not in report.verdict
    until = time.monotonic() + 10
    while (left := set(psutil.Process().children(recursive=True)) - before) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def test_a_loop_that_no_other_process_can_have_is_refused() -> None:
    handle = (number for number in range(3))
    with pytest.raises(ValueError, match=r"^the loop cannot be sent to another process: "):
        report_of(lambda model, epochs, settings: next(handle))


@pytest.mark.parametrize(("options", "named"), [({"ranks": 0}, "ranks"), ({"ranks": 2, "parts": ["data"]}, "parts")])
def test_odd_numbers_of_ranks_and_parts_of_them_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be"):
        audit(plain.Plain.loop, progress=False, **options)
