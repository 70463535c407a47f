"""How text is continued token by token: what attention keeps of the tokens before, and how the next one is drawn."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.model import GPT, evaluation_mode
from course_lm.validation import Count, NotNegative, Section, Within, require, require_whole

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
class Sampling(Section):
    """How a token is drawn from the logits of the next one.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: draw among the `top_k` most probable tokens only, of equal ones the first, or None (Fan et al. 2018,
            section 5.4).
        top_p: then among the fewest most probable tokens that together have at least this probability, or None
            (Holtzman et al. 2020, section 3.1).
    """

    temperature: NotNegative = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Within(0, 1, "(]")] | None = None

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
            last = logits.topk(self.top_k).values[-1]
            ties = (logits == last).nonzero()[self.top_k - int((logits > last).sum()) :, 0]  # that are too many
            logits = logits.masked_fill(logits < last, -math.inf).index_fill(0, ties, -math.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, places = logits.softmax(dim=-1).sort(descending=True, stable=True)
            before = ordered.cumsum(dim=-1) - ordered  # the probability of all tokens that are likelier
            logits = logits.index_fill(0, places[before >= self.top_p], -math.inf)
        return logits


def generate(
    model: GPT,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_id: int | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> list[int]:
    """Sample a continuation token by token.

    Args:
        prompt_ids: at least one token.
        max_new_tokens: upper bound on the tokens drawn.
        temperature, top_k, top_p: see `Sampling`; a temperature of 0 takes the most probable token.
        eos_id: drawing it ends the text; it is not returned.
        generator: source of randomness, on the CPU.
        use_cache: keep keys and values from token to token; without, each token reads all the text again.

    Returns:
        The new tokens, without the prompt.
    """
    sampling = Sampling(temperature, top_k, top_p)
    return list(stream(model, prompt_ids, sampling, max_new_tokens, eos_id, generator, use_cache))


def stream(
    model: GPT,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    max_new_tokens: int,
    eos_id: int | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """The tokens of `generate`, each as soon as it is drawn; the weights must stay as they are until the last one."""
    require_whole("max_new_tokens", max_new_tokens, least=0)
    ids: Any = prompt_ids.tolist() if isinstance(prompt_ids, Tensor | np.ndarray) else prompt_ids
    require(isinstance(ids, Sequence) and bool(ids), "prompt_ids", "a list of at least one token", prompt_ids)
    ids = [
        int(one) if isinstance(one, Tensor) and one.ndim == 0 and not one.is_floating_point() else one for one in ids
    ]
    largest = model.token_embedding.num_embeddings - 1
    for token in ids:
        fits = isinstance(token, Integral) and 0 <= int(token) <= largest
        require(fits, "prompt_ids", f"whole numbers from 0 to {largest}, the model's vocabulary", token)
    return _tokens(_Reader(model, use_cache), ids, sampling, max_new_tokens, eos_id, generator)


def _tokens(
    reader: "_Reader",
    ids: list[int],
    sampling: Sampling,
    max_new_tokens: int,
    eos_id: int | None,
    generator: torch.Generator | None,
) -> Iterator[int]:
    for _ in range(max_new_tokens):
        token = sampling.draw(reader.next_logits(ids), generator)
        if token == eos_id:
            break
        ids.append(token)
        yield token


class _Reader:
    """Reads a text that grows, and of it, where it can, only what has come since it read last."""

    def __init__(self, model: GPT, use_cache: bool) -> None:
        self.model, self.use_cache = model, use_cache
        self.layers, self.known = [KeysAndValues() for _ in model.blocks], 0  # known: tokens in the layers

    @torch.no_grad()
    def next_logits(self, ids: list[int]) -> Tensor:
        """Logits (V,) of the token after `ids`, on the CPU, where the generator is."""
        device = next(self.model.parameters()).device
        with evaluation_mode(self.model):
            if self.use_cache and len(ids) <= self.model.max_length:
                positions = torch.arange(self.known, len(ids), device=device)[None]  # (1, T)
                new = torch.tensor([ids[self.known :]], device=device)
                logits, self.known = self.model.read(new, positions, self.layers), len(ids)
            else:
                # Of a longer text the model can see the last max_length tokens only. Each then stands one position
                # nearer to the start, and one that it has looked at is gone: what was kept holds no more.
                logits = self.model(torch.tensor([ids[-self.model.max_length :]], device=device))
        return logits[0, -1].float().cpu()
