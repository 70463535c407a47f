"""A sample of a loader's documents: what is drawn, and how much."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.batching import MODES, Loader, make_loader
from tests.training_run import DOCUMENTS, TOKENIZER

LENGTH = 8  # shorter than most documents
TEXTS = [*DOCUMENTS[:14], "", " ".join(DOCUMENTS[14:20])]


def loader_of(mode: str, documents: list[str] = TEXTS) -> Loader:
    return make_loader(documents, TOKENIZER, mode=mode, batch_size=2, max_length=LENGTH, shuffle=False)


def targets_of(loader: Loader) -> dict[int, int]:
    """Target tokens of each document that a loader holds."""
    found: dict[int, int] = {}
    for document, length in zip(loader.rows.documents.tolist(), loader.rows.lengths.tolist(), strict=True):
        found[document] = found.get(document, 0) + length - 1
    return found


@settings(max_examples=60)
@given(st.sampled_from(MODES), st.integers(1, 300), st.integers(0, 5))
def test_documents_are_whole_but_for_the_last_one_and_hold_what_was_asked_for(mode, wanted, seed):
    loader = loader_of(mode)
    sample, whole = targets_of(loader.sample(wanted, seed)), targets_of(loader)
    cut = [document for document, targets in sample.items() if targets < whole[document]]
    assert len(cut) <= 1
    assert min(wanted, loader.num_targets) <= sum(sample.values()) < wanted + LENGTH - 1


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_draws_the_same_targets(mode):
    assert targets_of(loader_of(mode).sample(60, 3)) == targets_of(loader_of("fixed").sample(60, 3))


def test_a_sample_is_the_same_each_time_and_another_for_another_seed():
    first, again, other = (targets_of(loader_of("packed").sample(60, seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_documents_are_drawn_from_the_whole_text():
    drawn = {document for seed in range(60) for document in targets_of(loader_of("packed").sample(20, seed))}
    assert drawn == set(targets_of(loader_of("packed")))


def test_a_loader_that_holds_no_more_is_its_own_sample():
    loader = loader_of("bucketed")
    assert loader.sample(loader.num_targets, 3) is loader


def test_one_long_document_is_cut():
    loader = loader_of("packed", [" ".join(DOCUMENTS)])
    assert targets_of(loader.sample(50, 0)) == {0: 7 * 8}


@pytest.mark.parametrize("mode", MODES)
def test_the_batches_of_a_sample_are_those_of_a_loader_over_its_documents_alone(mode):
    loader = loader_of(mode, DOCUMENTS)
    sizes, drawn = targets_of(loader), targets_of(loader.sample(60, 3))
    whole = sorted(document for document in drawn if drawn[document] == sizes[document])
    sample = loader.sample(sum(sizes[document] for document in whole), 3)
    expected: Any = loader_of(mode, [DOCUMENTS[document] for document in whole])
    for mine, theirs in zip(sample, expected, strict=True):
        torch.testing.assert_close(dict(mine), dict(theirs), rtol=0, atol=0)
