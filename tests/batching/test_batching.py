"""Claims about batching: every token a target once, nothing mixed, order a pure function of (seed, epoch)."""

import math
import pickle
import random
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from course_lm.batching import MODES, Batch, Loader, epoch_generator, labels_of, make_loader, padding_share
from course_lm.batching.workers import heed_parent_alone
from course_lm.tokenizer import EOS, PAD, encode_documents, train_tokenizer

TOKENIZER = train_tokenizer(["the cat sat on the mat", "a cat and a hat on a mat", "<eos> and <pad>"] * 2, 280)


def realistic_documents(count: int) -> list[str]:
    """Texts with the long-tailed lengths of real paragraphs, some empty and some longer than any row."""
    draw = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "hat", "and"]
    sizes = [min(300, int(draw.lognormvariate(3, 0.9))) for _ in range(count)]
    return [" ".join(draw.choices(words, k=size)) for size in sizes]


DOCUMENTS = realistic_documents(150)

modes = pytest.mark.parametrize("mode", MODES)
any_documents = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=12).filter(any)
any_max_length = st.integers(2, 20)


@st.composite
def any_settings(draw) -> dict:
    """Settings that `make_loader` accepts."""
    max_length = draw(any_max_length)
    if draw(st.booleans()):
        size = {"batch_size": draw(st.integers(1, 6))}
    else:
        size = {"tokens_per_batch": draw(st.integers(max_length, 5 * max_length))}
    return {
        "mode": draw(st.sampled_from(MODES)),
        "max_length": max_length,
        "seed": draw(st.integers(0, 2**70)),
        "shuffle": draw(st.booleans()),
        **size,
    }


def pieces_of(documents: list[str], max_length: int) -> list[tuple[int, ...]]:
    """What the loader should hold, written plainly: cut at max_length, step back one token, go on."""
    pieces = []
    for ids in encode_documents(TOKENIZER, [document for document in documents if document]):
        while len(ids) > 1:
            pieces.append(tuple(ids[:max_length]))
            ids = ids[max_length - 1 :]
    return pieces


def segments_of(batch: Batch) -> Iterable[tuple[int, ...]]:
    """The runs of real tokens in a batch, split where document_ids change."""
    documents = batch.get("document_ids", batch["attention_mask"] - 1)
    for ids, segments in zip(batch["input_ids"], documents, strict=True):
        for segment in range(int(segments.max()) + 1):
            yield tuple(ids[segments == segment].tolist())


def targets_of(batch: Batch) -> Iterable[tuple[int, int]]:
    """(token, the token to predict after it) for each target of a batch, after the shift."""
    contexts, labels = batch["input_ids"][:, :-1], batch["labels"][:, 1:]
    return zip(contexts[labels != -100].tolist(), labels[labels != -100].tolist(), strict=True)


def assert_same_batches(left: Iterable[Batch], right: Iterable[Batch]) -> None:
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            # pyrefly: ignore[bad-typed-dict-key]  # a key of both
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[key])), key


# What an epoch holds


@given(any_documents, any_settings())
@example(["a"], {"mode": "packed", "max_length": 2, "batch_size": 1})
@example(["", "a", "", "the cat sat" * 9], {"mode": "bucketed", "max_length": 5, "tokens_per_batch": 17})
def test_an_epoch_is_exactly_the_documents_cut_with_one_token_of_overlap(documents, options):
    loader = make_loader(documents, TOKENIZER, **options)
    seen = Counter(segment for batch in loader for segment in segments_of(batch))
    assert seen == Counter(pieces_of(documents, options["max_length"]))


@given(any_documents, any_settings())
def test_every_token_is_a_target_exactly_once_and_every_byte_is_counted(documents, options):
    loader = make_loader(documents, TOKENIZER, **options)
    expected = Counter(
        pair for ids in encode_documents(TOKENIZER, [text for text in documents if text]) for pair in pairwise(ids)
    )
    batches = list(loader)
    assert Counter(pair for batch in batches for pair in targets_of(batch)) == expected
    assert loader.num_targets == expected.total()
    assert sum(batch.get("num_bytes", 0) for batch in batches) == len("".join(documents).encode())


@given(any_documents, any_settings())
def test_masks_mark_real_tokens_and_padding_is_pad(documents, options):
    for batch in make_loader(documents, TOKENIZER, **options):
        padding = batch["attention_mask"] == 0
        assert bool((batch["input_ids"][padding] == 0).all())
        assert bool((batch["input_ids"][~padding] != 0).all())
        assert bool((batch["labels"][padding] == -100).all())
        tensors: Any = [value for key, value in batch.items() if key != "num_bytes"]
        assert {tensor.dtype for tensor in tensors} == {torch.int64}
        assert len({tensor.shape for tensor in tensors}) == 1


def test_num_bytes_of_a_batch_are_the_bytes_of_its_own_targets():
    loader = make_loader(["aé", "bcd", "x"], TOKENIZER, batch_size=1, max_length=8, shuffle=False)
    assert [batch.get("num_bytes") for batch in loader] == [3, 3, 1]


@modes
def test_a_tokenizer_of_another_kind_batches(mode):
    tokenizer = Tokenizer(models.WordLevel({"cat": 0, EOS: 1, "hat": 2, PAD: 3}, unk_token="cat"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    loader = make_loader(["cat hat", " ", "hat"], tokenizer, mode=mode, batch_size=9, max_length=5, shuffle=False)
    seen = sorted(segment for batch in loader for segment in segments_of(batch))
    assert seen == [(1, 0, 2, 1), (1, 2, 1)]


def test_documents_encoded_in_several_goes_give_the_same_rows(monkeypatch):
    at_once = loader_of("fixed")
    monkeypatch.setattr("course_lm.batching.packing.ENCODE_AT_ONCE", 7)
    assert_same_batches(loader_of("fixed"), at_once)


# The modes


@given(any_documents, any_settings())
def test_fixed_and_packed_rows_are_max_length_wide_the_others_as_their_longest_and_no_batch_is_too_large(
    documents, options
):
    for batch in make_loader(documents, TOKENIZER, **options):
        rows, width = batch["input_ids"].shape
        longest = int(batch["attention_mask"].sum(1).max())
        assert width == (options["max_length"] if options["mode"] in ("fixed", "packed") else longest)
        assert rows <= options.get("batch_size", math.inf) and rows * width <= options.get("tokens_per_batch", math.inf)


@given(any_documents, any_settings())
def test_padding_share_is_the_share_counted_in_the_batches(documents, options):
    loader = make_loader(documents, TOKENIZER, **options)
    loader.set_epoch(3)
    masks = [batch["attention_mask"].flatten() for batch in loader]
    assert padding_share(loader) == pytest.approx(1 - torch.cat(masks).double().mean().item(), abs=1e-12)


def test_each_mode_wastes_less_than_the_one_before():
    documents = realistic_documents(1500)
    shares = {
        mode: padding_share(make_loader(documents, TOKENIZER, mode=mode, batch_size=16, max_length=256))
        for mode in MODES
    }
    assert shares["packed"] < 0.05 < shares["bucketed"] < 0.10 < shares["dynamic"] < shares["fixed"]


def test_a_token_budget_gives_short_rows_larger_batches():
    documents = ["a"] * 40 + ["the cat sat on the mat " * 5] * 8
    loader = make_loader(documents, TOKENIZER, mode="bucketed", tokens_per_batch=64, max_length=32)
    rows_by_width = {batch["input_ids"].shape[1]: batch["input_ids"].shape[0] for batch in loader}
    assert rows_by_width[3] > 2 * rows_by_width[32]


def test_a_last_smaller_batch_is_kept_and_comes_last():
    loader = make_loader(["a"] * 10, TOKENIZER, mode="dynamic", batch_size=4, max_length=8)
    assert [len(batch["input_ids"]) for batch in loader] == [4, 4, 2]


def test_packed_positions_restart_and_documents_count_up_within_a_row():
    for batch in make_loader(DOCUMENTS, TOKENIZER, mode="packed", batch_size=4, max_length=64):
        assert "document_ids" in batch and "position_ids" in batch
        for documents, positions in zip(batch["document_ids"], batch["position_ids"], strict=True):
            real = documents >= 0
            numbers, lengths = documents[real].unique_consecutive(return_counts=True)
            assert torch.equal(numbers, torch.arange(len(numbers)))
            assert torch.equal(positions[real], torch.cat([torch.arange(int(n)) for n in lengths]))
            assert bool((positions[~real] == 0).all())


# Labels


@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.booleans())
def test_labels_equal_a_plain_loop_on_either_padding_side(data, rows, width, left):
    lengths = data.draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    ids = torch.randint(0, 3, (rows, width), generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    mask = (real.flip(1) if left else real).long()
    labels = labels_of(ids, mask)
    for row in range(rows):
        for t in range(width):
            after_pad = t > 0 and mask[row, t - 1] == 0
            expected = -100 if mask[row, t] == 0 or after_pad else ids[row, t]
            assert labels[row, t] == expected


@pytest.mark.parametrize(
    ("mask", "documents", "labels"),
    [
        ([0, 1, 1, 0, 1, 1], None, [-100, -100, 1, -100, -100, 1]),
        ([0, 1, 1, 1, 1, 0], [-1, 0, 0, 1, 1, -1], [-100, -100, 1, -100, 6, -100]),
        ([1, 1, 1, 1, 1, 1], [3, 3, 2, 2, 2, 2], [-100, 5, -100, 1, 6, 1]),
    ],
    ids=["padding inside", "packed rows between padding", "numbers that fall"],
)
def test_the_first_token_of_a_segment_is_no_target(mask, documents, labels):
    told = None if documents is None else torch.tensor([documents])
    assert labels_of(torch.tensor([[1, 5, 1, 1, 6, 1]]), torch.tensor([mask]), told).tolist() == [labels]


def test_labels_leave_their_inputs_as_they_were():
    ids, mask = torch.tensor([[1, 5, 0]]), torch.tensor([[True, True, False]])
    assert labels_of(ids, mask).tolist() == [[1, 5, -100]]
    assert (ids.tolist(), mask.tolist()) == ([[1, 5, 0]], [[True, True, False]])


def test_labels_of_a_mask_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"attention_mask must have the shape of input_ids \(2, 3\), got \(2, 4\)"):
        labels_of(torch.zeros(2, 3), torch.zeros(2, 4))


# Order and position


def order_of(loader: Loader, epoch: int) -> list[list[int]]:
    return [rows.tolist() for rows in loader.order(epoch)]


def loader_of(mode: str, **options) -> Loader:
    return make_loader(DOCUMENTS, TOKENIZER, mode=mode, batch_size=8, max_length=64, **options)


@modes
def test_order_depends_on_seed_and_epoch_and_on_nothing_else(mode):
    one, other = loader_of(mode, seed=3), loader_of(mode, seed=3)
    for _ in zip(one, range(5), strict=False):
        torch.rand(1)
    assert order_of(one, 7) == order_of(other, 7)
    assert order_of(one, 7) != order_of(one, 8)
    assert order_of(one, 7) != order_of(loader_of(mode, seed=4), 7)


def test_seed_0_epoch_1_is_not_seed_1_epoch_0():
    def numbers(seed: int, epoch: int) -> Tensor:
        return torch.rand(4, generator=epoch_generator(seed, epoch))

    assert not torch.equal(numbers(0, 1), numbers(1, 0))
    assert not torch.equal(numbers(1, 11), numbers(11, 1))


@modes
def test_every_epoch_has_the_same_number_of_batches(mode):
    loader = loader_of(mode)
    for epoch in range(4):
        loader.set_epoch(epoch)
        assert sum(1 for _ in loader) == len(loader)


def test_buckets_mix_their_rows_anew_each_epoch():
    loader = loader_of("bucketed")
    batches = [{frozenset(rows) for rows in order_of(loader, epoch)} for epoch in (0, 1)]
    assert len(batches[0] & batches[1]) < len(loader) / 2


@pytest.mark.parametrize("mode", ["fixed", "dynamic"])
def test_without_shuffle_rows_come_in_corpus_order_in_every_epoch(mode):
    loader = loader_of(mode, shuffle=False)
    assert [row for rows in order_of(loader, 0) for row in rows] == list(range(len(loader.rows)))
    assert order_of(loader, 0) == order_of(loader, 1)


def test_shuffled_buckets_do_not_come_by_length():
    loader = loader_of("bucketed")
    bucket_of_row = {row: bucket for bucket, (rows, _) in enumerate(loader.groups) for row in rows.tolist()}
    buckets = [bucket_of_row[rows[0]] for rows in order_of(loader, 0)]
    assert buckets != sorted(buckets)


def test_without_shuffle_buckets_come_shortest_first():
    widths = [batch["input_ids"].shape[1] for batch in loader_of("bucketed", shuffle=False)]
    assert widths[0] < widths[-1] == max(widths)


@modes
@given(st.data())
@settings(max_examples=15)
def test_a_loader_set_to_any_position_goes_on_exactly_there(mode, data):
    epoch = data.draw(st.integers(0, 50))
    straight, resumed = loader_of(mode, seed=epoch), loader_of(mode, seed=epoch)
    straight.set_epoch(epoch)
    stop = data.draw(st.integers(0, len(straight)))
    batches = iter(straight)
    for _ in range(stop):
        next(batches)
    resumed.load_state_dict(straight.state_dict())
    resumed.set_epoch(epoch)
    assert resumed.state_dict() == {"epoch": epoch, "batch": stop}
    assert_same_batches(resumed, batches)


@modes
def test_a_resumed_loader_reads_nothing_of_what_it_skips(mode, monkeypatch):
    collated = []
    collate = Loader.collate
    monkeypatch.setattr(Loader, "collate", lambda self, rows: collated.append(rows.tolist()) or collate(self, rows))
    loader = loader_of(mode)
    loader.load_state_dict({"epoch": 2, "batch": len(loader) - 2})
    list(loader)
    assert collated == order_of(loader, 2)[-2:]


@pytest.mark.parametrize("start", [0, 2])
def test_the_state_counts_the_batches_from_a_loaded_position_which_is_used_once(start):
    loader = loader_of("packed")
    loader.load_state_dict({"epoch": 0, "batch": start})
    assert loader.state_dict() == {"epoch": 0, "batch": start}
    assert [loader.state_dict()["batch"] for _ in loader] == list(range(start + 1, len(loader) + 1))
    assert loader.state_dict() == {"epoch": 0, "batch": len(loader)}
    assert sum(1 for _ in loader) == len(loader)


def test_a_new_iteration_starts_at_the_first_batch():
    loader = loader_of("packed")
    assert_same_batches([next(iter(loader))], [next(iter(loader))])
    assert loader.state_dict() == {"epoch": 0, "batch": 1}


def test_another_epoch_starts_at_its_first_batch():
    loader = loader_of("packed")
    loader.load_state_dict({"epoch": 1, "batch": 2})
    loader.set_epoch(2)
    assert loader.state_dict() == {"epoch": 2, "batch": 0}
    assert sum(1 for _ in loader) == len(loader)


def test_a_position_outside_the_epoch_is_refused():
    loader = make_loader(["a"] * 5, TOKENIZER, batch_size=2, max_length=8)
    with pytest.raises(ValueError, match=r"batch must be in \[0, 3\], .* got 4"):
        loader.load_state_dict({"epoch": 0, "batch": 4})
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        loader.set_epoch(-1)


# Workers, memory, random state


@modes
def test_workers_give_the_same_batches_in_the_same_order(mode):
    alone, helped = loader_of(mode), loader_of(mode, num_workers=2)
    for loader in (alone, helped):
        loader.load_state_dict({"epoch": 1, "batch": 1})
    assert_same_batches(alone, helped)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not tell who has sent a signal")
def test_a_signal_to_the_workers_takes_no_batch_from_the_run(number):
    reader = iter(loader_of("packed", num_workers=2).read([*loader_of("packed").order(0)]))
    first = next(reader)
    for worker in reader._workers:  # type: ignore[attr-defined]
        # from another process: a worker ends when its own parent says so
        subprocess.run(["kill", f"-{number}", str(worker.pid)], check=True)
    time.sleep(0.1)
    assert_same_batches([first, *reader], loader_of("packed"))


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGHUP, signal.SIGHUP)])
def test_a_signal_to_workers_that_have_just_started_takes_no_batch_from_the_run(monkeypatch, numbers):
    """Here each worker waits before it can take a signal, as it may on a busy machine."""

    def late(worker: int) -> None:
        time.sleep(1)
        heed_parent_alone(worker)

    monkeypatch.setattr("course_lm.batching.loader.heed_parent_alone", late)
    reader = iter(loader_of("packed", num_workers=2).read([*loader_of("packed").order(0)]))
    for worker, number in zip(reader._workers, numbers, strict=True):  # type: ignore[attr-defined]
        subprocess.run(["kill", f"-{number}", str(worker.pid)], check=True)
    assert_same_batches([*reader], loader_of("packed"))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


def test_a_worker_ends_when_its_parent_says_so():
    reader = iter(loader_of("packed", num_workers=1).read([*loader_of("packed").order(0)]))
    next(reader)
    (worker,) = reader._workers  # type: ignore[attr-defined]
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


def test_a_loader_can_be_sent_to_a_worker_that_starts_from_nothing():
    loader = loader_of("packed")
    assert_same_batches(pickle.loads(pickle.dumps(loader)), loader)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="pinning has an effect on this machine")
def test_pinned_memory_is_accepted_without_an_accelerator_and_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_batches(loader_of("packed", pin_memory=True), loader_of("packed"))


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="pinning has no effect without an accelerator")
def test_pinned_batches_lie_in_pinned_memory():
    batch: Any = next(iter(loader_of("packed", pin_memory=True)))
    assert all(value.is_pinned() for key, value in batch.items() if key != "num_bytes")


def test_iterating_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    list(loader_of("packed"))
    assert torch.equal(torch.get_rng_state(), before)


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "padded"}, "mode must be one of fixed, dynamic, bucketed, packed, got 'padded'"),
        ({"max_length": 1}, "max_length must be a whole number of at least 2, got 1"),
        ({"max_length": 2.5}, "max_length must be a whole number of at least 2, got 2.5"),
        ({"max_length": None}, "max_length must be a whole number of at least 2, got None"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": math.nan}, "batch_size must be a whole number of at least 1, got nan"),
        ({"batch_size": True}, "batch_size must be a whole number of at least 1, got True"),
        ({"batch_size": None, "tokens_per_batch": "x"}, "tokens_per_batch must be a whole number .* got 'x'"),
        ({"batch_size": None}, "give either .* got batch_size=None and tokens_per_batch=None"),
        ({"tokens_per_batch": 64}, "give either .* got batch_size=2 and tokens_per_batch=64"),
        (
            {"batch_size": None, "tokens_per_batch": 7},
            r"tokens_per_batch must be at least max_length \(8\), got 7",
        ),
        ({"seed": "a"}, "seed must be a whole number of at least 0, got 'a'"),
        ({"shuffle": "no"}, "shuffle must be True or False, got 'no'"),
        ({"num_workers": -1}, "num_workers must be a whole number of at least 0, got -1"),
        ({"num_workers": 2.5}, "num_workers must be a whole number of at least 0, got 2.5"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name_and_value(options, message):
    settings: dict[str, Any] = {"batch_size": 2, "max_length": 8, **options}
    with pytest.raises(ValueError, match=message):
        make_loader(["text"], TOKENIZER, **settings)


def test_numbers_of_numpy_make_the_loader_of_the_numbers_in_them():
    kinds: list[Any] = [int, np.int64]
    plain, given = (
        make_loader(["a text", "another"], TOKENIZER, batch_size=kind(2), max_length=kind(8), seed=kind(3))
        for kind in kinds
    )
    assert plain.fingerprint == given.fingerprint
    assert [len(batch["labels"]) for batch in plain] == [len(batch["labels"]) for batch in given]


@pytest.mark.parametrize("documents", [[], [""], ["", ""]])
def test_documents_without_text_are_refused(documents):
    message = f"no documents left: none of the {len(documents)} given holds text"
    with pytest.raises(ValueError, match=message):
        make_loader(documents, TOKENIZER, batch_size=2, max_length=8)


def test_one_string_in_place_of_documents_is_refused():
    with pytest.raises(ValueError, match="documents must be a list of strings, got one string: 'the cat'"):
        make_loader("the cat", TOKENIZER, batch_size=2, max_length=8)
