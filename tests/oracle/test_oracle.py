"""`train_step` and `Trainer` land where the specification lands."""

import copy
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from course_lm.step import train_step
from tests.sets import examples

from .cases import LONGEST, Batch, Case, cases, count, make_batch, make_model
from .fast_path import ScalingOnly, assert_same, run_train_step, run_trainer

pytestmark = [pytest.mark.filterwarnings("ignore:skipped a step")]

any_case = cases(ragged=True, first_overflows=None)


@examples(60, 400)
@given(any_case)
def test_train_step_lands_on_the_specifications_weights_moments_and_k(case: Case) -> None:
    assert_same(case.train(), run_train_step(case))


@examples(30, 200)
@given(any_case)
def test_train_step_lands_there_under_a_gradient_scaler_too(case: Case) -> None:
    assert_same(case.train(), run_train_step(case, ScalingOnly("fp16", "cpu")))


trained = any_case.filter(lambda case: all(count(*epoch) > 0 for epoch in case.epochs))  # else `Trainer` refuses


@examples(60, 400)
@given(trained)
def test_trainer_lands_on_the_specifications_weights_moments_and_k(case: Case) -> None:
    assert_same(case.train(), run_trainer(case))


@examples(10, 60)
@given(cases(max_grad_norms=(0.001, 0.05)))
def test_clipping_by_value_lands_where_the_specification_does_that_clips_each_number(case: Case) -> None:
    expected = case.train("clip_by_value")
    for result in (
        run_train_step(case, by_value=True),
        run_train_step(case, ScalingOnly("fp16", "cpu"), by_value=True),
    ):
        assert_same(expected, result)


@examples(10, 60)
@given(cases(max_grad_norms=(0.001, 0.05), windows=(2, 4)))
def test_the_key_for_clipping_by_value_lands_there_too(case: Case) -> None:
    assert_same(case.train("clip_by_value"), run_trainer(case, by_value=True))


def _rows(batch: Batch, chosen: list[int]) -> Batch:
    return {name: value[chosen] for name, value in batch.items() if isinstance(value, torch.Tensor)}


def _gradient_by_train_step(model: torch.nn.Module, micro_batches: list[Batch]) -> torch.Tensor:
    """The gradient as the way that one SGD step with lr 1 goes."""
    trained = copy.deepcopy(model)
    train_step(trained, micro_batches, torch.optim.SGD(trained.parameters(), lr=1.0), max_grad_norm=None)
    ways = [before - after for before, after in zip(model.parameters(), trained.parameters(), strict=True)]
    return torch.cat([way.detach().flatten() for way in ways])


def _trimmed(batch: Batch) -> Batch:
    """The batch without the columns in which every row has PAD on the right."""
    width = max(2, int(batch["attention_mask"].sum(1).max()))
    return {name: value[:, :width] for name, value in batch.items()}


@examples(30, 200)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["tiny", "gpt"]), st.data())
def test_the_gradient_of_ragged_micro_batches_is_that_of_the_one_concatenated_batch(seed, kind, data) -> None:
    rng = random.Random(seed)
    model = make_model(rng, kind, dropout=False)
    parts = [make_batch(rng, ignored=rng.choice((0.0, 0.5))) for _ in range(4)]
    whole = {name: torch.cat([_widened(part, LONGEST)[name] for part in parts]) for name in _FILLS}
    owners = data.draw(st.lists(st.integers(0, 4), min_size=len(whole["labels"]), max_size=len(whole["labels"])))
    micro_batches = [
        _trimmed(_rows(whole, [row for row, owner in enumerate(owners) if owner == part]))
        for part in sorted(set(owners))
    ]
    assume(count(whole) > 0)
    expected = _gradient_by_train_step(model, [whole])
    got = _gradient_by_train_step(model, micro_batches)
    assert torch.linalg.vector_norm(got - expected) <= 1e-12 * torch.linalg.vector_norm(expected)


_FILLS = {"input_ids": 0, "attention_mask": 0, "labels": -100}


def _widened(batch: Batch, width: int) -> Batch:
    """The batch with PAD on the right up to `width` columns."""
    return {
        name: torch.nn.functional.pad(batch[name], (0, width - batch[name].shape[1]), value=fill)
        for name, fill in _FILLS.items()
    }
