"""Claims about the page for instructors: its hours are those of the lessons' cards, its list is that of the answers."""

import json
import re

import pytest

from course_lm.classroom.workspace import lesson_paths
from tests.lessons.common_mistakes import PAGE, ROOT, section

TEXT = PAGE.read_text(encoding="utf-8")
FLOWING = " ".join(TEXT.split())
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def minutes(numbers):
    """What the cards of these lessons say: minutes to read, minutes for the exercises."""
    cards = [json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"] for path in lesson_paths(numbers)]
    times = [
        re.search(r"(\d+) minutes to read, (\d+) (?:more )?for", " ".join("".join(card).split())) for card in cards
    ]
    return [sum(int(time[part]) for time in times if time) for part in (1, 2)]


def test_the_hours_are_those_of_the_cards():
    reading, solving = minutes(None)
    assert f"take {reading / 60:.1f} hours to read and {solving / 60:.1f} hours to solve" in FLOWING
    assert f"{(reading + solving) / 60:.0f} hours in all" in README


@pytest.mark.parametrize(
    ("name", "exercises"), [("Two days", "these take {:.1f} hours"), ("A weekend", "takes {:.0f} h")]
)
def test_the_hours_of_a_short_way_are_those_of_its_lessons(name, exercises):
    (paragraph,) = re.findall(rf"\*\*{name}\*\*((?:.|\n)*?)\n\n", TEXT)
    lessons = re.findall(r"\b[01]\d\b", paragraph.partition(". ")[0])
    assert exercises.format(sum(minutes(lessons)) / 60) in " ".join(paragraph.split())


def test_a_semester_has_every_lesson_once():
    rows = re.findall(r"^\| \d+ \| (.*?) \| \d+ \| (.*?) \|$", TEXT, re.MULTILINE)
    given = sorted(number for row in rows for number in re.findall(r"\d\d", " ".join(row)))
    assert given == [path.name[:2] for path in lesson_paths()]


def test_the_mistakes_are_those_of_the_answers():
    assert TEXT.endswith(section())
