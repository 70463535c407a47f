"""How text is continued token by token: what attention keeps of the tokens before, and how the next one is drawn."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.validation import require

COLDEST = 1e-6  # a lower temperature draws the same token, and the logits divided by it would overflow


class KeysAndValues:
    """Attention of one layer over a text that grows: the keys and values of its tokens are computed once and kept.

    The keys and values of a token depend on the tokens before it alone, so they are the same when the text has grown.
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of new tokens to all up to themselves; all arguments and the result are (B, H, T, C).

        The first call may bring any number of tokens, each later one brings a single token, which may see all.
        """
        if self.key is None or self.value is None:
            self.key, self.value = key, value
        else:
            self.key, self.value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        return F.scaled_dot_product_attention(query, self.key, self.value, is_causal=query.size(2) > 1)


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from the logits of the next one.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: draw among the `top_k` most probable tokens only, or None (Fan et al. 2018, section 5.4).
        top_p: then among the fewest most probable tokens that together have at least this probability, or None
            (Holtzman et al. 2020, section 3.1).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        require(0 <= self.temperature < math.inf, "temperature", "a finite number of at least 0", self.temperature)
        whole = self.top_k is None or (type(self.top_k) is int and self.top_k >= 1)
        require(whole, "top_k", "an int of at least 1, or None", self.top_k)
        require(self.top_p is None or 0 < self.top_p <= 1, "top_p", "in (0, 1], or None", self.top_p)

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> int:
        """A token, from its logits (V,); FloatingPointError where they are not finite."""
        if not logits.isfinite().all():
            raise FloatingPointError("the model's logits are not finite, so that no token can be drawn")
        if self.temperature == 0:
            return int(logits.argmax())
        kept = self.keep(logits / max(self.temperature, COLDEST))
        return int(torch.multinomial(kept.softmax(dim=-1), 1, generator=generator))

    def keep(self, logits: Tensor) -> Tensor:
        """The logits (V,), -inf in place of those that `top_k` and `top_p` leave out."""
        if self.top_k is not None and self.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], -math.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, places = logits.softmax(dim=-1).sort(descending=True, stable=True)
            before = ordered.cumsum(dim=-1) - ordered  # the probability of all tokens that are likelier
            logits = logits.index_fill(0, places[before >= self.top_p], -math.inf)
        return logits
