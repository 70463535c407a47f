"""The files beside a checkpoint that hold the parts of sharded tensors, one file for each rank that wrote.

`checkpoint_step_40.safetensors` with the serial 7 has them in the folder `checkpoint_step_40.7.shards`, in the
safetensors format; torch.distributed.checkpoint writes and reads them, for any number of ranks. `SHA256SUMS` lists
every file with its checksum, as `sha256sum --check` reads it, and the digest of that list stands in the header of the
checkpoint itself. So the checkpoint exists from the moment when that one file takes its name; a folder that no
checkpoint names is what a killed process has left.
"""

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from course_lm.checkpoints.atomic_write import atomic_file
from course_lm.checkpoints.form import KINDS, count_bytes
from course_lm.validation import ensure, one_line

# Memory for a sharded tensor that is read: called with the keys that lead to it in the state, its shape and its type.
Target = Callable[[Sequence[str], Sequence[int], torch.dtype], Tensor]
SUMS = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")
_FOLDER = re.compile(r"(checkpoint_.+)\.(\d+)\.shards")


def parts_folder(path: Path, serial: int) -> Path:
    """Where the parts of this checkpoint lie."""
    return path.with_name(f"{path.stem}.{serial}.shards")


def whole_on_cpu(keys: Sequence[str], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for the whole tensor: the target of a program that is not one of several ranks."""
    return torch.empty(tuple(shape), dtype=dtype)


def write_parts(folder: Path, tensors: Mapping[str, Tensor]) -> None:
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
    """Write the list of all files; return its own SHA-256, for the checkpoint's header."""
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()
    with atomic_file(folder / SUMS) as file:
        file.write(text)
    return hashlib.sha256(text).hexdigest()


def check_parts(folder: Path, digest: str) -> None:
    """Raise ValueError unless every file is there, with the bytes that were written, and no other."""
    try:
        text = (folder / SUMS).read_bytes()
        ensure(hashlib.sha256(text).hexdigest() == digest, f"{folder.name}/{SUMS} is not the one that was written")
        listed = {name: sum_ for sum_, name in _LINE.findall(text.decode())}
        extra = {path.name for path in folder.iterdir()} - {SUMS} - set(listed)
        ensure(not extra, f"{folder.name} has a file more, {min(extra, default='')}")
        for name, expected in listed.items():
            with open(folder / name, "rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            ensure(actual == expected, f"{folder.name}/{name} is damaged: its bytes do not match its checksum")
    except FileNotFoundError as error:
        raise ValueError(f"{folder.name}/{Path(str(error.filename)).name} is missing") from None


def remove_stray_parts(folder: Path, serial_of: Callable[[Path], int | None]) -> None:
    """Remove the folders of parts that belong to no checkpoint: one was replaced or deleted, or never came to be."""
    for path in folder.glob("checkpoint_*.shards"):
        if found := _FOLDER.fullmatch(path.name):
            checkpoint = path.with_name(f"{found[1]}.safetensors")
            # a damaged or unreadable checkpoint has no serial: its parts stay for whoever mends it
            if not checkpoint.exists() or serial_of(checkpoint) not in (None, int(found[2])):
                shutil.rmtree(path, ignore_errors=True)


class Parts:
    """The sharded tensors of a checkpoint: claimed one by one while its state is read, then filled at once."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder, self.target = folder, target
        self.tensors: dict[str, Tensor] = {}
        # bytes: a state must not ask for more memory than its files hold
        self.left = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0

    def claim(self, name: str, keys: Sequence[str], shape: Sequence[int], kind: str) -> Tensor:
        """Memory for this tensor, which `fill` gives its numbers."""
        self.left -= count_bytes(shape, kind)
        ensure(self.left >= 0, f"{self.folder.name} holds less than the tensors of its checkpoint")
        return self.tensors.setdefault(name, self.target(keys, shape, KINDS[kind]))

    def fill(self) -> None:
        """Read what was claimed, whatever ranks have written its parts; under several ranks a collective call."""
        if not self.tensors:
            return
        import torch.distributed as dist
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        alone = not (dist.is_initialized() and dist.get_world_size() > 1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it says that one process reads
            try:
                load(self.tensors, storage_reader=HuggingFaceStorageReader(str(self.folder)), no_dist=alone)
            except CheckpointException as error:
                reason = one_line(next(iter(error.failures.values()))[0])
                raise ValueError(f"{self.folder.name} does not hold the tensors of its checkpoint: {reason}") from error
