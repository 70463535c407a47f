"""Claims about checkpoints: whole or absent (C14), safe to load (C15), kept while they are needed."""

import errno
import hashlib
import io
import math
import multiprocessing
import os
import pickle
import re
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.checkpoints import (
    CheckpointError,
    latest_checkpoint,
    library_versions,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from course_lm.checkpoints import files as checkpoints
from tests.full_disk import leaving_free, make_read_only, small_disk


def small_state(step: int = 0) -> dict[str, Any]:
    weights = torch.arange(600, dtype=torch.float32) + step
    return {
        "step": step,
        "model": {"weight": weights},
        "history": [{"loss": 2.5, "event": "train"}],
        "best": None,
    }


def step_of(path: Path) -> int:
    """The step of an intact checkpoint, after checking that its tensor belongs to the same save."""
    state = load_checkpoint(path)
    assert torch.equal(state["model"]["weight"], small_state(state["step"])["model"]["weight"])
    return state["step"]


def flip_bit(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def save_all(folder: Path, *names: str) -> None:
    for step, name in enumerate(names, start=1):
        save_checkpoint(folder / name, small_state(step))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


tensors = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"]))
plain_values = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("abc", max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    return left == right or (left != left and right != right)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=60)
@given(state=st.dictionaries(st.text("abc", max_size=3), plain_values, max_size=4))
def test_any_plain_state_survives_a_round_trip(scratch: Path, state: dict[str, Any]) -> None:
    save_checkpoint(scratch / "round_trip.pt", state)
    assert same(load_checkpoint(scratch / "round_trip.pt"), state)


def test_model_and_optimizer_state_survive_a_round_trip(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "a.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    state = load_checkpoint(tmp_path / "a.pt")
    assert same(state["optimizer"], optimizer.state_dict())
    torch.nn.Linear(3, 3).load_state_dict(state["model"])


def test_plain_torch_load_opens_a_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.pt", small_state(4))
    assert same(torch.load(tmp_path / "a.pt", weights_only=True), small_state(4))


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = Path("pickled with the tensor, and refused with it")  # type: ignore[attr-defined]
    return tensor


def test_the_largest_integer_that_is_accepted_is_read_back(tmp_path: Path) -> None:
    state = {"most": 2**2000 - 1, "least": 1 - 2**2000}
    save_checkpoint(tmp_path / "a.pt", state)
    assert load_checkpoint(tmp_path / "a.pt") == state


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (np.ones(1), r"state\['x'\]\['y'\]"),
        (object(), r"state\['x'\]\['y'\]"),
        ([1, {2}], r"\['y'\]\[1\]"),
        (2**5000, r"\['y'\] is an integer of 5001 bits; at most 2000"),
        (with_attribute(torch.ones(2)), r"\['y'\] is a tensor with an attribute of its own \(note\)"),
        (with_attribute(torch.nn.Parameter(torch.ones(2))), r"\['y'\] is a tensor with an attribute"),
    ],
)
def test_a_value_that_could_not_be_loaded_again_is_refused_by_its_place(tmp_path: Path, value: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        save_checkpoint(tmp_path / "a.pt", {"x": {"y": value}})
    assert names_in(tmp_path) == set()


class Interruption:
    """Calls `action` at the n-th of the file operations of one save: writes, fsyncs and the rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_call: int, action: Callable[[], None]) -> None:
        self.calls, self.at_call, self.action = 0, at_call, action
        write, fsync, replace = checkpoints._Sink.write, os.fsync, os.replace

        def half_a_write(sink: Any, data: bytes) -> int:
            file, half = sink.file, len(data) // 2
            written = write(sink, data[:half])
            file.flush()
            sink.file = Failing(self, file)
            written += write(sink, data[half:])
            sink.file = file
            return written

        monkeypatch.setattr(checkpoints._Sink, "write", half_a_write)
        monkeypatch.setattr(os, "fsync", lambda descriptor: (self.count(), fsync(descriptor)))
        monkeypatch.setattr(os, "replace", lambda source, target: (self.count(), replace(source, target)))

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.at_call:
            self.action()


class Failing:
    """A file whose writes are counted first."""

    def __init__(self, interruption: Interruption, file: Any) -> None:
        self.interruption, self.file = interruption, file

    def write(self, data: bytes) -> int:
        self.interruption.count()
        return self.file.write(data)


def file_operations(folder: Path) -> int:
    """How many interruptible file operations one save takes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        counter = Interruption(monkeypatch, 0, lambda: None)
        save_checkpoint(folder / "count.pt", small_state())
    assert counter.calls > 10
    return counter.calls


def save_and_die(path: Path, at_call: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        Interruption(monkeypatch, at_call, lambda: os.kill(os.getpid(), signal.SIGKILL))
        save_checkpoint(path, small_state(2))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked, which is fast enough for one kill a write")
def test_a_process_killed_at_any_file_operation_leaves_an_intact_checkpoint(tmp_path: Path, scratch: Path) -> None:
    path = tmp_path / "checkpoint_last.pt"
    outcomes = []
    for at_call in range(1, file_operations(scratch) + 1):
        save_checkpoint(path, small_state(1))
        child = multiprocessing.get_context("fork").Process(target=save_and_die, args=(path, at_call))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: the child only writes
            child.start()
        child.join(30)
        assert child.exitcode == -signal.SIGKILL
        assert latest_checkpoint(tmp_path) == path
        outcomes.append(step_of(path))
    # only the folder's fsync comes after the rename
    assert outcomes == [1] * (len(outcomes) - 1) + [2]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_error_at_any_file_operation_leaves_the_old_or_the_new_file_and_nothing_else(
    tmp_path: Path, scratch: Path, error: BaseException
) -> None:
    path = tmp_path / "checkpoint_last.pt"

    def fail() -> None:
        raise error

    for at_call in range(1, file_operations(scratch) + 1):
        save_checkpoint(path, small_state(1))
        with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(type(error)):
            Interruption(monkeypatch, at_call, fail)
            save_checkpoint(path, small_state(2))
        assert step_of(path) in (1, 2)
        assert names_in(tmp_path) == {path.name}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_size_limit_is_one_clear_error_at_any_size(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_last.pt"
    save_checkpoint(path, small_state(1))
    full = path.stat().st_size
    for size in [*range(0, full, 500), full - 1]:
        with (
            file_size_limit(size),
            pytest.raises(OSError, match=r"cannot write .*last\.pt: File too large"),
        ):
            save_checkpoint(path, small_state(2))
        assert names_in(tmp_path) == {path.name}
        assert step_of(path) == 1


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot write .*none/a\.pt"):
        save_checkpoint(tmp_path / "none" / "a.pt", {})


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint_last.pt", small_state(1))
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="cannot write"):
            save_checkpoint(tmp_path / "checkpoint_last.pt", small_state(2))
        assert step_of(tmp_path / "checkpoint_last.pt") == 1
    finally:
        tmp_path.chmod(0o700)


def test_a_disk_that_became_read_only_is_one_clear_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as folder:
        save_checkpoint(folder / "checkpoint_last.pt", small_state(1))
        make_read_only(folder)
        with pytest.raises(OSError, match=r"cannot write .*last\.pt: Read-only file system"):
            save_checkpoint(folder / "checkpoint_last.pt", small_state(2))
        assert names_in(folder) == {"checkpoint_last.pt"}
        assert step_of(folder / "checkpoint_last.pt") == 1


def test_a_disk_that_is_full_at_any_byte_is_one_clear_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as folder:
        path = folder / "checkpoint_last.pt"
        save_checkpoint(path, small_state(1))
        filled_to = [*range(0, path.stat().st_size + 4096, 4096)]
        for left in filled_to:
            with leaving_free(folder, left):
                try:
                    save_checkpoint(path, small_state(2))
                except OSError as error:
                    assert f"cannot write {path}: No space left on device" in str(error)
                    assert step_of(path) == 1
                    assert left < filled_to[-1]
                else:
                    assert step_of(path) == 2
                    save_checkpoint(path, small_state(1))
                assert {name for name in names_in(folder) if not name.startswith("filler")} == {path.name}


@pytest.fixture(scope="module")
def intact(scratch: Path) -> bytes:
    save_checkpoint(scratch / "intact.pt", small_state(1))
    return (scratch / "intact.pt").read_bytes()


@settings(max_examples=200)
@given(data=st.data())
def test_a_file_cut_at_any_byte_is_recognised(scratch: Path, intact: bytes, data: st.DataObject) -> None:
    path = scratch / "cut.pt"
    path.write_bytes(intact[: data.draw(st.integers(0, len(intact) - 1))])
    with pytest.raises(CheckpointError, match=r"cut\.pt is cut short"):
        load_checkpoint(path)


@settings(max_examples=300)
@given(data=st.data())
def test_any_flipped_bit_is_recognised(scratch: Path, intact: bytes, data: st.DataObject) -> None:
    path = scratch / "flipped.pt"
    path.write_bytes(intact)
    flip_bit(path, data.draw(st.integers(0, 8 * len(intact) - 1)))
    with pytest.raises(CheckpointError, match=r"flipped\.pt is (damaged|cut short)"):
        load_checkpoint(path)


def test_every_flipped_bit_of_the_trailer_is_recognised(scratch: Path, intact: bytes) -> None:
    path = scratch / "trailer.pt"
    for bit in range(8 * (len(intact) - 130), 8 * len(intact)):
        content = bytearray(intact)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


@settings(max_examples=30)
@given(extra=st.binary(min_size=1, max_size=300))
def test_anything_appended_is_recognised(scratch: Path, intact: bytes, extra: bytes) -> None:
    (scratch / "longer.pt").write_bytes(intact + extra)
    with pytest.raises(CheckpointError):
        load_checkpoint(scratch / "longer.pt")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + bytes(500)])
def test_a_foreign_file_is_recognised(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "foreign.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"foreign\.pt is .*not a course_lm checkpoint"):
        load_checkpoint(tmp_path / "foreign.pt")


def test_a_file_of_plain_torch_save_is_foreign(tmp_path: Path) -> None:
    torch.save(small_state(), tmp_path / "torch.pt")
    with pytest.raises(CheckpointError, match="not a course_lm checkpoint"):
        load_checkpoint(tmp_path / "torch.pt")


def save_as_format(path: Path, version: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(checkpoints, "FORMAT_VERSION", version)
        save_checkpoint(path, small_state())


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    save_as_format(tmp_path / "a.pt", 3)
    with pytest.raises(CheckpointError, match="has checkpoint format 3; this course_lm reads up to 2"):
        load_checkpoint(tmp_path / "a.pt")


def test_an_older_format_says_so(tmp_path: Path) -> None:
    save_as_format(tmp_path / "a.pt", 1)
    with pytest.raises(CheckpointError, match="by an older course_lm, in format 1; this one reads format 2"):
        load_checkpoint(tmp_path / "a.pt")


def test_a_missing_checkpoint_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        load_checkpoint(tmp_path / "none.pt")


class Payload:
    """Unpickling it creates a folder: harmless code that stands for any other."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_a_malicious_pickle_with_a_valid_checksum_is_refused_and_not_run(tmp_path: Path) -> None:
    path, target = tmp_path / "evil.pt", tmp_path / "was_here"
    with open(path, "x+b") as file:
        checkpoints._write(file, {"step": 1, "model": Payload(target)}, serial=1)
    with pytest.raises(CheckpointError, match=r"evil\.pt is refused"):
        load_checkpoint(path)
    assert not target.exists()
    torch.load(path, weights_only=False)
    assert target.exists(), "the payload must be live, or this test shows nothing"


def sealed(content: bytes) -> bytes:
    """Anything at all, with a checksum that fits."""
    start = content + b"course_lm checkpoint 2 serial 1 sha256 "
    return start + hashlib.sha256(start).hexdigest().encode()


def written_by_torch(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"hello world", bytes(range(256)), pickle.dumps({"step": 1}, 2), written_by_torch({"step": 1})[:500]],
)
def test_anything_with_a_valid_checksum_that_is_no_state_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.pt").write_bytes(sealed(content))
    with pytest.raises(CheckpointError, match=r"odd\.pt (is refused|has a right checksum, but)") as caught:
        load_checkpoint(tmp_path / "odd.pt")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_holds_no_dict_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "odd.pt", "x+b") as file:
        checkpoints._write(file, [1, 2], serial=1)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="holds a list, not the state of a run"):
        load_checkpoint(tmp_path / "odd.pt")


def test_latest_is_the_last_one_saved_whatever_its_step_and_modification_time(tmp_path: Path) -> None:
    save_all(
        tmp_path,
        "checkpoint_step_500.pt",
        "checkpoint_epoch_1.pt",
        "checkpoint_last.pt",
        "checkpoint_step_20.pt",
    )
    for age, path in enumerate(sorted(tmp_path.iterdir())):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    os.utime(tmp_path / "checkpoint_step_500.pt", None)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_20.pt"


def test_latest_passes_over_damaged_files_and_names_them(tmp_path: Path) -> None:
    save_all(tmp_path, "checkpoint_step_1.pt", "checkpoint_step_2.pt", "checkpoint_last.pt")
    flip_bit(tmp_path / "checkpoint_step_2.pt", 5000)
    os.truncate(tmp_path / "checkpoint_last.pt", 1000)
    with pytest.warns(UserWarning) as caught:
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_1.pt"
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2
    assert "checkpoint_last.pt is cut short" in messages[0]
    assert "checkpoint_step_2.pt is damaged" in messages[1]


def test_latest_is_silent_when_the_newest_is_intact(tmp_path: Path) -> None:
    save_all(tmp_path, "checkpoint_step_1.pt", "checkpoint_last.pt")
    flip_bit(tmp_path / "checkpoint_step_1.pt", 5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_last.pt"


@pytest.mark.filterwarnings("ignore:passing over")
def test_latest_is_none_when_nothing_can_be_resumed(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "missing") is None
    assert latest_checkpoint(tmp_path) is None
    save_all(tmp_path, "checkpoint_best.pt", "checkpoint_last.pt", "other.pt")
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        os.truncate(tmp_path / name, 10)
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.filterwarnings("ignore:passing over")
def test_the_best_is_the_last_resort(tmp_path: Path) -> None:
    save_all(tmp_path, "checkpoint_step_1.pt", "checkpoint_best.pt")
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_1.pt"
    flip_bit(tmp_path / "checkpoint_step_1.pt", 5000)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_best.pt"


def test_latest_passes_over_what_the_disk_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_all(tmp_path, "checkpoint_step_1.pt", "checkpoint_last.pt")
    (tmp_path / "checkpoint_epoch_1.pt").mkdir()
    digest = checkpoints._digest_before_trailer

    def failing(file: Any) -> str:
        if "last" in str(file.name):
            raise OSError(errno.EIO, "Input/output error")
        return digest(file)

    monkeypatch.setattr(checkpoints, "_digest_before_trailer", failing)
    with pytest.warns(UserWarning, match="Input/output error"), pytest.warns(UserWarning, match="Is a directory"):
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_1.pt"
    prune_checkpoints(tmp_path, keep=0)
    assert (tmp_path / "checkpoint_step_1.pt").exists()


def test_latest_does_not_go_back_behind_a_file_that_belongs_to_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_all(tmp_path, "checkpoint_step_1.pt", "checkpoint_last.pt")

    def refused(file: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoints, "_read_trailer", refused)
    with pytest.raises(PermissionError):
        latest_checkpoint(tmp_path)


def test_latest_does_not_go_back_behind_a_newer_format(tmp_path: Path) -> None:
    save_all(tmp_path, "checkpoint_step_1.pt")
    save_as_format(tmp_path / "checkpoint_last.pt", 3)
    with pytest.raises(CheckpointError, match="format 3"):
        latest_checkpoint(tmp_path)


def test_pruning_keeps_the_newest_step_and_epoch_checkpoints_and_every_other_file(tmp_path: Path) -> None:
    numbered = [f"checkpoint_{name}.pt" for name in ("step_90", "epoch_9", "step_100", "epoch_10", "step_5")]
    others = ["checkpoint_best.pt", "checkpoint_last.pt"]
    save_all(tmp_path, *others, *numbered)
    (tmp_path / "checkpoint_step_7.pt").write_bytes(b"not ours")
    deleted = prune_checkpoints(tmp_path, keep=2)
    assert {path.name for path in deleted} == set(numbered[:3])
    assert names_in(tmp_path) == {*others, *numbered[3:], "checkpoint_step_7.pt"}


def test_pruning_spares_the_only_intact_checkpoint(tmp_path: Path) -> None:
    save_all(tmp_path, *(f"checkpoint_step_{n}.pt" for n in (1, 2, 3, 4)), "checkpoint_last.pt")
    for name in ("checkpoint_step_3.pt", "checkpoint_step_4.pt", "checkpoint_last.pt"):
        flip_bit(tmp_path / name, 5000)
    prune_checkpoints(tmp_path, keep=1)
    assert names_in(tmp_path) == {"checkpoint_step_2.pt", "checkpoint_step_4.pt", "checkpoint_last.pt"}


def test_pruning_spares_an_intact_checkpoint_that_is_newer_than_an_intact_last(tmp_path: Path) -> None:
    save_all(tmp_path, "checkpoint_last.pt", "checkpoint_step_1.pt", "checkpoint_step_2.pt")
    flip_bit(tmp_path / "checkpoint_step_2.pt", 5000)
    prune_checkpoints(tmp_path, keep=1)
    assert (tmp_path / "checkpoint_step_1.pt").exists()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped": lambda path: flip_bit(path, 5000),
    "trailer flipped": lambda path: flip_bit(path, 8 * path.stat().st_size - 9),
    "lost": lambda path: path.unlink(),
}
NAMES = ["best", "last", *(f"{kind}_{number}" for kind in ("step", "epoch") for number in (1, 2, 10, 20))]


@pytest.mark.filterwarnings("ignore:passing over")
@settings(max_examples=100)
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=12),
    damages=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(DAMAGES)), max_size=6),
    keep=st.integers(0, 4),
)
def test_pruning_never_changes_where_a_run_goes_on(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], damages: dict[str, str], keep: int
) -> None:
    folder = tmp_path_factory.mktemp("prune")
    save_all(folder, *(f"checkpoint_{name}.pt" for name in names))
    for name, damage in damages.items():
        if (path := folder / f"checkpoint_{name}.pt").exists():
            DAMAGES[damage](path)
    before, newest = names_in(folder), latest_checkpoint(folder)
    deleted = {path.name for path in prune_checkpoints(folder, keep)}
    assert latest_checkpoint(folder) == newest
    assert names_in(folder) == before - deleted
    assert not deleted & {"checkpoint_best.pt", "checkpoint_last.pt"}
    whole = [name for name in dict.fromkeys(reversed(names)) if name not in ("best", "last", *damages)]
    assert not deleted & {f"checkpoint_{name}.pt" for name in whole[: max(0, keep - len(damages))]}
    assert len(set(whole) - {name[len("checkpoint_") : -len(".pt")] for name in deleted}) <= keep + 1


def test_pruning_a_negative_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be 0 or more checkpoints, got -1"):
        prune_checkpoints(tmp_path, keep=-1)


def test_the_versions_are_those_of_the_libraries_that_run() -> None:
    versions = library_versions()
    assert versions["torch"] == torch.__version__ and versions["numpy"] == np.__version__
    assert set(versions) == {"python", "course_lm", "torch", "numpy", "tokenizers"}
    assert all(re.match(r"\d+\.\d+", version) for version in versions.values())
