"""Model FLOPs utilization: what is counted, and of which devices the rate is known."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lm.config import LoopConfig, TrainingConfig
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring.utilization import Work, peak_flops
from course_lm.trainer import Trainer, loop
from tests.foreign_models import VOCABULARY, hugging_face

CUDA = torch.device("cuda")


def batch(rows: int, width: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(VOCABULARY, (rows, width))
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_flops_are_those_that_torch_counts(positions):
    with torch.device("meta"):  # there attention is two products, which torch counts
        model = GPT(ModelConfig(n_layer=3, n_head=2, d_model=16, positions=positions), 50, 64)
        given = torch.zeros(3, 40, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model(given).sum().backward()
    assert Work(model).of({"input_ids": given, "labels": given}) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_neox"])
def test_of_models_of_other_people_too(name):
    model, given = hugging_face(name, attention="eager"), batch(2, 12)
    with FlopCounterMode(display=False) as counter:
        model(**given, use_cache=False).logits.sum().backward()
    assert Work(model).of(given) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_of_a_model_without_a_configuration_attention_is_left_out():
    model = nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY))
    assert Work(model).of(batch(2, 5)) == 10 * 6 * 4 * VOCABULARY


@pytest.mark.parametrize(
    "name, precision, tera",
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "fp16", 312),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA A10", "bf16", 125),
        ("Tesla T4", "fp16", 65),
        ("Tesla T4", "bf16", None),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "fp32", None),
        ("NVIDIA GeForce RTX 4090", "bf16", 165),
        ("NVIDIA GeForce GTX 1080", "fp16", None),
        ("NVIDIA A100X", "bf16", None),
        ("NVIDIA RTX A1000", "bf16", None),
        ("NVIDIA A10G", "bf16", None),
    ],
)
def test_the_rate_of_a_device_is_that_of_its_data_sheet_or_unknown(name, precision, tera, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(CUDA, precision) == (None if tera is None else tera * 1e12)
    assert peak_flops(torch.device("cpu"), precision) is None


def test_the_records_have_it_where_the_rate_is_known(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(loop, "peak_flops", lambda device, precision: 1e9)
    config = TrainingConfig(
        training=LoopConfig(max_steps=4, gradient_accumulation_steps=2, logging_steps=2, output_dir=None)
    )
    model, data = GPT(ModelConfig(n_layer=1, n_head=1, d_model=8), VOCABULARY, 16), [batch(2, 9), batch(1, 16)] * 4
    trainer = Trainer(model, config)
    trainer.log.throughput._clock = lambda: float(next(clock))
    train = [record for record in trainer.train(data).records if record["event"] == "train"]
    flops = 2 * sum(map(Work(model).of, data[:2]))
    assert [record["mfu"] for record in train] == pytest.approx([flops / trainer.log.throughput.seconds / 1e9] * 2)
    assert train[0]["tokens"] / train[0]["tokens_per_second"] == trainer.log.throughput.seconds
