"""Claims about validation by document: its sums are those of a validation, its intervals hold what they say."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.batching import MODES, make_loader
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.use.by_document import DocumentSums, evaluate_documents, ratio, student_quantile
from tests.training_run import DOCUMENTS, TOKENIZER

LONGEST = 12  # shorter than some documents, which are cut into pieces
TEXTS = [*DOCUMENTS[:9], "", " ".join(DOCUMENTS[9:14])]


def loader_of(texts, mode="packed", max_length=LONGEST):
    return make_loader(texts, TOKENIZER, mode=mode, batch_size=3, max_length=max_length, shuffle=False)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.5), TOKENIZER.get_vocab_size(), LONGEST)
    return made.double()


@pytest.mark.parametrize("mode", MODES)
def test_the_numbers_are_those_of_a_validation(model, mode):
    loader = loader_of(TEXTS, mode)
    sums, whole = evaluate_documents(model, loader), evaluate(model, loader)
    assert int(sums.tokens.sum()) == whole["tokens"]
    for name, one in sums.estimates().items():
        assert one.value == pytest.approx(whole[{"loss": "val_loss"}.get(name, name)], rel=1e-12), name
        assert one.low < one.value < one.high, name


@pytest.mark.parametrize("mode", MODES)
def test_each_document_adds_what_it_adds_alone(model, mode):
    texts = [text for text in TEXTS if text]
    sums = evaluate_documents(model, loader_of(TEXTS, mode))
    for number, text in enumerate(texts):
        alone = evaluate_documents(model, loader_of([text], mode))
        assert (sums.tokens[number], sums.correct[number]) == (alone.tokens[0], alone.correct[0])
        assert sums.num_bytes[number] == alone.num_bytes[0] == len(text.encode())
        torch.testing.assert_close(sums.nats[number], alone.nats[0])


def test_a_shuffled_loader_in_the_middle_of_an_epoch_gives_the_same_and_goes_on_from_there(model):
    loader = make_loader(TEXTS, TOKENIZER, mode="packed", batch_size=1, max_length=LONGEST, seed=3)
    expected = evaluate_documents(model, loader)
    loader.set_epoch(2)
    next(iter(loader))
    position = loader.state_dict()
    torch.testing.assert_close(evaluate_documents(model, loader).nats, expected.nats)
    assert loader.state_dict() == position


def test_the_model_keeps_its_mode_and_nothing_is_dropped(model):
    first = evaluate_documents(model.train(), loader_of(TEXTS))
    assert model.training
    assert torch.equal(first.nats, evaluate_documents(model, loader_of(TEXTS)).nats)


# The interval


@pytest.mark.parametrize(("freedom", "exact"), [(2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045), (1000, 1.962)])
def test_the_quantile_of_student_is_that_of_the_tables(freedom, exact):
    assert student_quantile(freedom) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("documents", [10, 60])
def test_of_a_thousand_samples_about_95_in_a_hundred_have_the_true_ratio_in_their_interval(documents):
    generator = torch.Generator().manual_seed(documents)
    held = 0
    for _ in range(1000):
        tokens = torch.randint(5, 80, (documents,), generator=generator)
        own = 2 + 0.5 * torch.randn(documents, generator=generator)  # each document is easy or hard throughout
        one = ratio(own * tokens, tokens)
        held += one.low <= 2 <= one.high
    assert 0.925 <= held / 1000 <= 0.97


def test_tokens_that_are_alike_within_documents_widen_the_interval():
    tokens = torch.full((100,), 50)
    alike = torch.where(torch.arange(100) % 2 == 0, 1.0, 3.0) * tokens
    apart = torch.full((100,), 2.0) * tokens
    wide, narrow = ratio(alike, tokens), ratio(apart, tokens)
    assert wide.value == narrow.value == 2.0
    assert wide.high - wide.low == pytest.approx(2 * 1.984 * math.sqrt(100 / 99) / 10, rel=1e-3)
    assert narrow.high == narrow.low == 2.0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0.1, 9), st.integers(1, 99)), min_size=3, max_size=20))
def test_a_unit_of_any_size_gives_the_same_relative_interval(pairs):
    nats, tokens = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs))
    one, scaled = ratio(nats, tokens), ratio(nats / math.log(2), tokens)
    assert scaled.low == pytest.approx(one.low / math.log(2)) and scaled.high == pytest.approx(one.high / math.log(2))


def test_two_documents_give_a_number_and_no_interval():
    one = ratio(torch.tensor([1.0, 2.0]), torch.tensor([1, 1]))
    assert one.value == 1.5 and math.isnan(one.low) and math.isnan(one.high)


def test_an_accuracy_stays_between_none_and_all():
    tokens = torch.tensor([1, 1, 30])
    sums = DocumentSums(tokens.double(), tokens, torch.tensor([0, 1, 30]), tokens)
    share = sums.estimates()["accuracy"]
    assert share.high == 1.0 and 0 <= share.low < share.value
