"""Claims about weights alone: any program can read them, tied ones are tied again, and a difference is named."""

import json
import struct
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from course_lm.checkpoints import describe_difference, export_weights
from course_lm.model import GPT, ModelConfig

VOCABULARY, LENGTH = 31, 8


def gpt(n_layer: int = 2, d_model: int = 8, vocabulary: int = VOCABULARY, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(ModelConfig(n_layer=n_layer, n_head=2, d_model=d_model), vocabulary, LENGTH)


def gpt2() -> GPT2LMHeadModel:
    """Hugging Face's GPT-2, whose head and embedding are one tensor under two names."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1
    )
    return GPT2LMHeadModel(config)


def assert_equal(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(mine) == list(other)
    torch.testing.assert_close(mine, other, rtol=0, atol=0)


# A file for others


def test_the_file_is_a_length_a_json_header_and_raw_numbers(tmp_path):
    export_weights(tmp_path / "model.safetensors", {"weight": torch.tensor([1.0, 2.0])}, {"step": "7"})
    content = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header == {
        "__metadata__": {"format": "pt", "step": "7"},
        "weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    assert struct.unpack("<2f", content[8 + length :]) == (1.0, 2.0)


def test_the_same_weights_and_metadata_give_the_same_bytes_each_time(tmp_path):
    metadata = {f"key {number}": 'ä "quoted"\n\x1f\\ \U0001f600' * number for number in range(8)}
    for number in range(3):
        export_weights(tmp_path / str(number), gpt().state_dict(), metadata)
    first, *others = ((tmp_path / str(number)).read_bytes() for number in range(3))
    assert others == [first, first]
    with safe_open(tmp_path / "0", framework="pt") as file:
        assert file.metadata() == {"format": "pt", **metadata}
    assert_equal(dict(sorted(load_file(tmp_path / "0").items())), dict(sorted(gpt().state_dict().items())))


# Tied weights


def test_a_tied_weight_is_stored_once_and_the_metadata_says_where(tmp_path):
    export_weights(tmp_path / "model.safetensors", gpt2().state_dict())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(gpt2().state_dict()) - set(file.keys()) == {"lm_head.weight"}
        assert file.metadata() == {"format": "pt", "lm_head.weight": "transformer.wte.weight"}


def test_the_librarys_load_model_ties_the_weights_again(tmp_path):
    model, fresh = gpt2(), gpt2()
    nn.init.zeros_(fresh.lm_head.weight)
    export_weights(tmp_path / "model.safetensors", model.state_dict())
    load_model(fresh, tmp_path / "model.safetensors", strict=True)
    assert fresh.lm_head.weight is fresh.transformer.wte.weight
    assert_equal(dict(fresh.state_dict()), dict(model.state_dict()))


# Refusals


def test_metadata_that_is_not_text_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="metadata must hold strings, got 7 for 'step'"):
        export_weights(tmp_path / "model.safetensors", {}, {"step": 7})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_no_tensor_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="weights must hold tensors, got float for 'scale'"):
        export_weights(tmp_path / "model.safetensors", {"scale": 1.0})  # type: ignore[dict-item]


# What differs


def difference(saved: nn.Module, mine: nn.Module) -> str | None:
    return describe_difference(saved.state_dict(), mine.state_dict())


def test_equal_architectures_do_not_differ():
    assert difference(gpt(seed=1), gpt(seed=2)) is None


@pytest.mark.parametrize(
    ("saved", "mine", "message"),
    [
        (
            {"vocabulary": 40},
            {},
            "token_embedding.weight is (40, 8) float32 in the checkpoint and (31, 8) float32 in this model",
        ),
        (
            {"d_model": 4},
            {},
            "token_embedding.weight is (31, 4) float32 in the checkpoint and (31, 8) float32 in this model",
        ),
        ({"n_layer": 1}, {}, "the checkpoint has no blocks.1.attention_norm.weight and 11 more"),
        ({}, {"n_layer": 1}, "this model has no blocks.1.attention_norm.weight and 11 more"),
    ],
)
def test_what_differs_is_named_in_one_line(saved: dict[str, int], mine: dict[str, int], message: str):
    assert difference(gpt(**saved), gpt(**mine)) == message


def test_a_model_of_another_kind_is_told_by_both_sides():
    said = difference(gpt2(), gpt())
    assert said is not None and "\n" not in said
    assert "the checkpoint has no token_embedding.weight and 27 more" in said
    assert "this model has no transformer.wte.weight and" in said


class Counting(nn.Module):
    """A module whose state holds something other than tensors."""

    def get_extra_state(self) -> Any:
        return {"count": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_state_that_is_no_tensor_is_compared_by_its_type():
    assert difference(Counting(), Counting()) is None
    assert describe_difference({"x": 1.0}, {"x": torch.ones(2)}) == (
        "x is a float in the checkpoint and (2,) float32 in this model"
    )
