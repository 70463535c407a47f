"""Claims about what a run keeps beside weights and moments: it goes on bit for bit, wherever that stands (C13)."""

import functools
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from course_lm.checkpoints import OwnState
from course_lm.clipping import clip_gradients
from course_lm.loss import next_token_loss
from course_lm.lr_finder import find_lr
from course_lm.schedules import ScheduleConfig
from course_lm.trainer import Trainer
from tests.training_run import assert_same, configure, loaders, model_of

VOCABULARY = 11


def batches(count: int) -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (2, 5), generator=draw) for _ in range(count)]
    return [{"input_ids": ids, "labels": ids.clone()} for ids in rows]


class Net(nn.Module):
    """A model whose layer `act` is told of what it keeps: it takes and returns (B, T, C)."""

    def __init__(self, act: Callable[[Any, Tensor], Tensor], **kept: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.act = nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY), act
        for name, value in kept.items():
            if isinstance(value, Tensor) and name == "buffer":
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.table(input_ids)
        return self.head(self.act(self, hidden) if self.training else hidden)


class Counts:
    """Counts its calls, as a part of something else, as a loss, and as a clip."""

    def __init__(self) -> None:
        self.calls, self.sum, self.clips = 0, 0.0, 0

    def count(self) -> float:
        self.calls += 1
        return 1 + self.calls / 10

    def loss(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        return next_token_loss(logits, labels, reduction=reduction) * self.count()

    def __call__(self, parameters: list[Tensor], max_norm: float) -> None:
        self.sum, self.clips = self.sum + float(clip_gradients(parameters, None)), self.clips + 1
        clip_gradients(parameters, self.sum / 2 / self.clips)


class Late(Counts):
    """Counts nothing before the third step."""

    def loss(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        self.calls += torch.equal(labels, batches(7)[-1]["labels"])
        return next_token_loss(logits, labels, reduction=reduction) * (1 + self.calls / 10)


class Weighing(nn.Module):
    """A loss with a weight, a running mean and random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.draw = nn.Parameter(torch.ones(())), torch.Generator().manual_seed(3)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        noise = torch.randn(logits.shape, generator=self.draw)
        loss = next_token_loss(logits + noise / 10, labels, reduction=reduction)
        self.mean = self.mean * 0.9 + loss.detach() / 100
        return loss * (self.weight**2 + self.mean)


class Slow(torch.optim.Optimizer):
    """Keeps what no `state_dict` has: a count, and a hyper-parameter that it changes."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 3e-3, "far": 0.0})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyrefly: ignore[bad-override]  # gives no closure's loss
        self.count += 1
        self.param_groups[0]["far"] += 1.0
        for one in self.param_groups[0]["params"]:
            one.sub_(one.grad * self.param_groups[0]["lr"] * self.param_groups[0]["far"] / self.count)


def counted(kept: Any) -> Any:
    kept.calls += 1
    return 1 + kept.calls / 10


def running(kept: Any, name: str, hidden: Tensor) -> Tensor:
    mean = getattr(kept, name) * 0.9 + hidden.detach().mean((0, 1)) / 10
    setattr(kept, name, mean)
    return hidden - mean


def of_closure() -> Any:
    calls, weight = 0, nn.Parameter(torch.ones(()))

    def loss(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return next_token_loss(logits, labels, reduction=reduction) * (weight**2 + calls)

    return loss, weight


def adamw(model: nn.Module, *others: Tensor) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": [*model.parameters()]}, {"params": [*others]}], lr=3e-3)


def weighed(made: Callable[[Weighing], Any] = lambda loss: loss) -> dict[str, Any]:
    model, loss = Net(lambda _, hidden: hidden), Weighing()
    return {"model": model, "loss_fn": made(loss), "optimizer": adamw(model, loss.weight)}


def closed() -> dict[str, Any]:
    model, (loss, weight) = Net(lambda _, hidden: hidden), of_closure()
    return {"model": model, "loss_fn": loss, "optimizer": adamw(model, weight)}


def plain(**parts: Any) -> dict[str, Any]:
    return {"model": Net(lambda _, hidden: hidden), **parts}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "count": lambda: {"model": Net(lambda kept, hidden: hidden * counted(kept), calls=0)},
    "buffer": lambda: {"model": Net(lambda kept, hidden: running(kept, "buffer", hidden), buffer=torch.zeros(4))},
    "object": lambda: {"model": Net(lambda kept, hidden: hidden * kept.other.count(), other=Counts())},
    "torch's generator": lambda: {
        "model": Net(lambda kept, x: x + torch.randn(4, generator=kept.draw), draw=torch.Generator())
    },
    "NumPy's generator": lambda: {
        "model": Net(lambda kept, x: x * float(kept.draw.normal()), draw=np.random.default_rng())
    },
    "Python's generator": lambda: {"model": Net(lambda kept, x: x * kept.draw.random(), draw=random.Random())},
    "loss": weighed,
    "loss in a partial function": lambda: weighed(lambda loss: functools.partial(loss)),
    "loss in a closure": closed,
    "loss that is a method": lambda: plain(loss_fn=Counts().loss),
    "loss that begins late": lambda: plain(loss_fn=Late().loss),
    "clip": lambda: plain(clip=Counts()),
    "optimizer": lambda: plain(model=(model := Net(lambda _, hidden: hidden)), optimizer=Slow(model.parameters())),
}


def trained(folder: Path, parts: dict[str, Any], steps: int) -> Trainer:
    config = configure(folder, max_steps=steps, eval_steps=2, logging_steps=1)
    constant = ScheduleConfig(type="constant", warmup_steps=0)
    trainer = Trainer(config=replace(config, lr_scheduler=constant), **parts)
    trainer.train(batches(8), batches(1))
    return trainer


def left(trainer: Trainer) -> Any:
    records = [record["loss"] for record in trainer.history.records if record["event"] == "train"]
    return trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.own.state_dict(), records


@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_beside_weights_goes_on_bit_for_bit(tmp_path, case):
    straight = left(trained(tmp_path / "straight", CASES[case](), 7))
    for steps in (2, 5, 7):
        stopped = trained(tmp_path / "stopped", CASES[case](), steps)
    assert_same([*left(stopped)], [*straight])
    used = CASES[case]()  # in the same process, where the parts are those of the stopped run
    for steps in (3, 7):
        stopped = trained(tmp_path / "used", used, steps)
    assert_same([*left(stopped)], [*straight])


def broken_off(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts, of which the model raises once, in the second micro-batch of step 4."""
    passes: list[bool] = []

    def count(*_: object) -> None:
        passes.append(torch.is_grad_enabled())
        if passes[-1] and sum(passes) == 10:
            raise RuntimeError("the device is lost")

    parts["model"].register_forward_hook(count)
    return parts


@pytest.mark.parametrize("case", CASES)
def test_after_an_error_in_the_middle_of_a_step_it_is_what_the_last_whole_step_has_left(tmp_path, case):
    straight = left(trained(tmp_path / "straight", CASES[case](), 7))
    for name in ("other parts", "the same parts"):
        broken = broken_off(CASES[case]())
        with pytest.raises(RuntimeError, match="the device is lost") as caught:
            trained(tmp_path / name, broken, 7)
        saved = "step 3 could not be saved" if case == "loss that begins late" else "all 3 steps are saved"
        assert caught.value.__notes__[0].startswith(saved)
        again = broken if name == "the same parts" else CASES[case]()
        assert_same([*left(trained(tmp_path / name, again, 7))], [*straight])


def test_the_parts_of_the_package_keep_nothing_so_that_no_step_looks_for_it(tmp_path):
    trainer = Trainer(model_of(), configure(tmp_path))
    trainer.train_epoch(loaders("fixed")[0])
    assert trainer.step and trainer.own.state_dict() == {} and not trainer._own_moves


def test_a_validation_leaves_no_trace(tmp_path):
    kept = Net(lambda _, hidden: hidden, calls=0)
    kept.register_forward_hook(lambda *_: counted(kept) and None)
    trainer = Trainer(kept, configure(tmp_path))
    trainer.evaluate(batches(2))
    assert trainer.own.state_dict() == {}


@pytest.mark.parametrize("case", CASES)
def test_a_trial_leaves_no_trace_and_a_state_of_before_puts_back_what_came_after(tmp_path, case):
    parts = CASES[case]()
    trainer = Trainer(config=configure(tmp_path, max_steps=9), **parts)
    before = deepcopy(trainer.own.state_dict())
    asked = {name: parts[name] for name in ("loss_fn", "clip") if name in parts}
    find_lr(trainer.model, batches(4), trainer.optimizer, num_iter=2, **asked)
    assert_same(trainer.own.state_dict(), before)
    trainer.train_epoch(batches(6))
    state, ends = trainer.state_dict(), []
    for _ in range(2):
        trainer.train_epoch(batches(6))
        ends.append(left(trainer)[:3])
        trainer.load_state_dict(state)
    assert_same([*ends[1]], [*ends[0]])


def test_what_no_step_has_changed_stays_as_the_user_sets_it():
    kept, other = (Net(lambda _, hidden: hidden, calls=0, verbose=False) for _ in range(2))
    own = OwnState(model=kept)
    vars(kept)["calls"] = 3
    vars(other)["verbose"] = True
    its = OwnState(model=other)
    its.load_state_dict(own.state_dict())
    assert other.verbose and other.calls == 3 and its.state_dict() == {"model.calls": 3}


def test_what_has_no_place_yet_begins_anew_with_a_word():
    with pytest.warns(UserWarning, match=r"loss_fn\.meter\.calls of the checkpoint begins anew"):
        OwnState(model=Net(lambda _, hidden: hidden)).load_state_dict({"loss_fn.meter.calls": 3})


def test_data_of_the_users_own_are_neither_saved_nor_written_to():
    class Experiment(Counts):
        def __init__(self) -> None:
            super().__init__()
            self.train, self.table, self.mean = batches(2), np.ones(3), torch.zeros(2)

    own = OwnState(loss_fn=Experiment().loss)
    own.load_state_dict({"loss_fn.self.calls": 2})
    assert own.state_dict() == {"loss_fn.self.calls": 2}


def test_rates_of_groups_are_the_optimizers_own_affair():
    optimizer = adamw(Net(lambda _, hidden: hidden))
    own = OwnState(optimizer=optimizer)
    optimizer.param_groups[1]["lr_scale"] = 0.5
    assert not any("lr_scale" in name for name in own.state_dict())
