"""A run of a few milliseconds a step, for a terminal or a notebook to show: `python -m tests.small_run`."""

from typing import Any

import torch

from course_lm.batching import labels_of
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.schedules import ScheduleConfig
from course_lm.trainer import Trainer

VOCABULARY, LENGTH = 50, 16


def small_batches(count: int = 50) -> list[dict[str, Any]]:
    """Rows that count upwards from a random token."""
    draw = torch.Generator().manual_seed(0)
    starts = [torch.randint(VOCABULARY, (4, 1), generator=draw) for _ in range(count)]
    ids = [(start + torch.arange(LENGTH)) % VOCABULARY for start in starts]
    masks = [torch.ones_like(part) for part in ids]
    return [
        {"input_ids": part, "attention_mask": mask, "labels": labels_of(part, mask), "num_bytes": part.numel()}
        for part, mask in zip(ids, masks)
    ]


def small_trainer(max_steps: int, observers: Any = (), **settings: Any) -> Trainer:
    """A trainer that logs every 10 steps, validates every 50 and writes nothing."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=32), VOCABULARY, LENGTH)
    quiet: dict[str, Any] = {"device": "cpu", "precision": "fp32", "gradient_accumulation_steps": 1, "output_dir": None}
    loop = LoopConfig(max_steps=max_steps, **(quiet | {"eval_steps": 50} | settings))
    rate = ScheduleConfig(type="constant", warmup_steps=0)  # a saved run may go on for longer
    config = TrainingConfig(optimizer=OptimizerConfig(learning_rate=3e-3), lr_scheduler=rate, training=loop)
    return Trainer(model, config, observers=observers)


if __name__ == "__main__":
    small_trainer(200).train(small_batches(), small_batches(4))
