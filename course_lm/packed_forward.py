"""How a model is told which tokens of a packed row belong together, and the proof that it then keeps them apart.

A packed row must give the logits that its documents give alone. Models can be told of documents in three ways, and each
is wrong for some: a 4-D mask takes the place of a sliding window that the model would have built itself, a model with a
recurrent state heeds no mask, and one that ignores what it is given says nothing. So the first packed batch is preceded
by a trial: two short rows, packed and alone, through the model. A way in which the two differ is not used.

The trial runs once for a model, and again for rows wider than any before, in eval mode, without gradients or autocast,
and on copies of the weights with noise added: attention that starts at zero would hide what it mixes later. Of a model
whose weights are sharded each rank tries a twin with noise for weights, whole for a moment.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from course_lm.model import GPT, allowed_attention, evaluation_mode, positions_of
from course_lm.shards import is_sharded

TOLERANCE = 1e-3  # of the logits' standard deviation: far above rounding, far below what a foreign document does
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Parameters:
    """What a forward can be called with: the names in its signature, and whether it takes any other keyword."""

    names: frozenset[str]
    any_keyword: bool

    @classmethod
    def of_forward(cls, module: nn.Module) -> "Parameters":
        """The parameters of a module's forward; the module must not be wrapped."""
        parameters = inspect.signature(module.forward).parameters.values()
        any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        return cls(frozenset(parameter.name for parameter in parameters), any_keyword)

    def accept(self, name: str) -> bool:
        """Whether a call may name this keyword."""
        return name in self.names or self.any_keyword


def plain_inputs(attention_mask: Tensor | None, takes: Parameters) -> Inputs:
    """Keyword arguments for rows that hold one document each."""
    inputs: Inputs = {"attention_mask": attention_mask} if takes.accept("attention_mask") else {}
    if "use_cache" in takes.names:
        inputs["use_cache"] = False  # Hugging Face models would keep keys and values that training never reads
    return inputs


def packed_inputs(module: nn.Module, batch: Mapping[str, Any], takes: Parameters) -> Inputs:
    """Keyword arguments for packed rows, in the first way that keeps documents apart.

    Args:
        module: the model, not wrapped.
        batch: its `input_ids` and `document_ids` (B, T) are read, and `attention_mask` where there is one. Positions
            are counted from the start of each document.

    Raises:
        ValueError: no way keeps them apart, or the model takes none.
    """
    ids = batch["input_ids"]
    way, widest = _FOUND.get(module, (None, 0))
    if way is None or widest < ids.size(1):  # a sliding window shows only in rows that are wider than it
        way = _find_way(module, ids, takes)
        if not ids.is_meta and len(ids.unique()) > 1:  # one token over and over proves little: the next batch is tried
            _FOUND[module] = (way, ids.size(1))
    return way(batch["document_ids"], batch.get("attention_mask"), takes, _weight_type(module))


def _by_documents(documents: Tensor, mask: Tensor | None, takes: Parameters, dtype: torch.dtype) -> Inputs:
    """Documents by their numbers, as this package's own model takes them."""
    inputs = plain_inputs(mask, takes) | {"document_ids": documents}
    return inputs | ({"position_ids": _positions(documents)} if takes.accept("position_ids") else {})


def _by_positions(documents: Tensor, mask: Tensor | None, takes: Parameters, dtype: torch.dtype) -> Inputs:
    """Documents by positions that start anew, which Hugging Face models look at where they get neither mask nor cache.

    They then build the mask of each layer themselves, sliding windows included.
    """
    # no mask is needed for PAD: it is a document of its own, with the number -1
    return plain_inputs(None, takes) | {"position_ids": _positions(documents)}


def _by_mask(documents: Tensor, mask: Tensor | None, takes: Parameters, dtype: torch.dtype) -> Inputs:
    """Documents by a mask (B, 1, T, T) that is added to the attention scores."""
    allowed = allowed_attention(mask, documents)  # (B, T, T)
    assert allowed is not None
    # the lowest finite number and not -inf, as in Hugging Face's own masks
    bias = torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
    return plain_inputs(bias[:, None], takes) | {"position_ids": _positions(documents)}


Way = Callable[[Tensor, Tensor | None, Parameters, torch.dtype], Inputs]
_FOUND: WeakKeyDictionary[nn.Module, tuple[Way, int]] = WeakKeyDictionary()  # and the widest row that was tried
_TWINS: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()  # of sharded models


def _positions(documents: Tensor) -> Tensor:
    return positions_of(documents, None, documents)


def _weight_type(module: nn.Module) -> torch.dtype:
    types = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return next(types, torch.float32)


def _ways(takes: Parameters) -> list[Way]:
    if "document_ids" in takes.names:
        return [_by_documents]
    ways: list[Way] = []
    if takes.accept("position_ids"):
        # positions first: a mask of ours would replace the sliding window that the model builds from positions
        ways += [_by_positions, _by_mask] if takes.accept("attention_mask") else [_by_positions]
    return ways + [_by_documents] * takes.any_keyword  # a wrapper may hand it on


def _find_way(module: nn.Module, input_ids: Tensor, takes: Parameters) -> Way:
    ways = _ways(takes)
    if not ways:
        raise ValueError(
            "a packed batch needs a model whose forward takes document_ids, or position_ids and a 4-D attention_mask; "
            f"this one takes {', '.join(sorted(takes.names))}"
        )
    if input_ids.is_meta or input_ids.size(1) < 2:
        return ways[0]  # there is nothing to compare
    if _is_sharded(module) and type(module).forward is GPT.forward:
        return ways[0]  # this package's tests have tried it, and the copy may not fit where the model needs sharding
    found = []
    with _trial(module) as call:
        for way in ways:
            gap = _gap(call, input_ids, takes, way)
            if gap == "":
                return way
            found.append(gap)
    raise ValueError(
        f"{type(module).__name__} does not keep the documents of a packed row apart: {found[0]}; use "
        "data.batching: bucketed, or a model whose forward takes document_ids and heeds them"
    )


@contextmanager
def _trial(module: nn.Module) -> Iterator[Callable[[Tensor, Inputs], Any]]:
    """Yield a function that calls the model on copies of its weights and buffers, as in a plain evaluation."""
    device = next(module.parameters()).device
    if _is_sharded(module):
        module = _plain_twin(module)
    # a fixed seed: a model gets the same verdict in every run
    noise = torch.Generator(device).manual_seed(0)
    tensors = {name: _noisy(parameter, noise) for name, parameter in module.named_parameters()}
    tensors |= {name: _single(buffer.clone()) for name, buffer in module.named_buffers()}  # forward may write into them
    devices = [device] if device.type == "cuda" else []
    exactness = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # TF32's rounding could pass for a mixture of documents
    try:
        with (
            torch.no_grad(),
            evaluation_mode(module),
            torch.random.fork_rng(devices=devices),  # the run's own random numbers are not used up
            torch.autocast(device.type, enabled=False),
        ):
            yield lambda ids, inputs: functional_call(module, tensors, (ids,), inputs)
    finally:
        torch.set_float32_matmul_precision(exactness)


def _noisy(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """A copy with noise of the size that a layer's initial weights usually have."""
    if parameter.is_meta:  # of a twin, see below: nothing but shapes is known, and vectors are mostly gains, around 1
        parameter = torch.full(parameter.shape, float(parameter.ndim == 1), device=generator.device)
    copy = _single(parameter.detach().clone())
    if not copy.is_floating_point():  # integers, as in quantised layers, take no noise
        return copy
    scale = parameter.size(-1) ** -0.5 if parameter.ndim >= 2 else 0.1
    return copy + scale * torch.randn(copy.shape, generator=generator, dtype=copy.dtype, device=copy.device)


def keep_plain_twin(module: nn.Module) -> None:
    """Before a model is sharded, keep a copy without weights: the sharded one cannot be tried by one rank alone."""
    without_memory = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in module.parameters()
    }
    _TWINS[module] = deepcopy(module, without_memory)


def _is_sharded(module: nn.Module) -> bool:
    return any(is_sharded(parameter) for parameter in module.parameters())


def _plain_twin(module: nn.Module) -> nn.Module:
    if module not in _TWINS:
        raise ValueError(
            f"whether {type(module).__name__} keeps the documents of a packed row apart cannot be tried once it is "
            "sharded: let Trainer shard it (distributed.strategy), or use data.batching: bucketed"
        )
    return _TWINS[module]


def _single(tensor: Tensor) -> Tensor:
    """Half precision as float32: its rounding would hide a small difference."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _gap(call: Callable[[Tensor, Inputs], Any], input_ids: Tensor, takes: Parameters, way: Way) -> str:
    """What differs between two packed rows and their documents alone; nothing where they agree.

    One row holds two documents and PAD, the other a single document of the full width: a sliding window shows there.
    """
    width = input_ids.size(1)
    lengths = [(max(1, width // 3),) * 2, (width,)]  # thirds leave room for PAD behind two documents
    ids, documents = _tokens_like(input_ids), torch.full((2, width), -1)
    for row, parts in enumerate(lengths):
        documents[row, : sum(parts)] = torch.repeat_interleave(torch.tensor(parts))  # 0 0 0 1 1 1
    documents = documents.to(ids.device)
    worst = 0.0
    try:
        packed = logits_of(call(ids, way(documents, (documents >= 0).long(), takes, torch.float32)))
        for row, parts in enumerate(lengths):
            start = 0
            for length in parts:
                part = slice(start, start + length)
                one = ids[row : row + 1, part]
                alone = logits_of(call(one, plain_inputs(torch.ones_like(one), takes)))[0]
                worst = max(worst, _distance(packed[row, part], alone))
                start += length
    except Exception as error:  # whatever a foreign model raises, it cannot be called in this way
        return f"on two rows of {width} tokens it raised {type(error).__name__}: {str(error).splitlines()[0]}"
    if worst <= TOLERANCE:
        return ""
    return f"in a trial on {width} tokens, logits were off by {worst:.2g} of their standard deviation"


def _tokens_like(input_ids: Tensor) -> Tensor:
    """Two rows of a batch's tokens, each token once before any comes again: equal neighbours would hide a mixture."""
    draw, tokens, width = torch.Generator().manual_seed(0), input_ids.unique(), input_ids.size(1)
    shuffled = [torch.randperm(len(tokens), generator=draw) for _ in range(0, 2 * width, len(tokens))]
    index = torch.cat(shuffled)[: 2 * width].view(2, width)
    return tokens[index.to(tokens.device)]


def _distance(packed: Tensor, alone: Tensor) -> float:
    """Largest difference as a share of the logits' standard deviation; inf where one of them is no number."""
    distance = float((packed - alone).abs().max() / alone.std().clamp(min=1e-30))  # all logits may be equal
    return math.inf if math.isnan(distance) else distance


def logits_of(output: object) -> Any:
    """What a model returns as its logits: a tensor, `.logits`, "logits" of a dict, or the first of a tuple."""
    if hasattr(output, "logits"):
        return output.logits  # type: ignore[attr-defined]
    if isinstance(output, Mapping):
        return output.get("logits")
    if isinstance(output, tuple | list) and output:
        return output[0]
    return output
