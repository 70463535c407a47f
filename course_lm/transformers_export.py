"""A trained model as Hugging Face's transformers read it: GPT-2 with learned positions, GPT-NeoX with rotary ones.

Both compute what `GPT` computes, with the same weights in another layout. Nothing here needs transformers: their
files are JSON and safetensors. `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` open them.
"""

import json
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from torch import Tensor

from course_lm.model import GPT
from course_lm.tokenizer import end_of, eos_id, pad_id

Weights = dict[str, Tensor]
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

# Their name for each of ours, within a layer; a linear layer has a weight and a bias, and so has a norm.
GPT2_NAMES = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
NEOX_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}


ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}  # theirs for each of ours


def transformers_weights(model: GPT) -> Weights:
    """The model's weights under the names and in the layout of GPT-2 or GPT-NeoX; the head is the token embedding."""
    return _renamed_and_laid_out({name: tensor.detach() for name, tensor in model.state_dict().items()}, model)


def weights_from_transformers(model: GPT, weights: Weights) -> Weights:
    """The weights that `transformers_weights` has laid out; ValueError where they are not those of such a model."""
    places: Weights = {}
    # each number of the model gets a place: where the layout moves the places to, the numbers come from
    for name, tensor in model.state_dict().items():
        start = sum(place.numel() for place in places.values())
        places[name] = torch.arange(start, start + tensor.numel()).view(tensor.shape)
    theirs = _renamed_and_laid_out(places, model)
    shapes, wanted = ({name: tuple(one.shape) for name, one in part.items()} for part in (weights, theirs))
    differing = sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name))
    if differing:
        name = differing[0]
        raise ValueError(f"{name} is {shapes.get(name)} there, and {wanted.get(name)} in this model as it is exported")
    order = torch.cat([place.reshape(-1) for place in theirs.values()]).argsort()
    numbers = torch.cat([weights[name].reshape(-1) for name in theirs])[order]
    return {name: numbers[place] for name, place in places.items()}


def model_settings(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `model` and `data` of the configuration whose `config.json` this is; see `model_config`."""
    learned = config["model_type"] == "gpt2"
    sizes = ("num_hidden_layers", "num_attention_heads", "hidden_size", "hidden_dropout", "hidden_act")
    keys = ("n_layer", "n_head", "n_embd", "resid_pdrop", "activation_function") if learned else sizes
    ours = ("n_layer", "n_head", "d_model", "dropout", "activation")
    model = {name: config[key] for name, key in zip(ours, keys)} | {"positions": "learned" if learned else "rotary"}
    model["activation"] = {theirs: name for name, theirs in ACTIVATIONS.items()}[model["activation"]]
    longest = config["n_positions" if learned else "max_position_embeddings"]
    return model, {"vocab_size": config["vocab_size"], "max_length": longest}


def model_config(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What stands in `config.json`."""
    config = model.config
    shared = {
        **generation_config(tokenizer),
        "vocab_size": model.token_embedding.num_embeddings,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": str(model.token_embedding.weight.dtype).removeprefix("torch."),
    }
    if config.positions == "learned":
        return shared | {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": model.max_length,
            "n_embd": config.d_model,
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_inner": 4 * config.d_model,
            "activation_function": ACTIVATIONS[config.activation],
            "layer_norm_epsilon": model.norm.eps,
            "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout,
            "attn_pdrop": 0.0,
        }
    return shared | {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "max_position_embeddings": model.max_length,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": 4 * config.d_model,
        "hidden_act": ACTIVATIONS[config.activation],
        "layer_norm_eps": model.norm.eps,
        "hidden_dropout": config.dropout,
        "attention_dropout": 0.0,
        "attention_bias": True,
        "use_parallel_residual": False,
        "rotary_pct": 1.0,  # this key and the next for transformers 4, rope_parameters for 5
        "rotary_emb_base": 10_000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """What stands in `generation_config.json`: where a text begins and ends."""
    eos = eos_id(tokenizer)
    return {"bos_token_id": eos, "eos_token_id": eos, "pad_token_id": pad_id(tokenizer)}


def tokenizer_config(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """What stands in `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_of(tokenizer),
        "eos_token": end_of(tokenizer),
        "pad_token": tokenizer.id_to_token(pad_id(tokenizer)),
        "model_max_length": model.max_length,
        "padding_side": "left",  # what is generated then follows the text, not PAD
        "split_special_tokens": True,  # "<eos>" in a text stays these characters, as with this package
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def tokenizer_file(tokenizer: Tokenizer) -> str:
    """What stands in `tokenizer.json`: the tokenizer, which now puts `<eos>` before a text, as every document has it.

    Without special tokens (`add_special_tokens=False`) the text is encoded alone.
    """
    exported = Tokenizer.from_str(tokenizer.to_str())
    exported.no_truncation()
    exported.no_padding()
    eos = end_of(tokenizer)
    both = {"single": f"{eos} $A", "pair": f"{eos} $A {eos} $B"}
    exported.post_processor = processors.TemplateProcessing(**both, special_tokens=[(eos, eos_id(tokenizer))])
    return exported.to_str(pretty=True)


def as_json(tree: dict[str, Any]) -> str:
    """JSON as transformers write it: sorted keys, two spaces."""
    return json.dumps(tree, indent=2, sort_keys=True) + "\n"


def _renamed_and_laid_out(weights: Weights, model: GPT) -> Weights:
    return _gpt2_weights(weights) if model.config.positions == "learned" else _neox_weights(weights, model)


def _gpt2_weights(weights: Weights) -> Weights:
    outside = {
        "token_embedding.weight": "transformer.wte.weight",
        "position_embedding.weight": "transformer.wpe.weight",
        "norm.weight": "transformer.ln_f.weight",
        "norm.bias": "transformer.ln_f.bias",
    }
    renamed = _renamed(weights, outside, "transformer.h", GPT2_NAMES)
    # GPT-2's layers are Conv1D, which hold the transposed matrix of a linear layer.
    conv = tuple(f"{name}.weight" for name in GPT2_NAMES.values() if "." in name)
    return {name: tensor.T.contiguous() if name.endswith(conv) else tensor for name, tensor in renamed.items()}


def _neox_weights(weights: Weights, model: GPT) -> Weights:
    outside = {
        "token_embedding.weight": "gpt_neox.embed_in.weight",
        "norm.weight": "gpt_neox.final_layer_norm.weight",
        "norm.bias": "gpt_neox.final_layer_norm.bias",
    }
    renamed = _renamed(weights, outside, "gpt_neox.layers", NEOX_NAMES)
    heads = model.config.n_head
    return {
        name: _neox_heads(tensor, heads) if "query_key_value" in name else tensor for name, tensor in renamed.items()
    }


def _renamed(weights: Weights, outside: dict[str, str], layers: str, names: dict[str, str]) -> Weights:
    renamed = {}
    for name, tensor in weights.items():
        if name in outside:
            renamed[outside[name]] = tensor
            continue
        _, number, part = name.split(".", 2)  # "blocks", the number of the layer, and the name within it
        layer, kind = part.rsplit(".", 1)
        renamed[f"{layers}.{number}.{names[layer]}.{kind}"] = tensor
    return renamed


def _neox_heads(tensor: Tensor, heads: int) -> Tensor:
    """The rows of query, key and value (3 * D, ...), which GPT-NeoX keeps head by head.

    Here a rotation turns elements 2i and 2i + 1 of a head together, there i and i + C/2: the even rows of queries and
    keys come first, then the odd ones. Their products are the same.
    """
    parts = tensor.unflatten(0, (3, heads, -1))  # (3, H, C, ...)
    width = parts.size(2)
    halves = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)]).to(tensor.device)
    query, key, value = parts[0][:, halves], parts[1][:, halves], parts[2]
    return torch.stack([query, key, value], dim=1).flatten(0, 2).contiguous()  # (H, 3, C, ...) -> (3 * D, ...)
