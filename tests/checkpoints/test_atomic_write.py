"""Claims about files that appear whole or not at all."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from course_lm.checkpoints import atomic_file, export_weights, save_checkpoint
from course_lm.checkpoints.atomic_write import LEFTOVER_SECONDS, remove_leftovers
from course_lm.trainer.made_by import SessionLog
from tests.training_run import configure


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def test_until_the_body_ends_the_old_file_is_there(tmp_path):
    write(tmp_path / "a", b"one")
    with atomic_file(tmp_path / "a") as file:
        file.write(b"two")
        file.flush()
        assert (tmp_path / "a").read_bytes() == b"one"
        file.seek(0)
        assert file.read() == b"two"


def test_an_error_of_the_disk_names_the_file_and_keeps_its_number(tmp_path):
    with (
        pytest.raises(OSError, match=r"cannot write .*/a: Quota exceeded \(what was") as caught,
        atomic_file(tmp_path / "a"),
    ):
        raise OSError(errno.EDQUOT, "Quota exceeded")
    assert caught.value.errno == errno.EDQUOT
    assert "\n" not in str(caught.value)


WRITERS: dict[str, Callable[[Path, float], object]] = {
    "a checkpoint": lambda path, number: save_checkpoint(path, {"number": number}),
    "exported weights": lambda path, number: export_weights(path, {"weight": torch.tensor(number)}),
    "a configuration": lambda path, number: configure("runs", learning_rate=number).to_yaml(path),
    "the sessions": lambda path, number: SessionLog(path.parent).start(int(number), None),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_every_file_of_a_run_as_it_was(tmp_path, monkeypatch, kind):
    path = tmp_path / "made_by.json"
    WRITERS[kind](path, 1.0)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"cannot write {path}: No space left on device"):
        WRITERS[kind](path, 2.0)
    assert path.read_bytes() == before and names_in(tmp_path) == {path.name}


def test_a_missing_folder_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot write .*none/a: No such file"):
        write(tmp_path / "none" / "a", b"")


def test_the_file_has_the_permissions_of_any_new_file(tmp_path):
    write(tmp_path / "a", b"")
    (tmp_path / "plain").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_file_is_synced_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        events.append("sync folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "sync file")
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write(tmp_path / "a", b"")
    assert events == ["sync file", "rename", "sync folder"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_disk_that_cannot_sync_folders_is_good_enough(tmp_path, monkeypatch, number):
    fail_to_sync_folders(monkeypatch, number)
    write(tmp_path / "a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"


def test_a_folder_that_fails_to_sync_is_an_error(tmp_path, monkeypatch):
    fail_to_sync_folders(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="cannot write"):
        write(tmp_path / "a", b"one")


def fail_to_sync_folders(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


def test_what_killed_processes_left_is_removed_once_it_is_old(tmp_path):
    old, older, young, foreign, visible = (
        tmp_path / name
        for name in (
            ".checkpoint_last.safetensors.1-0123abcd.tmp",
            ".checkpoint_step_5.safetensors.99-89ef4567.tmp",
            ".checkpoint_last.safetensors.2-89ef4567.tmp",
            ".somebody.tmp",
            "checkpoint_last.safetensors",
        )
    )
    for path in (old, older, young, foreign, visible):
        path.write_bytes(b"half a file")
    long_ago = time.time() - 2 * LEFTOVER_SECONDS
    for path in (old, older, foreign, visible):
        os.utime(path, (long_ago, long_ago))
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == {young.name, foreign.name, visible.name}


def test_a_temporary_file_is_recognised_as_a_leftover(tmp_path):
    with atomic_file(tmp_path / "checkpoint_step_7.safetensors"):
        (temporary,) = tmp_path.iterdir()
        os.utime(temporary, (0, 0))
        remove_leftovers(tmp_path)
        assert not temporary.exists()
        temporary.touch()


def test_leftovers_in_a_missing_folder_are_none(tmp_path):
    remove_leftovers(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_file_takes_the_place_of_no_pipe_and_no_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(os.devnull)
    for name in ("pipe", "link"):
        with (
            pytest.raises(OSError, match=f"cannot write .*{name}: it is a device or a pipe"),
            atomic_file(tmp_path / name),
        ):
            pass
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
