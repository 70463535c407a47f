"""Claims about what is shown: the columns of a table are aligned, and bytes are readable."""

import pytest

from course_lm.display import readable_bytes, table

KIB, MIB, GIB = 2**10, 2**20, 2**30


def test_numbers_end_and_words_begin_below_each_other_and_no_line_ends_in_spaces():
    rows = [("name", "steps", "state"), ("a", "1,000", "finished"), ("longest", "7", "")]
    assert table(rows, left=(0, 2)).splitlines() == [
        "name     steps  state",
        "a        1,000  finished",
        "longest      7",
    ]
    assert table(rows[1:]).splitlines() == ["a        1,000  finished", "longest      7"]


def test_a_row_that_lacks_a_cell_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        table([("a", "b"), ("c",)])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (MIB - 52, "1,023.9 KiB"),
        (MIB, "1.0 MiB"),
        (GIB, "1.00 GiB"),
        (1500 * GIB, "1,500.00 GiB"),
    ],
)
def test_bytes_are_readable(count, text):
    assert readable_bytes(count) == text
