"""The records of the layers do not depend on how many ranks share a run, nor on how they hold its weights."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from course_lm.batching import labels_of
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.distributed import DistributedConfig
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring.records import Record
from course_lm.trainer import Trainer
from tests.distributed.pool import Pool


def batches() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(13, (2, 8), generator=draw) for _ in range(4)]
    masks = [torch.ones_like(ids) for ids in rows]
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": labels_of(ids, mask), "num_bytes": ids.numel()}
        for ids, mask in zip(rows, masks)
    ]


def layers(distributed: DistributedConfig) -> list[Record]:
    """What a run of three steps records, whose second step comes after a validation."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.0), 13, 8).double()
    loop = LoopConfig(
        max_steps=3,
        eval_steps=1,
        layer_statistics=1,
        gradient_accumulation_steps=2,
        precision="fp32",
        device="cpu",
        output_dir=None,
    )
    history = Trainer(model, TrainingConfig(training=loop, distributed=distributed)).train(batches(), batches())
    return [record for record in history.records if record.pop("event") == "layers"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_rank_records_the_layers_of_the_whole_model(
    ranks: Callable[[int], Pool], strategy: Literal["ddp", "fsdp"]
) -> None:
    expected = layers(DistributedConfig())
    assert [record["step"] for record in expected] == [1, 2, 3]
    for records in ranks(2).run(layers, DistributedConfig(strategy=strategy)):
        for mine, theirs in zip(records, expected, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-15)
