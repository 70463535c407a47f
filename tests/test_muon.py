"""Muon beside AdamW: which weights each of them takes, and that every update is that of torch's two optimizers."""

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from course_lm import muon
from course_lm.model import GPT, ModelConfig
from course_lm.muon import MuonWithAdamW, hidden_matrices, orthogonalised
from course_lm.optim import OptimizerConfig, build_optimizer, muon_groups, state_bytes
from tests.training_run import assert_same

CONFIG = OptimizerConfig(type="muon", learning_rate=0.02, momentum=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1)
NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315  # Jordan et al. 2024


class Untied(nn.Module):
    """An embedding, two layers in a list, a projection, and a head with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(9, 4), nn.Parameter(torch.zeros(5, 4))
        self.layers = nn.ModuleList([nn.Linear(4, 9), nn.Linear(9, 4)])
        self.narrow, self.norm = nn.Linear(4, 3, bias=False), nn.LayerNorm(4)
        self.head = nn.Linear(4, 9, bias=False)


def gpt(vocab_size: int = 64, dtype: torch.dtype = torch.float64) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=2, n_head=2, d_model=8, dropout=0.0), vocab_size, 12).to(dtype)


def names_for_muon(model: nn.Module) -> list[str]:
    chosen = {id(parameter) for parameter in hidden_matrices(model)}
    return [name for name, parameter in model.named_parameters() if id(parameter) in chosen]


def give_gradients(model: nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for seed in range(first, first + steps):
        give_gradients(model, seed)
        optimizer.step()


# Which weights go where


@pytest.mark.parametrize("vocab_size", [64, 32, 24, 12], ids="vocabulary of {}".format)
def test_the_matrices_of_our_blocks_are_hidden_whatever_their_rows_and_the_tied_head_is_not(vocab_size):
    parts = ("attention.qkv", "attention.out", "up", "down")  # up has 32 rows, attention.qkv 24
    assert names_for_muon(gpt(vocab_size)) == [f"blocks.{layer}.{part}.weight" for layer in (0, 1) for part in parts]


def test_a_head_with_weights_of_its_own_is_not_hidden_and_neither_is_a_table_of_positions():
    assert names_for_muon(Untied()) == ["layers.0.weight", "layers.1.weight", "narrow.weight"]


def test_a_head_in_the_list_that_is_tied_to_the_embedding_is_not_hidden():
    model = Untied()
    model.layers[0].weight = model.tokens.weight
    assert names_for_muon(model) == ["layers.1.weight", "narrow.weight"]


@pytest.mark.parametrize("tied", [True, False])
def test_of_models_of_hugging_face_the_layers_are_hidden(tied):
    sizes: dict[str, Any] = {"vocab_size": 32, "tie_word_embeddings": tied}
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=16, **sizes))
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=32, num_hidden_layers=1, **heads, **sizes))
    for model, layers in ((gpt2, "transformer.h."), (llama, "model.layers.")):
        expected = [name for name, part in model.named_parameters() if name.startswith(layers) and part.ndim == 2]
        assert names_for_muon(model) == expected != []


def test_every_trainable_weight_is_in_one_group_and_only_matrices_decay():
    model = gpt()
    model.get_parameter("blocks.0.up.weight").requires_grad_(False)
    groups = muon_groups(model, 0.1)
    assert [(group["use_muon"], group["weight_decay"]) for group in groups] == [(True, 0.1), (False, 0.1), (False, 0.0)]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)
    assert all((parameter.ndim > 1) == bool(group["weight_decay"]) for group in groups for parameter in group["params"])


# The update


def test_with_bf16_hardware_the_weights_are_those_of_torchs_two_optimizers_run_apart(monkeypatch):
    monkeypatch.setattr(muon, "fast_bf16", lambda device: True)
    model, other = gpt(dtype=torch.float32), gpt(dtype=torch.float32)
    stepped(model, build_optimizer(model, CONFIG), 5)
    hidden = hidden_matrices(other)
    ids = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in other.parameters() if id(parameter) not in ids]
    for_hidden = torch.optim.Muon(hidden, lr=0.02, weight_decay=0.1, momentum=0.8, adjust_lr_fn="match_rms_adamw")
    groups = [
        {"params": [parameter for parameter in rest if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in rest if parameter.ndim == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.9), eps=1e-3, fused=True)
    for seed in range(5):
        give_gradients(other, seed)
        for_hidden.step()
        adamw.step()
    assert_same(dict(model.state_dict()), dict(other.state_dict()))


@pytest.mark.parametrize("fast", [True, False])
def test_float32_is_iterated_in_bfloat16_only_where_the_hardware_multiplies_it(fast, monkeypatch):
    monkeypatch.setattr(muon, "fast_bf16", lambda device: fast)
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert orthogonalised(matrix, NEWTON_SCHULZ, 5, 1e-7).dtype == (torch.bfloat16 if fast else torch.float32)
    assert orthogonalised(matrix.double(), NEWTON_SCHULZ, 5, 1e-7).dtype == torch.float64


@settings(max_examples=30)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 99))
def test_all_singular_values_of_an_update_are_about_one(rows, columns, seed):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assume(float(torch.linalg.svdvals(matrix).min()) > 0.05 * float(matrix.norm()))  # of tiny ones five steps are few
    values = torch.linalg.svdvals(orthogonalised(matrix, NEWTON_SCHULZ, 5, 1e-7))
    assert float(values.min()) > 0.6 and float(values.max()) < 1.25


def test_the_state_is_one_copy_of_the_hidden_weights_and_two_of_the_others_with_their_counters():
    model = gpt(dtype=torch.float32)
    optimizer = build_optimizer(model, CONFIG)
    assert state_bytes(optimizer) == 0
    stepped(model, optimizer, 2)
    hidden = sum(parameter.nbytes for parameter in hidden_matrices(model))
    rest = [parameter for parameter in model.parameters() if "momentum_buffer" not in optimizer.state[parameter]]
    assert state_bytes(optimizer) == hidden + sum(2 * parameter.nbytes + 4 for parameter in rest)


# As any other optimizer


def test_a_hook_on_steps_is_told_of_one_optimizer():
    model, told = gpt(), []
    optimizer = build_optimizer(model, CONFIG)
    handle = register_optimizer_step_pre_hook(lambda which, *_: told.append(which))
    stepped(model, optimizer, 1)
    handle.remove()
    assert len(told) == 1 and told[0] is optimizer


def test_a_closure_is_called_once_with_gradients():
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, CONFIG)

    def closure() -> Tensor:
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    loss: Any = optimizer.step(closure)  # type: ignore[call-overload]
    assert float(loss.detach()) > 0
    assert model.weight.grad is not None


def test_a_group_that_is_added_later_is_for_adamw_unless_it_says_otherwise():
    model = Untied()
    optimizer = MuonWithAdamW([{"params": [model.layers[0].weight], "use_muon": True}], lr=0.1)
    optimizer.add_param_group({"params": [model.norm.weight]})
    stepped(model, optimizer, 1)
    assert set(optimizer.state[model.norm.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optimizer.add_param_group({"params": [model.norm.bias], "use_muon": True})


def test_a_copy_of_the_optimizer_takes_groups_too():
    model = Untied()
    optimizer = MuonWithAdamW([{"params": [model.layers[0].weight], "use_muon": True}], lr=0.1, momentum=0.5)
    for one in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        one.add_param_group({"params": [model.layers[1].weight], "use_muon": True})
        assert one.param_groups[1]["momentum"] == 0.5


def test_groups_that_do_not_say_what_muon_is_for_are_refused():
    for groups in (Untied().parameters(), [{"params": [*Untied().parameters()], "use_muno": True}]):
        with pytest.raises(ValueError, match='groups must say by "use_muon"'):
            MuonWithAdamW(groups, lr=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_the_update_of_a_complex_matrix_is_about_unitary(shape):
    matrix = torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    update = orthogonalised(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    assert torch.linalg.svdvals(update).sub(1).abs().max() < 0.35
