"""The memory explorer: its bytes are those that autograd keeps for the course's model."""

import re

import matplotlib.pyplot as plt
import pytest
import torch

from course_lm import model as model_module
from course_lm.classroom import widgets
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig, count_parameters
from course_lm.precision import Precision
from tests.lessons.explored import parts

pytestmark = pytest.mark.usefixtures("course_figures")

LENGTH, VOCAB_SIZE, ROWS, N_HEAD = 128, 512, 4, 4


def gpt(n_layer, d_model, checkpointing=False):
    config = ModelConfig(n_layer, N_HEAD, d_model, dropout=0.0, gradient_checkpointing=checkpointing)
    return GPT(config, VOCAB_SIZE, LENGTH)


def kept_for_backward(model, precision):
    """Bytes of the tensors that autograd keeps in a forward pass over packed rows, weights left out."""
    sizes = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        alive.append(tensor)  # or its address may be given to another tensor
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    input_ids = torch.randint(VOCAB_SIZE, (ROWS, LENGTH))
    document_ids = (torch.arange(LENGTH) // 50).expand(ROWS, LENGTH)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, Precision(precision, "cpu").autocast():
        next_token_loss(model(input_ids, None, document_ids), input_ids, reduction="sum")
    return sum(sizes.values())


@pytest.mark.parametrize("n_layer", [1, 3])
@pytest.mark.parametrize("d_model", [32, 96])
def test_the_activations_in_fp32_are_what_autograd_keeps(n_layer, d_model):
    parts = widgets.training_memory(n_layer, d_model, LENGTH, VOCAB_SIZE, ROWS, n_head=N_HEAD)
    assert parts["activations"] == pytest.approx(kept_for_backward(gpt(n_layer, d_model), "fp32"), rel=0.01)


def test_in_bf16_with_fused_attention_activations_and_copies_are_what_autograd_keeps(monkeypatch):
    monkeypatch.setattr(model_module, "prefers_plain_attention", lambda query: False)
    model = gpt(2, 96)
    parts = widgets.training_memory(2, 96, LENGTH, VOCAB_SIZE, ROWS, "bf16", n_head=N_HEAD)
    copies = parts["weights"] - 4 * count_parameters(model)
    assert parts["activations"] + copies == pytest.approx(kept_for_backward(model, "bf16"), rel=0.02)


def test_with_checkpointing_one_layer_is_held_beside_the_inputs_of_all():
    kept = kept_for_backward(gpt(3, 96, checkpointing=True), "fp32")
    one_layer = kept_for_backward(gpt(2, 96), "fp32") - kept_for_backward(gpt(1, 96), "fp32")
    parts = widgets.training_memory(3, 96, LENGTH, VOCAB_SIZE, ROWS, checkpointing=True, n_head=N_HEAD)
    assert parts["activations"] == pytest.approx(kept + one_layer, rel=0.02)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("n_layer", "d_model", "vocab_size"), [(1, 32, 8192), (2, 64, 512), (3, 96, 2048)])
def test_the_count_is_the_most_that_a_step_holds_at_one_time(n_layer, d_model, vocab_size, checkpointing):
    config = ModelConfig(n_layer, N_HEAD, d_model, dropout=0.0, gradient_checkpointing=checkpointing)
    input_ids = torch.randint(vocab_size, (ROWS, LENGTH))
    document_ids = (torch.arange(LENGTH) // 50).expand(ROWS, LENGTH)
    batch = {"input_ids": input_ids, "labels": input_ids, "document_ids": document_ids}
    held = widgets.measured_memory(GPT(config, vocab_size, LENGTH), batch)
    parts = widgets.training_memory(
        n_layer, d_model, LENGTH, vocab_size, ROWS, checkpointing=checkpointing, n_head=N_HEAD
    )
    assert sum(parts.values()) == pytest.approx(held, rel=0.05)


def test_weights_gradients_and_moments_are_sixteen_bytes_for_each_weight():
    parts = widgets.training_memory(3, 96, LENGTH, VOCAB_SIZE, ROWS)
    count = count_parameters(gpt(3, 96))
    assert (parts["weights"], parts["gradients"], parts["moments"]) == (4 * count, 4 * count, 8 * count)


@pytest.mark.parametrize("how", [{}, {"checkpointing": True}, {"precision": "bf16"}])
def test_the_rows_that_fit_do_fit_and_one_more_does_not(how):
    shape = (12, 768, 1024, 50_257)
    rows = widgets.rows_that_fit(24, *shape, **how)
    within, beyond = (sum(widgets.training_memory(*shape, count, **how).values()) for count in (rows, rows + 1))
    assert within <= 24 * 2**30 < beyond


def test_no_row_fits_where_the_weights_alone_are_too_large():
    assert widgets.rows_that_fit(8, 48, 2048, 4096, 128_000) == 0


def test_the_words_hold_the_parts_and_what_fits():
    figure, words = widgets.draw_training_memory()
    plt.close(figure)
    total, *parts = (float(number) for number in re.findall(r"[\d.]+", words.splitlines()[1].split(": ")[1]))
    assert total == pytest.approx(sum(parts), rel=0.02)
    assert "124.4M parameters" in words
    assert f"24 GiB hold {widgets.rows_that_fit(24, 12, 768, 1024, 50_257)} rows" in words


def test_every_control_of_the_explorer_changes_picture_and_words():
    *controls, picture, words = parts(widgets.memory_explorer())
    for control, value in zip(controls, (24, 1024, 512, 8192, 32, "bf16"), strict=True):
        before = picture.value, words.value
        control.value = value
        assert picture.value != before[0] and words.value != before[1]
