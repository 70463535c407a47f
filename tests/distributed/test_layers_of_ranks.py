"""The records of the layers do not depend on how many ranks share a run, nor on how they hold its weights."""

from dataclasses import replace

import pytest
import torch

from course_lm.distributed import DistributedConfig
from course_lm.monitoring.records import Record
from course_lm.trainer import Trainer
from tests.training_run import configure, loaders, model_of


def layers(distributed: DistributedConfig) -> list[Record]:
    """What a run of three steps records, whose second step comes after a validation."""
    config = configure("", output_dir=None, max_steps=3, eval_steps=1, layer_statistics=1)
    trainer = Trainer(model_of(dtype=torch.float64), replace(config, distributed=distributed))
    history = trainer.train(*loaders("bucketed"))
    return [record for record in history.records if record.pop("event") == "layers"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_rank_records_the_layers_of_the_whole_model(ranks, strategy):
    expected = layers(DistributedConfig())
    assert [record["step"] for record in expected] == [1, 2, 3]
    for records in ranks(2).run(layers, DistributedConfig(strategy=strategy)):
        for mine, theirs in zip(records, expected, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-15)
