"""The mistakes of each exercise on the page for instructors; `python -m tests.lessons.common_mistakes` writes them.

They are counted in `answers/`. Of equally many, the one that comes first in its file stands first.
"""

from collections import Counter
from itertools import groupby

from tests.lessons.answers import FILES, ROOT, answers_in

PAGE = ROOT / "docs" / "instructors.md"
HEADING = "## The mistakes of each exercise\n"
NAMED = "this is what you get when "
NUMBER = 3


def common_mistakes() -> str:
    """A list of lessons, of exercises in each, and of three mistakes in each of these, which the checks name."""
    lines = []
    for file in FILES:
        lines += ["", f"### {file.stem[:2]} {file.stem[3:].replace('_', ' ').capitalize()}", ""]
        for check, answers in groupby(answers_in(file), key=lambda answer: answer.check):
            said = [answer.said for answer in answers if answer.said != "right"]
            named = [text.partition(NAMED)[2] for text in said if NAMED in text] or [text[7:] for text in said]
            lines.append(f"- `{check}`")
            # A bare `<eos>` would be a tag of HTML.
            lines += ["    - " + words.replace("<", "\\<") for words, _ in Counter(named).most_common(NUMBER)]
    return "\n".join(lines) + "\n"


def section() -> str:
    """The section of the page that holds them, with the number of answers that they are counted among."""
    number = sum(len(list(answers_in(file))) for file in FILES)
    return f"""{HEADING}
The checks are tried on {number} answers, right and wrong, which lie in `tests/lessons/answers/`. Below stand, for each
exercise, the three mistakes that come most often among them. Most come once, and nobody has counted them in a class.
`python -m tests.lessons.common_mistakes` writes the list.
{common_mistakes()}"""


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(HEADING)[0] + section(), encoding="utf-8")
