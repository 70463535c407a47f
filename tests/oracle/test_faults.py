"""Each fault of the specification is seen: under it, the comparison with the package fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lm.audit import spec
from tests.sets import examples

from .cases import FAULT_CASES, fault_cases
from .fast_path import assert_same, run_train_step, run_trainer

NEEDS_VALIDATION = {
    "stays_in_eval_mode",
    "validation_in_train_mode",
    "val_label_smoothing",
    "val_mean_of_means",
    "val_weighted_by_rows",
    "best_is_a_reference",
}

# The first difference that the comparison names: weights or k, but for faults that leave both as they should be.
DIFFERENCE = {
    "validation_in_train_mode": "^validation losses",
    "val_label_smoothing": "^validation losses",
    "val_mean_of_means": "^validation losses",
    "val_weighted_by_rows": "^validation losses",
    "best_is_a_reference": "^best weights",
}


def test_every_fault_has_its_cases():
    assert FAULT_CASES.keys() == spec.FAULTS.keys()


@pytest.mark.filterwarnings("ignore:skipped a step")
@pytest.mark.parametrize("fault", spec.FAULTS)
@examples(4, 32)
@given(data=st.data())
def test_the_comparison_fails_under_the_fault_and_under_it_alone(fault, data):
    case = data.draw(fault_cases(fault))
    honest, faulty = case.train(), case.train(fault)
    for run in [run_trainer] if fault in NEEDS_VALIDATION else [run_trainer, run_train_step]:
        got = run(case)
        assert_same(honest, got)
        with pytest.raises(AssertionError, match=DIFFERENCE.get(fault, "^(weights differ|k is)")):
            assert_same(faulty, got)
