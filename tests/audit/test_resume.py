"""Claims about `audit_resume`: what resumes rightly is sound, and what a resume loses or mistakes is named."""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lm.audit import audit_resume, resume, spec, spec_resume
from course_lm.audit.search import Explanation

from .loops import plain, resumed

CASES = [one for case in resume.runs(resume.Rows(0)) for one in resume.stopped(case, ())]


@pytest.fixture(scope="module", autouse=True)
def one_specification_of_resumes(one_specification: Any) -> Iterator[None]:
    """The specification makes each run once for all tests."""
    shared = resume.ResumeSpecification()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "ResumeSpecification", lambda: shared)
        yield


def report_of(*faults: str) -> Any:
    return audit_resume(partial(resumed.train, faults=faults), progress=False)


def test_a_loop_that_goes_on_as_if_it_had_not_stopped_is_sound() -> None:
    report = report_of()
    assert report.sound and report.runs == len(CASES), str(report)


@pytest.mark.parametrize("fault", spec_resume.FAULTS)
def test_each_fault_of_a_resume_is_named(fault: str) -> None:
    report = report_of(fault)
    assert report.faults == (fault,) and not report.alternatives and fault in str(report), str(report)


PAIRS = (
    ("moments_lost", "schedule_restarted"),
    ("epoch_read_again", "random_state_lost"),
    ("best_lost", "loss_scale_lost"),
    ("weights_lost", "window_left_out"),
    ("full_windows_counted", "tail_read_again"),
)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_two_faults_of_a_resume_are_named(pair: tuple[str, str]) -> None:
    report = report_of(*pair)
    assert report.faults == pair and not report.alternatives, str(report)


@pytest.mark.daily(1)
@pytest.mark.filterwarnings("ignore:the training loader gave")
def test_the_trainer_of_this_package_resumes_as_the_specification_does() -> None:
    report = audit_resume(resumed.by_trainer, progress=False)
    assert report.sound and set(report.ignored) == {"loss_scale", "overflow_steps"}, str(report)


def left_of(*faults: str) -> list[Any]:
    specification = resume.ResumeSpecification()
    return [specification.outcome(case, Explanation(tuple(sorted(faults)))) for case in CASES]


def test_each_fault_of_a_resume_changes_a_run_and_is_told_from_each_other() -> None:
    left = {fault: left_of(fault) for fault in spec_resume.FAULTS} | {"none": left_of()}
    for one, other in itertools.combinations(left, 2):
        assert any(
            not torch.allclose(a.weights, b.weights, 1e-9, 1e-9) or not same_best(a.best, b.best)
            for a, b in zip(left[one], left[other], strict=True)
            if a.is_finite() and b.is_finite()
        ), f"{one} and {other} leave the same in every run"


def same_best(one: Any, other: Any) -> bool:
    return (one is None) == (other is None) and (one is None or torch.allclose(one, other, 1e-9, 1e-9))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_stop_without_a_fault_changes_nothing(case: Any) -> None:
    expected = spec.train(case.model(), case.epochs, case.settings)
    got, read = spec_resume.train(case.model(), case.epochs, case.settings, case.stop.steps)
    assert all(torch.equal(got.weights[name], expected.weights[name]) for name in expected.weights)
    assert read < sum(map(len, case.epochs)) and got.k == expected.k


def test_each_step_is_a_stop_and_the_last_ends_the_run() -> None:
    case = CASES[0]
    stops = list(spec_resume.stops(case.model(), case.epochs, case.settings))
    assert [stop.steps for stop in stops] == [1, 2, 3, 4, 5, 6]
    assert [stop.at_end for stop in stops] == [False, False, True] * 2
    assert [stop.is_last for stop in stops] == [False] * 5 + [True]


# ---- what cannot be compared


def never_stops(model: Any, epochs: Any, settings: Any, folder: Path, stop_after: int | None) -> Any:
    return plain.Plain.loop(model, epochs, settings)


def stops_late(model: Any, epochs: Any, settings: Any, folder: Path, stop_after: int | None) -> Any:
    return resumed.train(model, epochs, settings, folder, stop_after and stop_after + 1)


@pytest.mark.parametrize("train", [never_stops, stops_late])
def test_a_loop_that_does_not_stop_where_it_is_told_is_not_sound(train: Any) -> None:
    report = audit_resume(train, progress=False)
    told = "could not be compared: called with stop_after=1, the loop leaves other weights than those of 1 step"
    assert not report.sound and report.verdict == told


def test_a_loop_that_is_wrong_without_a_stop_is_told_that_first() -> None:
    def train(model: Any, epochs: Any, settings: Any, folder: Path, stop_after: int | None) -> Any:
        return plain.Plain.loop(model, [epoch[:1] for epoch in epochs], settings)

    report = audit_resume(train, progress=False)
    assert not report.sound and "this run has no stop; how it resumes is looked at once it is sound" in report.notes


def test_a_loop_of_three_parameters_is_refused() -> None:
    told = r"^train must be callable as train\(model, epochs, settings, folder, stop_after\), it takes \(model\)$"

    def train(model: Any) -> None: ...

    with pytest.raises(ValueError, match=told):
        audit_resume(train)  # type: ignore[arg-type]
