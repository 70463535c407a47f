"""How a language model is called on a batch, packed or not, and the proof that it keeps packed documents apart.

Another trial of the same kind, `check_causal`, shows whether a model sees the tokens that it is to predict, or other
rows.

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
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DataParallel, DistributedDataParallel

from course_lm.batching import AnyBatch
from course_lm.model import GPT, allowed_attention, evaluation_mode, positions_of
from course_lm.reproducibility import PRODUCTS, float32_products, generators_kept
from course_lm.shards import is_sharded
from course_lm.validation import is_out_of_memory, named

TOLERANCE = 1e-3  # of the logits' standard deviation: far above rounding, far below what a foreign document does
ANY = "**"  # among a forward's keywords: it takes others too
_HIDING = {"attention_mask": 0, "document_ids": -1}  # parts of a batch that hide tokens, and what PAD has there
Inputs = dict[str, Any]
Way = Literal["documents", "positions", "mask"]
_KEYWORDS: WeakKeyDictionary[Callable[..., Any], frozenset[str]] = WeakKeyDictionary()  # of functions


def forward_logits(model: nn.Module, batch: AnyBatch) -> Tensor:
    """Logits (B, T, V) of any causal language model on one batch, packed or not.

    A forward that takes no `attention_mask` is called without: a causal model does not see PAD at the right of a row.
    Packed rows are given in the first way that keeps documents apart.

    Raises:
        ValueError: the rows are packed and the model mixes their documents, or padded on the left and the model
            takes no mask, or too long; or what the model returns holds no logits of that shape.
    """
    module, ids = unwrap(model), batch["input_ids"]
    config: Any = getattr(module, "config", None)
    if hasattr(config, "get_text_config"):  # a model of text and images keeps the text's settings one level down
        config = config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)  # this package's own model says itself what is too long
    if isinstance(longest, int) and 0 < longest < ids.size(1):
        kind = type(module).__name__
        raise ValueError(f"{kind} takes at most {longest} positions (max_position_embeddings), got {ids.size(1)}")
    if "document_ids" in batch:
        inputs = packed_inputs(module, batch)
    else:
        inputs = _plain_inputs(batch.get("attention_mask"), keywords_of(module))
    try:
        output = model(ids, **inputs)  # the wrapper: DDP prepares its exchange of gradients in its own forward
    except IndexError as error:
        if "out of range in self" not in str(error):  # torch's words for an id beyond an embedding, on the CPU
            raise
        raise ValueError(_too_small_an_embedding(module, ids)) from error
    logits = logits_of(output)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        within = "" if logits is output else f" in {type(output).__name__}"
        shape = f"({ids.size(0)}, {ids.size(1)}, V)"
        raise ValueError(
            f"{type(module).__name__} must return logits (B, T, V), here {shape}, got {in_words(logits)}{within}"
        )
    return logits


def logits_of(output: object) -> Any:
    """What a model returns as its logits: a tensor, `.logits`, "logits" of a dict, or the first of a tuple."""
    if hasattr(output, "logits"):
        return output.logits  # type: ignore[attr-defined]
    if isinstance(output, Mapping):
        return output.get("logits")
    if isinstance(output, tuple | list) and output:
        return output[0]
    return output


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives; ValueError where there is none, TypeError for what is no model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, got {in_words(model)}")
    for parameter in model.parameters():
        return parameter.device
    raise ValueError(f"the model ({type(unwrap(model)).__name__}) has no parameter")


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and torch's two data-parallel wrappers, in whatever order they were applied."""
    while True:
        # by its class: other models may keep their layers under the name `module`
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif (compiled := inside_compiled(model)) is not None:
            model = compiled
        else:
            return model


def inside_compiled(model: nn.Module) -> nn.Module | None:
    """The module inside `torch.compile`; None for another one, be it a wrapper that hands on all attributes of it."""
    return getattr(model, "_modules", {}).get("_orig_mod")  # the name that torch.compile gives it


def move_batch(batch: AnyBatch, device: torch.device, model: nn.Module | None = None) -> dict[str, Any]:
    """A copy of the batch on `device`, which a loss may write into; it is asynchronous from pinned memory to CUDA.

    For this package's own `model` it is without mask and documents where these hide nothing that comes before a token:
    plain causal attention then has the fastest kernels. That is asked of a batch on the host alone.
    """
    if model is not None and isinstance(unwrap(model), GPT) and _is_plain(batch):
        batch = {name: value for name, value in batch.items() if name not in _HIDING}
    return {
        name: value.to(device, non_blocking=device.type == "cuda" and value.is_pinned(), copy=True)
        if isinstance(value, Tensor)
        else value
        for name, value in batch.items()
    }


def _is_plain(batch: AnyBatch) -> bool:
    """Whether each row holds one document and, after its end, nothing but PAD, as far as the host can tell."""
    for name, pad in _HIDING.items():
        part: Any = batch.get(name)
        if part is None:
            continue
        if part.device.type != "cpu":
            return False
        before, here = part.numpy()[:, :-1], part.numpy()[:, 1:]  # by NumPy, as torch's reads may wait
        if not ((here == before) | (here == pad)).all():
            return False
    return True


def in_words(value: object) -> str:
    """What somebody gave, for a message: "a tensor (2, 3)", "tuple of 2", "NoneType"."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def keywords_of(module: nn.Module) -> frozenset[str]:
    """What a call of the module's forward may name, `ANY` for any other keyword; the module must not be wrapped.

    Raises TypeError for a forward that cannot be called with ids and what else a batch may hold.
    """
    forward = getattr(module.forward, "__func__", module.forward)
    if forward not in _KEYWORDS:  # to read a signature takes longer than to check a batch
        signature = inspect.signature(module.forward)
        try:
            signature.bind(None, **dict.fromkeys({*_HIDING, "position_ids"} & {*list(signature.parameters)[1:]}))
        except TypeError as error:
            name = type(module).__name__
            raise TypeError(f"a model must be callable as model(input_ids), got {name}.forward: {error}") from None
        parameters = signature.parameters.values()
        _KEYWORDS[forward] = frozenset(ANY if one.kind is one.VAR_KEYWORD else one.name for one in parameters)
    return _KEYWORDS[forward]


def packed_inputs(module: nn.Module, batch: Mapping[str, Any]) -> Inputs:
    """Keyword arguments for packed rows, in the first way that keeps documents apart.

    Args:
        module: the model, not wrapped.
        batch: its `input_ids` and `document_ids` (B, T) are read, and `attention_mask` where there is one. Positions
            are counted from the start of each document.

    Raises:
        ValueError: no way keeps them apart, or the model takes none.
    """
    ids, keywords = batch["input_ids"], keywords_of(module)
    way, widest = _FOUND.get(module, (None, 0))
    if way is None or widest < ids.size(1):  # a sliding window shows only in rows that are wider than it
        way = _find_way(module, ids, keywords)
        if not ids.is_meta and len(ids.unique()) > 1:  # one token over and over proves little: the next batch is tried
            _FOUND[module] = (way, ids.size(1))
    types = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    dtype = next(types, torch.float32)  # of the mask, as of the weights
    return _inputs(way, batch["document_ids"], batch.get("attention_mask"), keywords, dtype)


def check_causal(module: nn.Module, input_ids: Tensor) -> None:
    """Refuse a model whose logits change with later tokens, which it learns to copy, or with the other rows of a batch.

    It is tried once, on short rows of the tokens in `input_ids` (B, T) that are equal up to their middle, or on
    rows of T tokens where the model takes no other. A model that cannot be tried so is let through, as is one that a
    user has sharded, or one that draws at random in eval mode.

    Args:
        module: the model, not wrapped.

    Raises:
        ValueError: it sees the future, or other rows.
    """
    if module in _TRIED or input_ids.is_meta or input_ids.size(1) < 2 or len(tokens := input_ids.unique()) < 2:
        return
    tried, keywords, seen = _whole(module), keywords_of(module), ""
    if tried is None:
        return
    for width in sorted({min(16, input_ids.size(1)), input_ids.size(1)}):
        rows = _tokens_like(input_ids)[:1, :width].repeat(2, 1)
        same = width // 2 | 1  # odd: attention within blocks of an even width would end where the rows differ
        rows[0, same:], rows[1, same:] = tokens[0], tokens[-1]
        # whatever a foreign model raises, its first step raises too, and says it better
        with suppress(Exception), _trial(tried, next(module.parameters()).device) as call:
            same_row, others = rows[[0, 0, 0]], rows[[1, 0, 1]]
            inputs = _plain_inputs(torch.ones_like(others), keywords)
            alike, apart = (logits_of(call(batch, inputs)) for batch in (same_row, others))
            ahead, beside = _distance(*apart[:2, :same]), _distance(alike[1], apart[1])
            differ = max(ahead, beside / 100) > TOLERANCE  # the rounding of a scale that a batch shares is no mixture
            # a model that draws at random has other logits for the same rows
            if differ and max(_distance(*alike[:2]), _distance(alike, logits_of(call(same_row, inputs)))) <= TOLERANCE:
                trial = f"in a trial on {width} tokens, the"
                if ahead > TOLERANCE:
                    seen = f"sees the future: {trial} first {same} logits differed by {ahead:.2g} of their standard "
                    seen += "deviation when later tokens did; give its attention a causal mask"
                else:
                    seen = f"mixes the rows of a batch: {trial} logits of a row differed by {beside:.2g} of their "
                    seen += "standard deviation when its neighbours did; rows are the first dimension"
            break
    if seen:
        raise ValueError(f"{type(module).__name__} {seen}")
    _TRIED.add(module)


def keep_plain_twin(module: nn.Module) -> None:
    """Before a model is sharded, keep a copy without weights: the sharded one cannot be tried by one rank alone.

    This package's own is not: its tests have tried it, and whole it may not fit where the model needs sharding.
    """
    if type(module).forward is GPT.forward:
        return
    without_memory = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in module.parameters()
    }
    _TWINS[module] = deepcopy(module, without_memory)


def _whole(module: nn.Module) -> nn.Module | None:
    """The model itself, or of a sharded one the twin that was kept."""
    return _TWINS.get(module) if any(is_sharded(parameter) for parameter in module.parameters()) else module


def _plain_inputs(attention_mask: Tensor | None, keywords: frozenset[str]) -> Inputs:
    """Keyword arguments for rows that hold one document each."""
    inputs: Inputs = {"attention_mask": attention_mask} if keywords & {"attention_mask", ANY} else {}
    if "use_cache" in keywords:
        inputs["use_cache"] = False  # Hugging Face models would keep keys and values that training never reads
    return inputs


def _inputs(way: Way, documents: Tensor, mask: Tensor | None, keywords: frozenset[str], dtype: torch.dtype) -> Inputs:
    """Keyword arguments for packed rows.

    "documents" are told by their numbers, as this package's own model takes them. "positions" that start anew are what
    Hugging Face models look at where they get neither mask nor cache: they then build the mask of each layer
    themselves, sliding windows included. A "mask" (B, 1, T, T) is added to the attention scores.
    """
    if way == "mask":
        allowed = allowed_attention(mask, documents)  # (B, T, T)
        assert allowed is not None
        # the lowest finite number and not -inf, as in Hugging Face's own masks
        mask = torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]
    # positions need no mask for PAD: it is a document of its own, with the number -1
    inputs = _plain_inputs(None if way == "positions" else mask, keywords)
    if way == "documents":
        inputs["document_ids"] = documents
    if keywords & {"position_ids", ANY}:
        inputs["position_ids"] = positions_of(documents, None, documents)
    return inputs


_FOUND: WeakKeyDictionary[nn.Module, tuple[Way, int]] = WeakKeyDictionary()  # and the widest row that was tried
_TWINS: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()  # of sharded models
_TRIED: WeakSet[nn.Module] = WeakSet()  # whether they see the future


def _find_way(module: nn.Module, input_ids: Tensor, keywords: frozenset[str]) -> Way:
    ways: list[Way] = []
    if "document_ids" in keywords:
        ways = ["documents"]
    elif keywords & {"position_ids", ANY}:
        # positions first: a mask of ours would replace the sliding window that the model builds from positions
        ways = ["positions", "mask"] if keywords & {"attention_mask", ANY} else ["positions"]
        if ANY in keywords:  # a wrapper may hand it on
            ways.append("documents")
    if not ways:
        raise ValueError(
            "a packed batch needs a model whose forward takes document_ids, or position_ids and a 4-D attention_mask; "
            f"this one takes {', '.join(sorted(keywords))}"
        )
    if input_ids.is_meta or input_ids.size(1) < 2:
        return ways[0]  # there is nothing to compare
    tried = _whole(module)
    if tried is None and type(module).forward is GPT.forward:
        return ways[0]
    if tried is None:
        raise ValueError(
            f"whether {type(module).__name__} keeps the documents of a packed row apart cannot be tried once it is "
            "sharded: let Trainer shard it (distributed.strategy), or use data.batching: bucketed"
        )
    found = []
    with _trial(tried, next(module.parameters()).device) as call:
        for way in ways:
            gap = _gap(call, input_ids, keywords, way)
            if gap == "":
                return way
            found.append(gap)
    verdict = "cannot be seen to keep" if all("it raised" in gap for gap in found) else "does not keep"
    raise ValueError(
        f"{type(module).__name__} {verdict} the documents of a packed row apart: {found[0]}; use "
        "data.batching: bucketed, or a model whose forward takes document_ids and heeds them"
    )


@contextmanager
def _trial(module: nn.Module, device: torch.device) -> Iterator[Callable[[Tensor, Inputs], Any]]:
    """Yield a function that calls the model on copies of its weights and buffers, as in a plain evaluation."""
    # a fixed seed: a model gets the same verdict in every run
    noise = torch.Generator(device).manual_seed(0)
    tensors = {name: _noisy(parameter, noise) for name, parameter in module.named_parameters()}
    tensors |= {name: _single(buffer.clone()) for name, buffer in module.named_buffers()}  # forward may write into them
    attributes = [(one, dict(vars(one))) for one in module.modules()]  # a forward may note what it made of a weight
    exactness = float32_products()
    if exactness in PRODUCTS:
        torch.set_float32_matmul_precision("highest")  # TF32's rounding could pass for a mixture of documents
    try:
        with (
            torch.no_grad(),
            evaluation_mode(module),
            generators_kept(),  # the run's own numbers are not used up
            torch.autocast(device.type, enabled=False),
        ):
            yield lambda ids, inputs: functional_call(module, tensors, (ids,), inputs)
    finally:
        if exactness in PRODUCTS:
            torch.set_float32_matmul_precision(exactness)
        for one, before in attributes:
            vars(one).clear()
            vars(one).update(before)


def _noisy(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """A copy with noise of the size that a layer's initial weights usually have."""
    if parameter.is_meta:  # of a twin: nothing but shapes is known, and vectors are mostly gains, around 1
        parameter = torch.full(parameter.shape, float(parameter.ndim == 1), device=generator.device)
    copy = _single(parameter.detach().clone())
    if not copy.is_floating_point():  # integers, as in quantised layers, take no noise
        return copy
    scale = parameter.size(-1) ** -0.5 if parameter.ndim >= 2 else 0.1
    return copy + scale * torch.randn(copy.shape, generator=generator, dtype=copy.dtype, device=copy.device)


def _single(tensor: Tensor) -> Tensor:
    """Half precision as float32: its rounding would hide a small difference."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _gap(call: Callable[[Tensor, Inputs], Any], input_ids: Tensor, keywords: frozenset[str], way: Way) -> str:
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
        packed = logits_of(call(ids, _inputs(way, documents, (documents >= 0).long(), keywords, torch.float32)))
        for row, parts in enumerate(lengths):
            for document, length in enumerate(parts):
                part = slice(document * length, (document + 1) * length)
                one = ids[row : row + 1, part]
                alone = logits_of(call(one, _plain_inputs(torch.ones_like(one), keywords)))[0]
                distance = _distance(alone, packed[row, part])
                worst = max(worst, math.inf if math.isnan(distance) else distance)
    except Exception as error:  # whatever a foreign model raises, it cannot be called in this way
        if is_out_of_memory(error):
            raise
        return f"on two rows of {width} tokens it raised {named(error)}"
    if worst <= TOLERANCE:
        return ""
    return f"in a trial on {width} tokens, logits were off by {worst:.2g} of their standard deviation"


def _distance(one: Tensor, other: Tensor) -> float:
    """How far logits are apart, as a share of their standard deviation; all of them may be equal."""
    return float((one - other).abs().max() / one.std().clamp(min=1e-30))


def _tokens_like(input_ids: Tensor) -> Tensor:
    """Two rows of a batch's tokens, each token once before any comes again: equal neighbours would hide a mixture."""
    draw, tokens, width = torch.Generator().manual_seed(0), input_ids.unique(), input_ids.size(1)
    shuffled = [torch.randperm(len(tokens), generator=draw) for _ in range(0, 2 * width, len(tokens))]
    index = torch.cat(shuffled)[: 2 * width].view(2, width)
    return tokens[index.to(tokens.device)]


def _too_small_an_embedding(module: nn.Module, ids: Tensor) -> str:
    rows = sorted({one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)})
    return (
        f"an embedding of {type(module).__name__} is too small for the batch: ids from {int(ids.min())} to "
        f"{int(ids.max())} at {ids.size(1)} positions, embeddings of {' and '.join(map(str, rows)) or 'unknown'} rows"
    )
