"""Claims about rows: pieces packed tightly, grouped by length, none lost."""

from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lm.batching.packing import BATCHES_PER_BUCKET, best_fit_rows, length_buckets, ranges


def plain_best_fit(lengths: list[int], width: int) -> list[int]:
    """Piece by piece: each into the fullest row with room; of equally full ones that which was filled last."""
    spaces: list[tuple[int, int, int]] = []  # space left, minus the time of the last change, row
    row_of_piece = [0] * len(lengths)
    for time, piece in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)):
        fitting = [row for row in spaces if row[0] >= lengths[piece]]
        space, _, row = taken = min(fitting) if fitting else (width, 0, len(spaces))
        if fitting:
            spaces.remove(taken)
        spaces.append((space - lengths[piece], -time, row))
        row_of_piece[piece] = row
    return row_of_piece


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(16, 40))
def test_packing_fills_no_row_beyond_its_width_and_uses_the_rows_of_plain_best_fit(lengths, width):
    rows = best_fit_rows(np.array(lengths), width).tolist()
    filled = Counter[int]()
    for row, length in zip(rows, lengths, strict=True):
        filled[row] += length
    assert max(filled.values()) <= width
    assert rows == plain_best_fit(lengths, width)


any_lengths = st.lists(st.integers(2, 40), min_size=1, max_size=200)


@given(any_lengths, st.integers(1, 9))
def test_buckets_hold_each_row_once_in_ranges_of_length_that_do_not_overlap(lengths, size):
    buckets = length_buckets(torch.tensor(lengths), lambda width: size)
    assert sorted(row for rows, _ in buckets for row in rows.tolist()) == list(range(len(lengths)))
    spans = [[lengths[row] for row in rows.tolist()] for rows, _ in buckets]
    assert all(max(shorter) < min(longer) for shorter, longer in pairwise(spans))


@given(any_lengths, st.integers(40, 400))
def test_a_bucket_holds_a_few_batches_of_its_own_widest_row(lengths, budget):
    *full, last = length_buckets(torch.tensor(lengths), lambda width: budget // width)
    for rows, size in full:
        assert size == budget // max(lengths[row] for row in rows.tolist())
        assert len(rows) >= BATCHES_PER_BUCKET * size
    assert last[1] == budget // max(lengths)


def test_ranges_stand_one_after_the_other_and_empty_ones_vanish():
    assert ranges(torch.tensor([2, 9, 7]), torch.tensor([3, 0, 2])).tolist() == [2, 3, 4, 7, 8]
