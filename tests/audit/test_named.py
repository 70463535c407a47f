"""Every fault of the specification, and every pair of them, in a loop that shares nothing with it: named exactly."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from course_lm.audit import audit, spec
from course_lm.audit.spec import Batches

from .loops.textbook import train

pytestmark = [
    pytest.mark.usefixtures("one_specification"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]

Sets = frozenset[tuple[str, ...]]

# Pairs that leave, in every run, what fewer faults leave: those are named.
SHOWS_AS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("unshifted_labels", "shifted_twice"): (),  # shifted once in all
    ("mean_of_means", "accumulation_not_divided"): ("accumulation_not_divided",),
    # each alone makes a run wrong that both leave right, and the search widens a set by one fault at a time
    ("accumulation_not_divided", "divided_twice"): ("mean_of_means", "tail_divided_by_full"),
    ("tail_dropped", "tail_leaks"): ("tail_dropped",),
    ("tail_dropped", "tail_divided_by_full"): ("tail_dropped",),
    ("unshifted_labels", "counted_before_shift"): ("unshifted_labels",),
    ("pads_divide", "counted_before_shift"): ("pads_divide",),
    ("clip_per_micro_batch", "zero_grad_per_micro_batch"): ("zero_grad_per_micro_batch",),
    ("missing_zero_grad", "zero_grad_per_micro_batch"): ("zero_grad_per_micro_batch",),
    ("missing_zero_grad", "schedule_on_overflow"): ("missing_zero_grad",),  # no window steps after an overflow
    ("clip_by_value", "clip_per_tensor"): ("clip_by_value",),
    ("schedule_per_micro_batch", "schedule_per_epoch"): ("schedule_per_epoch",),
    ("schedule_per_micro_batch", "schedule_never_moves"): ("schedule_never_moves",),
    ("schedule_per_micro_batch", "schedule_on_skipped_step"): ("schedule_per_micro_batch",),
    ("schedule_per_micro_batch", "schedule_on_overflow"): ("schedule_per_micro_batch",),
    ("schedule_per_epoch", "schedule_never_moves"): ("schedule_never_moves",),
    ("schedule_per_epoch", "schedule_on_skipped_step"): ("schedule_per_epoch",),
    ("schedule_per_epoch", "schedule_on_overflow"): ("schedule_per_epoch",),
    ("schedule_never_moves", "schedule_off_by_one"): ("schedule_never_moves",),
    ("schedule_never_moves", "schedule_on_skipped_step"): ("schedule_never_moves",),
    ("schedule_never_moves", "schedule_on_overflow"): ("schedule_never_moves",),
    ("schedule_on_overflow", "schedule_on_skipped_step"): ("schedule_on_skipped_step",),
    ("schedule_on_overflow", "steps_on_nonfinite"): ("steps_on_nonfinite",),
    ("coupled_decay", "decay_at_peak_rate"): ("coupled_decay",),
    ("stays_in_eval_mode", "validation_in_train_mode"): ("validation_in_train_mode",),
    ("val_mean_of_means", "val_weighted_by_rows"): ("val_mean_of_means",),
}
# Pairs that leave the same in every run: both are named.
ALIKE = (
    {("tail_dropped", "windows_across_epochs"), ("tail_leaks", "windows_across_epochs")},
    {("tail_dropped", "zero_grad_per_micro_batch"), ("tail_leaks", "zero_grad_per_micro_batch")},
)
PAIRS = tuple(itertools.combinations(spec.FAULTS, 2))


def ids(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(value)


def named(faults: Collection[str]) -> Sets:
    """All sets that the audit names for the loop with those faults; the empty one for a sound loop."""
    report = audit(partial(train, faults=faults), progress=False)
    assert not report.ignored, f"the loop has {report.ignored}: {report}"
    assert report.sound or report.faults, f"no set is named, but {report}"
    return frozenset({report.faults, *report.alternatives})


def expected(pair: tuple[str, str]) -> Sets:
    alike = next((pairs for pairs in ALIKE if pair in pairs), {SHOWS_AS.get(pair, pair)})
    return frozenset(tuple(sorted(faults)) for faults in alike)


@pytest.mark.parametrize("fault", spec.FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    assert named({fault}) == {(fault,)}


TOGETHER = (("clip_before_unscale", "clip_per_micro_batch"), ("pads_counted", "mask_forgotten"))


@pytest.mark.parametrize("pair", [*TOGETHER, *sorted(set().union(*ALIKE))], ids=ids)
def test_pairs_that_act_only_together_and_pairs_that_act_alike_are_named(pair: tuple[str, str]) -> None:
    assert named(pair) == expected(pair)


@pytest.mark.daily(12)  # of 903
@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_each_pair_is_named(pair: tuple[str, str]) -> None:
    assert named(pair) == expected(pair)


def computed_in_bfloat16(
    model: nn.Module, epochs: Sequence[Batches], settings: spec.Settings, faults: Collection[str]
) -> Mapping[str, Any]:
    """The textbook loop under autocast, which must not keep the weights that it has rounded from step to step."""
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return train(model, epochs, settings, faults)


COARSE = {"float32": train, "bf16": computed_in_bfloat16}


@pytest.mark.parametrize("precision", COARSE)
@pytest.mark.parametrize("fault", list(spec.FAULTS)[::6])
def test_a_coarse_precision_names_no_wrong_fault(fault: str, precision: str) -> None:
    report = audit(partial(COARSE[precision], faults={fault}), precision=precision, progress=False)
    assert not report.sound and report.faults in ((fault,), ()), str(report)
