"""Claims about the report: a dozen lines of text, and the same as HTML."""

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


def test_the_html_holds_the_text(named):
    assert "missing_zero_grad" in named._repr_html_()


def test_what_a_loop_says_is_no_html():
    report = AuditReport("float64", problem="the loop raised ValueError: <script>", part="loss", case=ladder()[0])
    assert "<script>" not in report._repr_html_()


def test_a_sound_report_says_so_in_its_first_line():
    report = AuditReport("float64", sound=True, runs=56, ignored=("max_grad_norm",))
    assert str(report).startswith("sound: equal to the specification in 56 runs")
    assert "not held against it: max_grad_norm" in str(report)


def test_alternatives_are_shown():
    report = AuditReport("float64", faults=("tail_dropped",), alternatives=(("tail_leaks",),))
    assert "not to be told apart here: tail_leaks" in str(report)
    assert replace(report, alternatives=()) != report
