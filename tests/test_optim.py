"""Optimizers: what decays, what is frozen, and that the updates are the published ones."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_lm.guard import check_optimizer
from course_lm.lr_finder import find_lr
from course_lm.optim import (
    OPTIMIZERS,
    OptimizerConfig,
    build_optimizer,
    parameter_groups,
    state_bytes,
)
from course_lm.schedules import ScheduleLR
from course_lm.step import train_step
from tests.refusals import refusal


class TinyLanguageModel(nn.Module):
    """An embedding, a norm, a linear layer with bias and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.linear(self.norm(self.embedding(input_ids))))


def names_by_decay(model: nn.Module, weight_decay: float) -> dict[float, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, weight_decay)
    return {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in groups}


def one_weight(value: float, *, matrix: bool = True) -> nn.Module:
    """A float64 model with a single weight, as a 1-by-1 matrix or a vector of one."""
    model = nn.Module()
    shape = (1, 1) if matrix else (1,)
    model.weight = nn.Parameter(torch.full(shape, value, dtype=torch.float64))
    return model


def weights_after(model: nn.Module, config: OptimizerConfig, gradients: list[float]) -> list[float]:
    """The single weight after each step, for the given gradients."""
    optimizer = build_optimizer(model, config)
    (weight,) = model.parameters()
    values = []
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        values.append(weight.item())
    return values


def train_a_little(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        input_ids = torch.randint(0, 7, (3, 5), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(input_ids).flatten(0, 1), input_ids.flatten()).backward()
        optimizer.step()


def test_matrices_decay_and_biases_and_norm_gains_do_not():
    assert names_by_decay(TinyLanguageModel(), 0.1) == {
        0.1: {"embedding.weight", "linear.weight"},
        0.0: {"norm.weight", "norm.bias", "linear.bias"},
    }


@settings(max_examples=30)
@given(st.sets(st.integers(0, 4), max_size=4))
def test_exactly_the_trainable_parameters_are_grouped(frozen):
    model = TinyLanguageModel()
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index not in frozen)
    groups = parameter_groups(model, 0.1)
    assert all(group["params"] for group in groups)
    grouped = [id(p) for group in groups for p in group["params"]]  # the tied weight once, as in `parameters`
    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_a_model_with_nothing_to_train_is_refused():
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match=r"the model \(Linear\) has no trainable parameter"):
        build_optimizer(model, OptimizerConfig())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_without_gradient_signal_a_matrix_shrinks_and_a_vector_never_does(kind):
    config = OptimizerConfig(type=kind, learning_rate=0.1, weight_decay=0.5)
    first, second = weights_after(one_weight(2.0), config, [0.0, 0.0])
    assert 0 < second < first < 2.0
    assert weights_after(one_weight(2.0, matrix=False), config, [0.0, 0.0]) == [2.0, 2.0]


def test_parameters_without_a_fused_kernel_get_the_plain_update():
    optimizer = build_optimizer(nn.Linear(3, 2, device="meta"), OptimizerConfig())
    assert optimizer.defaults["fused"] is False


@pytest.mark.parametrize(
    ("kind", "momentum", "tensors"),
    [("sgd", 0.0, 0), ("sgd", 0.9, 1), ("adam", 0.9, 2), ("adamw", 0.9, 2)],
)
def test_the_state_is_as_many_copies_of_the_weights_as_the_rule_has_moments(kind, momentum, tensors):
    model = TinyLanguageModel()
    optimizer = build_optimizer(model, OptimizerConfig(type=kind, momentum=momentum))
    train_a_little(optimizer, model, steps=2)
    weights = list(model.parameters())
    assert state_bytes(build_optimizer(model, OptimizerConfig(type=kind, momentum=momentum))) == 0  # before a step
    counters = 4 * len(weights) if kind != "sgd" else 0
    assert state_bytes(optimizer) == tensors * sum(weight.nbytes for weight in weights) + counters


VIEWS = {
    "every second column": lambda: torch.randn(4, 6)[:, ::2],
    "rows that overlap": lambda: torch.randn(9).as_strided((4, 3), (2, 1)),
    "columns with holes": lambda: torch.randn(3, 8).as_strided((4, 3), (2, 8)),
}
EXPANDED = {
    "one row for all": lambda: torch.randn(3).expand(4, 3),
    "one number for all": lambda: torch.randn(()).expand(4, 3),
}
DENSE = {
    "transposed": lambda: torch.randn(3, 4).T,
    "flat": lambda: torch.randn(4, 3),
    "one row": lambda: torch.randn(1, 3),
}


class Weight(nn.Module):
    """Logits (B, T, 4) from a weight of any layout, which is trained, and an embedding, which is not."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3).requires_grad_(False)
        self.weight = nn.Parameter(weight)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.embedding(input_ids) @ self.weight.T


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("name", ["every second column", "columns with holes", "transposed", "flat"])
def test_a_weight_of_any_layout_gets_the_updates_of_its_copy_in_a_row(name, kind):
    torch.manual_seed(0)
    model = Weight((VIEWS | DENSE)[name]())
    other = copy.deepcopy(model)
    other.weight = nn.Parameter(model.weight.detach().contiguous().clone())
    ids = torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0]])
    for one in (model, other):
        optimizer = build_optimizer(one, OptimizerConfig(type=kind))
        for _ in range(3):
            train_step(one, [{"input_ids": ids, "labels": ids}], optimizer, lr=0.1)
    torch.testing.assert_close(model.weight, other.weight)


@pytest.mark.parametrize("name", VIEWS)
def test_a_fused_optimizer_over_a_weight_that_is_no_dense_block_is_refused(name):
    model = Weight(VIEWS[name]())
    assert not build_optimizer(model, OptimizerConfig()).param_groups[0]["fused"]
    message = (
        "fused=False unless a weight and its moments are dense blocks of memory in one order, got a fused Adam for"
    )
    with pytest.raises(ValueError, match=message):
        check_optimizer(torch.optim.Adam([model.weight], fused=True), model)


@pytest.mark.parametrize("layout", ["columns", "with holes"])
def test_a_fused_optimizer_over_moments_in_another_order_is_refused(layout):
    model = Weight(DENSE["flat"]())
    optimizer = torch.optim.Adam([model.weight], fused=True)
    model(torch.tensor([[0, 1]])).sum().backward()
    optimizer.step()
    check_optimizer(optimizer, model)
    moments = optimizer.state[model.weight]["exp_avg"]
    other = moments.T.contiguous().T if layout == "columns" else torch.stack([moments, moments], dim=-1)[..., 0]
    optimizer.state[model.weight]["exp_avg"] = other
    again = torch.optim.Adam([model.weight], fused=True)
    again.state = optimizer.state
    with pytest.raises(ValueError, match="fused=False unless a weight and its moments are dense"):
        check_optimizer(again, model)


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("name", EXPANDED)
def test_a_weight_with_several_numbers_in_one_place_is_refused(name, frozen):
    model = Weight(EXPANDED[name]())
    model.weight.requires_grad_(not frozen)
    model.embedding.requires_grad_(frozen)
    for foreach in (False, True):
        with pytest.raises(ValueError, match=r"a place in memory for each of its numbers, got weight with strides \("):
            check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach), model)


SHARED: dict[str, Callable[[Tensor], Tensor]] = {
    "the same": lambda weight: weight.detach(),
    "transposed": lambda weight: weight.detach().T,
    "without its first row": lambda weight: weight.detach()[1:],
    "every second column": lambda weight: weight.detach()[:, 1::2],
}


@pytest.mark.parametrize("name", SHARED)
def test_two_trained_weights_in_one_memory_are_refused_unless_they_are_one(name):
    first, second = nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)
    second.weight = nn.Parameter(SHARED[name](first.weight))
    model = nn.Sequential(first, second)
    with pytest.raises(ValueError, match=r"must not share memory, got [01]\.weight and [01]\.weight"):
        check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    first.requires_grad_(False)  # it follows the other one, as it does in any loop
    check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    second.weight = first.requires_grad_().weight
    check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)


def test_weights_that_lie_side_by_side_in_one_memory_are_taken():
    block = torch.randn(4, 6)
    model = nn.ParameterList([block[:2, :3], block[:2, 3:], block[2], block[3, 3:], torch.empty(0), torch.empty(0, 2)])
    check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_weight_in_any_order_is_fused(name):
    model = Weight(DENSE[name]())
    optimizer = build_optimizer(model, OptimizerConfig())
    assert optimizer.param_groups[0]["fused"]
    check_optimizer(optimizer, model)


# The ratios between the rates of parameter groups are kept

BATCH = {"input_ids": torch.tensor([[0, 1, 2], [3, 4, 5]]), "labels": torch.tensor([[0, 1, 2], [3, 4, 5]])}


def groups_of(model: nn.Module, *options: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[index :: len(options)], **option} for index, option in enumerate(options)]


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("now", [[0.0, 0.1], [0.1, 0.05], [0.3, 0.1]])
def test_equal_rates_that_are_changed_by_hand_between_steps_are_refused(now):
    """They were taken for the ratios of the groups: one that was set to 0 once was frozen for ever."""
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(groups_of(model, {}, {}), lr=0.1)
    train_step(model, [BATCH], optimizer, lr=0.1)
    for group, rate in zip(optimizer.param_groups, now):
        group["lr"] = rate
    said = refusal(ValueError, lambda: train_step(model, [BATCH], optimizer, lr=0.1))
    assert f"have the rates {now} now" in said and "lr_scale" in said
    for group in optimizer.param_groups:
        group["lr_scale"] = group["lr"] / max(now)
    train_step(model, [BATCH], optimizer, lr=0.1)
    assert rates_of(optimizer) == pytest.approx([0.1 * rate / max(now) for rate in now])


def test_rates_may_be_set_by_hand_after_a_sweep():
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(groups_of(model, {}, {}), lr=0.1)
    find_lr(model, [BATCH], optimizer, num_iter=5)
    optimizer.param_groups[0]["lr"] = 0.05
    train_step(model, [BATCH], optimizer, lr=0.2)
    assert rates_of(optimizer) == [0.1, 0.2]


some_rates = st.lists(st.sampled_from([0.0, 1e-5, 1e-4, 3e-4, 1e-3, 0.5]), min_size=2, max_size=3).filter(any)
run_rates = st.lists(st.sampled_from([0.0, 1e-3, 0.2]), min_size=1, max_size=4)


@settings(max_examples=40)
@given(some_rates, run_rates, st.booleans())
def test_train_step_keeps_the_ratios_of_any_rates_through_any_rates_of_the_run(rates, of_run, resumed):
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(groups_of(model, *({"lr": rate} for rate in rates)))
    for lr in of_run:
        train_step(model, [BATCH], optimizer, lr=lr)
        assert rates_of(optimizer) == pytest.approx([lr * rate / max(rates) for rate in rates], rel=1e-12)
        if resumed:
            saved, optimizer = optimizer.state_dict(), torch.optim.SGD(groups_of(model, *({"lr": 1.0} for _ in rates)))
            optimizer.load_state_dict(saved)


@settings(max_examples=20)
@given(some_rates, run_rates)
def test_a_scheduler_of_the_course_and_the_range_test_keep_them_as_train_step_does(rates, of_run):
    built = [TinyLanguageModel() for _ in range(3)]
    optimizers = [torch.optim.SGD(groups_of(model, *({"lr": rate} for rate in rates))) for model in built]
    scheduler = ScheduleLR(optimizers[0], lambda k: ([*of_run, 0.1])[k])
    for lr in of_run:
        assert rates_of(optimizers[0]) == pytest.approx([lr * rate / max(rates) for rate in rates], rel=1e-12)
        optimizers[0].step()
        scheduler.step()
    seen: list[list[float]] = []
    handle = optimizers[1].register_step_pre_hook(lambda optimizer, *_: seen.append(rates_of(optimizer)))
    result = find_lr(built[1], [BATCH], optimizers[1], start_lr=1e-4, end_lr=0.1, num_iter=3)
    handle.remove()
    for lr, found in zip(result.lrs, seen, strict=True):
        train_step(built[2], [BATCH], optimizers[2], lr=lr)
        assert found == pytest.approx(rates_of(optimizers[2]), rel=1e-12)


def test_the_rates_that_a_scheduler_noted_decide_where_its_warm_up_has_set_all_to_zero():
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(groups_of(model, {"lr": 1e-3}, {"lr": 1e-4}))
    LambdaLR(optimizer, lambda step: 0.0)
    assert rates_of(optimizer) == [0, 0]
    train_step(model, [BATCH], optimizer, lr=1.0)
    assert rates_of(optimizer) == pytest.approx([1, 0.1])


@pytest.mark.parametrize(
    "options",
    [
        [{"lr": 1e-3, "lr_scale": 1.0}, {"lr": 1e-4}],
        [{"lr": 1e-3}, {"lr": 1e-4}, {"lr": 1e-3, "lr_scale": 0.1}],
    ],
)
@pytest.mark.parametrize("drive", [lambda *run: train_step(*run, lr=0.1), lambda m, b, o: find_lr(m, b, o)])
def test_a_scale_and_rates_that_contradict_each_other_are_refused(options, drive):
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(groups_of(model, *options))
    assert "give every group an lr_scale, or none" in refusal(ValueError, lambda: drive(model, [BATCH], optimizer))


@pytest.mark.parametrize("scale", [math.nan, -1.0, math.inf, "half", True])
def test_a_scale_that_is_no_factor_is_refused(scale):
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(groups_of(model, {"lr_scale": scale}), lr=0.1)
    message = refusal((ValueError, TypeError), lambda: train_step(model, [BATCH], optimizer, lr=0.1))
    assert f"lr_scale must be a finite number of at least 0, got {scale!r}" == message


def test_groups_that_share_one_tensor_as_their_rate_get_rates_of_their_own():
    model, shared = TinyLanguageModel(), torch.tensor(1.0)
    optimizer = torch.optim.Adam(groups_of(model, {"lr_scale": 1.0}, {"lr_scale": 0.5}), lr=shared)
    train_step(model, [BATCH], optimizer, lr=0.1)
    tensors = [group["lr"] for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx([0.1, 0.05]) and tensors[0] is shared
    train_step(model, [BATCH], optimizer, lr=0.2)
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors))


@pytest.mark.parametrize("lr", [np.float64(0.25), np.float32(0.25), np.array(0.25), torch.tensor(0.25)])
def test_a_rate_from_numpy_or_torch_becomes_a_plain_number(lr):
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train_step(model, [BATCH], optimizer, lr=lr)
    assert type(optimizer.param_groups[0]["lr"]) is float and rates_of(optimizer) == [0.25]


@pytest.mark.parametrize("lr", [math.nan, math.inf, -math.inf, -0.1, "0.1", True, 1j, [0.1], np.array([0.1])])
@pytest.mark.parametrize("window", [[BATCH], []])
def test_a_rate_that_is_no_rate_is_refused_before_anything_changes(lr, window):
    model = TinyLanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    before = copy.deepcopy(model.state_dict())
    message = refusal((ValueError, TypeError), lambda: train_step(model, window, optimizer, lr=lr))
    assert message == f"lr must be a finite number of at least 0, got {lr!r}"
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert rates_of(optimizer) == [0.5]


@pytest.mark.parametrize("bad", [math.nan, torch.tensor(math.nan), -1.0])
def test_a_bad_rate_that_stands_in_the_optimizer_is_refused_too(bad):
    model = TinyLanguageModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.param_groups[0]["lr"] = bad
    assert "rate of a parameter group" in refusal(ValueError, lambda: train_step(model, [BATCH], optimizer))
