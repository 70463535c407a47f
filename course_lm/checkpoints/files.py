"""Checkpoints that exist whole or not at all, say when they are damaged, and run no code when loaded.

A checkpoint is one safetensors file: see form.py. Its metadata begins with what must be known before the rest is read:

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
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from course_lm import __version__
from course_lm.checkpoints.atomic_write import atomic_file, remove_leftovers
from course_lm.checkpoints.form import TakenApart, put_together, read_file, write_file
from course_lm.checkpoints.parts import Parts, Target, check_parts, parts_folder, remove_stray_parts, whole_on_cpu
from course_lm.run_records import open_regular
from course_lm.validation import ensure, is_out_of_memory, one_line, require_whole

FORMAT_VERSION = 3
# not checkpoint_best: going on from it would repeat the steps after it, so it is the last resort
RESUMABLE = ("checkpoint_last.safetensors", "checkpoint_step_*.safetensors", "checkpoint_epoch_*.safetensors")

_RETAINED = ("checkpoint_step_", "checkpoint_epoch_")
_ZEROS = "0" * 64
_DIGITS_AT = 8 + len('{"__metadata__":{"sha256":"')
_START = re.compile(
    rb'{"__metadata__":{"sha256":"(?P<sha256>[0-9a-f]{64})","format":"(?P<format>\d{1,9})","serial":"(?P<serial>\d{1,18})'
    rb'","step":"(?P<step>\d{1,18})"(?:,"parts":"(?P<parts>[0-9a-f]{64})")?'
)
_START_BYTES = 300  # more than the longest start


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


def write_checkpoint(path: str | os.PathLike[str], apart: TakenApart, serial: int, parts: str | None = None) -> None:
    """Write the file itself; parts: the digest of the list of the files that hold its sharded tensors."""
    step = apart.plain.get("step")
    step = min(max(step, 0), 10**17) if type(step) is int else 0
    about = {"sha256": _ZEROS, "format": str(FORMAT_VERSION), "serial": str(serial), "step": str(step)}
    about |= {} if parts is None else {"parts": parts}
    about["state"] = json.dumps(apart.plain, separators=(",", ":"))
    with atomic_file(path) as file:
        digest = write_file(file, apart.tensors, about)
        file.seek(_DIGITS_AT)
        file.write(digest.encode())
    remove_stray_parts(Path(path).parent, _serial)  # those of the checkpoint that was replaced


def load_checkpoint(path: str | os.PathLike[str], target: Target = whole_on_cpu) -> dict[str, Any]:
    """Return the state that `save_checkpoint` stored, its tensors on the CPU.

    Tensors that were saved in parts are read into the memory that `target(keys, shape, dtype)` gives, by any number of
    ranks: by default whole, on the CPU. Raises CheckpointError, naming the file and what is wrong with it, and
    FileNotFoundError when there is none.
    """
    path = Path(path)
    with open_regular(path) as file:
        start = _verify(path, file)
        _check_format(path, start)
        try:
            about, tensors = read_file(file)
            parts = Parts(parts_folder(path, int(start["serial"])), target)
            state = put_together(about["state"], tensors, parts.claim)
            ensure(isinstance(state, dict), f"it holds a {type(state).__name__}")
            parts.fill()
        except Exception as error:  # a stranger's file can fail in any way
            if isinstance(error, OSError) or is_out_of_memory(error):
                raise
            problem = f"has a right checksum, but not the state of a run: {one_line(error)}"
            raise CheckpointError(f"{path} {problem}") from error
    return state


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """Return the newest intact checkpoint of a run's folder, or None: last, step or epoch, and best where none is left.

    Damaged and unreadable files are passed over with a warning that names them. Where the newest one is whole but
    cannot be used, an older one would lose work without a word, so this raises: CheckpointError for another format,
    PermissionError for another user's file.
    """
    folder = Path(folder)
    for path in [*_newest_first(folder), *folder.glob("checkpoint_best.safetensors")]:
        try:
            with open_regular(path) as file:
                start = _verify(path, file)
        except PermissionError:
            raise
        except (CheckpointError, OSError) as error:
            warnings.warn(f"passing over a checkpoint: {error}", stacklevel=2)
        else:
            _check_format(path, start)
            return path
    return None


def prune_checkpoints(folder: str | os.PathLike[str], keep: int) -> list[Path]:
    """Delete all but the newest `keep` step and epoch checkpoints; return what was deleted.

    Best and last always stay, and so does the newest intact one, so that `latest_checkpoint` returns the same before
    and after. Files without a readable serial are left alone. Raises ValueError when `keep` is negative.
    """
    require_whole("keep", keep, least=0)
    newest_first = _newest_first(Path(folder))
    numbered = (path for path in newest_first if path.name.startswith(_RETAINED))
    surplus = [path for path in numbered if _serial(path) is not None][keep:]
    if not surplus:  # looking for damage reads whole files
        return []
    newest = next((path for path in newest_first if _is_intact(path)), None)
    deleted = [path for path in surplus if path != newest]
    for path in deleted:
        path.unlink()
    remove_stray_parts(Path(folder), _serial)
    return deleted


def export_weights(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a model's `state_dict()` as a safetensors file; as with checkpoints, whole or not at all.

    Equal weights and metadata give equal bytes. `safetensors.torch.load_file(path)` gives the weights back. Of names
    that stand for one tensor (tied weights) the first is kept, and the metadata says for each of the others which one
    that is, so that `safetensors.torch.load_model(model, path)` ties them again.

    Args:
        metadata: strings by name, to be read without the tensors.

    Raises:
        ValueError: a weight is not a tensor, or metadata holds something other than strings.
        OSError: the file cannot be written; what was there stays.
    """
    texts = {"format": "pt", **(metadata or {})}
    for name, text in texts.items():
        ensure(isinstance(text, str), f"metadata must hold strings, got {text!r} for {name!r}")
    for name, tensor in weights.items():
        ensure(isinstance(tensor, Tensor), f"weights must hold tensors, got {type(tensor).__name__} for {name!r}")
    apart = TakenApart({})
    kept = {name: apart.add(tensor, (name,)) for name, tensor in weights.items()}
    tied = {name: first for name, first in kept.items() if first != name}
    with atomic_file(path) as file:
        write_file(file, apart.tensors, dict(sorted((tied | texts).items())))


def saved_step(path: str | os.PathLike[str]) -> int | None:
    """The step of the run when a checkpoint was saved, by its header alone; None where it cannot be read."""
    start = _read_start(Path(path))
    return None if start is None else int(start["step"])


def library_versions() -> dict[str, str]:
    """Versions of everything that a run's numbers depend on; another one may round differently."""
    return {
        "python": platform.python_version(),
        "course_lm": __version__,
        "torch": str(torch.__version__),
        **{name: _version(name) for name in ("numpy", "tokenizers")},
    }


_version = cache(metadata.version)  # looked up once: it takes milliseconds, and every checkpoint asks


def _start_of(file: BinaryIO) -> re.Match[bytes] | None:
    file.seek(8)
    return _START.match(file.read(_START_BYTES))


def _verify(path: Path, file: BinaryIO) -> re.Match[bytes]:
    """The start of the file; CheckpointError where its bytes are not those that were written."""
    start = _start_of(file)
    file.seek(0)
    block = bytearray(file.read(1 << 20))
    if start is None:
        raise CheckpointError(f"{path} is cut short, or not a course_lm checkpoint: no checksum in it")
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


def _check_format(path: Path, start: re.Match[bytes]) -> None:
    if int(start["format"]) != FORMAT_VERSION:
        reads = f"this course_lm reads format {FORMAT_VERSION}"
        raise CheckpointError(f"{path} has checkpoint format {int(start['format'])}; {reads}")


def _is_intact(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return bool(_verify(path, file))
    except (CheckpointError, OSError):
        return False


def _read_start(path: Path) -> re.Match[bytes] | None:
    """What the file says of itself, its checksum not looked at; None where it says nothing, or cannot be read."""
    with suppress(OSError), open_regular(path) as file:
        return _start_of(file)
    return None


def _serial(path: Path) -> int | None:
    start = _read_start(path)
    return None if start is None else int(start["serial"])


def _newest_first(folder: Path) -> list[Path]:
    """Sort by serial, then step. A file without them may be the newest, cut short: it comes first, to be looked at."""

    def age(path: Path) -> tuple[float, int]:
        start = _read_start(path)
        return (math.inf, 0) if start is None else (int(start["serial"]), int(start["step"]))

    return sorted((path for pattern in RESUMABLE for path in sorted(folder.glob(pattern))), key=age, reverse=True)
