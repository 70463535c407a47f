"""Claims about `audit_resume`: what resumes rightly is sound, and what a resume loses or mistakes is named."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conformance.adapters import ours
from course_lm.audit import audit_resume, resume, spec_resume

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
def test_the_trainer_of_this_package_resumes_as_the_specification_does() -> None:
    report = audit_resume(ours.resumed, progress=False)
    assert report.sound and set(report.ignored) == {"loss_scale", "overflow_steps"}, str(report)


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
