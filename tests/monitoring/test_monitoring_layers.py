"""Claims about what is measured inside the model: each layer's gradient and update, without touching the run."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import copy_weights, layer_statistics, layers, update_ratios
from course_lm.monitoring.layers import LayerStatistics
from course_lm.monitoring.records import Record
from course_lm.step import train_step
from course_lm.trainer import Trainer
from tests.records import lines_of
from tests.small_run import LENGTH, VOCABULARY, small_batches, small_trainer


def tiny_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.0), VOCABULARY, LENGTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_statistics_are_those_of_the_gradient_s_elements(dtype: torch.dtype) -> None:
    layer = nn.Linear(5, 3).to(dtype)
    layer(torch.randn(4, 5, dtype=dtype)).square().sum().backward()
    assert layer.weight.grad is not None
    gradient = layer.weight.grad.double().flatten()
    expected = {
        "weight_norm": math.sqrt(float(layer.weight.detach().double().square().sum())),
        "grad_mean": float(gradient.mean()),
        "grad_std": math.sqrt(float((gradient - gradient.mean()).square().mean())),
        "grad_norm": math.sqrt(float(gradient.square().sum())),
        "grad_max_abs": float(gradient.abs().max()),
    }
    assert layer_statistics(layer) == {"weight": pytest.approx(expected, rel=1e-5)}


def test_only_matrices_that_are_trained_are_measured_and_a_shared_one_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model[3].weight.requires_grad_(False)
    assert list(layer_statistics(model)) == list(update_ratios(model, copy_weights(model))) == ["0.weight"]


def test_a_matrix_without_a_gradient_shows_nan_and_its_weights_all_the_same() -> None:
    (numbers,) = layer_statistics(nn.Linear(2, 2)).values()
    assert numbers["weight_norm"] > 0
    assert all(math.isnan(value) for name, value in numbers.items() if name.startswith("grad"))


def test_a_gradient_that_is_not_finite_is_shown_as_it_is() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.grad = torch.tensor([[1.0, math.inf], [0.0, 0.0]])
    assert layer_statistics(layer)["weight"]["grad_norm"] == math.inf


def test_a_model_without_matrices_has_no_statistics() -> None:
    assert layer_statistics(nn.LayerNorm(3)) == update_ratios(nn.LayerNorm(3), {}) == {}


def test_the_update_ratio_of_plain_gradient_descent_is_the_rate_times_gradient_over_weight() -> None:
    model = tiny_gpt()
    before = copy_weights(model)
    weights = layer_statistics(model)
    train_step(model, small_batches(1), torch.optim.SGD(model.parameters(), lr=0.25), max_grad_norm=None)
    expected = {
        name: 0.25 * numbers["grad_norm"] / weights[name]["weight_norm"]
        for name, numbers in layer_statistics(model).items()
    }
    assert update_ratios(model, before) == pytest.approx(expected, rel=1e-4)


def test_what_a_module_keeps_besides_tensors_is_copied_with_the_weights() -> None:
    class Extra(nn.Linear):
        kept: list[int] = [1]  # noqa: RUF012

        def get_extra_state(self) -> Any:
            return self.kept

    model = Extra(2, 2)
    copy = copy_weights(model)
    model.kept.append(2)
    assert copy["_extra_state"] == [1]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every way of reading a tensor on the host, each of which waits for an accelerator; filled as they are used."""
    reads: list[str] = []

    def watched(name: str, read: Any) -> Any:
        return lambda *arguments: reads.append(name) or read(*arguments)

    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, watched(name, getattr(torch.Tensor, name)))
    return reads


def test_each_measurement_waits_once_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_gpt()
    train_step(model, small_batches(1), torch.optim.SGD(model.parameters(), lr=0.1))
    before = copy_weights(model)
    reads = count_reads(monkeypatch)
    layer_statistics(model)
    assert reads == ["tolist"]
    update_ratios(model, before)
    assert reads == ["tolist", "tolist"]


# By the key `training.layer_statistics`


def run_with_key(every: int | None, output_dir: str | None = None) -> Trainer:
    trainer = small_trainer(6, num_epochs=2, logging_steps=4, layer_statistics=every, output_dir=output_dir)
    trainer.train(small_batches(3))
    return trainer


def layers_of(trainer: Trainer) -> list[Record]:
    return [record for record in trainer.history.records if record["event"] == "layers"]


def test_the_records_of_layers_stand_in_the_run_s_log(tmp_path: Path) -> None:
    trainer = run_with_key(3, output_dir=str(tmp_path))
    assert trainer.folder is not None
    lines = [line for line in lines_of(trainer.folder / "metrics.jsonl") if line["event"] == "layers"]
    assert lines == layers_of(trainer) and [line["step"] for line in lines] == [3, 6]


def test_a_record_holds_what_each_matrix_shows_and_the_update_of_that_step_alone() -> None:
    seldom, often = layers_of(run_with_key(6)), layers_of(run_with_key(1))
    assert seldom == often[-1:] and len(often) == 6
    model = small_trainer(1).model
    names = {f"{name}/{key}" for name, numbers in layer_statistics(model).items() for key in numbers}
    ratios = {f"{name}/update_ratio" for name in layer_statistics(model)}
    assert seldom[0].keys() == names | ratios | {"event", "step", "epoch"}


def test_the_matrices_are_copied_before_the_steps_that_are_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    monkeypatch.setattr(layers, "_matrices", lambda model: copied.append(model) or {})
    statistics = [LayerStatistics(None), LayerStatistics(3)]
    for number in range(1, 7):
        for one in statistics:
            one.before_step(tiny_gpt(), number)
    assert len(copied) == 2


def test_measuring_layers_changes_no_weight() -> None:
    measured, plain = run_with_key(1), run_with_key(None)
    assert layers_of(plain) == []
    torch.testing.assert_close(measured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


def test_a_bad_step_is_not_measured() -> None:
    trainer, calls = small_trainer(3, layer_statistics=1, on_nonfinite="skip"), []
    weight = trainer.model.get_parameter("blocks.0.up.weight")
    weight.register_hook(lambda gradient: calls.append(0) or (gradient * math.nan if len(calls) == 2 else gradient))
    trainer.train(small_batches(4))
    assert [record["step"] for record in layers_of(trainer)] == [1, 2, 3]
    assert all(math.isfinite(value) for record in layers_of(trainer) for value in list(record.values())[3:])
