"""The range test: the steps of `train_step`, the library's sweep, and no trace afterwards."""

import copy
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch_lr_finder import LRFinder, TrainDataLoaderIter
from transformers import GPT2Config, GPT2LMHeadModel

from course_lm.forward import forward_logits
from course_lm.loss import count_targets, next_token_loss
from course_lm.lr_finder import LRFinderResult, find_lr
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.step import train_step
from tests.lr_finder.test_trial import everything
from tests.tiny import VOCAB, packed_batch, plain_batch

WIDTH = 12
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "muon")
SWEEP: dict[str, Any] = {"start_lr": 1e-4, "end_lr": 0.1, "num_iter": 6}


def make_model(dropout: float = 0.1, dtype: torch.dtype = torch.float64) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=dropout), VOCAB, WIDTH).to(dtype)


def make_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=WIDTH, n_embd=8, n_layer=1, n_head=2)).double()


def make_batches(count: int = 4) -> list[dict[str, Any]]:
    """Two padded rows a batch; the number of targets differs much from batch to batch."""
    lengths = [[3 + 7 * (index % 2), 2 + index % 3] for index in range(count)]
    return [plain_batch(pair, width=WIDTH, seed=index) | {"num_bytes": 9} for index, pair in enumerate(lengths)]


def make_packed(count: int = 4) -> list[dict[str, Any]]:
    return [packed_batch([[4, 3, 3]], seed=index) for index in range(count)]


def build(model: nn.Module, kind: str = "adamw") -> Optimizer:
    return build_optimizer(model, OptimizerConfig(type=kind, weight_decay=0.1))


def by_hand(
    model: nn.Module,
    batches: list[dict[str, Any]],
    optimizer: Optimizer,
    accumulation_steps: int = 1,
    precision: Precision | None = None,
    **options: Any,
) -> tuple[list[float], list[float]]:
    """The same sweep as a plain loop over `train_step`."""
    lrs = np.geomspace(SWEEP["start_lr"], SWEEP["end_lr"], SWEEP["num_iter"]).tolist()
    needed = len(lrs) * accumulation_steps
    endless = (batches * (needed // len(batches) + 1))[:needed]
    losses = []
    for step, lr in enumerate(lrs):
        window = endless[step * accumulation_steps : (step + 1) * accumulation_steps]
        losses.append(float(train_step(model, window, optimizer, lr=lr, precision=precision, **options).loss))
    return lrs, losses


class Raw(TrainDataLoaderIter):
    """What the library needs at least for dict batches: the plain way to use it, for comparison."""

    def inputs_labels_from_batch(self, batch_data: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
        return batch_data, batch_data["labels"]


class RawModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Any]) -> Tensor:
        return forward_logits(self.model, batch)


# The sweep is the library's where both do the same


@pytest.mark.parametrize("accumulation_steps", [1, 3])
@pytest.mark.parametrize(("num_iter", "end_lr", "stopped"), [(6, 0.1, None), (40, 1e4, "diverged")])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_plain_sgd_in_fp32_gives_the_points_of_torch_lr_finder(momentum, num_iter, end_lr, stopped, accumulation_steps):
    model, batches = make_model(dtype=torch.float32), make_packed()  # as many targets each: its mean of means is exact
    optimizer = SGD(model.parameters(), momentum=momentum)
    sweep = {"start_lr": 1e-4, "end_lr": end_lr, "num_iter": num_iter, "accumulation_steps": accumulation_steps}
    result = find_lr(model, batches, optimizer, **sweep, max_grad_norm=None, diverge_threshold=5.0)
    finder = LRFinder(RawModel(model), optimizer, next_token_loss)
    finder.range_test(Raw(batches), **sweep, smooth_f=0, diverge_th=5.0)
    assert result.stopped == stopped
    assert result.lrs == pytest.approx(finder.history["lr"], rel=1e-12)
    assert result.losses == pytest.approx(finder.history["loss"], rel=1e-5)


# The steps are those of `train_step`


SMOOTHED = partial(next_token_loss, label_smoothing=0.3)
STEPS: dict[str, tuple[nn.Module, list[dict[str, Any]], str, dict[str, Any]]] = {
    **{f"{kind}": (make_model(), make_batches(), kind, {}) for kind in OPTIMIZERS},
    **{f"{kind}, not clipped": (make_model(), make_batches(), kind, {"max_grad_norm": None}) for kind in OPTIMIZERS},
    **{
        f"{kind}, windows": (make_model(), make_batches(), kind, {"max_grad_norm": 0.01, "accumulation_steps": 3})
        for kind in OPTIMIZERS
    },
    "packed": (make_model(), make_packed(), "adamw", {}),
    "Hugging Face": (make_gpt2(), make_batches(), "adamw", {}),
    "Hugging Face, packed": (make_gpt2(), make_packed(), "adamw", {}),
    "bf16": (make_model(dtype=torch.float32), make_batches(), "adamw", {"precision": Precision("bf16", "cpu")}),
    "fp16": (make_model(dtype=torch.float32), make_batches(), "adamw", {"precision": Precision("fp16", "cpu")}),
    "a loss of one's own": (make_model(dropout=0.0), make_batches(), "adamw", {"loss_fn": SMOOTHED}),
}


@pytest.mark.parametrize("case", STEPS)
def test_each_step_is_the_one_that_train_step_takes(case):
    model, batches, kind, options = STEPS[case]
    torch.manual_seed(0)
    result = find_lr(model, batches, build(model, kind), **SWEEP, **options)
    torch.manual_seed(0)
    lrs, losses = by_hand(model, batches, build(model, kind), **options)
    assert result.lrs == pytest.approx(lrs, rel=1e-12)
    assert result.losses == pytest.approx(losses, rel=1e-5 if "precision" in options else 1e-10)


def test_an_fp16_overflow_skips_the_step_in_silence_and_leaves_the_given_scale_alone():
    model, precision = make_model(dropout=0.0, dtype=torch.float32), Precision("fp16", "cpu")
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = precision.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = find_lr(model, make_batches(1), SGD(model.parameters()), **SWEEP, precision=precision)
    assert len(result.losses) == 6 and len(set(result.losses)) == 1
    assert precision.state_dict() == before


def test_an_fp16_sweep_goes_on_after_an_overflow_in_its_first_step():
    model, precision = make_model(dropout=0.0, dtype=torch.float32), Precision("fp16", "cpu")
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    momentum = build(model, "sgd")  # torch's scaler alone would leave it a momentum that is not initialised
    result = find_lr(model, make_batches(), momentum, **SWEEP, precision=precision)
    assert result.stopped is None and len(set(result.losses[-2:])) == 2


def test_a_sweep_starts_from_the_moments_that_the_optimizer_has():
    model, batches = make_model(dropout=0.0), make_batches()
    optimizer = build(model)
    train_step(model, batches[:1], optimizer, lr=0.01)
    result = find_lr(model, batches, optimizer, **SWEEP)
    fresh = find_lr(model, batches, build(model), **SWEEP)
    assert result.losses == pytest.approx(by_hand(model, batches, optimizer)[1], rel=1e-10)
    assert result.losses[0] == fresh.losses[0] and result.losses != fresh.losses


# Points on held-out text


def make_held_out(count: int = 3) -> list[dict[str, Any]]:
    """Other texts than those of `make_packed`."""
    return make_packed(4 + count)[4:]


def test_a_point_on_held_out_text_is_measured_after_its_step_and_in_eval_mode():
    model, batches, held_out = make_model(dropout=0.5), make_batches(), make_held_out()
    result = find_lr(model, batches, build(model), val_loader=held_out, **SWEEP)
    optimizer, losses = build(model), []
    for step, lr in enumerate(result.lrs):
        train_step(model, [batches[step % 4]], optimizer, lr=lr)
        losses.append(evaluate(model, held_out)["val_loss"])
    assert result.losses == pytest.approx(losses, rel=1e-10)


def test_at_most_the_stated_number_of_held_out_batches_is_read_and_only_once():
    model, loader = make_model(), Recorder(make_held_out(3))
    result = find_lr(model, make_batches(), build(model), val_loader=loader, val_batches=2, **SWEEP)
    assert [index for _, index in loader.read] == [0, 1]
    first = Recorder(make_held_out(3))
    find_lr(model, make_batches(), build(model), val_loader=first, val_batches=1, **SWEEP)
    assert [index for _, index in first.read] == [0]
    few = find_lr(model, make_batches(), build(model), val_loader=make_held_out(2), **SWEEP)
    assert result.losses == few.losses
    assert result.losses != find_lr(model, make_batches(), build(model), val_loader=make_held_out(3), **SWEEP).losses


def test_a_held_out_loss_that_is_not_finite_ends_the_sweep():
    model = make_model(dtype=torch.float32)
    options = {"start_lr": 1.0, "end_lr": 1e38, "num_iter": 20, "max_grad_norm": None, "diverge_threshold": 1e300}
    result = find_lr(model, make_batches(), SGD(model.parameters()), val_loader=make_held_out(), **options)
    assert result.stopped == "not finite" and all(map(math.isfinite, result.losses))


@pytest.mark.parametrize(
    ("val_loader", "message"),
    [
        ([], "the validation loader is empty"),
        (iter([]), "the validation loader is an iterator"),
        (make_batches(1)[0], "got a single batch: put it in a list"),
        ([make_batches(1)[0] | {"labels": torch.full((2, WIDTH), -100)}], "holds no target token"),
    ],
    ids=["empty", "an iterator", "a batch", "no target"],
)
def test_a_validation_loader_that_cannot_be_measured_on_is_refused(val_loader, message):
    model = make_model()
    before = everything(model, optimizer := build(model))
    with pytest.raises(ValueError, match=message):
        find_lr(model, make_batches(), optimizer, val_loader=val_loader, **SWEEP)
    assert everything(model, optimizer) == before


# The end of a sweep


class Explosive(nn.Module):
    """A loss that becomes `value` at the n-th call and is finite before."""

    def __init__(self, at: int, value: float = math.nan) -> None:
        super().__init__()
        self.at, self.value, self.calls = at, value, 0

    def forward(self, logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        self.calls += torch.is_grad_enabled()  # without gradients it is only asked whether it sums
        loss = next_token_loss(logits, labels, reduction=reduction)  # type: ignore[arg-type]
        return loss * self.value if self.calls >= self.at else loss


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_the_sweep_stops_before_the_first_loss_that_is_not_finite(value, accumulation_steps, name):
    model = make_model(dtype=torch.float32)
    loss_fn = Explosive(4 * accumulation_steps, value)
    options = {"accumulation_steps": accumulation_steps, "loss_fn": loss_fn, "precision": Precision(name, "cpu")}
    result = find_lr(model, make_batches(), build(model), **SWEEP, **options)
    assert result.stopped == "not finite" and loss_fn.calls == 0  # which is undone
    assert len(result.lrs) == len(result.losses) == 3 and all(map(math.isfinite, result.losses))
    assert "not finite" in result.message


def test_a_gradient_that_is_not_finite_ends_the_sweep_although_the_loss_is_a_number():
    model, calls = make_model(), []

    def steep(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        calls.append(torch.is_grad_enabled())  # without gradients it is only asked whether it sums
        infinite_slope = (0 * logits).sum().abs().sqrt() if calls.count(True) == 4 else 0
        return next_token_loss(logits, labels, reduction=reduction) + infinite_slope  # type: ignore[arg-type]

    result = find_lr(model, make_batches(), build(model), **SWEEP, loss_fn=steep)
    assert (result.stopped, len(result.losses), calls.count(True)) == ("not finite", 3, 4)


def test_the_sweep_stops_where_the_loss_diverges():
    model = make_model(dropout=0.0)
    optimizer = SGD(model.parameters(), lr=1.0)
    sweep = {"start_lr": 1e-2, "end_lr": 1e6, "num_iter": 40, "max_grad_norm": None}
    result = find_lr(model, make_batches(), optimizer, **sweep, diverge_threshold=2.0)
    assert result.stopped == "diverged" and len(result.losses) < 40
    assert result.losses[-1] > 2 * min(result.losses[:-1])
    assert all(loss <= 2 * min(result.losses[: index + 1]) for index, loss in enumerate(result.losses[:-1]))


@pytest.mark.parametrize("least", [-100.0, -1.0, -0.1, 0.0, 0.1, 100.0])
@pytest.mark.parametrize("end_lr", [0.1, 1e6])
def test_a_loss_below_zero_or_around_it_ends_no_sweep_that_has_not_diverged(least, end_lr):
    """The same loss less a constant, so that its lowest value would be `least`."""
    sweep: dict[str, Any] = {"start_lr": 1e-2, "end_lr": end_lr, "num_iter": 40, "max_grad_norm": None}

    def swept(constant: float) -> LRFinderResult:
        def loss(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
            return next_token_loss(logits, labels, reduction=reduction) + constant * count_targets(labels)

        model = make_model(dropout=0.0)
        return find_lr(model, make_batches(), SGD(model.parameters(), lr=1.0), **sweep, loss_fn=loss)

    plain = swept(0.0)
    moved = swept(least - min(plain.losses))
    assert (moved.stopped == "diverged") == (end_lr == 1e6)
    assert moved.suggestion == pytest.approx(plain.suggestion)


def test_a_loss_that_diverges_at_the_last_point_is_told_too():
    model = make_model()
    loss_fn = Explosive(SWEEP["num_iter"], 1e3)
    result = find_lr(model, make_batches(), build(model), **SWEEP, loss_fn=loss_fn)
    assert (result.stopped, len(result.losses)) == ("diverged", SWEEP["num_iter"])


def test_the_settings_of_the_reading_are_those_given():
    model = make_model()
    options = {"smoothing": 0.25, "skip_start": 1, "skip_end": 0}
    result = find_lr(model, make_batches(), build(model), **SWEEP, **options)
    assert {name: getattr(result, name) for name in options} == options


def test_a_model_that_can_learn_gets_a_suggestion_that_teaches_it():
    model, batches = make_model(dropout=0.0), make_batches(2)
    result = find_lr(model, batches, build(model), start_lr=1e-5, end_lr=10, num_iter=60)
    assert result.suggestion is not None and result.range is not None
    assert result.range[0] <= result.suggestion <= result.range[1]

    def loss_after(lr: float) -> float:
        learner = copy.deepcopy(model)
        optimizer = build(learner)
        steps = [train_step(learner, [batches[step % 2]], optimizer, lr=lr) for step in range(20)]
        return float(steps[-1].loss)

    assert loss_after(result.suggestion) < 0.9 * loss_after(result.suggestion / 100)
    assert loss_after(result.suggestion) < loss_after(result.suggestion * 1000)


# Nothing is left behind


@pytest.mark.parametrize("val_loader", [None, make_held_out()], ids=["on the text", "on held-out text"])
def test_everything_is_as_before_and_a_second_test_measures_the_same(val_loader):
    model, batches = make_model(), make_batches()
    optimizer = build(model)
    train_step(model, batches[:1], optimizer, lr=0.01)
    model.eval()
    model.blocks[0].train()
    before = everything(model, optimizer)
    results = [find_lr(model, batches, optimizer, val_loader=val_loader, **SWEEP) for _ in range(2)]
    assert everything(model, optimizer) == before
    assert results[0] == results[1]


def test_modules_that_their_owner_put_in_eval_mode_stay_in_it_unless_the_whole_model_is():
    model, modes = make_model(), []
    model.train()
    model.blocks[0].eval()
    model.blocks[0].register_forward_pre_hook(lambda module, _: modes.append((module.training, model.training)))
    find_lr(model, make_batches(), build(model), **SWEEP)
    model.eval()
    find_lr(model, make_batches(), build(model), **SWEEP)
    assert set(modes[:6]) == {(False, True)} and set(modes[6:]) == {(True, True)} and not model.training


# The data


class Recorder:
    """A loader with epochs that writes down what is read."""

    def __init__(self, batches: list[dict[str, Any]]) -> None:
        self.batches, self.epoch, self.read = batches, 3, []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index, batch in enumerate(self.batches):
            self.read.append((self.epoch, index))
            yield batch


def test_a_loader_that_is_too_short_is_read_again_in_its_next_epoch():
    model, loader = make_model(), Recorder(make_batches(4))
    find_lr(model, loader, build(model), **SWEEP, accumulation_steps=2)
    assert loader.read == [(epoch, index) for epoch in (3, 4, 5) for index in range(4)]
    assert loader.epoch == 3


def test_batches_without_a_target_are_passed_over():
    model, batches = make_model(dropout=0.0), make_batches()
    empty = batches[0] | {"labels": torch.full_like(batches[0]["labels"], -100)}
    assert not count_targets(empty["labels"])
    result = find_lr(model, [empty, batches[0], empty, *batches[1:]], build(model), **SWEEP)
    assert result == find_lr(model, batches, build(model), **SWEEP)


def test_a_loader_that_cannot_be_read_again_is_refused_and_not_touched():
    model, batches = make_model(), iter(make_batches())
    with pytest.raises(ValueError, match="got an iterator"):
        find_lr(model, batches, build(model), **SWEEP)
    assert len(list(batches)) == 4


@pytest.mark.parametrize(
    "given, said", [(make_batches(1)[0], "put it in a list"), (make_batches, "got <function make")]
)
def test_what_holds_no_batches_is_refused(given, said):
    model = make_model()
    with pytest.raises(ValueError, match=said):
        find_lr(model, given, build(model), **SWEEP)


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_lr": 0.0}, "start_lr must be a positive number, got 0.0"),
        ({"start_lr": 0.1}, r"end_lr must be a number above start_lr \(0.1\), got 0.1"),
        ({"end_lr": 1e-5}, r"end_lr must be a number above start_lr \(0.0001\), got 1e-05"),
        ({"end_lr": math.inf}, "end_lr must be a number above"),
        ({"num_iter": 1}, "num_iter must be a whole number of at least 2, got 1"),
        ({"val_batches": 0}, "val_batches must be a whole number of at least 1, got 0"),
        ({"diverge_threshold": 1.0}, "diverge_threshold must be a number above 1, got 1.0"),
        ({"smoothing": 1.0}, r"smoothing must be in \[0, 1\), got 1.0"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(options, message):
    model = make_model()
    with pytest.raises(ValueError, match=message):
        find_lr(model, make_batches(), build(model), **(SWEEP | options))


@pytest.mark.parametrize("key", ["start_lr", "end_lr", "num_iter", "accumulation_steps", "diverge_threshold"])
@pytest.mark.parametrize("value", ["2", True, None, math.nan, np.array([2.0])], ids=repr)
def test_a_setting_that_is_no_number_is_refused(key, value):
    model = make_model()
    with pytest.raises(ValueError, match=f"^{key} must be "):
        find_lr(model, make_batches(), build(model), **(SWEEP | {key: value}))


# Silence


def test_a_sweep_says_nothing_but_the_model_may(capsys):
    model = make_model()
    model.register_forward_pre_hook(lambda *_: print("heard"))
    find_lr(model, make_batches(), build(model), **SWEEP)
    printed = capsys.readouterr()
    assert printed.out == "heard\n" * 6 and printed.err == ""


def test_a_bar_is_shown_where_it_is_wanted(capsys):
    model = make_model()
    find_lr(model, make_batches(), build(model), **SWEEP, progress=True)
    printed = capsys.readouterr()
    assert printed.out == "" and "6/6" in printed.err


def test_importing_the_module_warns_of_nothing_in_a_notebook():
    code = "import ipykernel.zmqshell, torch, matplotlib.pyplot, warnings; warnings.simplefilter('always'); "
    command = [sys.executable, "-c", code + "import course_lm.lr_finder"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
