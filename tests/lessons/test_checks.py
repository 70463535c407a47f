"""Checks tell right answers from wrong ones, and name the mistake; predictions explain every option."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import numpy as np
import pytest
import torch

from course_lm.classroom import checks
from course_lm.classroom.checks.comparison import difference
from course_lm.classroom.checks.mistakes import store
from course_lm.classroom.checks.mistakes.naming import by_hand_candidates
from course_lm.classroom.checks.report import Report, compare
from tests.lessons.exercises import Exercise, define, exercises_of
from tests.lessons.mutants import question_of

LESSONS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in LESSONS}
EXERCISES = [(name, exercise) for name, notebook in NOTEBOOKS.items() for exercise in exercises_of(notebook)]


def answers_of(lesson: str) -> ModuleType:
    return importlib.import_module(f"tests.lessons.wrong_answers.{lesson[3:]}")


def check_of(exercise: Exercise) -> Any:
    return getattr(checks, exercise.check)


of_each_exercise = pytest.mark.parametrize(
    ("lesson", "exercise"), EXERCISES, ids=[f"{lesson[:2]}-{exercise.check}" for lesson, exercise in EXERCISES]
)


@of_each_exercise
def test_the_solution_below_an_exercise_passes(lesson, exercise):
    report = check_of(exercise)(define(NOTEBOOKS[lesson], exercise.solution))
    assert report.status == "passed", report


@of_each_exercise
def test_a_stub_is_not_written_yet(lesson, exercise):
    assert check_of(exercise)(define(NOTEBOOKS[lesson], exercise.stub)).status == "not written yet"


@of_each_exercise
def test_an_answer_that_returns_none_or_raises_not_implemented_is_not_written_yet(lesson, exercise):
    def raises(*_: object) -> None:
        raise NotImplementedError

    for unwritten in (raises, lambda *_: None, lambda *_: ...):
        assert check_of(exercise)(unwritten).status == "not written yet"


@pytest.mark.long
@of_each_exercise
def test_typical_wrong_answers_are_rejected_by_name(lesson, exercise):
    wrong = answers_of(lesson).WRONG_ANSWERS[exercise.check]
    assert len({clause for _, clause in wrong}) >= 3
    for answer, clause in wrong:
        report = check_of(exercise)(answer)
        assert report.status == "wrong", f"{answer.__name__} passes"
        assert report.message == f"this is what you get when {clause}", f"{answer.__name__}: {report}"


@of_each_exercise
def test_right_answers_written_in_another_way_pass(lesson, exercise):
    for answer in answers_of(lesson).EQUIVALENT[exercise.check]:
        assert check_of(exercise)(answer).passed, check_of(exercise)(answer)


@pytest.mark.long
@of_each_exercise
def test_each_mistake_that_a_check_knows_is_told_apart_from_the_others(lesson, exercise):
    mutants = store.of_lesson(lesson[3:]).get(exercise.check)
    question = question_of(lesson[3:], exercise.check, mutants)
    for mistake in by_hand_candidates(question)[:8]:
        report = check_of(exercise)(mistake.make())
        if report.status != "raised":
            assert report.message == f"this is what you get when {mistake.words}"


@of_each_exercise
def test_an_exercise_says_how_hard_it_is_and_offers_hints(lesson, exercise):
    assert "def " in exercise.solution and "..." not in exercise.solution
    assert re.search(r"^### Exercise \d [●○]{3} · \d+ minutes?$", exercise.before, re.MULTILINE)
    assert len(re.findall(r"<summary>Hint \d</summary>", exercise.after)) >= 1


def test_every_check_belongs_to_an_exercise():
    assert sorted(set(checks.__all__) - {"Report", "predict"}) == sorted(exercise.check for _, exercise in EXERCISES)


# The machinery itself, on a check made for the purpose.


def double(x):
    return 2 * x


def check(fn: Any) -> Report:
    return compare(
        fn,
        reference=double,
        cases={"a tensor": (torch.tensor([1.0, 3.0]),), "zero": (torch.zeros(1, dtype=torch.float64),)},
        mistakes={"it is squared": lambda x: x**2, "it is shifted": lambda x: x + 2, "it fails": lambda x: x[9]},
    )


def test_a_right_answer_passes():
    assert repr(check(lambda x: x + x)) == "✓ <lambda>: right in all 2 cases"


def test_a_known_mistake_is_named_and_shown_in_its_first_case():
    def squared(x):
        return x * x

    assert repr(check(squared)).splitlines() == [
        "✗ squared: this is what you get when it is squared",
        '  case "a tensor": at [0] expected 2, got 1',
        "  to see it: squared(torch.tensor([1.0, 3.0]))",
        "  right in: zero; wrong in: a tensor",
    ]


def test_a_mistake_that_fails_the_same_cases_is_named():
    def squared_but_for_zero(x):
        return x * x if x.any() else x + 0

    assert check(squared_but_for_zero).message == "this is what you get when it is squared"


def test_an_unknown_mistake_is_shown_with_its_case():
    report = check(lambda x: 5 * x - x.sum())
    assert report.message == "not the expected result in 1 of 2 cases"
    assert report.details.splitlines()[0] == 'case "a tensor": at [0] expected 2, got 1'


def test_an_exception_is_shown_short_at_the_learners_line():
    def broken(x):
        y = x + 1
        return y.nothing

    report = check(broken)
    assert report.status == "raised"
    assert report.message == "AttributeError: 'Tensor' object has no attribute 'nothing'"
    assert report.details.splitlines()[0] == 'case "zero": line 3 of broken: return y.nothing'


def test_an_exception_inside_a_library_is_shown_at_the_learners_line():
    def mismatched(x):
        return torch.cat([x, torch.zeros(1, 2)])

    assert "line 2 of mismatched: return torch.cat" in check(mismatched).details


def test_wrong_arguments_are_one_clear_line():
    assert "takes 0 positional arguments but 1 was given" in check(lambda: 1).message


def test_a_result_instead_of_a_function_is_refused():
    assert check(torch.zeros(2)).message == "give the function itself, without calling it"


def test_an_answer_that_changes_its_input_is_told_so():
    def in_place(x):
        return x.mul_(2)

    assert "changes its input" in check(in_place).message


def test_an_answer_cannot_change_what_it_is_compared_with():
    held = torch.tensor([1.0])

    def reference(x):
        return held * 2

    def cheat(x):
        held.fill_(0.0)
        return torch.zeros(1)

    report = compare(cheat, reference=reference, cases={"one": (1,)}, mistakes={})
    assert report.status == "wrong"


def test_an_answer_that_draws_random_numbers_leaves_the_generator_alone():
    torch.manual_seed(3)
    check(lambda x: x + torch.randn(1))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def test_the_html_form_escapes_what_the_learner_wrote():
    assert "<script>" not in check(lambda x: "<script>")._repr_html_()


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1.0, torch.tensor(1.0)),
        (torch.tensor(2), 2),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])),
        (torch.tensor([1.0], dtype=torch.float64), torch.tensor([1.0 + 1e-7])),
        ([1, (2, 3)], (1, [2, 3])),
        ({"a": 1}, {"a": 1.0}),
        (0.5, np.float64(0.5)),
        ("text", "text"),
        (None, None),
    ],
)
def test_equal_results_have_no_difference(expected, got):
    assert difference(expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        (1.0, 1.1, "expected 1, got 1.1"),
        (1.0, torch.ones(2), "expected a number, 1, got a tensor of shape (2,)"),
        (torch.zeros(2), torch.zeros(3), "expected the shape (2,), got (3,)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), "expected torch.float32, got torch.int64"),
        (torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]), "at [0, 1] expected 0, got 1"),
        (torch.zeros(1), 3, "expected a tensor of shape (1,), got 3"),
        (torch.zeros(1, dtype=torch.float64), torch.full((1,), 1e-6, dtype=torch.float64), "at [0] expected 0, got"),
        ([1, 2], [1], "expected [1, 2] (2 items), got [1] (1 items)"),
        ([1, 2], [1, 3], "item 1: expected 2, got 3"),
        ([1], "1", "expected [1], got '1'"),
        ((torch.ones(2), 0.5), 1, "expected (a tensor of shape (2,), 0.5), got 1"),
        ({"a": 1}, {"b": 1}, "expected the keys a, got b"),
        ({"a": 1}, {"a": 2}, "a: expected 1, got 2"),
        ({"a": 1}, 1, "expected a dict with a, got 1"),
        ("a", "b", "expected 'a', got 'b'"),
        (float("nan"), 0.0, "expected nan, got 0"),
    ],
)
def test_a_difference_is_said_in_one_line(expected, got, said):
    assert said in str(difference(expected, got))


def test_results_that_cannot_be_compared_are_refused():
    with pytest.raises(TypeError, match="results of type object cannot be compared"):
        difference(object(), object())


OPTIONS = {"It <b>rises": "No. It falls.", "It falls": "Yes. See the plot."}


@pytest.fixture
def shown(monkeypatch) -> list[dict[str, Any]]:
    import IPython.display

    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles


def test_a_prediction_shows_question_and_explanations_as_text(shown):
    checks.predict("What does the loss do?", OPTIONS)
    assert shown[0]["text/plain"].splitlines() == [
        "Predict: What does the loss do?",
        "- It <b>rises: No. It falls.",
        "- It falls: Yes. See the plot.",
    ]


def test_a_prediction_folds_its_explanations_where_there_are_no_widgets(shown, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    checks.predict("What does the loss do?", OPTIONS)
    assert list(shown[0]) == ["text/plain", "text/html"]
    assert "<summary>It &lt;b&gt;rises</summary><p>No. It falls.</p>" in shown[0]["text/html"]


def test_choosing_an_option_commits_and_explains_all(shown):
    from ipywidgets.widgets.widget import _instances

    checks.predict("What does the loss do?", OPTIONS)
    box: Any = _instances[shown[0]["application/vnd.jupyter.widget-view+json"]["model_id"]]
    _, rises, falls, answer = box.children
    assert answer.value == ""
    rises.click()
    assert rises.disabled and falls.disabled
    assert "(your answer). No. It falls." in answer.value and "Yes. See the plot." in answer.value


@pytest.mark.parametrize("options", [{"a": "Yes. b", "c": "Yes. d"}, {"a": "No. b"}, {"a": "Yes. b", "c": "d"}, {}])
def test_a_prediction_has_exactly_one_right_option(options):
    with pytest.raises(ValueError, match=r'one explanation must start with "Yes\."'):
        checks.predict("What?", options)
