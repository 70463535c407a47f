"""Claims about text that is drawn token by token: kept keys and values, top-k and top-p, and tokens as they come."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lm.generate import Sampling, _Reader, generate, stream
from tests.tiny import LONGEST, VOCAB, random_ids, tiny_gpt

KINDS = ("learned", "rotary")


def drawn_from_the_whole_text(model, ids, count, temperature, seed):
    """The tokens of a loop that reads the last tokens anew for each one, and knows nothing of a cache."""
    generator, ids, first = torch.Generator().manual_seed(seed), list(ids), len(ids)
    model.eval()
    for _ in range(count):
        logits = model(torch.tensor([ids[-model.max_length :]]))[0, -1].detach().float()
        ids.append(int(torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator)))
    return ids[first:]


# Keys and values that are kept


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("first", [1, 5, LONGEST, LONGEST + 3])
def test_the_logits_are_those_of_the_whole_text_and_of_its_end_where_it_outgrows_the_model(positions, first):
    model, ids = tiny_gpt(positions=positions).eval(), random_ids(2 * LONGEST).tolist()
    reader = _Reader(model, use_cache=True)
    for length in range(first, len(ids)):
        whole = model(torch.tensor([ids[:length][-LONGEST:]]))[0, -1].detach().float()
        torch.testing.assert_close(reader.next_logits(ids[:length]), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_reads_with_kept_keys_and_values_as_it_does_without(dtype):
    model, ids = tiny_gpt(dtype=dtype).eval(), random_ids(LONGEST).tolist()
    kept, anew = _Reader(model, use_cache=True), _Reader(model, use_cache=False)
    for length in range(1, len(ids)):
        torch.testing.assert_close(kept.next_logits(ids[:length]), anew.next_logits(ids[:length]), rtol=0.1, atol=0.3)


@pytest.mark.parametrize("positions", KINDS)
def test_a_seed_draws_the_tokens_that_it_draws_from_the_whole_text(positions):
    model = tiny_gpt(positions=positions)
    texts = [generate(model, [3, 1], max_new_tokens=3 * LONGEST, temperature=0, use_cache=use) for use in (True, False)]
    assert texts[0] == texts[1]
    for seed in range(5):
        drawn = generate(
            model, [2], max_new_tokens=2 * LONGEST, temperature=0.8, generator=torch.Generator().manual_seed(seed)
        )
        assert drawn == drawn_from_the_whole_text(model, [2], 2 * LONGEST, 0.8, seed)


def test_only_new_tokens_are_read_until_the_text_outgrows_the_model():
    model, widths = tiny_gpt(), []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].size(1)))
    generate(model, [1, 2, 3], max_new_tokens=LONGEST)
    assert widths == [3, *[1] * (LONGEST - 3), LONGEST, LONGEST]


# Tokens as they come


def test_tokens_come_one_by_one_and_are_those_of_the_list():
    model, calls = tiny_gpt(), []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    tokens = stream(model, [1], Sampling(), 9, generator=torch.Generator().manual_seed(4))
    first = next(tokens)
    assert len(calls) == 1
    assert [first, *tokens] == generate(model, [1], max_new_tokens=9, generator=torch.Generator().manual_seed(4))


def test_between_two_tokens_the_model_has_its_own_mode_and_gradients_are_as_they_were():
    model = tiny_gpt(dropout=0.5).train()
    for _ in stream(model, [1], Sampling(), 3):
        assert all(module.training for module in model.modules()) and torch.is_grad_enabled()


@pytest.mark.parametrize("prompt", [np.array([1, 2]), torch.tensor([1, 2]), (1, np.int64(2))])
def test_a_prompt_may_be_an_array(prompt):
    three: Any = np.int64(3)
    expected = generate(tiny_gpt(), [1, 2], max_new_tokens=3, temperature=0)
    assert generate(tiny_gpt(), prompt, max_new_tokens=three, temperature=0) == expected


@pytest.mark.parametrize("count", [-1, 1.5, True, None, "3"])
def test_a_number_of_tokens_that_is_none_is_refused_at_the_call(count):
    with pytest.raises(ValueError, match="max_new_tokens must be a whole number of at least 0, got "):
        stream(tiny_gpt(), [1], Sampling(), count)


@pytest.mark.parametrize(
    "prompt", [[], [VOCAB], [-1], None, 3, "", "abc", [1.5], [[1, 2]], torch.ones(1, 2), torch.empty(0)]
)
def test_a_bad_prompt_is_refused_at_the_call_and_not_at_the_first_token(prompt):
    with pytest.raises(ValueError, match="prompt_ids must"):
        stream(tiny_gpt(), prompt, Sampling(), 3)


# What may be drawn


logits_of_tokens = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12, unique=True).map(torch.tensor)
logits_with_ties = st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=1, max_size=12).map(torch.tensor)


@given(logits_of_tokens | logits_with_ties, st.integers(1, 14))
def test_top_k_keeps_the_k_most_probable_tokens_as_they_are(logits, k):
    kept = Sampling(top_k=k).keep(logits)
    finite = kept.isfinite()
    assert int(finite.sum()) == min(k, len(logits))
    assert torch.equal(kept[finite], logits[finite]) and (finite | (logits <= kept.masked_fill(~finite, 9).min())).all()


@given(logits_of_tokens, st.floats(0.01, 0.99))
def test_top_p_keeps_the_fewest_tokens_that_together_have_the_probability(logits, p):
    finite = Sampling(top_p=p).keep(logits).isfinite()
    probabilities = logits.double().softmax(0)
    kept = probabilities[finite].sort(descending=True).values
    assert float(kept.sum()) >= p - 1e-6
    assert float(kept[:-1].sum()) < p + 1e-6
    assert finite[probabilities.argmax()]


def test_top_p_looks_at_the_tokens_that_top_k_has_left():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert Sampling(top_p=0.6).keep(logits).isfinite().tolist() == [True, True, False, False]
    assert Sampling(top_k=2, top_p=0.5).keep(logits).isfinite().tolist() == [True, False, False, False]


@given(logits_of_tokens | logits_with_ties, st.floats(0, 1e-3))
def test_a_temperature_near_zero_draws_the_first_of_the_most_probable_tokens_as_top_k_of_1_does(logits, temperature):
    logits = logits.round()  # so that no other one is nearly as probable
    first = int(logits.argmax())
    assert Sampling(top_k=1).draw(logits) == Sampling(temperature=0).draw(logits) == first
    assert Sampling(temperature).draw(logits) == first or int((logits == logits.max()).sum()) > 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1.0}, r"temperature must be in \[0, inf\), got -1.0"),
        ({"temperature": math.inf}, r"temperature must be in \[0, inf\), got inf"),
        ({"temperature": "hot"}, "temperature must be a number.*, got 'hot'"),
        ({"top_k": 0}, "top_k must be at least 1, or null, got 0"),
        ({"top_k": 2.0}, "top_k must be a whole number.* at least 1, or null, got 2.0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], or null, got 0.0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], or null, got 1.5"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_value(given, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny_gpt(), [1], max_new_tokens=1, **given)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_draw_no_token(temperature):
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        Sampling(temperature).draw(torch.tensor([0.0, math.nan]))
