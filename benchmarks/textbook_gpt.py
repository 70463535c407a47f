"""The GPT that textbooks print, for comparison: fused causal attention, tanh GELU, a head tied to the embedding.

Its parameters have the names and shapes of `course_lm.model.GPT`, so one model's weights load into the other. Two
switches exchange one part each for the shipped model's, so that a benchmark can say what each part brings.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AttentionPath = Literal["sdpa", "matmul"]
Gelu = Literal["tanh", "none"]


class TextbookAttention(nn.Module):
    """Causal multi-head self-attention, (B, T, D) -> (B, T, D)."""

    def __init__(self, n_head: int, width: int, path: AttentionPath) -> None:
        super().__init__()
        self.n_head, self.path = n_head, path
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        query, key, value = (p.view(batch, length, self.n_head, -1).transpose(1, 2) for p in parts)  # (B, H, T, C)
        if self.path == "sdpa":
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = matmul_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def matmul_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention by two batched matrix products; all are (B, H, T, C)."""
    length, scale = query.size(2), 1.0 / math.sqrt(query.size(3))
    bias = query.new_full((1, length, length), -math.inf).triu(diagonal=1)
    flat_query, flat_key, flat_value = (part.flatten(0, 1) for part in (query, key, value))
    scores = torch.baddbmm(bias, flat_query, flat_key.transpose(1, 2), alpha=scale)  # (B * H, T, T)
    return torch.bmm(scores.softmax(dim=-1), flat_value).view(query.shape)


class TextbookBlock(nn.Module):
    """Pre-norm attention and perceptron with residual connections."""

    def __init__(self, n_head: int, width: int, path: AttentionPath, gelu: Gelu) -> None:
        super().__init__()
        self.gelu = gelu
        self.attention_norm = nn.LayerNorm(width)
        self.attention = TextbookAttention(n_head, width, path)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate=self.gelu))


class TextbookGPT(nn.Module):
    """A decoder-only transformer without dropout or masks: every row is full."""

    def __init__(
        self,
        *,
        n_layer: int,
        n_head: int,
        d_model: int,
        vocab_size: int,
        max_length: int,
        attention: AttentionPath = "sdpa",
        gelu: Gelu = "tanh",
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(TextbookBlock(n_head, d_model, attention, gelu) for _ in range(n_layer))
        self.norm = nn.LayerNorm(d_model)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits (B, T, V) of the next token at every position of `input_ids` (B, T)."""
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)
