"""Small language models that somebody else designed, with random weights and no download."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

VOCABULARY, LONGEST, WINDOW = 23, 32, 4


def _config(name: str, **sizes: Any) -> Any:
    return getattr(pytest.importorskip("transformers"), name)(vocab_size=VOCABULARY, pad_token_id=0, **sizes)


def _llama_like(name: str, **sizes: Any) -> Any:
    widths = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": LONGEST}
    return _config(name, **widths, **heads, bos_token_id=0, eos_token_id=0, **sizes)


def _gpt2_like(name: str, **sizes: Any) -> Any:
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return _config(name, n_positions=LONGEST, n_embd=8, n_head=2, bos_token_id=0, eos_token_id=0, **quiet, **sizes)


CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: _gpt2_like("GPT2Config", n_layer=2),
    "llama": lambda: _llama_like("LlamaConfig"),
    "mistral": lambda: _llama_like("MistralConfig", sliding_window=WINDOW),
    "qwen2": lambda: _llama_like("Qwen2Config"),
    "gpt_neox": lambda: _config(
        "GPTNeoXConfig", hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=LONGEST,
    ),
    "opt": lambda: _config(
        "OPTConfig", hidden_size=8, ffn_dim=12, num_hidden_layers=2, num_attention_heads=2, dropout=0.0,
        max_position_embeddings=LONGEST, word_embed_proj_dim=8,
    ),
    "bloom": lambda: _config("BloomConfig", hidden_size=8, n_layer=2, n_head=2),
    "gpt_oss": lambda: _llama_like(
        "GptOssConfig", num_local_experts=3, num_experts_per_tok=2, sliding_window=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "gemma2": lambda: _llama_like("Gemma2Config", sliding_window=WINDOW),
    "gemma3": lambda: _llama_like("Gemma3TextConfig", sliding_window=WINDOW),
    "mamba": lambda: _config("MambaConfig", hidden_size=8, num_hidden_layers=2, state_size=3),
    "rwkv": lambda: _config(
        "RwkvConfig", hidden_size=8, attention_hidden_size=8, intermediate_size=12, num_hidden_layers=2,
        context_length=LONGEST,
    ),
}  # fmt: skip


def hugging_face(name: str, dtype: torch.dtype = torch.float32, attention: str = "eager") -> nn.Module:
    """A causal language model of that family, in training mode; weights large enough that each part matters."""
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[name]()
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.train()
