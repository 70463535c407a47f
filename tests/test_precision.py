"""Number formats: which one a name means, what autocast does with it, and where the loss is scaled."""

import re
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

from course_lm.lr_finder import find_lr
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import PRECISIONS, Precision, resolve_precision
from course_lm.step import train_step
from course_lm.trainer import Trainer
from tests.small_run import VOCABULARY, small_batches, small_trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize("avx512, amx", [(True, False), (False, True), (False, False)])
def test_a_cpu_is_fast_at_bf16_with_either_instruction_set(avx512, amx, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert Precision("auto", CPU).name == resolve_precision("auto", "cpu") == ("bf16" if avx512 or amx else "fp32")
    assert resolve_precision("auto", "meta") == "fp32"


@pytest.mark.parametrize("computes, expected", [(True, "bf16"), (False, "fp32")])
def test_only_a_gpu_that_computes_in_bf16_and_does_not_emulate_it_is_taken_for_a_fast_one(
    computes, expected, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or computes)
    assert resolve_precision("auto", "cuda") == expected


@pytest.mark.parametrize("name", ["float16", "", "BF16"])
def test_an_unknown_name_is_refused_with_the_names_that_are_known(name):
    message = f"precision must be one of {', '.join(PRECISIONS)}, got {name!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        Precision(name, CPU)


@pytest.mark.parametrize("name, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_linear_layer_computes_in_the_named_format_and_keeps_fp32_weights(name, dtype):
    layer = nn.Linear(3, 2)
    with Precision(name, CPU).autocast():
        assert layer(torch.randn(4, 3)).dtype == dtype
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("name, scales", [("fp32", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_scales_the_loss(name, scales):
    precision = Precision(name, CPU)
    assert precision.name == name and precision.scales is scales and bool(precision.state_dict()) is scales
    assert (float(precision.scaler.scale(torch.tensor(1.0))) != 1.0) is scales


class Run:
    """fp16 steps of one weight whose gradient is 1, or infinite in a step that overflows."""

    def __init__(self, scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.precision = Precision("fp16", CPU)
        state = self.precision.state_dict() | {"scale": scale, "growth_interval": growth_interval}
        self.precision.load_state_dict(state)
        self.weight = nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)

    def step(self, overflow: bool) -> None:
        self.optimizer.zero_grad()
        self.precision.scaler.scale(self.weight.sum() * (torch.inf if overflow else 1.0)).backward()
        self.precision.scaler.step(self.optimizer)
        self.precision.update_scale()

    def scales_after(self, overflows: Sequence[bool]) -> list[float]:
        scales = []
        for overflow in overflows:
            self.step(overflow)
            scales.append(self.precision.scaler.get_scale())
        return scales


def scales_by_the_rule(overflows: Sequence[bool], growth_interval: int, scale: float) -> list[float]:
    scales, good_steps = [], 0
    for overflow in overflows:
        good_steps = 0 if overflow else good_steps + 1
        if overflow:
            scale = max(1.0, scale / 2)
        elif good_steps == growth_interval:
            scale, good_steps = scale * 2, 0
        scales.append(scale)
    return scales


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4), st.integers(0, 6))
def test_the_scale_halves_after_an_overflow_and_doubles_after_enough_good_steps(overflows, growth_interval, exponent):
    run = Run(2.0**exponent, growth_interval)
    assert run.scales_after(overflows) == scales_by_the_rule(overflows, growth_interval, 2.0**exponent)
    assert float(run.weight.detach()) == -overflows.count(False)  # by the unscaled gradient


@given(st.lists(st.booleans(), max_size=20), st.lists(st.booleans(), max_size=20), st.booleans())
def test_a_run_that_loads_the_saved_scale_goes_on_as_if_it_had_not_stopped(before, after, had_started):
    straight, resumed = Run(2.0**4, growth_interval=3), Run()
    straight.scales_after(before)
    if had_started:  # torch keeps its scale in a tensor from the first step on
        resumed.step(overflow=True)
    resumed.precision.load_state_dict(straight.precision.state_dict())
    assert resumed.scales_after(after) == straight.scales_after(after)
    assert resumed.precision.state_dict() == straight.precision.state_dict()


def test_only_an_overflow_at_the_minimum_scale_is_beyond_the_scalers_help():
    run, seen = Run(scale=2.0), []
    for overflow in (False, True, False, True, False):
        run.step(overflow)
        seen.append((run.precision.scaler.get_scale(), run.precision.was_at_minimum))
    assert seen == [(2.0, False), (1.0, False), (1.0, False), (1.0, True), (1.0, False)]


@pytest.mark.parametrize("saved, loaded", [("fp16", "fp32"), ("bf16", "fp16")])
def test_a_state_of_another_format_leaves_the_scaler_fresh(saved, loaded):
    precision = Precision(loaded, CPU)
    fresh = precision.state_dict()
    precision.load_state_dict(Precision(saved, CPU).state_dict())
    assert precision.state_dict() == fresh


@pytest.mark.parametrize("device", ["mps", "cuda", "cuda:1", "cpu"])
def test_autocast_and_scaler_are_made_for_the_kind_of_device_that_the_model_lives_on(device, monkeypatch):
    made = []
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype, **_: made.append((kind, dtype)) or nullcontext())
    monkeypatch.setattr(torch.amp, "GradScaler", lambda kind, enabled: made.append((kind, enabled)))
    with Precision("fp16", device).autocast():
        pass
    kind = device.partition(":")[0]
    assert made == [(kind, True), (kind, torch.float16)]


def by_train_step(name: str) -> list[Tensor]:
    """Losses of some steps, and the weights that they lead to, by Muon, whose update multiplies matrices."""
    model = small_trainer(1).model
    optimizer, precision = build_optimizer(model, OptimizerConfig(type="muon")), Precision(name, CPU)
    losses = [train_step(model, [batch], optimizer, lr=0.01, precision=precision).loss for batch in small_batches(5)]
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def by_trainer(name: str) -> list[Tensor]:
    trainer = small_trainer(5, precision=name, logging_steps=1, eval_steps=2)
    history = trainer.train(small_batches(5), small_batches(2))
    losses = [record.get("loss", record.get("val_loss")) for record in history.records]
    return [torch.tensor(losses), *(parameter.detach() for parameter in trainer.model.parameters())]


def by_evaluate(name: str) -> list[Tensor]:
    model, precision = small_trainer(1).model, Precision(name, CPU)
    before = evaluate(model, small_batches(2), precision)["val_loss"]
    with torch.no_grad():
        model.get_parameter("token_embedding.weight").mul_(2)
    return [torch.tensor([before, evaluate(model, small_batches(2), precision)["val_loss"]])]


def by_range_test(name: str) -> list[Tensor]:
    model = small_trainer(1).model
    optimizer = build_optimizer(model, OptimizerConfig())
    settings = {"num_iter": 5, "end_lr": 0.1, "precision": Precision(name, CPU), "val_loader": small_batches(1)}
    return [torch.tensor(find_lr(model, small_batches(5), optimizer, **settings).losses)]


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("drive", [by_train_step, by_trainer, by_evaluate, by_range_test])
def test_an_autocast_around_training_changes_no_number(drive, name):
    expected = drive(name)
    for keeps in (True, False):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=keeps):
            torch.testing.assert_close(drive(name), expected, rtol=0, atol=0)


def test_copies_of_weights_that_the_caller_has_made_in_an_autocast_are_not_trained_on():
    batch, weights = small_batches(1), []
    for around in (False, True):
        model = small_trainer(1).model
        optimizer = build_optimizer(model, OptimizerConfig())
        with torch.autocast("cpu", torch.bfloat16, enabled=around), torch.no_grad():
            model(batch[0]["input_ids"])
            model.get_parameter("blocks.0.up.weight").mul_(3)
            with torch.enable_grad():
                train_step(model, batch, optimizer, lr=0.01, precision=Precision("bf16", CPU))
        weights.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


class Shift(nn.Module):
    """A parametrization that keeps nothing for its backward pass, so that a graph can be used twice."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.shift


def test_weights_that_torch_caches_around_a_run_are_computed_anew_in_each_step():
    weights = []
    for around in (nullcontext, parametrize.cached):
        torch.manual_seed(0)
        head = nn.Linear(4, VOCABULARY)
        model = nn.Sequential(nn.Embedding(VOCABULARY, 4), head)
        parametrize.register_parametrization(head, "weight", Shift(head.weight))
        with around():
            Trainer(model, small_trainer(5).config).train(small_batches(5), small_batches(2))
        weights.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)
