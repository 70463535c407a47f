"""Windows of micro-batches: every batch once, no look-ahead, and the targets of all counted."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from course_lm.accumulation import count_window_targets, windows


@given(st.integers(0, 40), st.integers(1, 9))
def test_windows_hold_every_batch_once_and_in_order_and_the_last_alone_may_be_short(num_batches, accumulation_steps):
    groups = list(windows(range(num_batches), accumulation_steps))
    assert [batch for group in groups for batch in group] == list(range(num_batches))
    assert all(len(group) == accumulation_steps for group in groups[:-1]) and all(groups)


@given(st.integers(1, 20), st.integers(1, 5))
def test_nothing_is_read_beyond_the_window_at_hand(num_batches, accumulation_steps):
    read: list[int] = []

    def loader() -> Iterator[int]:
        for batch in range(num_batches):
            read.append(batch)
            yield batch

    groups = windows(loader(), accumulation_steps)
    assert read == []
    consumed = 0
    for group in groups:
        consumed += len(group)
        assert len(read) == consumed


@pytest.mark.parametrize("accumulation_steps", [0, -3, 1.5, None])
def test_a_bad_window_size_is_refused_before_anything_is_read(accumulation_steps):
    message = f"accumulation_steps must be a whole number of at least 1, got {accumulation_steps}"
    with pytest.raises(ValueError, match=message):
        windows([1, 2], accumulation_steps)


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        ([[[7, 7, -100], [7, -100, -100]], [[-100, 7, 7, 7]]], 1 + 3),
        ([[[-100] * 6] * 2, [[-100] * 3]], 0),
        ([[[7], [7], [7]]], 0),
        ([], 0),
    ],
    ids=["after the shift", "all ignored", "rows of one token", "no batch"],
)
def test_the_targets_of_a_window_are_summed(labels, count):
    found = count_window_targets([{"labels": torch.tensor(part)} for part in labels])
    assert found.shape == () and found.dtype == torch.int64 and int(found) == count


def test_another_ignore_index_is_honoured():
    assert int(count_window_targets([{"labels": torch.tensor([[1, 0, 2, 0]])}], ignore_index=0)) == 1


def test_what_a_loader_raises_in_the_middle_of_a_window_is_passed_on_and_the_window_is_not_trained_on():
    def loader() -> Iterator[int]:
        yield from range(5)
        raise OSError("the file is gone")

    groups, got = windows(loader(), 3), []
    with pytest.raises(OSError, match="the file is gone"):
        got.extend(groups)
    assert got == [[0, 1, 2]]
    assert list(groups) == []


@given(st.integers(1, 12), st.integers(1, 5))
def test_batches_that_a_loader_fills_into_one_buffer_stay_apart_in_their_window(num_batches, accumulation_steps):
    def loader() -> Iterator[dict[str, Tensor]]:
        batch = {"input_ids": torch.zeros(1, 3, dtype=torch.int64)}
        for number in range(num_batches):
            batch["input_ids"].fill_(number)
            yield batch

    read = [int(batch["input_ids"][0, 0]) for window in windows(loader(), accumulation_steps) for batch in window]
    assert read == list(range(num_batches))
