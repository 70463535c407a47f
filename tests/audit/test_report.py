"""Claims about the report: a dozen lines of text, and HTML with a picture where there is something to draw."""

from dataclasses import replace

import pytest

from course_lm.audit import AuditReport, audit
from course_lm.audit.runs import ladder

from .test_audit import Specified


@pytest.fixture(scope="module")
def named() -> AuditReport:
    return audit(Specified("missing_zero_grad"), parts=["data", "optimizer"], progress=False)


def test_the_text_names_the_fault_the_run_the_numbers_and_the_promise(named):
    text = str(named)
    assert text.startswith("unsound: missing_zero_grad\n") and len(text.splitlines()) <= 14
    for part in ("gradients are never cleared", "two SGD steps", "this loop", "C10: Gradients are cleared once"):
        assert part in text


def test_the_html_holds_the_text_and_a_picture(named):
    html = named._repr_html_()
    assert "missing_zero_grad" in html and 'src="data:image/png;base64,' in html


def test_the_distances_begin_at_0_and_leave_it_at_the_second_step(named):
    start, first, second = named.distances
    assert start == 0.0 and first < 1e-14 and second > 1e-3


def test_what_a_loop_says_is_no_html():
    report = AuditReport("float64", problem="the loop raised ValueError: <script>", part="loss", case=ladder()[0])
    assert "<script>" not in report._repr_html_() and "<img" not in report._repr_html_()


def test_a_sound_report_says_so_in_its_first_line():
    report = AuditReport("float64", sound=True, runs=56, ignored=("max_grad_norm",))
    assert str(report).startswith("sound: equal to the specification in 56 runs") and report.plot() is None
    assert "not held against it: max_grad_norm" in str(report)


def test_alternatives_are_shown():
    report = AuditReport("float64", faults=("tail_dropped",), alternatives=(("tail_leaks",),))
    assert "not to be told apart here: tail_leaks" in str(report)
    assert replace(report, alternatives=()) != report
