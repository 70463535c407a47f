"""The checks, tried on answers of people who had read the lesson: each is judged right, and in the words expected.

Most were written by people who knew neither the checks nor these tests. All have been looked at since: they show that
nothing gets worse; how good the checks are on new answers is for a new set to show.
"""

import re

import pytest

from course_lm.classroom import checks
from tests.lessons.answers import FILES, answers_in, reports_of, said_of

NAMED = re.compile(
    "this is what you get when|asks for a way without it|changes its input"
    r"|does not heed settings|must return a dict|a `return` is missing|unsound, in the part"  # of an audited loop
    r"|misses \w+|refuses \w+"  # of a test that is written
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_answer_is_judged_in_the_words_expected(file):
    wrong = [(one.check, one.said, said_of(report)) for one, report in reports_of(file) if said_of(report) != one.said]
    assert wrong == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_exercise_has_right_answers_and_wrong_ones_most_of_which_are_named(file):
    answers = list(answers_in(file))
    assert {one.check for one in answers} == {
        name for name, lesson in checks.names().items() if lesson == file.stem[3:]
    }
    for check in dict.fromkeys(one.check for one in answers):
        said = [one.said for one in answers if one.check == check]
        wrong = [one for one in said if one != "right"]
        assert said.count("right") >= 2 and len(wrong) >= 3, check
        assert len([one for one in wrong if NAMED.search(one)]) >= len(wrong) / 2, check
