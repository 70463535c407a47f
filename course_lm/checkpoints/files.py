"""Checkpoints that exist whole or not at all, say when they are damaged, and run no code when loaded.

A checkpoint is the zip file that `torch.save` writes, with one line of text as the zip's closing comment:

    course_lm checkpoint <format version> serial <n> [shards <64 hex digits>] sha256 <64 hex digits>

The digest covers every byte before its own digits, so a cut or flipped file is recognised without unpickling
anything, while plain `torch.load` still opens the file. It does not say who wrote the file: `check_archive` looks
through it before torch reads it. The serial counts the checkpoints saved in a folder:
the highest is the newest, whatever clocks, copies and rewound runs do to modification times and steps. Of a checkpoint
whose sharded tensors lie beside it, the digest of their list stands there too: see `shard_files`.
"""

import hashlib
import math
import os
import platform
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from course_lm import __version__
from course_lm.checkpoints.archive import UnsafeArchiveError, check_archive
from course_lm.checkpoints.atomic_write import atomic_file, remove_leftovers
from course_lm.checkpoints.shard_files import (
    Target,
    check_shards,
    put_back,
    remove_stray_shards,
    shard_folder,
    whole_on_cpu,
)
from course_lm.checkpoints.weights import is_dense
from course_lm.shards import is_sharded

FORMAT_VERSION = 2
# not checkpoint_best.pt: going on from it would repeat the steps after it, so it is the last resort
RESUMABLE = ("checkpoint_last.pt", "checkpoint_step_*.pt", "checkpoint_epoch_*.pt")

_RETAINED = ("checkpoint_step_", "checkpoint_epoch_")
_MAX_INTEGER_BITS = 2000  # torch's safe unpickler reads integers of up to 255 bytes
_DIGEST_LENGTH = 64
_TRAILER = re.compile(rb"course_lm checkpoint (\d+) serial (\d+)(?: shards ([0-9a-f]{64}))? sha256 ([0-9a-f]{64})\Z")
_TRAILER_MAX_BYTES = 256
_MAX_DEPTH = 100  # `_Plain` calls itself for each level
_SCALARS = (type(None), bool, int, float, str)


class CheckpointError(ValueError):
    """A file is damaged, not a checkpoint, newer than this package reads, or holds more than plain data."""


class _Trailer(NamedTuple):
    version: int
    serial: int
    shards: str | None
    digest: str


def save_checkpoint(
    path: str | os.PathLike[str], state: dict[str, Any], *, shards: str | None = None, serial: int | None = None
) -> None:
    """Write `state` to `path`: the whole new file appears under that name, or what was there stays.

    shards, serial: of a state whose sharded tensors were written before: the digest of their list, and the number that
    `prepare_save` gave. state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, or what
    `as_plain` turns into them. Raises ValueError when `state` holds anything else (naming its place), and OSError when
    the file cannot be written (full disk, read-only or missing folder); then older checkpoints are untouched and no
    partial file stays.
    """
    path = Path(path)
    state = as_plain(state)
    if serial is None:
        serial = prepare_save(path.parent)
    with atomic_file(path) as file:
        _write(file, state, serial, shards)
    remove_stray_shards(path.parent, _serial)  # those of the checkpoint that was replaced


def prepare_save(folder: str | os.PathLike[str]) -> int:
    """Remove what killed processes have left in a run's folder; return the serial of the next checkpoint in it."""
    folder = Path(folder)
    remove_leftovers(folder)
    remove_stray_shards(folder, _serial)
    return _next_serial(folder)


def as_plain(state: Any, *, sharded: bool = False) -> Any:
    """Return `state` as what a checkpoint can hold, in dicts, lists and tuples of its own; tensors are not copied.

    sharded: whether tensors of which this rank holds a part are let through as they are.

    NumPy's scalars become numbers, an enumeration of strings or numbers becomes its value, every kind of dict a dict,
    a named tuple a tuple, and a parameter the tensor in it.
    Raises ValueError, naming its place, for what has no plain form or could not be read again.
    """
    return _Plain(math.inf, sharded).convert(state)


def load_checkpoint(
    path: str | os.PathLike[str], map_location: Any = "cpu", target: Target = whole_on_cpu
) -> dict[str, Any]:
    """Return the state that `save_checkpoint` stored, its tensors on `map_location`.

    Tensors that were saved in parts are read into the memory that `target(keys, shape, dtype)` gives, by any number of
    ranks: by default whole, on the CPU.

    The checksum is verified first, then that the file is no more than `torch.save` makes of plain data; then it is
    read with `weights_only=True`, which builds tensors and plain data and calls nothing else. Raises CheckpointError,
    naming the file and what is wrong with it, and FileNotFoundError when there is none.
    """
    path = Path(path)
    with open(path, "rb") as file:
        trailer = _verify(path, file)
        _check_version(path, trailer)
        return _read(path, file, trailer, map_location, target)


def load_latest(
    folder: str | os.PathLike[str], map_location: Any = "cpu", target: Target = whole_on_cpu
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
        remove_stray_shards(Path(folder), _serial)
    return surplus


def library_versions() -> dict[str, str]:
    """Versions of everything that a run's numbers depend on; another one may round differently."""
    return {
        "python": platform.python_version(),
        "course_lm": __version__,
        "torch": str(torch.__version__),
        "numpy": _installed_version("numpy"),
        "tokenizers": _installed_version("tokenizers"),
    }


@cache
def _installed_version(name: str) -> str:
    """Looked up once: it takes milliseconds, and every checkpoint asks."""
    return metadata.version(name)


class _Plain:
    """Converts a state; keeps its way through dicts and lists to the value at hand, for its messages."""

    def __init__(self, most_parts: float, let_sharded_through: bool = False) -> None:
        self.most_parts, self.parts, self.let_sharded_through = most_parts, 0, let_sharded_through
        self.way: list[tuple[str, Any]] = []

    def convert(self, value: Any) -> Any:
        self.parts += 1
        if self.parts > self.most_parts:
            raise ValueError("it holds one list many times over, so that it would be far larger than its file")
        kind = type(value)
        if kind is int:
            self._check_integer(value)
        if kind in _SCALARS:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, dict):
            return {self._key(key): self._inside("[{!r}]", key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._inside("[{}]", index, item) for index, item in enumerate(value)]
        if isinstance(value, tuple):
            return tuple([self._inside("[{}]", index, item) for index, item in enumerate(value)])
        return self._scalar(value)

    def _inside(self, step: str, key: Any, value: Any) -> Any:
        if len(self.way) >= _MAX_DEPTH:
            raise self._error(f"lies more than {_MAX_DEPTH} dicts and lists deep")
        self.way.append((step, key))
        plain = self.convert(value)
        self.way.pop()
        return plain

    def _key(self, key: Any) -> Any:
        if isinstance(key, dict | list | tuple | torch.Tensor):
            raise self._error(f"has a {type(key).__name__} as a key; a key is a number, a string, a boolean or None")
        return self._inside("'s key {!r}", key, key)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if self.let_sharded_through and is_sharded(value):
            return value.detach()
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise self._unfit(value)
        if vars(value):
            raise self._error(f"is a tensor with an attribute of its own ({', '.join(vars(value))})")
        if not is_dense(value):
            raise self._error(
                "is a sparse, quantised, nested, conjugated or meta tensor; a checkpoint holds dense ones"
            )
        return value.detach() if value.requires_grad or type(value) is torch.nn.Parameter else value

    def _scalar(self, value: Any) -> Any:
        """The Python number or string in a NumPy scalar, or in an instance of a subclass such as an enumeration's."""
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            plain = value.item()
            if type(plain) in _SCALARS:
                return self.convert(plain)
        # the base class's own methods, as a subclass may have others
        for kind, convert in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
            if isinstance(value, kind):
                return self.convert(convert(value))  # type: ignore[arg-type]
        raise self._unfit(value)

    def _check_integer(self, value: int) -> None:
        if value.bit_length() > _MAX_INTEGER_BITS:
            bits = f"is an integer of {value.bit_length()} bits"
            raise self._error(f"{bits}; at most {_MAX_INTEGER_BITS} can be read")

    def _unfit(self, value: Any) -> ValueError:
        kind = type(value)
        accepted = "tensors, numbers, strings, booleans, None, and dicts, lists and tuples of them"
        return self._error(f"is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds {accepted}")

    def _error(self, problem: str) -> ValueError:
        shown = self.way if len(self.way) < 10 else [*self.way[:4], ("…", None), *self.way[-4:]]
        way = "".join(step.format(key) for step, key in shown)
        return ValueError(f"state{way} {problem}")


class _Sink:
    """A file for `torch.save` that keeps the first error and takes the rest in silence.

    torch's C++ writer turns an exception from `write` into an unrelated RuntimeError, and writes on after it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except BaseException as error:  # a KeyboardInterrupt arrives here as well
                self.error = error
        return len(data)

    def flush(self) -> None:
        """torch asks for it; `_write` flushes once, at the end."""


def _write(file: BinaryIO, state: dict[str, Any], serial: int, shards: str | None = None) -> None:
    sink = _Sink(file)
    torch.save(state, sink)  # pyrefly: ignore[bad-argument-type]  # torch needs only write and flush
    if sink.error is not None:
        raise sink.error
    beside = "" if shards is None else f"shards {shards} "
    prefix = f"course_lm checkpoint {FORMAT_VERSION} serial {serial} {beside}sha256 ".encode()
    file.seek(-2, os.SEEK_END)  # a zip file ends in the length of its comment, which torch leaves at 0
    file.write(struct.pack("<H", len(prefix) + _DIGEST_LENGTH) + prefix)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # pyrefly: ignore[bad-argument-type]  # a file has readinto
    file.seek(0, os.SEEK_END)
    file.write(digest.encode())


@contextmanager
def _latest(folder: Path) -> Iterator[tuple[Path, BinaryIO, _Trailer] | None]:
    """The newest intact checkpoint, open for reading; see `latest_checkpoint`."""
    for path in [*_newest_first(folder), *folder.glob("checkpoint_best.pt")]:
        # kept open until it is read: what is read is the file that was verified, whatever takes its name meanwhile
        with ExitStack() as opened:
            try:
                file = opened.enter_context(open(path, "rb"))
                trailer = _verify(path, file)
            except PermissionError:
                raise
            except (CheckpointError, OSError) as error:
                warnings.warn(f"passing over a checkpoint: {error}", stacklevel=4)
                continue
            _check_version(path, trailer)
            yield path, file, trailer
            return
    yield None


def _read(path: Path, file: BinaryIO, trailer: _Trailer, map_location: Any, target: Target) -> dict[str, Any]:
    """The state in a file whose checksum is right."""
    try:
        most_parts = check_archive(file)
        file.seek(0)
        state = _Plain(most_parts).convert(torch.load(file, map_location=map_location, weights_only=True))
    except UnsafeArchiveError as error:
        reason = f"it holds more than tensors and plain data, so loading it could run code: {error}"
        raise CheckpointError(f"{path} is refused: {reason}") from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # what torch raises for a file that it cannot read has many types
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} has a right checksum, but nothing that can be loaded: {reason}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__}, not the state of a run")
    if trailer.shards is None:
        return state
    try:
        return put_back(state, shard_folder(path, trailer.serial), target)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _read_trailer(file: BinaryIO) -> _Trailer | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TRAILER_MAX_BYTES))
    found = _TRAILER.search(file.read())
    if found is None:
        return None
    return _Trailer(int(found[1]), int(found[2]), found[3].decode() if found[3] else None, found[4].decode())


def _verify(path: Path, file: BinaryIO) -> _Trailer:
    trailer = _read_trailer(file)
    if trailer is None:
        raise CheckpointError(f"{path} is cut short, or not a course_lm checkpoint: no checksum at its end")
    if _digest_before_trailer(file) != trailer.digest:
        raise CheckpointError(f"{path} is damaged: its bytes do not match its checksum")
    if trailer.shards is not None:
        try:
            check_shards(shard_folder(path, trailer.serial), trailer.shards)
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None
    return trailer


def _digest_before_trailer(file: BinaryIO) -> str:
    remaining = file.seek(0, os.SEEK_END) - _DIGEST_LENGTH
    file.seek(0)
    digest = hashlib.sha256()
    while remaining and (block := file.read(min(remaining, 1 << 20))):
        digest.update(block)
        remaining -= len(block)
    return digest.hexdigest()


def _check_version(path: Path, trailer: _Trailer) -> None:
    if trailer.version < FORMAT_VERSION:
        reads = f"this one reads format {FORMAT_VERSION}"
        raise CheckpointError(f"{path} was written by an older course_lm, in format {trailer.version}; {reads}")
    if trailer.version > FORMAT_VERSION:
        reads = f"this course_lm reads up to {FORMAT_VERSION}"
        raise CheckpointError(f"{path} has checkpoint format {trailer.version}; {reads}")


def _is_intact(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            _verify(path, file)
    except (CheckpointError, OSError):
        return False
    return True


def _serial(path: Path) -> int | None:
    """The number in the file's trailer; None where it has none, or cannot be read."""
    try:
        with open(path, "rb") as file:
            trailer = _read_trailer(file)
    except OSError:
        return None
    return None if trailer is None else trailer.serial


def _next_serial(folder: Path) -> int:
    # checkpoint_best.pt counts too: it may be the newest
    return 1 + max((_serial(path) or 0 for path in folder.glob("checkpoint_*.pt")), default=0)


def _newest_first(folder: Path) -> list[Path]:
    """Sort by serial. A file without one may be the newest, cut short: it comes first, to be looked at."""

    def age(path: Path) -> tuple[float, int]:
        serial = _serial(path)
        return float("inf") if serial is None else serial, path.stat().st_mtime_ns

    return sorted((path for pattern in RESUMABLE for path in folder.glob(pattern)), key=age, reverse=True)
