"""Number formats: which one a name means, what autocast does with it, and where the loss is scaled."""

import re

import pytest
import torch
from torch import nn

import course_lm.precision
from course_lm.precision import PRECISIONS, Precision, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_named_format_is_taken_as_it_is(name):
    assert resolve_precision(name, CPU) == Precision(name, "cpu").name == name


@pytest.mark.parametrize("fast, expected", [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_only_where_the_device_is_fast_at_it(fast, expected, monkeypatch):
    monkeypatch.setattr(course_lm.precision, "fast_bf16", lambda device: fast)
    assert Precision("auto", CPU).name == expected


@pytest.mark.parametrize("avx512, amx", [(True, False), (False, True), (False, False)])
def test_a_cpu_is_fast_at_bf16_with_either_instruction_set(avx512, amx, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert resolve_precision("auto", "cpu") == ("bf16" if avx512 or amx else "fp32")


def test_an_emulated_bf16_gpu_is_not_taken_for_a_fast_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert resolve_precision("auto", "cuda") == "fp32"


def test_auto_on_any_other_device_is_fp32():
    assert resolve_precision("auto", "meta") == "fp32"


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


def test_fp32_leaves_a_double_precision_model_in_double_precision():
    layer = nn.Linear(3, 2).double()
    with Precision("fp32", CPU).autocast():
        assert layer(torch.randn(4, 3).double()).dtype == torch.float64


def test_autocast_ends_with_its_context():
    with Precision("bf16", CPU).autocast():
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name, scales", [("fp32", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_scales_the_loss(name, scales):
    precision = Precision(name, CPU)
    assert precision.scales is scales
    assert (float(precision.scaler.scale(torch.tensor(1.0))) != 1.0) is scales


def scaler_after_an_overflow() -> Precision:
    """fp16 whose scale has halved and whose growth counter has moved on by two good steps."""
    precision = Precision("fp16", CPU)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for gradient in (torch.inf, 1.0, 1.0):
        precision.scaler.scale(torch.zeros(1))
        weight.grad = torch.full((1,), gradient)
        precision.scaler.step(optimizer)
        precision.scaler.update()
    return precision


def test_a_saved_scale_and_its_growth_counter_come_back():
    before, after = scaler_after_an_overflow(), Precision("fp16", CPU)
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == before.state_dict()
    assert after.scaler.get_scale() == 2.0**15
    assert after.state_dict()["_growth_tracker"] == 2


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_without_scaling_there_is_no_state(name):
    assert Precision(name, CPU).state_dict() == {}


@pytest.mark.parametrize("saved, loaded", [("fp16", "fp32"), ("bf16", "fp16")])
def test_a_state_of_another_format_leaves_the_scaler_fresh(saved, loaded):
    precision = Precision(loaded, CPU)
    fresh = precision.state_dict()
    precision.load_state_dict(Precision(saved, CPU).state_dict())
    assert precision.state_dict() == fresh
