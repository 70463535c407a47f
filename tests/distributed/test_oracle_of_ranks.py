"""However many ranks share a run, and however they hold the model, it lands where the specification lands."""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import course_lm.step
from course_lm.audit import spec
from course_lm.distributed import DistributedConfig
from course_lm.shards import part_of
from tests.distributed.pool import TIMEOUT, Pool
from tests.oracle import fast_path
from tests.oracle.cases import Case, cases, count
from tests.oracle.fast_path import FastResult, assert_same
from tests.sets import examples, of_set

pytestmark = pytest.mark.filterwarnings("ignore:skipped a step")

Answer = tuple[FastResult, FastResult]

STRATEGIES = {
    "ddp": DistributedConfig(strategy="ddp"),
    "fsdp": DistributedConfig(strategy="fsdp"),
    "hybrid": DistributedConfig(strategy="hybrid", shard_size=2),
}
any_case = cases(ragged=True, first_overflows=None, accumulation=(1, 6)).filter(
    lambda case: all(count(*epoch) > 0 for epoch in case.epochs)  # without a target `Trainer` refuses the data
)


@cache
def drawn(strategy: st.SearchStrategy[Case], number: int) -> list[tuple[Case, spec.SpecResult]]:
    """Cases of a strategy, the same every time, and what the specification makes of them."""
    found: list[Case] = []

    @examples(number, number)
    @given(strategy)
    def keep(case: Case) -> None:
        found.append(case)

    keep()
    return [(case, case.train()) for case in found]


def run_cases(given_cases: list[Case], strategy: str, fault: str | None = None) -> list[Answer]:
    """On a rank: run each case through `train_step` and through `Trainer`."""
    with FAULTS[fault]() if fault else contextlib.nullcontext():
        return [both_ways(case, STRATEGIES[strategy]) for case in given_cases]


def both_ways(case: Case, distributed: DistributedConfig) -> Answer:
    bare = fast_path.run_train_step(case, distributed=distributed)
    return bare, fast_path.run_trainer(case, distributed)


def check(pool: Pool, strategy: str, pairs: list[tuple[Case, spec.SpecResult]], timeout: float = TIMEOUT) -> None:
    """Every rank's result of every case is that of the specification, also in the targets that each step counted."""
    answers = pool.run(run_cases, [case for case, _ in pairs], strategy, timeout=timeout)
    for rank, of_rank in enumerate(answers):
        for number, ((case, expected), results) in enumerate(zip(pairs, of_rank, strict=True)):
            for way, result in zip(("train_step", "Trainer"), results, strict=True):
                with located(f"rank {rank}, case {number}, {way}: {case}"):
                    compare(case, expected, result)


def compare(case: Case, expected: spec.SpecResult, result: FastResult) -> None:
    assert_same(expected, result)
    steps = [count(*window) for index, window in enumerate(case.windows()) if index not in expected.skipped]
    assert result.tokens == steps, f"tokens are {result.tokens}, should be {steps}"


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error} ({where})") from None


@pytest.mark.daily(9)
@pytest.mark.parametrize(
    ("world", "strategy"),
    [*((world, way) for world in (1, 2, 3, 4) for way in ("ddp", "fsdp")), (4, "hybrid")],
)
def test_any_number_of_ranks_lands_on_the_specifications_weights_moments_and_k(ranks, world, strategy):
    some_cases = drawn(any_case, of_set(18, 180))[::3]  # neighbours are much alike
    check(ranks(world), strategy, some_cases, timeout=900.0)


def run_by_value(given_cases: list[Case], strategy: str) -> list[Answer]:
    """On a rank: run each case through both, with a bound on each number of the gradient."""
    distributed = STRATEGIES[strategy]
    return [
        (
            fast_path.run_train_step(case, distributed=distributed, by_value=True),
            fast_path.run_trainer(case, distributed, by_value=True),
        )
        for case in given_cases
    ]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_clip_by_value_as_the_specification_does(ranks, strategy):
    drawn_cases = [case for case, _ in drawn(cases(max_grad_norms=(0.001, 0.05)), 10)[::2]]
    for of_rank in ranks(2).run(run_by_value, drawn_cases, strategy):
        for case, results in zip(drawn_cases, of_rank, strict=True):
            for result in results:
                assert_same(case.train("clip_by_value"), result)


# Three mistakes of loops on many processes, each as a patch of the package.


@contextlib.contextmanager
def rank_means() -> Iterator[None]:
    """Each rank divides by its own targets, and the means are averaged, however many targets each rank had."""
    total = course_lm.step._total

    def count_own(value: Tensor, *rest: Any) -> Tensor:
        return total(value, *rest) if value.is_floating_point() else value.clamp(min=1)

    with mock.patch("course_lm.step._total", count_own):
        yield


@contextlib.contextmanager
def local_norm() -> Iterator[None]:
    """Each rank clips by the norm of its own parts."""
    total_norm = torch.nn.utils.get_total_norm

    def of_own_parts(gradients: list[Tensor]) -> Tensor:
        return total_norm([part_of(gradient) for gradient in gradients])

    with mock.patch("torch.nn.utils.get_total_norm", of_own_parts):
        yield


@contextlib.contextmanager
def all_data_everywhere() -> Iterator[None]:
    """Every rank reads all the data."""
    with (
        mock.patch("course_lm.trainer.loop.share", lambda window, group: window),
        mock.patch("course_lm.trainer.loop.Trainer._seeds", lambda trainer, window: None),  # one for each of the share
        mock.patch("tests.oracle.fast_path.share", lambda window, group: window),
    ):
        yield


FAULTS = {"rank_means": rank_means, "local_norm": local_norm, "all_data_everywhere": all_data_everywhere}


def _uneven_between_ranks(case: Case) -> bool:
    windows = case.windows()
    return any(count(*window[::2]) != count(*window[1::2]) for window in windows)


_plain: dict[str, Any] = {"optimizers": ("sgd",), "decays": (0.0,), "accumulation": (2, 6)}
FAULT_CASES = {
    "rank_means": cases(**_plain, max_grad_norms=(None,)).filter(_uneven_between_ranks),
    "local_norm": cases(**_plain, max_grad_norms=(0.001,)),
    "all_data_everywhere": cases(**_plain),
}
# The gradient of all data on each rank is that of all data: the targets are counted twice, and nothing else shows.
DIFFERENCE = {"all_data_everywhere": "^tokens are"}


@pytest.mark.parametrize(
    ("fault", "strategy"),
    [
        ("rank_means", "ddp"),
        ("rank_means", "fsdp"),
        ("local_norm", "fsdp"),  # under ddp every rank has the whole gradient
        ("all_data_everywhere", "ddp"),
        ("all_data_everywhere", "fsdp"),
    ],
)
def test_the_comparison_fails_under_a_mistake_of_many_processes(ranks, fault, strategy):
    pairs = drawn(FAULT_CASES[fault], 12)[::4]
    given_cases = [case for case, _ in pairs]
    honest, faulty = (ranks(2).run(run_cases, given_cases, strategy, one) for one in (None, fault))
    for index, (case, expected) in enumerate(pairs):
        for right, wrong in zip(honest[0][index], faulty[0][index], strict=True):
            compare(case, expected, right)
            with pytest.raises(AssertionError, match=DIFFERENCE.get(fault, "^weights differ")):
                compare(case, expected, wrong)
