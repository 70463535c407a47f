"""The model: what a position may see, how its attention is computed, and how text is drawn from it."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.generate import generate
from course_lm.model import (
    GPT,
    Block,
    Dropout,
    ModelConfig,
    Rotation,
    allowed_attention,
    count_parameters,
    positions_of,
    prefers_plain_attention,
)
from tests.tiny import LONGEST, VOCAB, packed_batch, plain_batch, random_ids, tiny_gpt

CPU_HALF_TYPES = (torch.bfloat16, torch.float16)
lengths_of_rows = st.lists(st.integers(1, 7), min_size=1, max_size=4)
seeds = st.integers(0, 10_000)
kinds_of_positions = st.sampled_from(["learned", "rotary"])


@contextmanager
def attention_path(plain: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course_lm.model.prefers_plain_attention", lambda query: plain)
        yield


def padded(lengths: list[int], width: int, side: str, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of random tokens, PAD included (what stands there must not matter), and their attention mask."""
    batch = plain_batch(lengths, side=side, width=width, seed=seed)
    return batch["input_ids"], batch["attention_mask"]


def packed(lengths: list[int], pads: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """One row with all documents one after another: ids, document_ids and attention mask, each (1, T)."""
    batch = packed_batch([lengths], pads, seed)
    return batch["input_ids"], batch["document_ids"], batch["attention_mask"]


@settings(max_examples=40)
@given(lengths_of_rows, st.integers(0, 5), st.sampled_from(["left", "right"]), st.booleans(), kinds_of_positions, seeds)
def test_padding_never_changes_the_logits_of_a_token(lengths, extra, side, plain, positions, seed):
    model = tiny_gpt(seed=seed, positions=positions)
    ids, mask = padded(lengths, max(lengths) + extra, side, seed)
    with attention_path(plain):
        together = model(ids, attention_mask=mask)
        for row in range(len(lengths)):
            real = mask[row].bool()
            alone = model(ids[row, real][None])[0]
            torch.testing.assert_close(together[row, real], alone, rtol=1e-10, atol=1e-10)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 4), st.booleans(), kinds_of_positions, seeds)
def test_a_packed_document_has_the_logits_that_it_has_alone(lengths, pads, plain, positions, seed):
    model = tiny_gpt(seed=seed, positions=positions)
    ids, document_ids, mask = packed(lengths, pads, seed)
    with attention_path(plain):
        together = model(ids, attention_mask=mask, document_ids=document_ids)[0]
        for number in range(len(lengths)):
            inside = document_ids[0] == number
            alone = model(ids[0, inside][None])[0]
            torch.testing.assert_close(together[inside], alone, rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(st.integers(1, 9), st.booleans(), kinds_of_positions, seeds)
def test_no_position_sees_a_later_token(position, plain, positions, seed):
    model = tiny_gpt(seed=seed, positions=positions)
    ids = random_ids(2, 10, seed=seed)
    changed = torch.cat([ids[:, :position], (ids[:, position:] + 1) % VOCAB], dim=1)
    with attention_path(plain):
        before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :position], after[:, :position], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before[:, position:], after[:, position:])


def loss_and_gradients(model: nn.Module, **inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    logits = model(**inputs)
    logits.float().logsumexp(-1).sum().backward()
    return logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("masked", ["not at all", "padded left", "padded right", "packed"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_both_attention_paths_give_the_same_logits_and_gradients(masked, dtype, tolerance):
    model = tiny_gpt(dtype=dtype)
    inputs: dict[str, Tensor] = {"input_ids": random_ids(3, 9)}
    if masked.startswith("padded"):
        inputs["input_ids"], inputs["attention_mask"] = padded([9, 2, 5], 9, masked.split()[1], seed=0)
    if masked == "packed":
        inputs["input_ids"], inputs["document_ids"], inputs["attention_mask"] = packed([4, 1, 5], 2, seed=0)
    with attention_path(plain=False):
        logits, gradients = loss_and_gradients(model, **inputs)
    with attention_path(plain=True):
        plain_logits, plain_gradients = loss_and_gradients(model, **inputs)
    torch.testing.assert_close(plain_logits, logits, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(plain_gradients, gradients, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("compiled", [False, True])
def test_blocks_give_packed_tokens_the_logits_of_the_other_paths(compiled, monkeypatch):
    model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=32, dropout=0.0), VOCAB, 300).eval()
    documents = torch.full((2, 300), -1)  # three blocks of 128, the last with PAD
    documents[0, :290] = torch.repeat_interleave(torch.arange(4), torch.tensor([5, 125, 10, 150]))
    documents[1, :200] = torch.arange(200) // 70
    ids, real = random_ids(2, 300), documents >= 0
    expected = model(ids, real.long(), documents)
    monkeypatch.setattr("course_lm.model.prefers_blocks", lambda query: True)
    with torch.no_grad():  # FlexAttention has no backward pass on a CPU
        seen = (torch.compile(model) if compiled else model)(ids, real.long(), documents)
    torch.testing.assert_close(seen[real], expected[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", CPU_HALF_TYPES)
def test_half_precision_on_a_cpu_never_takes_the_fused_kernel(dtype, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("the fused kernel was called")

    monkeypatch.setattr(F, "scaled_dot_product_attention", fail)
    with torch.autocast("cpu", dtype=dtype):
        logits = tiny_gpt(dtype=torch.float32)(random_ids(2, 8))
    assert logits.isfinite().all()


def test_single_precision_on_a_cpu_takes_the_fused_kernel(monkeypatch):
    def fail(*args):
        raise AssertionError("the two matrix products were called")

    monkeypatch.setattr("course_lm.model.plain_attention", fail)
    assert tiny_gpt(dtype=torch.float32)(random_ids(2, 8)).isfinite().all()


@pytest.mark.parametrize("device", ["cuda", "mps", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, *CPU_HALF_TYPES])
def test_an_accelerator_always_takes_the_fused_kernel(device, dtype):
    class Query:
        def __init__(self) -> None:
            self.device, self.dtype = torch.device(device), dtype

    assert not prefers_plain_attention(Query())  # type: ignore[arg-type]


@pytest.mark.parametrize("plain, half", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_a_row_of_pad_alone_gives_no_nan_in_logits_or_gradients(kind, plain, half):
    model = tiny_gpt(dtype=torch.float32)
    ids, mask = padded([5, 0], 5, "right", seed=0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if kind == "packed":
        inputs["document_ids"] = mask - 1  # 0 for the document, -1 for PAD
    with attention_path(plain), torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        logits, gradients = loss_and_gradients(model, **inputs)
    assert logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_allowed_attention_by_hand():
    mask = torch.tensor([[0, 1, 1, 1]])
    documents = torch.tensor([[-1, 0, 0, 1]])
    seen = allowed_attention(mask, documents)
    assert seen is not None
    assert seen[0].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]


def test_positions_count_from_the_first_token_of_each_document():
    ids = torch.zeros(1, 6, dtype=torch.int64)
    left = torch.tensor([[0, 0, 1, 1, 1, 1]])
    documents = torch.tensor([[0, 0, 1, 1, 1, 2]])
    assert positions_of(ids, None, None).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert positions_of(ids, left, None).tolist() == [[0, 0, 0, 1, 2, 3]]
    assert positions_of(ids, torch.ones_like(ids), documents).tolist() == [[0, 1, 0, 1, 2, 0]]


def test_given_positions_replace_the_counted_ones():
    model = tiny_gpt()
    ids = random_ids(1, 5)
    shifted = torch.arange(5)[None] + 3
    counted = model(ids)
    torch.testing.assert_close(model(ids, position_ids=torch.arange(5)[None]), counted)
    assert not torch.allclose(model(ids, position_ids=shifted), counted)


def test_a_pair_of_elements_turns_by_its_position_times_its_rate():
    """Equation 15 of Su et al. 2024, element by element."""
    x, position, width = [0.3, -1.2, 0.7, 2.0], 5, 4
    expected = []
    for i in range(width // 2):
        angle = position * 10_000 ** (-2 * i / width)
        expected.append(x[2 * i] * math.cos(angle) - x[2 * i + 1] * math.sin(angle))
        expected.append(x[2 * i] * math.sin(angle) + x[2 * i + 1] * math.cos(angle))
    turned = Rotation(torch.tensor([[position]]), width).turn(torch.tensor(x).view(1, 1, 1, width))
    torch.testing.assert_close(turned.flatten(), torch.tensor(expected))


def test_a_rotary_model_has_no_weights_for_positions_and_sees_distances_alone():
    model, ids = tiny_gpt(positions="rotary"), random_ids(1, 5)
    assert not [name for name, _ in model.named_parameters() if "position" in name]
    counted = model(ids)
    torch.testing.assert_close(model(ids, position_ids=torch.arange(5)[None] + 3), counted, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model(ids, position_ids=2 * torch.arange(5)[None]), counted, rtol=1e-3)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_gradient_checkpointing_gives_the_same_gradients_with_dropout(positions, half, masked):
    ids, mask = padded([9, 4], 9, "right", seed=0)
    inputs = {"input_ids": ids} | ({"attention_mask": mask} if masked else {})
    results = []
    for checkpointing in (False, True):
        settings = {"dropout": 0.4, "positions": positions, "gradient_checkpointing": checkpointing}
        model = tiny_gpt(dtype=torch.float32, **settings).train()
        torch.manual_seed(7)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            results.append(loss_and_gradients(model, **inputs))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("training, runs", [(True, 2), (False, 1)])
def test_gradient_checkpointing_computes_each_block_again_in_training_only(training, runs, monkeypatch):
    calls = []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda *args: calls.append(1) or forward(*args))
    model = tiny_gpt(gradient_checkpointing=True).train(training)
    loss_and_gradients(model, input_ids=random_ids(1, 4))
    assert len(calls) == runs * model.config.n_layer


def test_the_head_is_the_token_embedding_and_no_weight_of_its_own():
    model = tiny_gpt(n_layer=1, d_model=4)
    embeddings = VOCAB * 4 + LONGEST * 4
    block = 2 * 2 * 4 + (4 * 12 + 12) + (4 * 4 + 4) + (4 * 16 + 16) + (16 * 4 + 4)
    assert count_parameters(model) == embeddings + block + 2 * 4


def test_a_frozen_weight_is_not_counted_as_trained():
    model = tiny_gpt()
    everything = count_parameters(model)
    model.position_embedding.requires_grad_(False)
    assert everything - count_parameters(model) == LONGEST * 8


def test_the_first_loss_is_that_of_a_uniform_guess():
    torch.manual_seed(0)
    logits = GPT(ModelConfig(d_model=32), 512, LONGEST).eval()(random_ids(4, LONGEST))
    loss = F.cross_entropy(logits.flatten(0, 1), random_ids(4 * LONGEST, seed=1))
    assert float(loss.detach()) == pytest.approx(torch.tensor(512.0).log().item(), abs=0.05)


def test_dropout_acts_in_training_and_not_in_eval_mode():
    model = tiny_gpt(dropout=0.5)
    ids = random_ids(2, 6)
    model.train()
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("number", [0, -1, 2.5, True, None, "3"])
@pytest.mark.parametrize("key", ["vocab_size", "max_length"])
def test_a_size_that_is_none_is_refused(key, number):
    sizes: Any = {"vocab_size": 8, "max_length": 8, key: number}
    with pytest.raises(ValueError, match=f"{key} must be a whole number of at least 1, got "):
        GPT(ModelConfig(n_layer=1), **sizes)


def test_an_input_longer_than_the_positions_is_refused():
    with pytest.raises(ValueError, match="at most 16 positions, got 17"):
        tiny_gpt()(random_ids(1, LONGEST + 1))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"d_model": 10, "n_head": 4}, "d_model must be a multiple of n_head (4), got 10"),
        (
            {"d_model": 12, "n_head": 4, "positions": "rotary"},
            "an even multiple of n_head (4) for rotary positions, got 12",
        ),
    ],
)
def test_a_width_that_the_heads_cannot_share_is_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ModelConfig(**given)


def test_eos_ends_the_text_and_is_not_returned():
    model = tiny_gpt(seed=2)
    text = generate(model, [1], max_new_tokens=12, generator=torch.Generator().manual_seed(0))
    eos = text[5]
    again = torch.Generator().manual_seed(0)
    assert generate(model, [1], max_new_tokens=12, eos_id=eos, generator=again) == text[: text.index(eos)]


def test_generation_never_drops_out_and_gives_the_mode_back():
    model = tiny_gpt(dropout=0.5)
    quiet = generate(model.eval(), [1, 2], max_new_tokens=8, temperature=0)
    assert generate(model.train(), [1, 2], max_new_tokens=8, temperature=0) == quiet
    assert model.training


def test_generation_gives_each_module_its_own_mode_back_even_after_an_error():
    model = tiny_gpt().train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    generate(model, [1], max_new_tokens=1)
    assert [module.training for module in model.modules()] == modes
    model.position_embedding = nn.Embedding(1, 3)  # does not fit
    with pytest.raises(RuntimeError):
        generate(model, [1], max_new_tokens=1)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_zeroes_a_share_p_and_keeps_the_mean(p):
    torch.manual_seed(0)
    dropped = Dropout(p)(torch.ones(401, 997))
    assert abs(float((dropped == 0).float().mean()) - p) < 0.005
    assert abs(float(dropped.mean()) - 1) < 0.01
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / (1 - p)]), rtol=1e-4, atol=0)


def test_dropout_zeroes_neighbours_independently():
    torch.manual_seed(0)
    zeros = (Dropout(0.5)(torch.ones(100_000)) == 0).float()
    assert abs(float((zeros[1:] * zeros[:-1]).mean()) - 0.25) < 0.01
    assert abs(float((zeros[4:] * zeros[:-4]).mean()) - 0.25) < 0.01


def test_dropout_sends_the_gradient_where_the_value_went():
    x = torch.ones(7, 5, requires_grad=True)
    dropped = Dropout(0.4)(x)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, dropped.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_default_type_of_the_user_changes_no_bit(positions, dtype, monkeypatch):
    model, ids = tiny_gpt(positions=positions), random_ids(2, 5)
    before = model(ids)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(model(ids), before)
    finally:
        torch.set_default_dtype(torch.float32)
