"""Windows of micro-batches: every batch once, no look-ahead, every token the same weight."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.batching import make_loader
from course_lm.model import GPT, ModelConfig
from course_lm.step import train_step
from course_lm.tokenizer import train_tokenizer

VOCAB = 11
DOCUMENTS = ["the cat sat on the mat " * (1 + number * number % 7) for number in range(23)]


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


def ragged_rows(lengths: Sequence[int], seed: int, ignored: float = 0.2) -> dict[str, Tensor]:
    """One batch, padded on the right; a share of the labels is ignored."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()  # (B, T)
    input_ids = torch.randint(0, VOCAB, mask.shape, generator=generator)
    no_target = (mask == 0) | (torch.rand(mask.shape, generator=generator) < ignored)
    return {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(no_target, -100)}


def cut(batch: dict[str, Tensor], places: Sequence[int]) -> list[dict[str, Tensor]]:
    """The rows of a batch in micro-batches that begin at `places`, each no wider than its longest row."""
    parts = []
    for start, end in pairwise([0, *sorted(places), len(batch["labels"])]):
        width = int(batch["attention_mask"][start:end].sum(1).amax())
        parts.append({name: part[start:end, :width] for name, part in batch.items()})
    return parts


def tiny_model(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.0), VOCAB, max_length=16).double()


def gradient_of_step(model: nn.Module, window: Sequence[dict[str, Tensor]]) -> Tensor:
    train_step(model, window, torch.optim.SGD(model.parameters(), lr=0.0), max_grad_norm=None)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same_gradient(actual: Tensor, expected: Tensor) -> None:
    assert (actual - expected).norm() <= 1e-10 * expected.norm()


@settings(max_examples=15)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 10_000))
def test_each_window_of_an_epoch_has_the_gradient_of_its_own_rows_the_tail_included(batches, accumulation_steps, seed):
    lengths = torch.randint(4, 13, (2 * batches,), generator=torch.Generator().manual_seed(seed)).tolist()
    model, epoch = tiny_model(seed), ragged_rows(lengths, seed, ignored=0.0)
    micro_batches = cut(epoch, range(2, 2 * batches, 2))
    first = 0
    for window in windows(micro_batches, accumulation_steps):
        rows = slice(first, first := first + 2 * len(window))
        at_once = {name: part[rows] for name, part in epoch.items()}
        assert_same_gradient(gradient_of_step(model, window), gradient_of_step(model, [at_once]))
    assert first == 2 * batches


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_micro_batch_among_full_ones_changes_nothing(place):
    model = tiny_model()
    window = cut(ragged_rows([9, 4, 12, 2], seed=1), [2])
    expected = gradient_of_step(model, window)
    empty = ragged_rows([5, 3], seed=2)
    empty["labels"] = torch.full_like(empty["labels"], -100)
    window.insert(place, empty)
    assert_same_gradient(gradient_of_step(model, window), expected)


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


def test_a_generator_is_read_once_and_a_list_again_for_each_epoch():
    once, again = (number for number in range(5)), [0, 1, 2, 3, 4]
    expected = [[0, 1], [2, 3], [4]]
    assert list(windows(once, 2)) == expected and list(windows(once, 2)) == []
    assert list(windows(again, 2)) == list(windows(again, 2)) == expected


def test_windows_of_an_endless_loader_are_read_one_by_one():
    ones = windows(iter(lambda: 1, 2), 3)
    assert next(ones) == next(ones) == [1, 1, 1]


def test_a_window_is_a_list_of_its_own():
    first, second = windows(range(4), 2)
    first.append(9)
    assert second == [2, 3]


@pytest.mark.parametrize("accumulation_steps", [2, np.int64(2)])
def test_whole_numbers_of_any_kind_are_accepted(accumulation_steps):
    assert list(windows("abc", accumulation_steps)) == [["a", "b"], ["c"]]


@pytest.mark.parametrize("accumulation_steps", [1, 3, 4, 50])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_after_each_window_the_loader_stands_right_behind_it_and_a_resume_reads_the_rest(accumulation_steps, taken):
    tokenizer = train_tokenizer(DOCUMENTS, 270)

    def loader():
        return make_loader(DOCUMENTS, tokenizer, mode="dynamic", batch_size=2, max_length=32, seed=1)

    straight, resumed = loader(), loader()
    everything = [[batch["input_ids"].tolist() for batch in window] for window in windows(loader(), accumulation_steps)]
    groups, position = windows(straight, accumulation_steps), 0
    for _ in range(taken):
        position += len(next(groups, []))
        assert straight.state_dict() == {"epoch": 0, "batch": position}
    resumed.load_state_dict(straight.state_dict())
    rest = [[batch["input_ids"].tolist() for batch in window] for window in windows(resumed, accumulation_steps)]
    assert rest == everything[taken:]


def test_a_count_stays_on_the_device_of_the_labels():
    labels = torch.empty(2, 5, dtype=torch.int64, device="meta")
    assert count_window_targets([{"labels": labels}, {"labels": labels}]).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_counting_does_not_wait_for_the_accelerator():
    labels = torch.ones(2, 5, dtype=torch.int64, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        count = count_window_targets([{"labels": labels}, {"labels": labels}])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert count.device.type == "cuda" and int(count) == 16


def test_a_window_whose_labels_are_all_ignored_has_no_targets():
    count = count_window_targets([{"labels": torch.full((2, 6), -100)}, {"labels": torch.full((1, 3), -100)}])
    assert count.dtype == torch.int64 and int(count) == 0


def test_rows_of_one_token_and_batches_without_rows_have_no_targets():
    assert int(count_window_targets([{"labels": torch.ones(3, 1, dtype=torch.int64)}])) == 0
    assert int(count_window_targets([{"labels": torch.ones(0, 4, dtype=torch.int64)}])) == 0
