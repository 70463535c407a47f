"""The loop that the audit is tried on does what the specification does, right or with faults."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from course_lm.audit import spec
from tests.oracle.cases import Case, cases, fault_cases
from tests.sets import examples

from .loops.textbook import train

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
TOLERANCE = 1e-9  # of the norm over all weights
# Runs in which everything is on: uneven windows, tails, empty batches and windows, overflows, clipping, decay.
any_case = cases(first_overflows=None, ragged=True, max_grad_norms=(None, 0.05, 1.0), epochs=(1, 3))


def without_key_bias(name: str, value: Tensor) -> Tensor:
    """A softmax over keys does not see their common bias: its gradient is rounding, of which Adam makes whole steps."""
    if name.endswith("qkv.bias"):
        query, _, values = value.chunk(3)
        return torch.cat([query, values])
    return value[:0] if name.endswith("key.bias") else value


def distance(expected: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> float:
    """The relative norm of the difference; numbers that are not finite must be so in both."""
    squares = total = 0.0
    for name in expected:
        value, other = (without_key_bias(name, weights[name].detach().double()) for weights in (expected, got))
        finite = value.isfinite()
        if not torch.equal(finite, other.isfinite()):
            return math.inf
        squares += float(((value - other)[finite] ** 2).sum())
        total += float((value[finite] ** 2).sum())
    return math.sqrt(squares / max(total, 1e-300))


def assert_does_as_the_specification(case: Case, *faults: str) -> None:
    # a clamp makes an infinity finite: whether it comes before or after the check, two right loops do otherwise
    assume("clip_by_value" not in faults or not case.settings.overflow_steps)
    model = copy.deepcopy(case.model).train()
    got: Mapping[str, Any] = train(model, case.epochs, case.settings, faults)
    expected = case.train(*faults)
    assert distance(expected.weights, dict(model.named_parameters())) <= TOLERANCE, "weights differ"
    if case.settings.validation:
        assert got["validation_losses"] == pytest.approx(expected.validation_losses, rel=1e-9, nan_ok=True)
        assert (got["best_weights"] is None) == (expected.best_weights is None), "only one has best weights"
        if expected.best_weights is not None:
            assert distance(expected.best_weights, got["best_weights"]) <= TOLERANCE, "best weights differ"


@examples(4, 20)
@given(case=any_case)
def test_without_a_fault_the_loop_is_right(case: Case) -> None:
    assert_does_as_the_specification(case)


@pytest.mark.parametrize("fault", spec.FAULTS)
@examples(1, 3)
@given(data=st.data())
def test_with_a_fault_each_loop_does_what_the_specification_does(fault: str, data: st.DataObject) -> None:
    assert_does_as_the_specification(data.draw(fault_cases(fault)), fault)
    assert_does_as_the_specification(data.draw(any_case), fault)


@examples(20, 100)
@given(case=any_case, faults=st.sets(st.sampled_from(list(spec.FAULTS)), max_size=3))
def test_with_any_faults_the_loop_does_what_the_specification_does(case: Case, faults: set[str]) -> None:
    assert_does_as_the_specification(case, *sorted(faults))
