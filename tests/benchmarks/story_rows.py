"""Rows of freshly drawn stories, all full, and a small model that trains on them: for `batch_sizes.py`, `scaling.py`.

Stories are drawn from the grammar of the shipped ones, so that no run reads a row twice, however large its batches.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain

import torch
from torch import Tensor

from course_lm.batching import AnyBatch
from course_lm.corpus import load_corpus
from course_lm.corpus.stories import generate_stories
from course_lm.model import GPT, ModelConfig
from course_lm.tokenizer import Tokenizer, encode_documents, train_tokenizer

VOCAB_SIZE, LENGTH = 512, 64  # LENGTH: targets of a row
STORIES, STORY_SEED = 24_000, 1
N_LAYER = 2


@cache
def tokenizer() -> Tokenizer:
    """Trained on the shipped stories' training split."""
    train, _ = load_corpus("stories").split(val_fraction=0.1)
    return train_tokenizer(train.documents, VOCAB_SIZE)


def cut(documents: list[str]) -> Tensor:
    """The documents as one, an `<eos>` between two, cut into rows of LENGTH + 1 tokens, (R, LENGTH + 1) int64.

    A row begins with the last token of the row before, so each token but the first is a target once.
    """
    ids = encode_documents(tokenizer(), documents)
    flat = torch.tensor(ids[0][:1] + list(chain.from_iterable(document[1:] for document in ids)))
    return flat.unfold(0, LENGTH + 1, LENGTH)


@cache
def training_rows() -> Tensor:
    """Rows of STORIES stories that are not held out, (R, LENGTH + 1)."""
    _, validation = load_corpus("stories").split(val_fraction=0.1)
    held_out = set(validation.documents)
    return cut([story.text for story in generate_stories(STORIES, STORY_SEED) if story.text not in held_out])


@cache
def held_out_batches(rows: int) -> list[AnyBatch]:
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
