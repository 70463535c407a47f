"""Checkpoints that exist whole or not at all, say when they are damaged, and run no code when loaded.

A checkpoint is one safetensors file, which any program opens: eight bytes with the length of a header, the header as
JSON, then the numbers of all tensors. What is no tensor stands as JSON in the header's metadata under "state", with
`{"$tensor": name}` in place of each tensor and such a mark for the few other values that JSON lacks. The metadata
begins with what must be known before the rest is read:

    sha256  of the whole file, these 64 digits read as zeros: a cut or changed file is recognised before it is parsed
    format  the number of this form
    serial  counts the checkpoints saved in a folder: the highest is the newest, whatever clocks, copies and rewound
            runs do to modification times and steps
    step    of the state: of two files with one serial, as in a folder copied over another, the later step is the newer
    parts   of a state whose sharded tensors lie beside the file: the SHA-256 of their list, see parts.py

The checksum does not say who wrote the file. A stranger's file can hold wrong numbers, but loading it builds plain
values and tensors, no more than the file has bytes for, and calls nothing.
"""

import hashlib
import json
import math
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from course_lm import __version__
from course_lm.checkpoints.atomic_write import atomic_file, remove_leftovers
from course_lm.checkpoints.parts import Parts, Target, check_parts, parts_folder, remove_stray_parts, whole_on_cpu
from course_lm.checkpoints.weights import is_dense
from course_lm.shards import is_sharded
from course_lm.validation import ensure, one_line

FORMAT_VERSION = 3
# not checkpoint_best: going on from it would repeat the steps after it, so it is the last resort
RESUMABLE = ("checkpoint_last.safetensors", "checkpoint_step_*.safetensors", "checkpoint_epoch_*.safetensors")

KINDS = {  # the format's names of types
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8},
    **{"BOOL": torch.bool, "C64": torch.complex64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz},
    **{"F8_E5M2": torch.float8_e5m2, "F8_E5M2FNUZ": torch.float8_e5m2fnuz},
}
_NAMES = {kind: name for name, kind in KINDS.items()}
_RETAINED = ("checkpoint_step_", "checkpoint_epoch_")
_ZEROS = "0" * 64
_DIGITS_AT = 8 + len('{"__metadata__":{"sha256":"')
_START = re.compile(
    rb'{"__metadata__":{"sha256":"(?P<sha256>[0-9a-f]{64})","format":"(?P<format>\d{1,9})","serial":"(?P<serial>\d{1,18})'
    rb'","step":"(?P<step>\d{1,18})"(?:,"parts":"(?P<parts>[0-9a-f]{64})")?'
)
_START_BYTES = 300  # more than the longest start
_MOST_HEADER_BYTES = 100_000_000  # programs that read the format refuse longer headers
_MOST_DEPTH = 100  # `TakenApart` calls itself for each level, and a list may hold itself
_ZIP = b"PK\x03\x04"
_OLD = f"is a zip file of torch.save, which course_lm wrote up to format 2; this one reads format {FORMAT_VERSION}"


class CheckpointError(ValueError):
    """A file is damaged, not a checkpoint, or of another format than this package reads."""


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write `state` to `path`: the whole new file appears under that name, or what was there stays.

    state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, or what `as_plain` turns into
    them. Raises ValueError when `state` holds anything else (naming its place), and OSError when the file cannot be
    written (full disk, read-only or missing folder); then older checkpoints are untouched and no partial file stays.
    """
    apart = TakenApart(state)
    ensure(not apart.sharded, "the state holds sharded tensors, whose parts every rank writes: see save_sharded")
    write_checkpoint(path, apart, prepare_save(Path(path).parent))


def prepare_save(folder: str | os.PathLike[str]) -> int:
    """Remove what killed processes have left in a run's folder; return the serial of the next checkpoint in it."""
    folder = Path(folder)
    remove_leftovers(folder)
    remove_stray_parts(folder, _serial)
    # checkpoint_best counts too: it may be the newest
    return 1 + max((_serial(path) or 0 for path in folder.glob("checkpoint_*.safetensors")), default=0)


def write_checkpoint(path: str | os.PathLike[str], apart: "TakenApart", serial: int, parts: str | None = None) -> None:
    """Write the file itself; parts: the digest of the list of the files that hold its sharded tensors."""
    step = apart.plain.get("step")
    known = {"format": FORMAT_VERSION, "serial": serial, "step": step if type(step) is int and 0 < step < 2**59 else 0}
    start = {"sha256": _ZEROS} | {name: str(number) for name, number in known.items()}
    start |= {} if parts is None else {"parts": parts}
    with atomic_file(path) as file:
        digest = _write(file, apart.tensors, start | {"state": json.dumps(apart.plain, separators=(",", ":"))})
        file.seek(_DIGITS_AT)
        file.write(digest.encode())
    remove_stray_parts(Path(path).parent, _serial)  # those of the checkpoint that was replaced


def load_checkpoint(
    path: str | os.PathLike[str], map_location: str | torch.device = "cpu", target: Target = whole_on_cpu
) -> dict[str, Any]:
    """Return the state that `save_checkpoint` stored, its tensors on `map_location`.

    Tensors that were saved in parts are read into the memory that `target(keys, shape, dtype)` gives, by any number of
    ranks: by default whole, on the CPU. Raises CheckpointError, naming the file and what is wrong with it, and
    FileNotFoundError when there is none.
    """
    path = Path(path)
    with open(path, "rb") as file:
        return _read(path, file, _verify(path, file), map_location, target)


def load_latest(
    folder: str | os.PathLike[str], map_location: str | torch.device = "cpu", target: Target = whole_on_cpu
) -> tuple[Path, dict[str, Any]] | None:
    """The path and the state of what `latest_checkpoint` finds; its checksum is computed once."""
    with _latest(Path(folder)) as found:
        return None if found is None else (found[0], _read(*found, map_location, target))


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """Return the newest intact checkpoint of a run's folder, or None: last, step or epoch, and best where none is left.

    Damaged and unreadable files are passed over with a warning that names them. Where the newest one is whole but
    cannot be used, an older one would lose work without a word, so this raises: CheckpointError for another format,
    PermissionError for another user's file.
    """
    with _latest(Path(folder)) as found:
        if found is not None:
            _check_format(*found)
        return None if found is None else found[0]


def prune_checkpoints(folder: str | os.PathLike[str], keep: int) -> list[Path]:
    """Delete all but the newest `keep` step and epoch checkpoints; return what was deleted.

    Best and last always stay, and so does the newest intact one, so that `latest_checkpoint` returns the same before
    and after. Files without a readable serial are left alone. Raises ValueError when `keep` is negative.
    """
    if keep < 0:
        raise ValueError(f"keep must be 0 or more checkpoints, got {keep}")
    newest_first = _newest_first(Path(folder))
    numbered = (path for path in newest_first if path.name.startswith(_RETAINED))
    surplus = [path for path in numbered if _serial(path) is not None][keep:]
    if surplus:  # looking for damage reads whole files
        newest = next((path for path in newest_first if _is_intact(path)), None)
        surplus = [path for path in surplus if path != newest]
    for path in surplus:
        path.unlink()
    if surplus:
        remove_stray_parts(Path(folder), _serial)
    return surplus


def library_versions() -> dict[str, str]:
    """Versions of everything that a run's numbers depend on; another one may round differently."""
    installed = {name: _installed_version(name) for name in ("numpy", "tokenizers")}
    return {
        "python": platform.python_version(),
        "course_lm": __version__,
        "torch": str(torch.__version__),
        **installed,
    }


@cache
def _installed_version(name: str) -> str:
    """Looked up once: it takes milliseconds, and every checkpoint asks."""
    return metadata.version(name)


def as_plain(state: Any) -> Any:
    """Return `state` as a checkpoint would give it back, in dicts, lists and tuples of its own; tensors are not copied.

    NumPy's scalars become numbers, an enumeration of strings or numbers becomes its value, every kind of dict a dict,
    a named tuple a tuple, and a parameter the tensor in it. Raises ValueError, naming its place, for anything else.
    """
    apart = TakenApart(state)
    return _put_together(json.dumps(apart.plain), apart.tensors, lambda name, *_: apart.sharded[name])


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
        kind = type(value)
        if kind in (str, int, bool) or value is None:
            return value
        if kind is float:
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
        keys = [key if type(key) is str else self._convert_key(key, way) for key in value]
        named = all(type(key) is str and not key.startswith("$") for key in keys)
        return dict(zip(keys, parts)) if named else {"$dict": list(zip(keys, parts))}

    def _convert_key(self, key: Any, way: tuple[Any, ...]) -> Any:
        if isinstance(key, dict | list | tuple | Tensor):
            raise _error(f"has a {type(key).__name__} as a key; a key is a number, a string, a boolean or None", way)
        return self._convert(key, (*way, (key,)))

    def add(self, tensor: Tensor, way: tuple[Any, ...]) -> str:
        """Keep a tensor; return its name, of tied tensors that of the first."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype not in _NAMES or not is_dense(tensor):
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
    kind = "dense" if is_dense(value) else "sparse, quantised, nested, conjugated or meta"
    return f"a {kind} {type(value).__name__} of {value.dtype}"


def _error(problem: str, way: tuple[Any, ...]) -> ValueError:
    steps = [f"'s key {key[0]!r}" if isinstance(key, tuple) else f"[{key!r}]" for key in way]
    return ValueError(f"state{''.join(steps if len(steps) < 10 else [*steps[:4], '…', *steps[-4:]])} {problem}")


def _put_together(text: str, tensors: Mapping[str, Tensor], sharded: Callable[..., Tensor]) -> Any:
    """The state that `TakenApart` has made JSON of."""
    makers: dict[str, Callable[[Any], Any]] = {
        **{"$tensor": tensors.__getitem__, "$sharded": lambda claim: sharded(*claim)},
        **{"$tuple": tuple, "$dict": dict, "$float": float},
    }

    def make(read: dict[str, Any]) -> Any:
        kind = next(iter(read)) if len(read) == 1 else ""
        return makers[kind](read[kind]) if kind in makers else read

    return json.loads(text, object_hook=make)


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
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
    for part in chain((len(text).to_bytes(8, "little"), text), (_bytes_of(tensor) for _, tensor in ordered)):
        digest.update(part)
        file.write(part)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    """The numbers row by row, without a copy where they lie so."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@contextmanager
def _latest(folder: Path) -> Iterator[tuple[Path, BinaryIO, re.Match[bytes]] | None]:
    """The newest intact checkpoint, open for reading; see `latest_checkpoint`."""
    for old in sorted(folder.glob("checkpoint_*.pt")):
        with open(old, "rb") as file:
            if file.read(len(_ZIP)) == _ZIP:  # to begin anew beside it would lose its work without a word
                raise CheckpointError(f"{old} {_OLD}: finish the run with that version, or begin one in another folder")
    for path in [*_newest_first(folder), *folder.glob("checkpoint_best.safetensors")]:
        # kept open until it is read: what is read is the file that was verified, whatever takes its name meanwhile
        with ExitStack() as opened:
            try:
                file = opened.enter_context(open(path, "rb"))
                start = _verify(path, file)
            except PermissionError:
                raise
            except (CheckpointError, OSError) as error:
                warnings.warn(f"passing over a checkpoint: {error}", stacklevel=4)
                continue
            yield path, file, start
            return
    yield None


def _start_of(file: BinaryIO) -> re.Match[bytes] | None:
    file.seek(8)
    return _START.match(file.read(_START_BYTES))


def _verify(path: Path, file: BinaryIO) -> re.Match[bytes]:
    """The start of the file; CheckpointError where its bytes are not those that were written."""
    start = _start_of(file)
    file.seek(0)
    block = bytearray(file.read(1 << 20))
    if start is None:
        old = block.startswith(_ZIP)
        raise CheckpointError(
            f"{path} {_OLD if old else 'is cut short, or not a course_lm checkpoint: no checksum in it'}"
        )
    block[_DIGITS_AT : _DIGITS_AT + len(_ZEROS)] = _ZEROS.encode()
    digest = hashlib.sha256()
    while block:
        digest.update(block)
        block = file.read(1 << 20)
    if digest.hexdigest().encode() != start["sha256"]:
        raise CheckpointError(f"{path} is cut short or damaged: its bytes do not match its checksum")
    if start["parts"] is not None:
        try:
            check_parts(parts_folder(path, int(start["serial"])), start["parts"].decode())
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None
    return start


def _check_format(path: Path, file: BinaryIO, start: re.Match[bytes]) -> None:
    if int(start["format"]) != FORMAT_VERSION:
        reads = f"this course_lm reads format {FORMAT_VERSION}"
        raise CheckpointError(f"{path} has checkpoint format {int(start['format'])}; {reads}")


def _read(
    path: Path, file: BinaryIO, start: re.Match[bytes], map_location: str | torch.device, target: Target
) -> dict[str, Any]:
    """The state in a file whose checksum is right."""
    _check_format(path, file, start)
    try:
        about, tensors = _read_tensors(file, map_location)
        parts = Parts(parts_folder(path, int(start["serial"])), target)

        def claim(name: str, keys: list[str], shape: list[int], kind: str) -> Tensor:
            return parts.claim(name, keys, shape, KINDS[kind], _count_bytes(shape, kind))

        state = _put_together(about["state"], tensors, claim)
        ensure(isinstance(state, dict), f"it holds a {type(state).__name__}")
        parts.fill()
    except (MemoryError, torch.OutOfMemoryError, OSError):
        raise
    except Exception as error:  # a stranger's file can fail in any way
        raise CheckpointError(f"{path} has a right checksum, but not the state of a run: {one_line(error)}") from error
    return state


def _read_tensors(file: BinaryIO, map_location: str | torch.device) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file; ValueError unless they fill it, one after the other."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    ensure(8 + length <= size, "its header is longer than the file")
    header = json.loads(file.read(length))
    about, tensors, end = header.pop("__metadata__"), {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = end, end + _count_bytes(entry["shape"], entry["dtype"])
        ensure(entry["data_offsets"] == [begin, end], f"{name!r} does not lie behind the tensor before it")
        ensure(8 + length + end <= size, f"{name!r} lies outside of the file")
        content, kind = bytearray(end - begin), KINDS[entry["dtype"]]
        file.readinto(content)  # type: ignore[attr-defined]
        flat = torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)
        tensors[name] = flat.reshape(entry["shape"]).to(map_location)
    return about, tensors


def _count_bytes(shape: list[int], kind: str) -> int:
    """Of a tensor of a file; ValueError where there is none of that kind."""
    counts = len(shape) <= 64 and all(type(n) is int and 0 <= n < 2**62 for n in shape)
    ensure(counts and kind in KINDS, f"it holds no tensor of {shape} {kind}")
    return math.prod(shape) * KINDS[kind].itemsize


def _is_intact(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(_verify(path, file))
    except (CheckpointError, OSError):
        return False


def _peek(path: Path) -> re.Match[bytes] | None:
    """What the file says of itself, its checksum not looked at; None where it says nothing, or cannot be read."""
    try:
        with open(path, "rb") as file:
            return _start_of(file)
    except OSError:
        return None


def _serial(path: Path) -> int | None:
    start = _peek(path)
    return None if start is None else int(start["serial"])


def _newest_first(folder: Path) -> list[Path]:
    """Sort by serial, then step. A file without them may be the newest, cut short: it comes first, to be looked at."""

    def age(path: Path) -> tuple[float, int]:
        start = _peek(path)
        return (math.inf, 0) if start is None else (int(start["serial"]), int(start["step"]))

    return sorted((path for pattern in RESUMABLE for path in sorted(folder.glob(pattern))), key=age, reverse=True)
