"""Claims about the exported folder: transformers open it and compute what this package's model computes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from course_lm.generate import generate
from course_lm.model import GPT, ModelConfig
from course_lm.tokenizer import decode, encode_documents, eos_id, pad_id
from course_lm.transformers_export import (
    as_json,
    generation_config,
    model_config,
    model_settings,
    tokenizer_config,
    tokenizer_file,
    transformers_weights,
    weights_from_transformers,
)
from tests.training_run import TOKENIZER, assert_same

LONGEST = 24
VOCABULARY = TOKENIZER.get_vocab_size()
SIZES = [(1, 1, 8), (2, 2, 8), (3, 4, 24)]
KINDS = ("learned", "rotary")
ACTIVATIONS = ("gelu", "gelu_tanh")


def make_model(positions: Any, sizes: tuple[int, int, int] = (2, 2, 8), activation: Any = "gelu") -> GPT:
    layers, heads, width = sizes
    config = ModelConfig(layers, heads, width, positions=positions, activation=activation, dropout=0.1)
    model = GPT(config, VOCABULARY, LONGEST)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # weights so large that each of them matters
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model.eval()


def write(model: GPT, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(transformers_weights(model), folder / "model.safetensors", {"format": "pt"})
    for name, tree in (
        ("config.json", model_config(model, TOKENIZER)),
        ("generation_config.json", generation_config(TOKENIZER)),
        ("tokenizer_config.json", tokenizer_config(model, TOKENIZER)),
    ):
        (folder / name).write_text(as_json(tree))
    (folder / "tokenizer.json").write_text(tokenizer_file(TOKENIZER))
    return folder


def opened(folder: Path):
    transformers = pytest.importorskip("transformers")
    theirs, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, local_files_only=True
    )
    assert not any(loading.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    return theirs.eval()


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


# The model


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_logits_are_equal(tmp_path, positions, sizes, activation):
    if positions == "rotary" and sizes[2] // sizes[1] % 2:
        pytest.skip("rotary positions need heads of an even width")
    model = make_model(positions, sizes, activation)
    theirs, rows = opened(write(model, tmp_path)), ids(3, LONGEST)
    with torch.no_grad():
        torch.testing.assert_close(theirs(rows).logits, model(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_logits_of_padded_rows_are_equal_at_every_token(tmp_path, positions, side):
    model = make_model(positions)
    theirs, rows = opened(write(model, tmp_path)), ids(3, LONGEST)
    mask = torch.arange(LONGEST) < torch.tensor([[LONGEST], [7], [1]])
    mask = (mask if side == "right" else mask.flip(1)).long()
    rows = rows.masked_fill(mask == 0, pad_id(TOKENIZER))
    places = (mask.cumsum(1) - 1).clamp(min=0)  # counted from the first token, as this package's model does itself
    with torch.no_grad():
        there = theirs(rows, attention_mask=mask, position_ids=places).logits
        here = model(rows, attention_mask=mask)
    real = mask.bool()
    torch.testing.assert_close(there[real], here[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", KINDS)
def test_greedy_texts_are_equal_also_of_a_padded_batch_of_prompts(tmp_path, positions):
    model = make_model(positions)
    theirs, pad = opened(write(model, tmp_path)), pad_id(TOKENIZER)
    prompts = [ids(length, seed=length).tolist() for length in (3, 9)]
    rows = torch.tensor([[pad] * (9 - len(prompt)) + prompt for prompt in prompts])
    texts = theirs.generate(rows, attention_mask=(rows != pad).long(), max_new_tokens=12, do_sample=False)
    for prompt, text in zip(prompts, texts[:, 9:].tolist()):
        expected = generate(model, prompt, max_new_tokens=12, temperature=0, eos_id=eos_id(TOKENIZER))
        assert text[: len(expected)] == expected
        assert set(text[len(expected) :]) <= {eos_id(TOKENIZER), pad}


@pytest.mark.parametrize("positions", KINDS)
def test_no_two_of_the_files_numbers_lie_in_one_place_and_all_weights_are_there(positions):
    model = make_model(positions)
    weights = transformers_weights(model)
    assert sum(tensor.numel() for tensor in weights.values()) == sum(tensor.numel() for tensor in model.parameters())
    assert all(tensor.is_contiguous() for tensor in weights.values())


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_exported_weights_and_sizes_can_be_read_back(positions, sizes, activation):
    if positions == "rotary" and sizes[2] // sizes[1] % 2:
        pytest.skip("rotary positions need heads of an even width")
    model = make_model(positions, sizes, activation)
    again = weights_from_transformers(make_model(positions, sizes), transformers_weights(model))
    assert_same(dict(again), dict(model.state_dict()))
    section, data = model_settings(model_config(model, TOKENIZER))
    assert ModelConfig(**section) == model.config and data == {"vocab_size": VOCABULARY, "max_length": LONGEST}


def test_exported_weights_of_another_model_are_refused_by_their_name():
    exported = transformers_weights(make_model("learned"))
    with pytest.raises(ValueError, match=r"transformer.wte.weight is None there, and \(\d+, \d+\) in this model"):
        weights_from_transformers(make_model("learned"), {n: w for n, w in exported.items() if "wte" not in n})
    with pytest.raises(ValueError, match=r"is \(.*\) there, and"):
        weights_from_transformers(make_model("learned", (2, 2, 16)), exported)


# The tokenizer


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = write(make_model("learned"), tmp_path_factory.mktemp("export"))
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


TEXTS = ["a cat sat", " two  spaces\n\nand\tlines ", "déjà vu, नमस्ते 🎉", "it's <eos> or <pad>", "", "x" * 300]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_ids_that_it_has_here_with_eos_before_it(theirs, text):
    (here,) = encode_documents(TOKENIZER, [text])
    assert theirs(text)["input_ids"] == here[:-1]
    assert theirs(text, add_special_tokens=False)["input_ids"] == here[1:-1]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_become_the_text_again(theirs, text):
    numbers = theirs(text)["input_ids"]
    assert theirs.decode(numbers, skip_special_tokens=True) == text == decode(TOKENIZER, numbers)


def test_the_special_tokens_and_the_side_of_padding_are_right(theirs):
    assert (theirs.eos_token_id, theirs.pad_token_id) == (eos_id(TOKENIZER), pad_id(TOKENIZER))
    batch = theirs(["a", "a cat sat on"], padding=True, return_tensors="pt")
    assert batch["input_ids"][0, 0] == pad_id(TOKENIZER) and batch["attention_mask"][0, 0] == 0
    assert theirs.model_max_length == LONGEST


def test_the_exported_tokenizer_leaves_the_given_one_as_it_is():
    before = TOKENIZER.to_str()
    assert json.loads(tokenizer_file(TOKENIZER))["post_processor"]["type"] == "TemplateProcessing"
    assert TOKENIZER.to_str() == before


def test_the_files_need_no_code_of_this_package(theirs):
    assert not type(theirs).__module__.startswith("course_lm")
    assert not any(name.endswith(".py") for name in os.listdir(theirs.name_or_path))
