"""Claims about weights and moments that are loaded: they go on bit for bit, or are refused and leave no trace."""

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_lm.checkpoints import (
    load_checkpoint,
    load_optimizer,
    load_weights,
    optimizer_state,
    save_checkpoint,
    undone_on_error,
)
from course_lm.muon import MuonWithAdamW
from tests.refusals import refused
from tests.training_run import assert_same

# Weights


class Stubborn(nn.Linear):
    """Takes its weights, and then fails."""

    def get_extra_state(self) -> Any:
        return {"count": getattr(self, "count", 0)}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]
        if self.count == 13:
            raise RuntimeError("thirteen\nis too many")


def test_weights_that_the_model_fails_to_take_half_way_leave_it_as_it_was():
    model, other = (nn.Sequential(Stubborn(2, 2), nn.Linear(2, 2)) for _ in range(2))
    weights = {**other.state_dict(), "0._extra_state": {"count": 13}}
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="weights: RuntimeError: thirteen is too many"):
        load_weights(model, weights)
    assert_same(dict(model.state_dict()), dict(before))


@pytest.mark.parametrize("change", [lambda t: t.to("meta"), lambda t: t.to_sparse()])
def test_weights_without_numbers_for_every_place_are_refused(change):
    weights = nn.Linear(2, 2).state_dict()
    weights["weight"] = change(weights["weight"])
    model = nn.Linear(2, 2)
    before = copy.deepcopy(model.state_dict())
    with refused(ValueError, "the model does not take the checkpoint's weights"):
        load_weights(model, weights)
    assert_same(dict(model.state_dict()), dict(before))


def test_weights_of_any_strides_are_taken():
    weights = {"weight": torch.ones(1, 2).expand(2, 2), "bias": torch.arange(4.0)[::2]}
    model = nn.Linear(2, 2)
    load_weights(model, weights)
    assert all(torch.equal(part, weights[name]) for name, part in model.state_dict().items())
    assert model.weight.stride() == (2, 1)


@pytest.mark.parametrize("tied", [lambda weight: weight, lambda weight: nn.Parameter(weight.detach())])
def test_two_weights_that_are_one_in_this_model_must_be_equal(tied):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    weights = copy.deepcopy(model.state_dict())
    model[1].weight = tied(model[0].weight)
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight are one tensor in this model"):
        load_weights(model, weights)
    load_weights(model, {**weights, "1.weight": weights["0.weight"].clone()})
    assert all(torch.equal(part, weights["0.weight"]) for part in model.state_dict().values())


class Expanded(nn.Module):
    """Its buffer is one number that stands for four."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(1).expand(4))


def test_an_expanded_buffer_is_loaded():
    model = Expanded()
    load_weights(model, {"b": torch.arange(4.0)})
    assert torch.equal(model.b, torch.arange(4.0))


def test_an_expanded_buffer_is_put_back():
    model = Expanded()
    before = model.b
    with pytest.raises(KeyboardInterrupt), undone_on_error("", model):
        load_weights(model, {"b": torch.ones(4)})
        raise KeyboardInterrupt
    assert model.b is before


# Optimizers

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda groups: torch.optim.Adam(groups, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups),
    "adamw foreach": lambda groups: torch.optim.AdamW(groups, foreach=True),
    "adamw with its rate in a tensor": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(1e-3)),
    "adamw fused": lambda groups: torch.optim.AdamW(groups, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "sgd without momentum": lambda groups: torch.optim.SGD(groups),
    "sgd fused": lambda groups: torch.optim.SGD(groups, momentum=0.9, fused=True),
    "adafactor": lambda groups: torch.optim.Adafactor(groups),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups),
    "nadam": lambda groups: torch.optim.NAdam(groups),
    "radam": lambda groups: torch.optim.RAdam(groups),
    "adamax": lambda groups: torch.optim.Adamax(groups),
    "adadelta": lambda groups: torch.optim.Adadelta(groups),
    "asgd": lambda groups: torch.optim.ASGD(groups),
    "rprop": lambda groups: torch.optim.Rprop(groups),
    "muon": lambda groups: torch.optim.Muon(groups),
    "muon before adamw": lambda groups: MuonWithAdamW([{**groups[0], "use_muon": True}, groups[1]], fused=True),
    "muon after adamw": lambda groups: MuonWithAdamW([groups[0], {**groups[1], "use_muon": True}], fused=True),
}


class Net(nn.Module):
    def __init__(self, vectors: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, bias=vectors), nn.Linear(4, 3, bias=vectors)
        self.third = nn.Linear(3, 4, bias=False)


def trained(name: str, steps: int = 2, seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = Net(vectors="muon" not in name)
    parameters = list(net.parameters())
    optimizer = OPTIMIZERS[name]([{"params": parameters[:2]}, {"params": parameters[2:]}])
    step(net, optimizer, steps)
    return net, optimizer


def step(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    draw = torch.Generator().manual_seed(5)
    for _ in range(steps):
        for parameter in net.parameters():
            gradient = torch.randn(parameter.shape, generator=draw)
            parameter.grad = torch.empty_like(parameter).copy_(gradient)  # in its strides, as autograd makes it
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_bit_for_bit(tmp_path, name):
    net, optimizer = trained(name)
    save_checkpoint(tmp_path / "a.safetensors", {"net": net.state_dict(), "optimizer": optimizer_state(optimizer, net)})
    state = load_checkpoint(tmp_path / "a.safetensors")
    again, its = trained(name, steps=0, seed=1)
    load_weights(again, state["net"])
    load_optimizer(state["optimizer"], its, again)
    assert_same(its.state_dict(), optimizer.state_dict())
    for one, other in ((net, optimizer), (again, its)):
        step(one, other, 2)
    assert_same(dict(again.state_dict()), dict(net.state_dict()))
    assert_same(its.state_dict(), optimizer.state_dict())


BAD_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda t: torch.zeros(*t.shape, 2, dtype=t.dtype),
    "fewer": lambda t: torch.zeros(0, dtype=t.dtype),
    "dtype": lambda t: t.double(),
    "half": lambda t: t.half(),
    "complex": lambda t: t.to(torch.complex64),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "number": lambda t: 1.0,
    "none": lambda t: None,
    "list": lambda t: t.tolist(),
}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sgd without momentum"])
def test_no_optimizer_takes_a_tensor_that_it_would_not_make(name):
    net, optimizer = trained(name)
    saved = optimizer_state(optimizer, net)
    for parameter in list(saved["state"])[:2]:  # a matrix and a vector
        values = saved["state"][parameter]
        for key, value in values.items():
            for kind, change in BAD_TENSORS.items():
                bad = {**saved, "state": {**saved["state"], parameter: {**values, key: change(value)}}}
                match = "Error" if kind in ("meta", "sparse") else rf"{key} of {parameter} is .* in the checkpoint and"
                assert_state_refused(bad, optimizer, net, match, f"{key} {kind}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_takes_a_state_of_another_form(name):
    net, optimizer = trained(name)
    saved = optimizer_state(optimizer, net)
    parameter, values = next(iter(saved["state"].items()))
    others = {key: value for key, value in saved["state"].items() if key != parameter}
    cases = {
        f"the checkpoint has no state of {parameter}": {**saved, "state": others},
        "this run has no state of ghost": {**saved, "state": {**saved["state"], "ghost": {}}},
        "the optimizer is Other in the checkpoint": {**saved, "type": "Other"},
        "the checkpoint has no .* of group 1 and": {**saved, "groups": saved["groups"][:1]},
        f"this run has no new of {parameter}": {
            **saved,
            "state": {**others, parameter: {**values, "new": torch.zeros(())}},
        },
        "this is no state: TypeError": [1],
        "is in group 1 in the checkpoint and in group 0|use_muon of group 0": {
            **saved,
            "groups": saved["groups"][::-1],
        },
        "this run has no lr_scale of group 0": {
            **saved,
            "groups": [{**saved["groups"][0], "lr_scale": 0.5}, *saved["groups"][1:]],
        },
        "this is no state: TypeError: float": {
            **saved,
            "groups": [{**saved["groups"][0], "lr": None}, *saved["groups"][1:]],
        },
    }
    for match, bad in cases.items():
        assert_state_refused(bad, optimizer, net, match, match)


def assert_state_refused(bad: Any, optimizer: torch.optim.Optimizer, net: Net, match: str, case: str) -> None:
    """In one line, and nothing is changed."""
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    try:
        with undone_on_error("this is no state", net, optimizer):
            load_optimizer(bad, optimizer, net)
    except ValueError as error:
        assert re.search(match, str(error)) and "\n" not in str(error), f"{case}: {error}"
    else:
        raise AssertionError(f"taken: {case}")
    assert_same([net.state_dict(), optimizer.state_dict()], [*before], case)


def test_moments_follow_the_names_of_their_parameters_not_their_order():
    net, optimizer = trained("adamw")
    other = Net()
    parameters = list(other.parameters())
    its = torch.optim.AdamW([{"params": parameters[1::-1]}, {"params": parameters[:1:-1]}])
    saved = optimizer_state(optimizer, net)
    load_optimizer(saved, its, other)
    for name, parameter in other.named_parameters():
        assert_same(its.state[parameter], saved["state"][name])


@pytest.mark.parametrize(("key", "value"), [("weight_decay", 0.5), ("betas", (0.9, 0.9)), ("maximize", True)])
def test_another_hyper_parameter_is_refused_with_both_values(key, value):
    net, optimizer = trained("adamw")
    saved = copy.deepcopy(optimizer_state(optimizer, net))
    saved["groups"][1][key] = value
    theirs, mine = (
        re.escape(str(list(one) if isinstance(one, tuple) else one)) for one in (value, optimizer.param_groups[1][key])
    )
    pattern = f"{key} of group 1 is {theirs} in the checkpoint and {mine} in this run$"
    assert_state_refused(saved, optimizer, net, pattern, key)


def test_another_implementation_and_another_rate_are_taken():
    net, optimizer = trained("adamw fused")
    other, its = trained("adamw", steps=0)
    optimizer.param_groups[0]["lr"] = 0.25
    saved = optimizer_state(optimizer, net)
    load_optimizer(saved, its, other)
    assert its.param_groups[0]["lr"] == 0.25 and its.param_groups[0]["fused"] is None


@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t.reshape(-1)[:1].expand(t.shape),
        lambda t: t.t().contiguous().t() if t.ndim == 2 else torch.stack([t, t], dim=-1)[..., 0],
        lambda t: nn.Parameter(t),
    ],
)
def test_moments_of_any_layout_get_memory_of_their_own(layout):
    net, optimizer = trained("adamw fused")
    saved = optimizer_state(optimizer, net)
    saved["state"] = {
        name: {key: layout(value) if value.ndim else value for key, value in values.items()}
        for name, values in saved["state"].items()
    }
    other, its = trained("adamw fused", steps=0)
    load_optimizer(saved, its, other)
    for name, parameter in other.named_parameters():
        for key, value in its.state[parameter].items():
            assert torch.equal(value, saved["state"][name][key]) and not value.requires_grad
            assert value.stride() == (parameter.stride() if value.ndim else ())
    step(other, its, 1)


def test_a_parameter_that_only_the_optimizer_knows_has_a_name_too():
    net = Net()
    own = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": list(net.parameters())}, {"params": [own]}], momentum=0.9)
    own.grad = torch.ones(2)
    optimizer.step()
    saved = copy.deepcopy(optimizer_state(optimizer, net))
    assert saved["groups"][1]["params"] == ["group 1, parameter 0"]
    load_optimizer(saved, optimizer, net)
    assert torch.equal(optimizer.state[own]["momentum_buffer"], torch.ones(2))


class Factored(torch.optim.Optimizer):
    """Not torch's: keeps a row of each matrix, and would do harm in a trial step."""

    def step(self, closure: Any = None) -> None:  # pyrefly: ignore[bad-override]  # gives no closure's loss
        for group in self.param_groups:
            for parameter in group["params"]:
                assert not parameter.is_meta, "a foreign step was tried"
                self.state[parameter] = {"row": parameter.detach().sum(-1), "count": 1}


def test_an_optimizer_of_others_is_never_tried_and_takes_what_goes_with_its_parameters():
    net = Net()
    optimizer = Factored(net.parameters(), {"lr": 0.1})
    optimizer.step()
    saved = optimizer_state(optimizer, net)
    load_optimizer(copy.deepcopy(saved), optimizer, net)
    assert_same(optimizer_state(optimizer, net), saved)
    bad = {**saved, "state": {**saved["state"], "first.weight": {"row": torch.zeros(5)}}}
    pattern = r"row of first\.weight is \(5,\) float32, which does not go with \(4, 3\) float32"
    assert_state_refused(bad, optimizer, net, pattern, "row")


class Counting(torch.optim.Optimizer):
    """Not torch's: counts the updates of all weights in one tensor, under two names."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyrefly: ignore[bad-override]  # gives no closure's loss
        for group in self.param_groups:
            for parameter in group["params"]:
                count = next(iter(self.state.values()), {"step": torch.zeros(())})["step"]
                state = self.state.setdefault(parameter, {"step": count, "updates": count})
                parameter.add_(state["step"].add_(1) + state["updates"])


def test_an_optimizer_that_keeps_one_tensor_for_several_weights_goes_on_with_one(tmp_path):
    nets = [Net(), Net()]
    one, other = [Counting(net.parameters(), {"lr": 0.1}) for net in nets]
    one.step()
    save_checkpoint(tmp_path / "x", {"model": nets[0].state_dict(), "optimizer": optimizer_state(one, nets[0])})
    saved = load_checkpoint(tmp_path / "x")
    load_weights(nets[1], saved["model"])
    load_optimizer(saved["optimizer"], other, nets[1])
    for optimizer in (one, other):
        optimizer.step()
    assert_same(dict(nets[1].state_dict()), dict(nets[0].state_dict()))


# Layouts


class Turned(nn.Module):
    """Weights that do not lie row by row in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, 16).t())
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["adam", "adamw", "adamw fused", "sgd", "rmsprop", "adafactor"])
def test_moments_come_back_in_the_strides_that_the_optimizer_gives_them(name):
    nets = [Turned(), Turned()]
    one, other = (OPTIMIZERS[name]([{"params": list(net.parameters())}]) for net in nets)
    step(nets[0], one, 2)
    load_weights(nets[1], nets[0].state_dict())
    load_optimizer(copy.deepcopy(optimizer_state(one, nets[0])), other, nets[1])

    def strides(optimizer: torch.optim.Optimizer) -> list[Any]:
        held = [optimizer.state[parameter] for parameter in optimizer.param_groups[0]["params"]]
        return [{key: value.stride() for key, value in values.items()} for values in held]

    assert strides(other) == strides(one)
    for net, optimizer in zip(nets, (one, other)):
        step(net, optimizer, 2)
    assert_same(dict(nets[1].state_dict()), dict(nets[0].state_dict()))


# What loading leaves alone


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loading_moments_moves_neither_weights_nor_gradients_and_tells_no_hook(name):
    net, optimizer = trained(name)
    saved = copy.deepcopy(optimizer_state(optimizer, net))
    again, its = trained(name, steps=0, seed=1)
    LambdaLR(its, lambda step: 1.0)
    with torch.no_grad():
        again.first.weight[0] = torch.tensor([math.nan, -0.0, math.inf])
    gradient = torch.ones_like(again.first.weight)
    again.first.weight.grad = gradient
    told: list[str] = []
    its.register_step_pre_hook(lambda *_: told.append("before"))
    its.register_step_post_hook(lambda *_: told.append("after"))
    before = [one.detach().clone() for one in again.parameters()]
    load_optimizer(saved, its, again)
    for one, value in zip(again.parameters(), before):
        assert one.detach().numpy().tobytes() == value.numpy().tobytes()
    assert again.first.weight.grad is gradient and torch.equal(gradient, torch.ones_like(gradient))
    assert again.first.bias is None or again.first.bias.grad is None
    assert told == []


def test_a_parameter_that_has_had_no_gradient_has_no_state():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    net.first.weight.grad = torch.ones_like(net.first.weight)
    optimizer.step()
    saved = copy.deepcopy(optimizer_state(optimizer, net))
    other, its = trained("adamw", steps=0)
    its = torch.optim.AdamW(other.parameters())
    step(other, its, 1)
    load_optimizer(saved, its, other)
    assert list(its.state) == [other.first.weight]


def test_a_rate_in_a_tensor_stays_where_it_is():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.5))
    step(net, optimizer, 1)
    saved = copy.deepcopy(optimizer_state(optimizer, net))
    rate = optimizer.param_groups[0]["lr"]
    rate.fill_(0.25)
    load_optimizer(saved, optimizer, net)
    assert optimizer.param_groups[0]["lr"] is rate and rate == 0.5


def test_a_fused_step_count_is_kept_by_the_kernel_that_reads_it():
    """In float64 by default torch counts in float64, and a fused kernel in float32."""
    torch.set_default_dtype(torch.float64)
    try:
        net, optimizer = trained("adamw fused")
        saved = copy.deepcopy(optimizer_state(optimizer, net))
        other, its = trained("adamw fused", steps=0)
        load_optimizer(saved, its, other)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {values["step"].dtype for values in its.state.values()} == {torch.float32}


@pytest.mark.parametrize("steps", [0, 2])
def test_what_fails_half_way_is_put_back(steps):
    net, optimizer = trained("adamw", steps=steps)
    other, its = trained("adamw", steps=3, seed=1)
    before = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    held = [dict(values) for values in optimizer.state.values()]
    refused = pytest.raises(ValueError, match=r"^no such run: KeyError: 'step'$")
    with refused, undone_on_error("no such run", net, optimizer):
        load_weights(net, other.state_dict())
        load_optimizer(optimizer_state(its, other), optimizer, net)
        step(net, optimizer, 1)
        raise KeyError("step")
    assert_same([net.state_dict(), optimizer.state_dict()], [*before])
    for now, then in zip(optimizer.state.values(), held, strict=True):
        assert all(now[key] is then[key] for key in then)
