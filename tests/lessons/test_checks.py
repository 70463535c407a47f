"""Checks tell right answers from wrong ones, and name the mistake; predictions explain every option."""

import re
import tomllib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch

from course_lm.classroom import checks
from course_lm.classroom.checks import attempts, exercise
from course_lm.classroom.checks.comparison import difference
from course_lm.classroom.checks.outcomes import with_gradient
from course_lm.classroom.checks.predict import FOLDER, ask
from course_lm.classroom.checks.question import Mistake, Question
from course_lm.classroom.checks.report import Report, compare, remembered
from tests.lessons.exercises import Exercise, define, exercises_of
from tests.lessons.notebook_rules import ASKED

LESSONS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in LESSONS}
EXERCISES = [(name, exercise) for name, notebook in NOTEBOOKS.items() for exercise in exercises_of(notebook)]


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
def test_a_stub_and_an_answer_that_returns_none_are_not_written_yet(lesson, exercise):
    for unwritten in (define(NOTEBOOKS[lesson], exercise.stub), lambda *_: None, lambda *_: ...):
        assert check_of(exercise)(unwritten).status == "not written yet"


@of_each_exercise
def test_a_solution_is_the_one_that_the_exercise_holds(lesson, exercise):
    held = check_of(exercise).text
    assert exercise.solution.strip().endswith(held.strip()), f"the lesson's fold differs from\n{held}"


@of_each_exercise
def test_each_mistake_that_a_check_knows_is_told_apart_from_the_others(lesson, exercise):
    check = check_of(exercise)
    question = check.question()
    done = [
        ({case: mistake.outcome(question, case) for case in question.cases}, mistake.words)
        for mistake in question.mistakes
    ]
    for place, (outcomes, words) in enumerate(done):
        assert any(not question.is_right(case, one) for case, one in outcomes.items()), f"{words!r} passes"
        for others, other in done[:place]:
            same = all(question.is_equal(others[case], outcomes[case]) for case in question.cases)
            assert not same, f"no case tells {words!r} from {other!r}"


@of_each_exercise
def test_each_hint_belongs_to_a_mistake_or_to_a_part_of_the_solution(lesson, exercise):
    check = check_of(exercise)
    known = {mistake.words for mistake in check.mistakes()}
    assert [part for part in check.hints if part not in known and part not in check.text] == []


@of_each_exercise
def test_an_exercise_says_how_hard_it_is_and_offers_hints(lesson, exercise):
    assert "def " in exercise.solution and "..." not in exercise.solution
    assert re.search(r"^### Exercise \d [●○]{3} · \d+ minutes?$", exercise.before, re.MULTILINE)
    assert len(re.findall(r"<summary>Hint \d</summary>", exercise.after)) >= 1


def test_every_check_belongs_to_an_exercise():
    lessons = {exercise.check: lesson[3:] for lesson, exercise in EXERCISES}
    assert checks.names() == lessons


# The machinery itself, on a check made for the purpose.


def double(x):
    return 2 * x


def judged(
    fn: Any, reference: Any, cases: dict[str, Any], mistakes: dict[str, Any] | None = None, **settings: Any
) -> Report:
    known = [Mistake(words, lambda made=made: made) for words, made in (mistakes or {}).items()]
    return remembered(compare(Question("answer", reference, cases, known, **settings), fn))


def check(fn: Any) -> Report:
    return judged(
        fn,
        double,
        {"a tensor": (torch.tensor([1.0, 3.0]),), "zero": (torch.zeros(1, dtype=torch.float64),)},
        {"it is squared": lambda x: x**2, "it is shifted": lambda x: x + 2, "it fails": lambda x: x[9]},
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


def test_a_result_that_holds_itself_is_refused():
    def circular(x):
        items = [x]
        items.append(items)
        return items

    report = check(circular)
    assert report.message == "not the expected result in 2 of 2 cases"
    assert report.details.splitlines()[0] == 'case "zero": got a list that cannot be compared'


def test_a_result_instead_of_a_function_is_refused():
    assert check(torch.zeros(2)).message == "give the function itself, without calling it"


def test_an_answer_cannot_change_what_it_is_compared_with():
    held = torch.tensor([1.0])

    def reference(x):
        return held * 2

    def cheat(x):
        held.fill_(0.0)
        return torch.zeros(1)

    report = judged(cheat, reference, {"one": (1,)})
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
        (0.5, Fraction(1, 2)),
        (0.5, Decimal("0.5")),
        (3, np.int64(3)),
        ([0, 1, 2], range(3)),
        ([1.0, 2.0], (number for number in (1, 2))),
        ([1.0, 2.0], np.array([1.0, 2.0])),
        ([1.0, 2.0], torch.tensor([1.0, 2.0])),
        (torch.tensor([[1.0, 2.0]]), [[1, 2.0]]),
        (torch.tensor([[1.0, 2.0]]), [(torch.tensor(1.0), np.float32(2.0))]),
        ([1.0, 0.0], [1.0, 1e-13]),
    ],
)
def test_equal_results_have_no_difference_in_whatever_style_they_come(expected, got):
    assert difference(expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        (1.0, 1.1, "expected 1, got 1.1"),
        (0.004271, 0.0042714, "expected 0.004271, got 0.0042714"),
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


# What is not written yet, and what gives nothing.


def test_only_code_that_does_nothing_is_not_written_yet():
    def docstring_alone(x):
        """To be written."""

    def forgotten(x):
        y = 2 * x  # noqa: F841

    def in_one_case(x):
        if x.any():
            return 2 * x

    assert check(docstring_alone).status == "not written yet"
    assert check(forgotten).message == "gives None: a `return` is missing"
    assert check(in_one_case).message == 'gives None in the case "zero": is a `return` missing there?'


def test_of_several_ways_to_be_wrong_the_plainest_is_said():
    def answer(x):
        if x == 1:
            return 0
        if x == 2:
            raise ValueError

    cases = {"one": (1,), "two": (2,), "three": (30,)}
    assert judged(answer, double, cases).message == 'gives None in the case "three": is a `return` missing there?'
    assert judged(answer, double, {"one": (1,), "two": (2,)}).status == "raised"


def test_a_not_implemented_error_is_shown_at_its_line():
    def later(x):
        raise NotImplementedError

    report = check(later)
    assert (report.status, report.message) == ("raised", "NotImplementedError")
    assert report.details.splitlines()[0] == 'case "zero": line 2 of later: raise NotImplementedError'


def test_a_procedure_that_changes_nothing_is_told_so_in_the_authors_words():
    def run(fn, numbers):
        fn(numbers)
        return numbers if numbers != [1.0, 2.0] else None

    def procedure(fn):
        words = "the numbers do not move"
        return judged(fn, lambda numbers: numbers.append(3.0), {"two": ([1.0, 2.0],)}, run=run, unchanged=words)

    assert procedure(lambda numbers: numbers.append(3.0)).passed
    assert procedure(lambda numbers: len(numbers)).message == "the numbers do not move"
    assert "to see it: checks.last.expected, checks.last.got" in repr(procedure(lambda numbers: numbers.append(4.0)))


# What a reader can do with a report.


def test_a_call_that_is_short_can_be_pasted():
    assert (
        eval(check(lambda x: x**2 + 7).details.splitlines()[1].removeprefix("to see it: answer"), {"torch": torch}) == 0
    )


def test_the_last_failure_keeps_arguments_and_results():
    check(lambda x: x**2 + 7)
    assert torch.equal(checks.last.args[0], torch.zeros(1, dtype=torch.float64))
    assert (checks.last.expected, checks.last.got) == (0, 7)


def test_a_call_among_many_is_shown_where_it_differs():
    def grid(fn, peak):
        return [fn(step, peak) for step in range(5)]

    cases = {"five steps": (0.5,)}
    report = judged(lambda step, peak: peak * min(step, 3), lambda step, peak: peak * step, cases, run=grid)
    assert "expected 2, got 1.5" in report.details
    assert "(4, 0.5)" in report.details


def test_a_second_attempt_hears_what_is_right_now(monkeypatch):
    monkeypatch.setattr(attempts, "_wrong", {})
    first = checks.optimizer_steps(lambda documents, size, accumulation, epochs: 0)
    second = checks.optimizer_steps(lambda d, size, accumulation, epochs: epochs * (-(-d // size) // accumulation))
    assert "since your last attempt" not in first.folded
    assert "right now: a smaller last batch that completes its window, one epoch" in second.folded
    assert "still wrong: full batches, a smaller last window" in second.folded


def test_a_hint_fits_the_named_mistake():
    report = checks.log_sum_exp(lambda logits: logits.exp().sum(-1).log())
    assert "hint: " in report.folded
    assert "<details>" in report._repr_html_()


# What is accepted, and what is not.


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (6e-7, 7e-7),  # 17 %, which an absolute tolerance of 1e-6 would hide
        ([1.0, 1e-9], [1.0, 1.2e-9]),
        (0.0, 1e-9),
        (10_000_000, 10_000_001),
        (12, 12.3),
        (torch.tensor([10_000_000]), torch.tensor([10_000_001])),
        ([1, 2], {1, 2}),
    ],
)
def test_no_tolerance_hides_a_fault(expected, got):
    assert difference(expected, got) is not None


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda x: x.square().sum().item(), "the loss has no gradient"),
        (lambda x: x.detach().square().sum(), "the loss has no gradient"),
        (lambda x: np.square(x.numpy()).sum(), "Can't call numpy() on Tensor that requires grad"),
        (lambda x: (x.detach() * x).sum(), "its gradient in the input: at [0] expected 2, got 1"),
        (lambda x: x.mul_(x).sum(), "changes its input"),
    ],
)
def test_a_loss_that_cannot_train_is_refused_in_its_own_words(loss, words):
    cases = {"two": (torch.tensor([1.0, 2.0]),)}
    assert words in repr(judged(loss, lambda x: x.square().sum(), cases, run=with_gradient))


def test_an_edit_must_stand_in_the_solution_once():
    made = exercise(cases={"one": (1,)})(double)
    assert made.text == "def double(x):\n    return 2 * x"
    assert made.edited([("2 *", "3 *")])(5) == 15
    with pytest.raises(ValueError, match="must stand in the solution once, it stands there 2 times"):
        made.edited([("x", "y")])


@pytest.mark.parametrize("lesson", NOTEBOOKS)
def test_a_lesson_asks_its_questions_in_the_order_in_which_they_are_stored(lesson):
    cells = [cell.source for cell in NOTEBOOKS[lesson].cells if cell.cell_type == "code"]
    asked = [match.groups() for match in map(ASKED.fullmatch, cells) if match]
    stored = tomllib.loads((FOLDER / f"{lesson[3:]}.toml").read_text(encoding="utf-8"))
    assert asked == [(lesson[3:], name) for name in stored]


@pytest.mark.parametrize(("lesson", "known"), [("loss", "better_stories"), ("los", "none")])
def test_a_question_that_is_not_there_is_refused_with_those_that_are(lesson, known):
    with pytest.raises(ValueError, match=f"lesson '{lesson}' has no question 'beter'; there are: {known}"):
        checks.predict(lesson, "beter")


OPTIONS = {"It <b>rises": "No. It falls.", "It falls": "Yes. See the plot."}


@pytest.fixture
def shown(monkeypatch) -> list[dict[str, Any]]:
    import IPython.display

    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles


def test_a_prediction_shows_question_and_explanations_as_text(shown):
    ask("What does the loss do?", OPTIONS)
    question, *options = shown[0]["text/plain"].splitlines()
    assert question == "Predict: What does the loss do?"
    assert sorted(options) == ["- It <b>rises: No. It falls.", "- It falls: Yes. See the plot."]


def test_the_place_of_the_right_option_is_drawn_and_is_the_same_each_time(shown):
    options = {"a": "Yes.", "b": "No.", "c": "No."}
    for number in [*range(60), *range(60)]:
        ask(f"Question {number}?", options)
    places = [bundle["text/plain"].splitlines().index("- a: Yes.") for bundle in shown]
    assert places[:60] == places[60:]
    assert {place for place in (1, 2, 3) if places[:60].count(place) >= 12} == {1, 2, 3}


def test_a_prediction_folds_its_explanations_and_needs_no_kernel(shown):
    ask("What does the loss do?", OPTIONS)
    assert list(shown[0]) == ["text/plain", "text/html"]
    assert "<summary>It &lt;b&gt;rises</summary><p>No. It falls.</p>" in shown[0]["text/html"]


def test_a_stored_question_has_one_right_option_and_says_of_each_whether_it_is():
    for file in FOLDER.glob("*.toml"):
        for name, stored in tomllib.loads(file.read_text(encoding="utf-8")).items():
            told = [why.partition(" ")[0] for why in dict(stored["options"]).values()]
            assert told.count("Yes.") == 1 and set(told) == {"Yes.", "No."}, (file.stem, name)
