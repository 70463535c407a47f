"""A small GPT. The course is about the loop around it, so the model is given.

Pre-norm blocks, learned positions, a head that shares the token embedding's weights (GPT-2, Radford et al. 2019), or
rotary positions (Su et al. 2024). Dropout acts on the embedding and on the two residual branches, not on the attention
weights: those stay inside the fused kernel.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64, Shaped
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from course_lm.validation import Count, Section, Within, require, require_whole

DEEPEST = 1_000  # blocks
WIDEST = 2**20  # a matrix of a much wider model has more bytes than torch can count


@dataclass(frozen=True)
class ModelConfig(Section):
    """Size of the model.

    Args:
        n_layer: blocks, each with attention and a perceptron.
        n_head: heads of attention in a block.
        d_model: width of each token's vector; a multiple of `n_head`.
        dropout: probability that a number is set to zero while training.
        gradient_checkpointing: keep only the input of each block, and compute the block again in the backward pass:
            less memory, more time, the same numbers.
        positions: "learned", a vector added to each token; or "rotary", which turns queries and keys, for heads of an
            even width.
        activation: of the perceptrons: "gelu" (exact) or "gelu_tanh" (GPT-2's approximation by tanh).
    """

    n_layer: Annotated[int, Within(1, DEEPEST)] = 4
    n_head: Count = 4
    d_model: Annotated[int, Within(1, WIDEST)] = 128
    dropout: Annotated[float, Within(0, 1, "[)")] = 0.1
    gradient_checkpointing: bool = False
    positions: Literal["learned", "rotary"] = "learned"
    activation: Literal["gelu", "gelu_tanh"] = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        divides = self.d_model % self.n_head == 0
        require(divides, "d_model", f"a multiple of n_head ({self.n_head})", self.d_model)
        turns = self.positions != "rotary" or self.d_model // self.n_head % 2 == 0
        require(turns, "d_model", f"an even multiple of n_head ({self.n_head}) for rotary positions", self.d_model)


def allowed_attention(
    attention_mask: Shaped[Tensor, "B T"] | None, document_ids: Int[Tensor, "B T"] | None
) -> Bool[Tensor, "B T T"] | None:
    """Which position may look at which, (B, T, T) bool, query before key; None stands for plain causal attention.

    A token sees itself and what came before it, never PAD, and in a packed row only its own document. Every position
    may look at itself, PAD too: a row with nothing allowed would give NaN in the softmax.

    Args:
        attention_mask: (B, T), 1 for a token and 0 for PAD.
        document_ids: (B, T), the number of the document in its row, -1 for PAD.
    """
    given = document_ids if document_ids is not None else attention_mask
    if given is None:
        return None
    length = given.size(1)
    allowed = torch.ones(length, length, dtype=torch.bool, device=given.device).tril()  # (T, T)
    if attention_mask is not None:
        allowed = allowed & attention_mask.bool()[:, None, :]  # (B, T, T)
    if document_ids is not None:
        allowed = allowed & (document_ids[:, :, None] == document_ids[:, None, :])  # (B, T, T)
    return allowed | torch.eye(length, dtype=torch.bool, device=given.device)


def positions_of(
    input_ids: Int[Tensor, "B T"],
    attention_mask: Shaped[Tensor, "B T"] | None,
    document_ids: Int[Tensor, "B T"] | None,
) -> Int64[Tensor, "B T"]:
    """Position of each token in its document, (B, T): counted from the first token that is not PAD."""
    index = torch.arange(input_ids.size(1), device=input_ids.device).expand_as(input_ids)
    if document_ids is not None:
        starts = torch.ones_like(document_ids, dtype=torch.bool)
        starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        # the largest start so far is the start of the document that a position is in
        return index - torch.where(starts, index, 0).cummax(dim=1).values
    if attention_mask is not None:
        # clamp: PAD on the left would get -1, which no embedding has
        return (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return index


def document_blocks(document_ids: Int[Tensor, "B T"]) -> BlockMask:
    """What `allowed_attention` says of packed rows, by blocks of 128 positions: those that see nothing are left out.

    PAD sees the PAD before it too, which no token does.
    """

    def allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    rows, length = document_ids.shape
    return create_block_mask(allowed, rows, None, length, length, device=document_ids.device)


def additive_bias(allowed: Tensor | None, like: Tensor) -> Tensor:
    """The mask as a number to add to attention scores: 0 where allowed, -inf elsewhere.

    Args:
        allowed: (B, T, T) bool, or None for plain causal attention.
        like: (B, H, T, C), gives dtype, device and the number of heads.

    Returns:
        (B * H, T, T), or (1, T, T) for plain causal attention.
    """
    batch, heads, length, _ = like.shape
    if allowed is None:
        return like.new_full((1, length, length), -math.inf).triu(diagonal=1)
    # -inf is safe here: every position may look at itself, so no row is -inf throughout
    bias = like.new_zeros(allowed.shape).masked_fill_(~allowed, -math.inf)
    return bias[:, None].expand(batch, heads, length, length).reshape(batch * heads, length, length)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention by two matrix products; all but `bias` are (B, H, T, C). See `additive_bias`."""
    shape, scale = query.shape, 1.0 / math.sqrt(query.size(-1))
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))  # (B * H, T, C)
    # scale and mask go into the product itself: no further pass over T * T scores
    scores = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scale)  # (B * H, T, T)
    return torch.bmm(scores.softmax(dim=-1), value).view(shape)


def prefers_plain_attention(query: Tensor) -> bool:
    """On a CPU in half precision the fused kernel's backward is slower than two matrix products, or fails."""
    return query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)


def prefers_blocks(query: Tensor) -> bool:
    """Whether packed rows take FlexAttention: on CUDA, once compiled, where it leaves out blocks that see nothing."""
    exact = query.dtype == torch.float64  # it has no such kernel, and none for narrower heads than 16
    return query.device.type == "cuda" and torch.compiler.is_compiling() and not exact and query.size(-1) >= 16


class Attends(Protocol):
    """What a position may look at: a `Mask`, or the tokens before it that `generate` keeps."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention; all arguments and the result are (B, H, T, C)."""
        ...


class Mask:
    """One forward pass's attention mask, in the form that the chosen path needs, built once for all layers."""

    def __init__(self, attention_mask: Tensor | None, document_ids: Tensor | None) -> None:
        self.given = attention_mask, document_ids
        self._built: Any = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Masked attention; all arguments and the result are (B, H, T, C)."""
        if self.given[1] is not None and prefers_blocks(query):
            if self._built is None:
                self._built = document_blocks(self.given[1])
            return flex_attention(query, key, value, block_mask=self._built)
        plain = prefers_plain_attention(query)
        if self._built is None:
            allowed: Any = allowed_attention(*self.given)  # (B, T, T)
            self._built = additive_bias(allowed, query) if plain else allowed
        if plain:
            return plain_attention(query, key, value, self._built)
        mask = None if self._built is None else self._built[:, None]  # (B, 1, T, T)
        # torch takes a mask or is_causal, never both
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)


class Rotation:
    """One forward pass's rotary positions (Su et al. 2024, section 3.4), built once for all layers.

    Elements 2i and 2i + 1 of a query or a key are taken as one complex number and turned by the angle
    position x 10000^(-2i/C). A product of the two then depends on the distance of their positions alone, which a head
    need not learn for each pair of positions.
    """

    def __init__(self, position_ids: Tensor, width: int) -> None:
        # not of the default type, which is the user's own affair
        pairs = torch.arange(0, width, 2, dtype=torch.float32, device=position_ids.device)
        rates = 10_000.0 ** (-pairs / width)  # (C/2,)
        angles = position_ids[:, :, None, None] * rates  # (B, T, 1, C/2)
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def turn(self, x: Tensor) -> Tensor:
        """Queries or keys, (B, T, H, C), turned by the angles of their positions."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))  # (B, T, H, C/2)
        return torch.view_as_real(pairs * self.turns).flatten(-2).to(x.dtype)


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) whose CPU path draws one random number for four elements.

    Drawing is what dropout costs on a CPU: torch draws element by element. A 64-bit number gives four 16-bit ones, each
    compared with a threshold, so the probability is `p` rounded to a multiple of 2**-16.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Zero each element with probability `p` and scale the rest so that the mean stays."""
        dropped = min(round(self.p * 2**16), 2**16 - 1)
        if not self.training or dropped == 0:
            return input
        if input.device.type != "cpu":
            return super().forward(input)
        # from -2**63: by default random_ leaves the sign bit at 0
        bits = torch.empty(math.ceil(input.numel() / 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        kept = bits[: input.numel()].view(input.shape) >= dropped - 2**15  # int16 begins at -2**15
        # scaled by the rounded probability, the one that was drawn with
        return input * kept.to(input.dtype).mul_(2**16 / (2**16 - dropped))


class Attention(nn.Module):
    """Causal multi-head self-attention, (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, mask: Attends, rotation: Rotation | None = None) -> Tensor:
        """Mix each position with those it may see."""
        batch, length, width = x.shape
        # split, not (B, T, 3, H, C): the gradients of the three are put together in one copy, not two
        parts = (part.view(batch, length, self.n_head, -1) for part in self.qkv(x).split(width, dim=2))
        query, key, value = parts  # each (B, T, H, C)
        if rotation is not None:
            query, key = rotation.turn(query), rotation.turn(key)
        mixed = mask.attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))  # (B, H, T, C)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron; each reads a normalised copy and adds to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.d_model)
        self.up = nn.Linear(config.d_model, 4 * config.d_model)
        self.down = nn.Linear(4 * config.d_model, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(self, x: Tensor, mask: Attends, rotation: Rotation | None = None) -> Tensor:
        """Attention, then the perceptron, (B, T, D) -> (B, T, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, rotation))
        inner = F.gelu(self.up(self.mlp_norm(x)), approximate=self.approximate)  # (B, T, 4 * D)
        return x + self.dropout(self.down(inner))


class GPT(nn.Module):
    """A decoder-only transformer over `vocab_size` tokens and at most `max_length` positions; ValueError for none."""

    def __init__(self, config: ModelConfig, vocab_size: int, max_length: int) -> None:
        super().__init__()
        require_whole("vocab_size", vocab_size, least=1)
        require_whole("max_length", max_length, least=1)
        self.config, self.max_length = config, max_length
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(max_length, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.d_model)
        self.apply(self._initialise)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "down.weight")):
                # the residual stream's variance then does not grow with depth (GPT-2, section 2.3)
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.n_layer))

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embedding, under the name that Hugging Face's models have for it."""
        return self.token_embedding

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        # GPT-2's initialisation; LayerNorm keeps torch's ones and zeros
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Shaped[Tensor, "B T"] | None = None,
        document_ids: Int[Tensor, "B T"] | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the next token at every position.

        Args:
            input_ids: (B, T) int64, T at most `max_length`.
            attention_mask: (B, T), 1 for a token and 0 for PAD.
            document_ids: (B, T), for packed rows: tokens see only their own document; -1 for PAD.
            position_ids: (B, T); by default counted from the start of each document.

        Returns:
            (B, T, V).

        Raises:
            ValueError: T is larger than `max_length`.
        """
        if input_ids.size(1) > self.max_length:
            raise ValueError(f"the model takes at most {self.max_length} positions, got {input_ids.size(1)}")
        if position_ids is None:
            position_ids = positions_of(input_ids, attention_mask, document_ids)
        mask = Mask(attention_mask, document_ids)
        return self.read(input_ids, position_ids, [mask] * len(self.blocks))

    def read(
        self, input_ids: Int[Tensor, "B T"], position_ids: Int[Tensor, "B T"], masks: Sequence[Attends]
    ) -> Float[Tensor, "B T V"]:
        """Logits of the next token at every position; `masks` says for each block what a position may look at."""
        rotation = None
        x = self.token_embedding(input_ids)  # (B, T, D)
        if self.config.positions == "rotary":
            rotation = Rotation(position_ids, self.config.d_model // self.config.n_head)
        else:
            x = x + self.position_embedding(position_ids)
        x = self.dropout(x)
        for block, mask in zip(self.blocks, masks):
            if self.config.gradient_checkpointing and self.training:
                # the second forward pass drops the same elements: torch puts the random state back for it
                x = checkpoint(block, x, mask, rotation, use_reentrant=False)
            else:
                x = block(x, mask, rotation)
        return F.linear(self.norm(x), self.token_embedding.weight)  # (B, T, V)


def embedded_tokens(module: nn.Module) -> int | None:
    """Rows of the embedding that `get_input_embeddings()` names, as in Hugging Face's models, else of the largest."""
    embeddings = module.modules()
    if hasattr(module, "get_input_embeddings"):
        with suppress(NotImplementedError):  # some of Hugging Face's cannot tell
            embeddings = [module.get_input_embeddings()]  # type: ignore[operator]
    # the largest: embeddings of positions have as a rule fewer rows than the vocabulary
    return max((one.num_embeddings for one in embeddings if isinstance(one, nn.Embedding)), default=None)


def count_parameters(model: nn.Module) -> int:
    """Number of trained weights; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, and give each its own mode back."""
    # one by one: model.train() would also change layers that the caller keeps in eval mode
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
