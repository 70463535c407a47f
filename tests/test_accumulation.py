"""Windows of micro-batches: every batch once, no look-ahead, every token the same weight."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.loss import next_token_loss


def ragged_batches(seed: int, lengths: list[int], vocab: int = 11) -> list[dict[str, Tensor]]:
    """Micro-batches of two rows with different lengths and different shares of ignored labels."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for length in lengths:
        input_ids = torch.randint(0, vocab, (2, length), generator=generator)
        ignored = torch.rand(2, length, generator=generator) < torch.rand(1, generator=generator)
        batches.append({"input_ids": input_ids, "labels": input_ids.masked_fill(ignored, -100)})
    return batches


@given(st.integers(0, 40), st.integers(1, 9))
def test_windows_hold_every_batch_once_and_in_order(num_batches, accumulation_steps):
    groups = list(windows(range(num_batches), accumulation_steps))
    assert [batch for group in groups for batch in group] == list(range(num_batches))


@given(st.integers(1, 40), st.integers(1, 9))
def test_only_the_last_window_may_be_short_and_none_is_empty(num_batches, accumulation_steps):
    *full, last = [len(group) for group in windows(range(num_batches), accumulation_steps)]
    assert all(size == accumulation_steps for size in full)
    assert 1 <= last <= accumulation_steps


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


def test_the_targets_of_a_window_are_summed_after_the_shift():
    first = {"labels": torch.tensor([[7, 7, -100], [7, -100, -100]])}
    second = {"labels": torch.tensor([[-100, 7, 7, 7]])}
    count = count_window_targets([first, second])
    assert count.shape == () and count.dtype == torch.int64
    assert int(count) == 1 + 3


def test_an_empty_window_has_no_targets():
    assert int(count_window_targets([])) == 0


def test_another_ignore_index_is_honoured():
    assert int(count_window_targets([{"labels": torch.tensor([[1, 0, 2, 0]])}], ignore_index=0)) == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(2, 7), min_size=1, max_size=5))
def test_sums_over_the_window_count_give_the_gradient_of_one_big_batch(seed, lengths):
    batches = ragged_batches(seed, lengths)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11)).double()
    longest = max(lengths)
    concatenated = {
        key: torch.cat(
            [nn.functional.pad(batch[key], (0, longest - batch[key].shape[1]), value=fill) for batch in batches]
        )
        for key, fill in (("input_ids", 0), ("labels", -100))
    }
    gradients = []
    for window in (batches, [concatenated]):
        model.zero_grad()
        count = count_window_targets(window).clamp(min=1)
        for batch in window:
            loss = next_token_loss(model(batch["input_ids"]), batch["labels"], reduction="sum")
            (loss / count).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
