"""The tiny model of the audit: small enough for hundreds of runs, and sensitive to all that a loop may get wrong."""

import math
from functools import cache

import torch
from torch import Tensor, nn

PAD, EOS, VOCABULARY, LONGEST, WIDTH = 0, 1, 14, 10, 6  # positions begin anew after LONGEST, and rows may be longer
POISONED_GRADIENT, POISONED_LOSS = 12, 13  # tokens: with one in a batch, its gradient, or its logits, are not finite
TOKENS = range(2, POISONED_GRADIENT)


class ModeDependent(nn.Module):
    """Dropout whose mask never changes: train and eval mode differ, and no random number is drawn."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop the first feature in train mode."""
        if not self.training:
            return x
        mask = torch.ones(WIDTH, dtype=x.dtype, device=x.device)
        mask[0] = 0.0
        return x * mask * WIDTH / (WIDTH - 1)


class TinyModel(nn.Module):
    """Embeddings, one head of causal attention, a head with a bias, and two norms with gains and biases.

    Attention makes masks and shifts matter. Its keys have no bias: the gradient of one is rounding alone, and Adam
    makes a whole step of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.mode = ModeDependent()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim == 1:  # gains and biases away from 1 and 0, so that their decay shows
                    weight += 0.3 * torch.randn_like(weight) + (0.4 if name.endswith("bias") else 0.0)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V), which are also their own `logits`: a loop may read them as transformers' output has them.

        A row may hold several documents, told apart by `document_ids`; a position of each by `position_ids`.
        """
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (real.cumsum(1) - 1).clamp(min=0) if position_ids is None else position_ids  # (B, T)
        length = input_ids.shape[1]
        allowed = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril() & real.bool()[:, None, :]
        if document_ids is not None:
            allowed = allowed & (document_ids[:, :, None] == document_ids[:, None, :])
        # a PAD query attends to itself: a fully masked row would give NaN
        allowed = allowed | torch.eye(length, dtype=torch.bool, device=input_ids.device)  # (B, T, T)
        x = self.mode(self.tokens(input_ids) + self.positions(positions % LONGEST))
        h = self.norm1(x)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / math.sqrt(WIDTH)
        x = x + scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1) @ self.value(h)
        logits = _poisoned(self.head(self.norm2(x)), input_ids)
        logits.logits = logits.clone()  # type: ignore[attr-defined]  # a view of itself would never be freed
        return logits


def _poisoned(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Logits as they are, but for a batch that holds a poisoned token."""
    if bool((input_ids == POISONED_LOSS).any()):
        return logits * math.nan
    if bool((input_ids == POISONED_GRADIENT).any()):
        return logits + (0.0 * logits).abs().sqrt()  # 0, with a slope of 0 times inf
    return logits


@cache
def make_model(seed: int, tied: bool = False) -> TinyModel:
    """The float64 model in train mode with the weights of `seed`, to be copied; no random generator is changed.

    `tied`: its head and its token embeddings share one weight.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed accelerators too
        model = TinyModel().double().train()
    if tied:
        model.head.weight = model.tokens.weight
    return model
