"""`train_step` and `Trainer` land where the specification lands."""

import copy
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from course_lm.step import train_step
from tests.sets import examples

from .cases import Batch, cases, concatenated, count, make_batch, make_model
from .fast_path import ScalingOnly, assert_same, run_train_step, run_trainer

pytestmark = [pytest.mark.filterwarnings("ignore:skipped a step")]

any_case = cases(ragged=True, first_overflows=None)


@examples(60, 400)
@given(any_case)
def test_train_step_lands_on_the_specifications_weights_moments_and_k(case):
    assert_same(case.train(), run_train_step(case))


@examples(30, 200)
@given(any_case)
def test_train_step_lands_there_under_a_gradient_scaler_too(case):
    assert_same(case.train(), run_train_step(case, ScalingOnly("fp16", "cpu")))


trained = any_case.filter(lambda case: all(count(*epoch) > 0 for epoch in case.epochs))  # else `Trainer` refuses


@examples(60, 400)
@given(trained)
def test_trainer_lands_on_the_specifications_weights_moments_and_k(case):
    assert_same(case.train(), run_trainer(case))


@examples(10, 60)
@given(cases(max_grad_norms=(0.001, 0.05)))
def test_clipping_by_value_lands_where_the_specification_does_that_clips_each_number(case):
    expected = case.train("clip_by_value")
    for result in (
        run_train_step(case, by_value=True),
        run_train_step(case, ScalingOnly("fp16", "cpu"), by_value=True),
    ):
        assert_same(expected, result)


@examples(10, 60)
@given(cases(max_grad_norms=(0.001, 0.05), windows=(2, 4)))
def test_the_key_for_clipping_by_value_lands_there_too(case):
    assert_same(case.train("clip_by_value"), run_trainer(case, by_value=True))


def _gradient_by_train_step(model: torch.nn.Module, micro_batches: list[Batch]) -> torch.Tensor:
    """The gradient as the way that one SGD step with lr 1 goes."""
    trained = copy.deepcopy(model)
    train_step(trained, micro_batches, torch.optim.SGD(trained.parameters(), lr=1.0), max_grad_norm=None)
    ways = [before - after for before, after in zip(model.parameters(), trained.parameters(), strict=True)]
    return torch.cat([way.detach().flatten() for way in ways])


@examples(30, 200)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["tiny", "gpt"]))
def test_the_gradient_of_ragged_micro_batches_is_that_of_the_one_concatenated_batch(seed, kind):
    rng = random.Random(seed)
    model = make_model(rng, kind, dropout=False)
    micro_batches = [make_batch(rng, ignored=rng.choice((0.0, 0.5))) for _ in range(4)]
    whole = concatenated(micro_batches)
    assume(count(whole) > 0)
    expected = _gradient_by_train_step(model, [whole])
    got = _gradient_by_train_step(model, micro_batches)
    assert torch.linalg.vector_norm(got - expected) <= 1e-12 * torch.linalg.vector_norm(expected)
