"""Look through the zip file that `torch.save` writes before torch builds anything from it.

`torch.load(weights_only=True)` runs no code, but it trusts the file in all else: it reads as many bytes of a record as
the pickle asks for, also past the record's end, and makes whatever size of bytes, list or tensor it is told to make.
`check_archive` lets pass only what `torch.save` makes of plain data: stored records that lie apart, and a pickle of
strings, numbers, dicts, lists, tuples, and dense tensors that fit in their records.
"""

import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import torch

from course_lm.validation import ensure, one_line

# What torch writes for the memory of a tensor: a name for each type, and a later one for bytes of any type.
_STORAGES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
    "torch ComplexDoubleStorage": torch.complex128,
    "torch ComplexFloatStorage": torch.complex64,
    "torch.storage UntypedStorage": torch.uint8,
}
_DTYPES = {f"torch {name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_ORDERED_DICT = "collections OrderedDict"
_REBUILD = "torch._utils _rebuild_tensor_v2"
_REBUILD_UNTYPED = "torch._utils _rebuild_tensor_v3"
_MOST_ELEMENTS = 2**62  # torch counts in int64

_PUSHED = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINFLOAT")  # their argument is itself the value
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class UnsafeArchiveError(ValueError):
    """The file's pickle names something other than tensors and plain data: loading it could run code."""


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype
    nbytes: int


class _Made:
    """Stands for a list, a dict, a tensor or a tensor's empty hooks, of which nothing else has to be known."""


_LIST, _DICT, _HOOKS, _TENSOR = _Made(), _Made(), _Made(), _Made()


def check_archive(file: BinaryIO) -> int:
    """Refuse a file that torch should not load; return the number of instructions in its pickle.

    What is loaded from it has no more parts than that, unless the pickle mentions one list many times.

    Raises:
        UnsafeArchiveError: it names a function or a class that plain data does not need.
        ValueError: it is not what `torch.save` writes.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records = _records(archive)
            content = archive.read(records["data.pkl"])
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, KeyError) as error:
        raise ValueError(f"its zip file cannot be read ({one_line(error)})") from None
    try:
        return _Rehearsal({name: info.file_size for name, info in records.items()}).run(content)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its pickle is not well-formed ({type(error).__name__})") from None


def _records(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The records by their names in the archive's one folder; each must be uncompressed, and apart from all others."""
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    ensure(bool(entries) and entries[0].header_offset == 0, "its zip file does not start at its first byte")
    folder = entries[0].filename.partition("/")[0]
    records = {}
    for entry, end in zip(entries, [*(entry.header_offset for entry in entries[1:]), archive.start_dir]):
        # torch finds names in any case, and Python cuts them at a zero byte: where both read the same, they are plain
        ensure(entry.filename == entry.orig_filename and entry.filename.isascii(), "it has a record with an odd name")
        ensure(entry.filename.startswith(f"{folder}/"), "its records lie in two folders")
        name = entry.filename.removeprefix(f"{folder}/").casefold()
        ensure(entry.compress_type == zipfile.ZIP_STORED, f"its record {name!r} is compressed; torch compresses none")
        ensure(entry.compress_size == entry.file_size, f"its record {name!r} has two sizes")
        ensure(not entry.flag_bits & 1, f"its record {name!r} is encrypted")
        # 30 bytes: a zip record's header without its name
        ensure(entry.header_offset + 30 + entry.file_size <= end, f"its record {name!r} overlaps another")
        ensure(name not in records, f"its record {name!r} is there twice")
        records[name] = entry
    ensure("data.pkl" in records, "it has no record 'data.pkl'")
    ensure("constants.pkl" not in records, "it is a TorchScript program")  # torch.load knows one by this record
    return records


class _Rehearsal:
    """Goes through a pickle as torch's unpickler would, and makes nothing but the tuples that name tensors."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, str] = {}
        self.steps: dict[str, Callable[[Any], None]] = {
            # 2 is the protocol of torch.save
            "PROTO": lambda version: ensure(version == 2, f"its pickle has protocol {version}, not 2"),
            "STOP": lambda _: None,
            "MARK": self._mark,
            "TUPLE": lambda _: self._push(tuple(self._since_mark())),
            "EMPTY_DICT": lambda _: self._push(_DICT),
            "EMPTY_LIST": lambda _: self._push(_LIST),
            "APPEND": lambda _: self._fill(_LIST, [self.stack.pop()]),
            "APPENDS": lambda _: self._fill(_LIST, self._since_mark()),
            "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._since_mark()),
            "GLOBAL": self._global,
            # a persistent id is torch's reference to the memory of a tensor
            "BINPERSID": lambda _: self._push(self._storage(*self.stack.pop())),
            "REDUCE": lambda _: self._call(self.stack.pop()),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._remember),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda index: self._push(self.memo[index])),
            **dict.fromkeys(_PUSHED, self._push),
            **{name: lambda _, value=value: self._push(value) for name, value in _CONSTANTS.items()},
            **{name: lambda _, n=n: self._push(tuple(self._pop(n))) for name, n in _SHORT_TUPLES.items()},
        }

    def run(self, content: bytes) -> int:
        """Number of instructions; ValueError where one of them is not plain."""
        count = 0
        for operation, argument, _ in pickletools.genops(content):
            step = self.steps.get(operation.name)
            if step is None:
                raise UnsafeArchiveError(f"its pickle has the instruction {operation.name}")
            step(argument)
            count += 1
        return count

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _pop(self, count: int) -> list[Any]:
        ensure(len(self.stack) >= count, "its pickle takes more than it has put down")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _mark(self, _: Any) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        values, self.stack = self.stack, self.marked.pop()
        return values

    def _remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def _fill(self, container: _Made, values: list[Any]) -> None:
        ensure(self.stack[-1] is container, "its pickle adds items to what holds none")
        for value in values:
            ensure(not isinstance(value, _Global | _Storage) and value is not _HOOKS, "its pickle keeps a bare type")

    def _set_items(self, values: list[Any]) -> None:
        ensure(len(values) % 2 == 0, "its pickle has a key without a value")
        for key in values[::2]:  # the hash of a deeply nested tuple would overflow the C stack
            ensure(key is None or isinstance(key, str | int | float), "its pickle has a key that is no plain value")
        self._fill(_DICT, values[1::2])

    def _global(self, name: str) -> None:
        if name not in (_ORDERED_DICT, _REBUILD, _REBUILD_UNTYPED) and name not in _STORAGES and name not in _DTYPES:
            raise UnsafeArchiveError(f"its pickle names {name.replace(' ', '.')}")
        self._push(_Global(name))

    def _storage(self, kind: str, storage: _Global, key: str, location: str, numel: int) -> _Storage:
        names = all(isinstance(text, str) for text in (kind, key, location))
        ensure(names and kind == "storage" and type(numel) is int, "its pickle has a reference that is no tensor's")
        dtype, size = _STORAGES[storage.name], self.sizes.get(f"data/{key}")
        ensure(self.storages.setdefault(key, storage.name) == storage.name, f"its record 'data/{key}' has two types")
        ensure(size == numel * dtype.itemsize, f"its record 'data/{key}' has {size} bytes, not those of its tensor")
        return _Storage(dtype, numel * dtype.itemsize)

    def _call(self, arguments: tuple[Any, ...]) -> None:
        called = self.stack.pop()
        if called == _Global(_ORDERED_DICT) and arguments == ():
            self._push(_HOOKS)  # of a tensor: the one place where `save_checkpoint` has an OrderedDict
        elif called == _Global(_REBUILD):
            storage, *rest = arguments
            self._tensor(storage, storage.dtype, *rest)
        elif called == _Global(_REBUILD_UNTYPED):
            storage, *rest, dtype = arguments
            self._tensor(storage, _DTYPES[dtype.name], *rest)
        else:
            raise UnsafeArchiveError("its pickle calls what makes no tensor")

    def _tensor(
        self,
        storage: _Storage,
        dtype: torch.dtype,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool,
        hooks: _Made,
    ) -> None:
        numbers = (offset, *shape, *strides)
        ensure(all(type(n) is int and 0 <= n < _MOST_ELEMENTS for n in numbers), "a tensor's sizes are no counts")
        ensure(len(shape) == len(strides) <= 64 and prod(shape) < _MOST_ELEMENTS, "a tensor's shape is impossible")
        ensure(requires_grad is False and hooks is _HOOKS, "a tensor is more than its numbers")
        # index of the last element in the record; -1 for a tensor without elements
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides)) if prod(shape) else -1
        ensure((last + 1) * dtype.itemsize <= storage.nbytes, "a tensor reaches past the end of its record")
        self._push(_TENSOR)
