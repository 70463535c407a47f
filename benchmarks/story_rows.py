"""Rows of freshly drawn stories, all full, and a small model that trains on them: what several scripts measure with.

Stories are drawn from the grammar of the shipped ones, so that no run reads a row twice, however large its batches.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lm.batching import AnyBatch
from course_lm.corpus import load_corpus
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.step import train_step
from course_lm.tokenizer import Tokenizer, encode_documents, train_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "tools/corpora"))  # what the shipped stories are written by

from stories import generate_stories

VOCAB_SIZE, LENGTH = 512, 64  # LENGTH: targets of a row
STORIES, STORY_SEED = 24_000, 1
N_LAYER, D_MODEL = 2, 64  # D_MODEL: the width, where widths are not compared
BATCH_SIZE, HELD_OUT, WARM_UP = 8, 512, 0.1  # rows of a step, rows that validate, share of the steps
OPTIMIZER: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}  # of AdamW
# What a script stores of this, whose runs differ in other things.
COMMON = {
    "n_layer": N_LAYER,
    "vocab_size": VOCAB_SIZE,
    "batch_size": BATCH_SIZE,
    "targets_per_row": LENGTH,
    "held_out_rows": HELD_OUT,
    "warmup_ratio": WARM_UP,
    "optimizer": "adamw",
    **OPTIMIZER,
}


@cache
def tokenizer() -> Tokenizer:
    """Trained on the shipped stories' training split."""
    train, _ = load_corpus("stories").split(val_fraction=0.1)
    return train_tokenizer(train.documents, VOCAB_SIZE)


def one_stream(documents: list[str], tokenizer: Tokenizer) -> Tensor:
    """The documents as one, an `<eos>` between two, (N,) int64."""
    ids = encode_documents(tokenizer, documents)
    return torch.tensor(ids[0][:1] + list(chain.from_iterable(document[1:] for document in ids)))


def cut(documents: list[str]) -> Tensor:
    """The documents as one, cut into rows of LENGTH + 1 tokens, (R, LENGTH + 1) int64.

    A row begins with the last token of the row before, so each token but the first is a target once.
    """
    return one_stream(documents, tokenizer()).unfold(0, LENGTH + 1, LENGTH)


@cache
def training_rows() -> Tensor:
    """Rows of STORIES stories that are not held out, (R, LENGTH + 1)."""
    _, validation = load_corpus("stories").split(val_fraction=0.1)
    held_out = set(validation.documents)
    return cut([story.text for story in generate_stories(STORIES, STORY_SEED) if story.text not in held_out])


@cache
def held_out_batches(rows: int = HELD_OUT) -> list[AnyBatch]:
    """The first `rows` held-out rows: the same at every look."""
    _, validation = load_corpus("stories").split(val_fraction=0.1)
    return [batch_of(part) for part in cut(validation.documents)[:rows].split(64)]


def batch_of(rows: Tensor) -> AnyBatch:
    """A batch of full rows, which need no mask."""
    return {"input_ids": rows, "labels": rows}


def batches(batch_size: int, seed: int) -> Iterator[AnyBatch]:
    """Batches of `batch_size` rows in an order drawn with `seed`, until each row has been read once."""
    rows = training_rows()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(batch_size):
        yield batch_of(rows[chosen])


def new_model(d_model: int, seed: int) -> GPT:
    """The model, its weights drawn with `seed`; heads are 16 wide."""
    torch.manual_seed(seed)
    config = ModelConfig(n_layer=N_LAYER, n_head=d_model // 16, d_model=d_model, dropout=0.0)
    return GPT(config, VOCAB_SIZE, LENGTH + 1)


def train(
    model: GPT, read: Iterable[AnyBatch], lr_at: Callable[[int], float], numbers: dict[str, Any] = OPTIMIZER
) -> float:
    """Take a step of AdamW on each batch, at the rate of this step; the held-out loss then, nats per token."""
    optimizer = build_optimizer(model, OptimizerConfig(**numbers))
    for step, batch in enumerate(read):
        train_step(model, [batch], optimizer, lr=lr_at(step))
    return round(evaluate(model, held_out_batches())["val_loss"], 4)
