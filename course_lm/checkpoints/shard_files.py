"""The files beside a checkpoint that hold the parts of sharded tensors, one file for each rank that wrote.

`checkpoint_step_40.pt` with the serial 7 has them in the folder `checkpoint_step_40.7.shards`, in the safetensors
format, which holds numbers and no code; torch.distributed.checkpoint writes and reads them, for any number of ranks.
`SHA256SUMS` lists every file with its checksum, as `sha256sum --check` reads it, and the digest of that list stands in
the trailer of the checkpoint itself. So the checkpoint exists from the moment when that one file takes its name; a
folder that no checkpoint names is what a killed process has left.
"""

import hashlib
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lm.checkpoints.atomic_write import atomic_file
from course_lm.shards import is_sharded
from course_lm.validation import ensure, one_line

# Memory for a sharded tensor that is read: called with the keys that lead to it in the state, its shape and its type.
Target = Callable[[Sequence[str], Sequence[int], torch.dtype], Tensor]
SUMS = "SHA256SUMS"
MARK = "sharded"  # stands in the state in place of a sharded tensor, with its shape and type

_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")
_FOLDER = re.compile(r"(checkpoint_.+)\.(\d+)\.shards")
_SEPARATOR = "/"  # no parameter's name holds one


def shard_folder(path: Path, serial: int) -> Path:
    """Where the parts of this checkpoint lie."""
    return path.with_name(f"{path.stem}.{serial}.shards")


def take_out(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state with a mark in place of each sharded tensor, and these tensors by the keys that lead to them."""
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, keys: tuple[str, ...]) -> Any:
        if is_sharded(value):
            ensure(all(_SEPARATOR not in key for key in keys), f"a name in the state holds {_SEPARATOR!r}: {keys}")
            tensors[_SEPARATOR.join(keys)] = value
            return {MARK: [list(value.shape), str(value.dtype).removeprefix("torch.")]}
        if isinstance(value, dict):
            return {key: walk(item, (*keys, str(key))) for key, item in value.items()}
        return value

    return {key: walk(value, (key,)) for key, value in state.items()}, tensors


def put_back(state: Mapping[str, Any], folder: Path, target: Target) -> dict[str, Any]:
    """The state with its sharded tensors read from the folder, into the memory that `target` gives.

    Under several ranks a collective call. Raises ValueError where the files do not hold what the state says.
    """
    tensors: dict[str, Tensor] = {}
    left = sum(path.stat().st_size for path in folder.iterdir())  # bytes: a state must not ask for more memory

    def walk(value: Any, keys: tuple[str, ...]) -> Any:
        nonlocal left
        if isinstance(value, dict) and set(value) == {MARK}:
            shape, dtype = _form(value[MARK])
            left -= math.prod(shape) * dtype.itemsize
            ensure(left >= 0, f"{folder.name} holds less than the tensors of its checkpoint")
            return tensors.setdefault(_SEPARATOR.join(keys), target(keys, shape, dtype))
        if isinstance(value, dict):
            return {key: walk(item, (*keys, str(key))) for key, item in value.items()}
        return value

    whole = {key: walk(value, (key,)) for key, value in state.items()}
    _read(folder, tensors)
    return whole


def whole_on_cpu(keys: Sequence[str], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for the whole tensor: the target of a program that is not one of several ranks."""
    return torch.empty(tuple(shape), dtype=dtype)


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this rank's parts: a collective call; OSError on every rank where one of them fails."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:
        reason = one_line(next(iter(error.failures.values()))[0])
        raise OSError(f"cannot write {folder}: {reason} (what was saved before is untouched)") from error


def sums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of these files of the folder, each forced to the disk."""
    sums = {}
    for name in names:
        with open(folder / name, "r+b") as file:
            os.fsync(file.fileno())
            sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def write_sums(folder: Path, sums: Mapping[str, str]) -> str:
    """Write the list of all files; return its own SHA-256, for the checkpoint's trailer."""
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()
    with atomic_file(folder / SUMS) as file:
        file.write(text)
    return hashlib.sha256(text).hexdigest()


def check_shards(folder: Path, digest: str) -> None:
    """Raise ValueError unless every file is there, with the bytes that were written, and no other."""
    try:
        text = (folder / SUMS).read_bytes()
        ensure(hashlib.sha256(text).hexdigest() == digest, f"{folder.name}/{SUMS} is not the one that was written")
        listed = {}
        for line in text.decode().splitlines():
            found = _LINE.fullmatch(line)
            ensure(found is not None, f"{folder.name}/{SUMS} has a line that is none")
            assert found is not None
            listed[found[2]] = found[1]
        there = {path.name for path in folder.iterdir()} - {SUMS}
        ensure(there <= set(listed), f"{folder.name} has a file more, {min(there - set(listed), default='')}")
        for name, expected in listed.items():
            with open(folder / name, "rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            ensure(actual == expected, f"{folder.name}/{name} is damaged: its bytes do not match its checksum")
    except FileNotFoundError as error:
        raise ValueError(f"{folder.name}/{Path(str(error.filename)).name} is missing") from None


def remove_stray_shards(folder: Path, serial_of: Callable[[Path], int | None]) -> None:
    """Remove the folders of parts that belong to no checkpoint: one was replaced or deleted, or never came to be."""
    for path in folder.glob("checkpoint_*.shards"):
        found = _FOLDER.fullmatch(path.name)
        if found is None:
            continue
        checkpoint = path.with_name(f"{found[1]}.pt")
        serial = serial_of(checkpoint)
        # a damaged or unreadable checkpoint has no serial: its parts stay for whoever mends it
        if serial not in (None, int(found[2])) or not checkpoint.exists():
            shutil.rmtree(path, ignore_errors=True)


def _form(mark: Any) -> tuple[list[int], torch.dtype]:
    right = isinstance(mark, list) and len(mark) == 2 and isinstance(mark[0], list)
    ensure(right and all(type(n) is int and 0 <= n < 2**62 for n in mark[0]), "a sharded tensor has no shape")
    dtype = getattr(torch, mark[1], None) if isinstance(mark[1], str) else None
    ensure(isinstance(dtype, torch.dtype), "a sharded tensor has no type")
    assert isinstance(dtype, torch.dtype)
    return mark[0], dtype


def _read(folder: Path, tensors: dict[str, Tensor]) -> None:
    import torch.distributed as dist
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    alone = not (dist.is_initialized() and dist.get_world_size() > 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it says that one process reads
        try:
            # in place: a tensor of `tensors` is filled, whatever ranks have written its parts
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
        except CheckpointException as error:
            reason = one_line(next(iter(error.failures.values()))[0])
            raise ValueError(f"{folder.name} does not hold the tensors of its checkpoint: {reason}") from error
