"""A tiny model, and batches of random tokens for it: padded on one side, or packed."""

from typing import Any

import torch
from torch import Tensor

from course_lm.batching import labels_of
from course_lm.model import GPT, ModelConfig, positions_of

VOCAB, LONGEST = 13, 16


def tiny_gpt(*, seed: int = 0, dtype: torch.dtype = torch.float64, **settings: Any) -> GPT:
    """A model with weights large enough that each of them, and a look at another past, shows in the logits."""
    tiny: dict[str, Any] = {"n_layer": 2, "n_head": 2, "d_model": 8, "dropout": 0.0}
    model = GPT(ModelConfig(**(tiny | settings)), VOCAB, LONGEST).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    return model


def random_ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def plain_batch(lengths: list[int], *, side: str = "right", width: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """One row for each length, with PAD on one side up to the longest, or to `width`."""
    width, rows = max(width, *lengths, 0), torch.tensor(lengths)[:, None]
    index = torch.arange(width)
    mask = (index < rows if side == "right" else index >= width - rows).long()
    ids = random_ids(*mask.shape, seed=seed)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels_of(ids, mask)}


def packed_batch(rows: list[list[int]], pads: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """One row for each list of document lengths, with PAD at the right."""
    width = max(map(sum, rows)) + pads
    documents = torch.full((len(rows), width), -1)
    for row, lengths in zip(documents, rows):
        row[: sum(lengths)] = torch.repeat_interleave(torch.tensor(lengths))
    ids = random_ids(*documents.shape, seed=seed)
    mask = (documents >= 0).long()
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels_of(ids, mask, documents)}
    return batch | {"document_ids": documents, "position_ids": positions_of(ids, None, documents) * mask}
