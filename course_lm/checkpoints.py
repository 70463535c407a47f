"""Checkpoints that exist whole or not at all, say when they are damaged, and run no code when loaded.

A checkpoint is the zip file that `torch.save` writes, with one line of text as the zip's closing comment:

    course_lm checkpoint <format version> serial <n> sha256 <64 hex digits>

The digest covers every byte before its own digits, so a cut or flipped file is recognised without unpickling
anything, while plain `torch.load` still opens the file. The serial counts the checkpoints saved in a folder:
the highest is the newest, whatever clocks, copies and rewound runs do to modification times and steps.
"""

import contextlib
import hashlib
import os
import pickle
import random
import re
import secrets
import struct
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

FORMAT_VERSION = 1
RESUMABLE = ("checkpoint_last.pt", "checkpoint_step_*.pt", "checkpoint_epoch_*.pt")
LEFTOVER_SECONDS = 600.0

_DIGEST_LENGTH = 64
_TRAILER = re.compile(rb"course_lm checkpoint (\d+) serial (\d+) sha256 ([0-9a-f]{64})\Z")
_TRAILER_MAX_BYTES = 256
_SCALARS = (type(None), bool, int, float, str)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class CheckpointError(ValueError):
    """A file is damaged, not a checkpoint, newer than this package reads, or holds more than plain data."""


class _Trailer(NamedTuple):
    version: int
    serial: int
    digest: str


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write `state` to `path`: the whole new file appears under that name, or what was there stays.

    state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.
    Raises ValueError when `state` holds anything else (naming its place), and OSError when the file cannot be
    written (full disk, read-only or missing folder); then older checkpoints are untouched and no partial file
    stays.
    """
    path = Path(path)
    _check_plain(state, "state")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        _remove_leftovers(path)
        try:
            _write(temporary, state, serial=_next_serial(path.parent))
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        message = f"cannot write checkpoint {path}: {error.strerror or error} (older ones are untouched)"
        raise OSError(error.errno, message) from error


def load_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """Return the state that `save_checkpoint` stored, its tensors on `map_location`.

    The checksum is verified first; then the file is read with `weights_only=True`, which builds tensors and
    plain data and calls nothing else. Raises CheckpointError, naming the file and what is wrong with it, and
    FileNotFoundError when there is none.
    """
    path = Path(path)
    with open(path, "rb") as file:
        _check_version(path, _verify(path, file))
        file.seek(0)
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            reason = "it holds more than tensors and plain data, so loading it could run code"
            raise CheckpointError(f"{path} is refused: {reason}") from error


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """Return the newest intact checkpoint of a run's folder (last, step or epoch), or None.

    Damaged files are passed over with a warning that names them. An intact file of a newer format raises
    CheckpointError: going on from an older one would quietly lose work.
    """
    for path in _newest_first(Path(folder)):
        try:
            with open(path, "rb") as file:
                trailer = _verify(path, file)
        except CheckpointError as error:
            warnings.warn(f"passing over a checkpoint: {error}", stacklevel=2)
            continue
        _check_version(path, trailer)
        return path
    return None


def prune_checkpoints(folder: str | os.PathLike[str], keep: int) -> list[Path]:
    """Delete all but the newest `keep` step checkpoints; return what was deleted.

    Only `checkpoint_step_*.pt` with a readable serial are candidates: best, last and epoch files stay. When
    nothing intact would remain to resume from, the newest intact candidate is spared. Raises ValueError when
    `keep` is negative.
    """
    if keep < 0:
        raise ValueError(f"keep must be 0 or more checkpoints, got {keep}")
    newest_first = _newest_first(Path(folder))
    steps = (path for path in newest_first if path.name.startswith("checkpoint_step_"))
    surplus = [path for path in steps if _serial(path) is not None][keep:]
    if surplus and not any(_is_intact(path) for path in newest_first if path not in surplus):
        spared = next((path for path in surplus if _is_intact(path)), None)
        surplus = [path for path in surplus if path != spared]
    for path in surplus:
        path.unlink()
    return surplus


def rng_state() -> dict[str, Any]:
    """Return the state of all global random generators (Python, NumPy, torch: CPU, CUDA, MPS) as plain data.

    "cuda" is None until this process has used CUDA, since asking would start it on every device.
    """
    version, words, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    on_mps = torch.backends.mps.is_available()
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "words": torch.from_numpy(legacy["state"]["key"].astype(np.int64)),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "mps": torch.mps.get_rng_state() if on_mps else None,
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned. A device that this machine does not have is passed over."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    key = legacy["words"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, legacy["position"], legacy["has_gauss"], legacy["gauss"]))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        for device, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state.cpu(), device)
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())


def _check_plain(value: Any, where: str) -> None:
    kind = type(value)
    if kind in (dict, OrderedDict):
        for key, item in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(item, f"{where}[{key!r}]")
    elif kind in (list, tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    elif kind not in _SCALARS and kind not in _TENSORS:
        accepted = "tensors, numbers, strings, booleans, None, and dicts, lists and tuples of them"
        raise ValueError(f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds {accepted}")


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


def _write(path: Path, state: dict[str, Any], serial: int) -> None:
    with open(path, "x+b") as file:
        sink = _Sink(file)
        torch.save(state, sink)  # pyright: ignore[reportArgumentType]  # torch needs only write and flush
        if sink.error is not None:
            raise sink.error
        prefix = f"course_lm checkpoint {FORMAT_VERSION} serial {serial} sha256 ".encode()
        file.seek(-2, os.SEEK_END)  # a zip file ends in the length of its comment, which torch leaves at 0
        file.write(struct.pack("<H", len(prefix) + _DIGEST_LENGTH) + prefix)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, os.SEEK_END)
        file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and a rename is durable by itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of `path`; a younger file may belong to a process still writing."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()


def _read_trailer(file: BinaryIO) -> _Trailer | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TRAILER_MAX_BYTES))
    found = _TRAILER.search(file.read())
    return _Trailer(int(found[1]), int(found[2]), found[3].decode()) if found else None


def _verify(path: Path, file: BinaryIO) -> _Trailer:
    trailer = _read_trailer(file)
    if trailer is None:
        raise CheckpointError(f"{path} is cut short, or not a course_lm checkpoint: no checksum at its end")
    if _digest_before_trailer(file) != trailer.digest:
        raise CheckpointError(f"{path} is damaged: its bytes do not match its checksum")
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
    if trailer.version > FORMAT_VERSION:
        reads = f"this course_lm reads up to {FORMAT_VERSION}"
        raise CheckpointError(f"{path} has checkpoint format {trailer.version}; {reads}")


def _is_intact(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            _verify(path, file)
    except CheckpointError:
        return False
    return True


def _serial(path: Path) -> int | None:
    with open(path, "rb") as file:
        trailer = _read_trailer(file)
    return None if trailer is None else trailer.serial


def _next_serial(folder: Path) -> int:
    return 1 + max((_serial(path) or 0 for path in folder.glob("checkpoint_*.pt")), default=0)


def _newest_first(folder: Path) -> list[Path]:
    """Sort by serial. A file without one may be the newest, cut short: it comes first, to be looked at."""

    def age(path: Path) -> tuple[float, int]:
        serial = _serial(path)
        return float("inf") if serial is None else serial, path.stat().st_mtime_ns

    return sorted((path for pattern in RESUMABLE for path in folder.glob(pattern)), key=age, reverse=True)
