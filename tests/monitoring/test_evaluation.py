"""Validation: one number for the same text however it is batched, and no trace left in the model."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from course_lm.batching import MODES, Loader, make_loader
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.monitoring.evaluation import check_validation_loader
from course_lm.precision import Precision
from course_lm.tokenizer import train_tokenizer

MAX_LENGTH = 12
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "far", "away", "from", "us"]
DOCUMENTS = [" ".join(WORDS[k % 7 : 8 + k % 7]) + "." * (k % 3) for k in range(9)] + ["a", " ".join(WORDS * 3)]
TOKENIZER = train_tokenizer(DOCUMENTS, 280)


def make_model(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=dropout)
    model = GPT(config, TOKENIZER.get_vocab_size(), MAX_LENGTH).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def batches_of(mode: str = "dynamic", batch_size: int = 4, documents: list[str] = DOCUMENTS) -> list[Any]:
    return list(
        make_loader(documents, TOKENIZER, mode=mode, batch_size=batch_size, max_length=MAX_LENGTH, shuffle=False)
    )


@settings(max_examples=25)
@given(st.sampled_from(["fixed", "dynamic", "bucketed", "packed"]), st.integers(1, 13))
def test_the_metrics_do_not_depend_on_batch_size_or_mode(mode, batch_size):
    model = make_model()
    expected = evaluate(model, batches_of("fixed", 1))
    assert evaluate(model, batches_of(mode, batch_size)) == pytest.approx(expected, rel=1e-12)


class Table(nn.Module):
    """Predicts the next token from this one by a given table of probabilities, (V, V)."""

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(probabilities.log())

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.logits[input_ids]


def test_the_metrics_by_hand():
    model = Table(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75]]).double())
    ids = torch.tensor([[0, 1, 1, 2]])  # probabilities 1/4, 1/2, 1/4: five bits for three tokens
    metrics = evaluate(model, [{"input_ids": ids, "labels": ids, "num_bytes": 10}])
    assert metrics == {
        "val_loss": pytest.approx(5 * math.log(2) / 3),
        "val_loss_se": pytest.approx(math.nan, nan_ok=True),  # of one document
        "perplexity": pytest.approx(2 ** (5 / 3)),
        "bits_per_byte": pytest.approx(0.5),
        "accuracy": pytest.approx(1 / 3),
        "tokens": 3,
    }


def test_a_small_loss_is_not_lost_beside_a_huge_sum():
    model = Table(torch.full((2, 2), 0.5))
    with torch.no_grad():
        model.logits[1, 0] = 2.0**24  # in fp32, adding ln 2 to it would add 0 or 1
    huge, small = torch.tensor([[1, 1]]), torch.tensor([[0, 1]])
    metrics = evaluate(model, [{"input_ids": ids, "labels": ids} for ids in [huge] + [small] * 50])
    assert metrics["val_loss"] * 51 == pytest.approx(2.0**24 + 50 * math.log(2), rel=1e-9)


@pytest.mark.parametrize("loader", [[], [b | {"labels": torch.full_like(b["labels"], -100)} for b in batches_of()]])
def test_a_loader_without_a_target_is_refused(loader):
    with pytest.raises(ValueError, match="the validation loader holds no target token"):
        evaluate(make_model(), loader)


class Stream(IterableDataset):
    """Batches that are read once."""

    def __init__(self) -> None:
        self.rest = iter(batches_of())

    def __iter__(self) -> Iterator[Any]:
        yield from self.rest


def test_a_stream_that_is_read_once_loses_nothing_to_a_look_at_it_and_is_not_read_twice():
    model, loader = make_model(), DataLoader(Stream(), batch_size=None)
    check_validation_loader(loader, model)
    assert evaluate(model, loader) == evaluate(model, batches_of())
    with pytest.raises(ValueError, match="no target token: is it empty, or an iterator that is used up"):
        evaluate(model, loader)


def mixed_modes(model: GPT) -> list[bool]:
    """Training mode, but for one frozen block and one of its layers that trains nevertheless."""
    model.train()
    model.blocks[0].eval()
    model.blocks[0].get_submodule("up").train()
    return [module.training for module in model.modules()]


def test_nothing_is_dropped_out():
    with_dropout = evaluate(make_model(dropout=0.5).train(), batches_of())
    assert with_dropout == evaluate(make_model(dropout=0.0), batches_of())


def test_no_graph_is_built_and_gradients_stay():
    model, seen = make_model(), []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.register_forward_hook(lambda module, args, logits: seen.append(logits.requires_grad))
    evaluate(model, batches_of())
    assert seen and not any(seen)
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters() if parameter.grad is not None)
    assert torch.is_grad_enabled()


def test_the_precision_of_the_run_is_used():
    seen = []
    model = make_model().float()
    model.register_forward_hook(lambda module, args, logits: seen.append(logits.dtype))
    exact = evaluate(model, batches_of())
    rounded = evaluate(model, batches_of(), Precision("bf16", "cpu"))
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert rounded["val_loss"] == pytest.approx(exact["val_loss"], rel=0.01)


def sums_of(model: nn.Module, documents: list[str]) -> np.ndarray:
    """Nats and targets of each document alone, (D, 2)."""
    found = [evaluate(model, batches_of(documents=[document])) for document in documents]
    return np.array([(one["val_loss"] * one["tokens"], one["tokens"]) for one in found])


def loader_of(mode: str, documents: list[str]) -> Loader:
    return make_loader(documents, TOKENIZER, mode=mode, batch_size=4, max_length=MAX_LENGTH)


@pytest.mark.parametrize("mode", MODES)
def test_the_standard_error_is_that_of_a_ratio_of_sums_over_documents(mode):
    model = make_model()
    nats, tokens = sums_of(model, DOCUMENTS).T
    assert max(tokens) > MAX_LENGTH, "a document of several pieces"
    count, mean_tokens = len(DOCUMENTS), tokens.mean()
    spread = np.sum((nats - nats.sum() / tokens.sum() * tokens) ** 2) / (count - 1)
    expected = math.sqrt(spread / count) / mean_tokens  # Cochran 1977, (6.13), of a small share of all documents
    assert evaluate(model, loader_of(mode, DOCUMENTS))["val_loss_se"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_of_a_loader_that_does_not_tell_its_documents_each_piece_counts_as_one(mode):
    model, short = make_model(), [" ".join(WORDS[k : k + 1 + k % 3]) for k in range(10)]
    assert all(len(TOKENIZER.encode(document).ids) + 2 <= MAX_LENGTH for document in short)  # each fits a row
    expected = evaluate(model, loader_of(mode, short))["val_loss_se"]
    assert evaluate(model, batches_of(mode, 2, short))["val_loss_se"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("documents", [["the cat sat"], [DOCUMENTS[-1]]], ids=["one row", "several rows"])
def test_one_document_has_no_standard_error(documents):
    assert math.isnan(evaluate(make_model(), loader_of("fixed", documents))["val_loss_se"])


class Broken(Exception):
    """A signal has come."""


@pytest.mark.parametrize("kind", ["our loader", "a shuffled DataLoader"])
def test_what_is_raised_after_a_batch_ends_the_reading_there_and_leaves_no_trace(kind):
    model, done = make_model(dropout=0.5), []
    modes = mixed_modes(model)
    loader: Any = loader_of("packed", DOCUMENTS)
    if kind == "a shuffled DataLoader":
        batches: Any = batches_of()
        loader = torch.utils.data.DataLoader(batches, batch_size=None, shuffle=True)
    reader = iter(loader)
    next(reader)
    before = torch.get_rng_state()

    def stop(number: int) -> None:
        done.append(number)
        if number == 2:
            raise Broken

    with pytest.raises(Broken):
        evaluate(model, loader, on_batch=stop)
    assert done == [1, 2]
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)
    assert len(list(reader)) == len(loader) - 1
