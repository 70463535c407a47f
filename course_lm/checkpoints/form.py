"""The form of a checkpoint: a state taken apart into JSON and tensors, as one safetensors file, and put together again.

The file is eight bytes with the length of a header, the header as JSON, then the numbers of all tensors; any program
opens it. The header's metadata holds strings by name. What is no tensor is JSON under "state" there, with
`{"$tensor": name}` in place of each tensor, and such a mark for the few other values that JSON lacks.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from course_lm.shards import is_sharded
from course_lm.validation import ensure

KINDS = {  # the format's names of types
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8},
    **{"BOOL": torch.bool, "C64": torch.complex64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz},
    **{"F8_E5M2": torch.float8_e5m2, "F8_E5M2FNUZ": torch.float8_e5m2fnuz},
}
_NAMES = {kind: name for name, kind in KINDS.items()}
_MOST_HEADER_BYTES = 100_000_000  # programs that read the format refuse longer headers
_MOST_DEPTH = 100  # `TakenApart` calls itself for each level, and a list may hold itself


def as_plain(state: Any) -> Any:
    """Return `state` as a checkpoint would give it back, in dicts, lists and tuples of its own; tensors are not copied.

    NumPy's scalars become numbers, an enumeration of strings or numbers becomes its value, every kind of dict a dict,
    a named tuple a tuple, and a parameter the tensor in it. Raises ValueError, naming its place, for anything else.
    """
    apart = TakenApart(state)
    return put_together(json.dumps(apart.plain), apart.tensors, lambda name, *_: apart.sharded[name])


class TakenApart:
    """A state as JSON can hold it, and its tensors by name.

    Attributes:
        plain: the state; "$tensor", "$sharded", "$tuple", "$dict" (pairs) and "$float" mark what JSON lacks.
        tensors: dense ones; tied tensors, the same numbers in the same memory, once.
        sharded: those of which this rank holds a part.
    """

    def __init__(self, state: Any) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.sharded: dict[str, Tensor] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        self.plain = self._convert(state, ())

    def _convert(self, value: Any, way: tuple[Any, ...]) -> Any:
        """way: the keys that lead to the value; a tuple is itself a key of a dict."""
        if type(value) in (str, int, bool, type(None)):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, Tensor):
            return {"$tensor": self.add(value, way)} if not is_sharded(value) else self._add_sharded(value, way)
        if not isinstance(value, dict | list | tuple):
            return self._convert(_plain_scalar(value, way), way)
        if len(way) == _MOST_DEPTH:
            raise _error(f"lies more than {_MOST_DEPTH} dicts and lists deep", way)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [self._convert(part, (*way, key)) for key, part in items]
        if not isinstance(value, dict):
            return parts if isinstance(value, list) else {"$tuple": parts}
        keys = [self._convert_key(key, way) for key in value]
        named = all(type(key) is str and not key.startswith("$") for key in keys)
        return dict(zip(keys, parts)) if named else {"$dict": list(zip(keys, parts))}

    def _convert_key(self, key: Any, way: tuple[Any, ...]) -> Any:
        if isinstance(key, dict | list | tuple | Tensor):
            raise _error(f"has a {type(key).__name__} as a key; a key is a number, a string, a boolean or None", way)
        return self._convert(key, (*way, (key,)))

    def add(self, tensor: Tensor, way: tuple[Any, ...]) -> str:
        """Keep a tensor; return its name, of tied tensors that of the first."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype not in _NAMES or not _is_dense(tensor):
            raise _error(_UNFIT.format(_describe(tensor)), way)
        # all empty tensors have the address 0
        place = tensor.device, tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype
        if place not in self._known:
            name = self._known[place] = self._free_name(way)
            bare = type(tensor) is Tensor and not tensor.requires_grad
            self.tensors[name] = tensor if bare else tensor.detach()
        return self._known[place]

    def _add_sharded(self, tensor: Tensor, way: tuple[Any, ...]) -> dict[str, Any]:
        name = self._free_name(way)
        self.sharded[name] = tensor.detach()
        return {"$sharded": [name, [str(key) for key in way], list(tensor.shape), _NAMES[tensor.dtype]]}

    def _free_name(self, way: tuple[Any, ...]) -> str:
        """The keys that lead to a tensor, as one; keys may hold dots themselves, so another may have that name."""
        name = ".".join(map(str, way)).encode(errors="replace").decode()
        while name in self.tensors or name in self.sharded or name == "__metadata__":
            name += "'"
        return name


def _is_dense(tensor: Tensor) -> bool:
    """Whether it has all its numbers in memory, as they are."""
    elsewhere = tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta
    return not (elsewhere or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


_UNFIT = (
    "is {}; a checkpoint holds numbers, strings, booleans, None, dense tensors of a type that safetensors knows, and "
    "dicts, lists and tuples of them"
)


def _plain_scalar(value: Any, way: tuple[Any, ...]) -> Any:
    """The Python number or string in a NumPy scalar, or in an instance of a subclass such as an enumeration's."""
    plain = value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else None
    if type(plain) in (bool, int, float, str):
        return plain
    # the base class's own methods, as a subclass may have others
    for kind, convert in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(value, kind):
            return convert(value)  # type: ignore[arg-type]
    raise _error(_UNFIT.format(_describe(value)), way)


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__module__}.{type(value).__qualname__}"
    kind = "dense" if _is_dense(value) else "sparse, quantised, nested, conjugated or meta"
    return f"a {kind} {type(value).__name__} of {value.dtype}"


def _error(problem: str, way: tuple[Any, ...]) -> ValueError:
    steps = [f"'s key {key[0]!r}" if isinstance(key, tuple) else f"[{key!r}]" for key in way]
    return ValueError(f"state{''.join(steps if len(steps) < 10 else [*steps[:4], '…', *steps[-4:]])} {problem}")


def put_together(text: str, tensors: Mapping[str, Tensor], sharded: Callable[..., Tensor]) -> Any:
    """The state that `TakenApart` has made JSON of."""
    makers: dict[str, Callable[[Any], Any]] = {
        **{"$tensor": tensors.__getitem__, "$sharded": lambda claim: sharded(*claim)},
        **{"$tuple": tuple, "$dict": dict, "$float": float},
    }

    def make(read: dict[str, Any]) -> Any:
        kind = next(iter(read)) if len(read) == 1 else ""
        return makers[kind](read[kind]) if kind in makers else read

    return json.loads(text, object_hook=make)


def write_file(file: BinaryIO, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Write a safetensors file; return its SHA-256."""
    # the largest items first: then each tensor begins at a multiple of its item's size, as programs expect that map it
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    if len(text) > _MOST_HEADER_BYTES:
        raise ValueError(
            f"the state holds {len(text)} bytes that are no tensor's; at most {_MOST_HEADER_BYTES} can be read"
        )
    digest = hashlib.sha256()
    for part in chain((len(text).to_bytes(8, "little"), text), (bytes_of(tensor) for _, tensor in ordered)):
        digest.update(part)
        file.write(part)
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """The numbers row by row, without a copy where they lie so."""
    rows = tensor.detach().cpu().contiguous()
    # not `reshape`: a single number may keep the stride of the row that it was taken from
    return rows.as_strided((rows.numel(),), (1,)).view(torch.uint8).numpy().data


def read_file(file: BinaryIO) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file; ValueError unless they fill it, one after the other."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    ensure(8 + length <= size, "its header is longer than the file")
    header = json.loads(file.read(length))
    about, tensors, end = header.pop("__metadata__"), {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = end, end + count_bytes(entry["shape"], entry["dtype"])
        ensure(entry["data_offsets"] == [begin, end], f"{name!r} does not lie behind the tensor before it")
        ensure(8 + length + end <= size, f"{name!r} lies outside of the file")
        content, kind = bytearray(end - begin), KINDS[entry["dtype"]]
        file.readinto(content)  # type: ignore[attr-defined]
        flat = torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)
        tensors[name] = flat.reshape(entry["shape"])
    return about, tensors


def count_bytes(shape: Sequence[int], kind: str) -> int:
    """Of a tensor of a file; ValueError where there is none of that kind."""
    counts = len(shape) <= 64 and all(type(n) is int and 0 <= n < 2**62 for n in shape)
    ensure(counts and kind in KINDS, f"it holds no tensor of {shape} {kind}")
    return math.prod(shape) * KINDS[kind].itemsize
