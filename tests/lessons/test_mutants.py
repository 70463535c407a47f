"""The stored mutants of the exercises: made from the solutions as they stand, none accepted, each one named."""

from functools import cache

import pytest

from course_lm.classroom.checks.mistakes import store
from course_lm.classroom.checks.mistakes.naming import by_hand_candidates, candidates, name_mistake
from course_lm.classroom.checks.mistakes.outcomes import Outcome
from tests.lessons import mutants
from tests.lessons.mutants import Signatures, outcomes_of, question_of

LESSONS = sorted(path.stem for path in store.FOLDER.glob("*.json"))
EXERCISES = [(lesson, check) for lesson in LESSONS for check in store.of_lesson(lesson)]
GENEROUS = 4  # a slower processor, or one that is shared

of_each_exercise = pytest.mark.parametrize(
    ("lesson", "check"), EXERCISES, ids=[f"{lesson}-{check}" for lesson, check in EXERCISES]
)


def stored_question(lesson, check):
    return question_of(lesson, check, store.of_lesson(lesson)[check])


@cache
def stored_outcomes(lesson, check):
    """Each mistake that can be named, beside what it does in each case: to run them all takes long."""
    question = stored_question(lesson, check)
    return [(one, outcomes_of(question, one.make())) for one in candidates(question)]


@pytest.mark.parametrize("lesson", LESSONS)
def test_each_exercise_of_a_lesson_that_has_a_store_is_in_it(lesson):
    assert list(store.of_lesson(lesson)) == list(mutants.exercises_of_lesson(lesson))


@of_each_exercise
def test_the_store_holds_the_solution_of_the_notebook(lesson, check):
    exercise, imports = mutants.exercises_of_lesson(lesson)[check]
    stored = store.of_lesson(lesson)[check]
    assert "\n".join(exercise.solution.splitlines()) == stored.solution, "run `make mutants`"
    assert imports == stored.imports, "run `make mutants`"


@of_each_exercise
def test_made_again_the_store_is_the_same(lesson, check):
    stored = store.of_lesson(lesson)[check]
    made = mutants.with_accepted(mutants.make(lesson, check), stored)
    assert store.written({check: made}) == store.written({check: stored}), "run `make mutants`"


@of_each_exercise
def test_each_edit_that_no_case_tells_from_the_solution_is_accepted_as_equal(lesson, check):
    surviving = [words for words, why in store.of_lesson(lesson)[check].equal.items() if not why]
    assert not surviving, "add a case, or write into the store why each of these changes nothing"


@of_each_exercise
def test_no_mutant_is_accepted_and_each_with_results_is_named_by_its_own_words(lesson, check):
    question, outcomes = stored_question(lesson, check), stored_outcomes(lesson, check)
    known = [one for one, _ in outcomes]
    for one, got in outcomes:
        assert any(not question.is_right(case, outcome) for case, outcome in got.items()), one.words
        if not any(outcome.fault for outcome in got.values()):
            assert name_mistake(question, got, known) == one.named, one.words


@of_each_exercise
def test_each_case_is_needed_or_shown_for_the_reader(lesson, check):
    question = stored_question(lesson, check)
    found = mutants.needed_cases(question, stored_outcomes(lesson, check))
    needless = [case for case, why in found.items() if not why and case not in question.shown]
    assert not needless, "leave these cases out, or name them in `shown`"
    assert set(question.shown) <= set(question.cases)


@of_each_exercise
def test_a_mistake_by_hand_can_be_made_and_told_from_the_solution(lesson, check):
    question = stored_question(lesson, check)
    signatures = Signatures(question)
    for one in by_hand_candidates(question):
        assert any(signatures.of(outcomes_of(question, one.make()))), one.words


@of_each_exercise
def test_a_check_answers_at_once(lesson, check):
    right, wrong = mutants.seconds_of_check(lesson, check)
    assert right < 0.5 * GENEROUS and wrong < 2 * GENEROUS


def test_a_mutant_that_never_ends_is_stopped():
    endless = store.Mutants([], "def forever():\n    while True:\n        pass\n")
    with pytest.raises(store.TooManyRounds):
        endless.function()()


def test_an_outcome_is_equal_to_one_with_the_same_fault():
    question = stored_question("loss", "log_sum_exp")
    assert question.is_equal(Outcome(error=ValueError("a")), Outcome(error=ValueError("b")))
    assert not question.is_equal(Outcome(error=ValueError("a")), Outcome(error=TypeError("a")))
    assert not question.is_equal(Outcome(value=1.0), Outcome(error=ValueError("a")))
