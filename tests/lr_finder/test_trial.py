"""A trial leaves no trace: weights, moments, gradients, modes, random state and the place in the data."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from course_lm.batching import make_loader
from course_lm.lr_finder.trial import restored
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.tokenizer import train_tokenizer
from tests.batching.test_data import Shelf

OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "muon")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "far", "away", "from", "us"]
DOCUMENTS = [" ".join(WORDS[k % 7 : 8 + k % 7]) for k in range(12)]


class Restless(nn.Module):
    """Has everything that training changes: batch statistics, a buffer that is replaced, one that appears."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)
        self.register_buffer("last", x)
        return self.second(nn.functional.dropout(self.norm(self.first(x)), 0.5, self.training))


def make(optimizer: str = "adamw", steps: int = 2) -> tuple[Restless, Optimizer]:
    torch.manual_seed(0)
    model = Restless()
    built = build_optimizer(model, OptimizerConfig(type=optimizer, learning_rate=0.1))
    train(model, built, steps)
    return model, built


def train(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> None:
    """Steps that leave gradients behind, and a draw from each global generator."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        random.random()
        np.random.standard_normal()


def everything(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """All that a trial could change, down to the bits."""
    parts = {
        "weights": dict(model.named_parameters()),
        "buffers": dict(model.named_buffers()),
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
        "trainable": [parameter.requires_grad for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "optimizer": optimizer.state_dict(),
        "attributes": sorted(vars(optimizer)),
        "random": [random.getstate(), str(np.random.get_state()), torch.get_rng_state()],
    }
    return {name: plain(part) for name, part in parts.items()}


def plain(value: Any) -> Any:
    """A copy whose tensors are bytes: there NaN equals itself, and -0 is not 0."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert [name for name in expected if actual[name] != expected[name]] == []


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "used"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_everything_is_as_it_was(kind, steps):
    model, optimizer = make(kind, steps)
    before = everything(model, optimizer)
    with restored(model, optimizer, []):
        train(model, optimizer)
        changed = everything(model, optimizer)
        assert all(changed[part] != before[part] for part in ("weights", "buffers", "gradients", "optimizer", "random"))
    assert_same(everything(model, optimizer), before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, FloatingPointError])
def test_an_error_or_an_interrupt_in_the_middle_is_undone_and_passed_on(error):
    model, optimizer = make()
    before = everything(model, optimizer)
    with pytest.raises(error), restored(model, optimizer, []):
        train(model, optimizer)
        model(torch.ones(2, 3)).sum().backward()
        raise error
    assert_same(everything(model, optimizer), before)


def test_gradients_are_kept_or_absent_as_they_were_and_no_old_one_is_seen_inside():
    model, optimizer = make()
    kept = model.first.weight.grad
    assert kept is not None
    values = kept.clone()
    model.second.weight.grad = None
    with restored(model, optimizer, []):
        assert all(parameter.grad is None for parameter in model.parameters())
        model(torch.ones(2, 3)).sum().backward()
    assert model.second.weight.grad is None
    assert model.first.weight.grad is kept and torch.equal(kept, values)


def test_moments_and_groups_are_the_very_objects_that_they_were():
    model, optimizer = make()
    moment, group = optimizer.state[model.first.weight]["exp_avg"], optimizer.param_groups[0]
    values = moment.clone()
    with restored(model, optimizer, []):
        train(model, optimizer)
        optimizer.param_groups[0]["lr"] = 7.0
    assert optimizer.state[model.first.weight]["exp_avg"] is moment and torch.equal(moment, values)
    assert optimizer.param_groups[0] is group and group["lr"] == 0.1


def test_a_learning_rate_that_is_a_tensor_keeps_its_value():
    model = Restless()
    optimizer = AdamW(model.parameters(), lr=torch.tensor(0.1))
    lr = optimizer.param_groups[0]["lr"]
    with restored(model, optimizer, []):
        optimizer.param_groups[0]["lr"].fill_(9.0)
    assert optimizer.param_groups[0]["lr"] is lr and lr == torch.tensor(0.1)


def test_modes_and_requires_grad_are_those_of_each_module():
    model, optimizer = make()
    model.norm.eval()
    model.first.bias.requires_grad_(False)
    before = everything(model, optimizer)
    with restored(model, optimizer, []):
        model.eval()
        model.first.train()
        model.first.requires_grad_(True)
        model.second.requires_grad_(False)
    assert_same(everything(model, optimizer), before)


def test_a_weight_that_only_the_optimizer_knows_comes_back():
    model, temperature = nn.Linear(3, 1), nn.Parameter(torch.tensor([2.0]))
    optimizer = SGD([*model.parameters(), temperature], lr=0.1)
    with restored(model, optimizer, []):
        (model(torch.ones(1, 3)) * temperature).sum().backward()
        optimizer.step()
        assert temperature != 2
    assert temperature == 2 and temperature.grad is None


def test_a_scheduler_made_inside_leaves_no_mark():
    model, optimizer = make()
    before = everything(model, optimizer)
    with restored(model, optimizer, []):
        LambdaLR(optimizer, lambda step: 0.5)
        assert "initial_lr" in optimizer.param_groups[0] and "step" in vars(optimizer)
    assert_same(everything(model, optimizer), before)


# The place in the data


def ids_of(batches: Any) -> list[list]:
    return [batch["input_ids"].tolist() for batch in batches]


def course_loader() -> Any:
    return make_loader(DOCUMENTS, train_tokenizer(DOCUMENTS, 270), mode="dynamic", batch_size=3, max_length=16)


def test_a_running_pass_over_the_course_loader_goes_on():
    model, optimizer = make()
    loader, expected = course_loader(), ids_of(course_loader())
    running = iter(loader)
    first = next(running)
    with restored(model, optimizer, loader) as reader:
        reader.set_epoch(3)  # type: ignore[attr-defined]
        assert len(ids_of(reader)) == len(expected)
        assert loader.state_dict() == {"epoch": 0, "batch": 1}
    assert loader.state_dict() == {"epoch": 0, "batch": 1}
    assert ids_of([first, *running]) == expected
    assert ids_of(loader) == expected


def test_a_loaded_position_is_where_the_reader_starts_and_stays():
    model, optimizer = make()
    loader = course_loader()
    loader.load_state_dict({"epoch": 1, "batch": 2})
    with restored(model, optimizer, loader) as reader:
        seen = ids_of(reader)
    assert seen == ids_of(loader)


def test_the_place_of_a_foreign_loader_is_set_back():
    model, optimizer = make()
    shelf = Shelf()
    assert next(iter(shelf)) == 1
    with restored(model, optimizer, shelf) as reader:
        assert next(iter(reader)) == 2
    assert next(iter(shelf)) == 2
