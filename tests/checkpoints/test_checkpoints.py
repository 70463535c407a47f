"""Claims about checkpoints: whole or absent (C14), safe to load (C15), kept while they are needed."""

import errno
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save

from course_lm.checkpoints import (
    CheckpointError,
    atomic_write,
    form,
    latest_checkpoint,
    library_versions,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    saved_step,
)
from course_lm.checkpoints import files as checkpoints
from tests.checkpoints.by_hand import beginning, sealed
from tests.full_disk import leaving_free, small_disk
from tests.refusals import refused


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
def test_any_plain_state_survives_a_round_trip(scratch, state):
    save_checkpoint(scratch / "round_trip.safetensors", state)
    assert same(load_checkpoint(scratch / "round_trip.safetensors"), state)


def test_the_library_alone_reads_every_tensor_under_its_name(tmp_path):
    state = {"model": {"a.weight": torch.ones(2, 3), "a.bias": torch.zeros(2)}, "moments": [torch.arange(3)]}
    save_checkpoint(tmp_path / "a.safetensors", state)
    read = load_file(tmp_path / "a.safetensors")
    assert same(
        {name: read[name] for name in sorted(read)},
        {
            "model.a.bias": torch.zeros(2),
            "model.a.weight": torch.ones(2, 3),
            "moments.0": torch.arange(3),
        },
    )


def test_every_other_value_is_json_in_the_metadata(tmp_path):
    save_checkpoint(tmp_path / "a.safetensors", {**small_state(4), "ends": (math.nan, -math.inf), "at": {1: True}})
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        about = file.metadata()
    assert {name: about[name] for name in ("format", "serial", "step")} == {"format": "3", "serial": "1", "step": "4"}

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(about["state"], parse_constant=refuse) == {
        "step": 4,
        "model": {"weight": {"$tensor": "model.weight"}},
        "history": [{"loss": 2.5, "event": "train"}],
        "best": None,
        "ends": {"$tuple": [{"$float": "nan"}, {"$float": "-inf"}]},
        "at": {"$dict": [[1, True]]},
    }


@pytest.mark.parametrize("kind", form.KINDS.values(), ids=str)
def test_a_tensor_of_every_type_of_the_format_is_read_back_here_and_by_the_library(tmp_path, kind):
    tensor = torch.arange(2).repeat(3).to(kind)
    save_checkpoint(tmp_path / "a.safetensors", {"odd": torch.ones(3, dtype=torch.uint8), "x": tensor})
    for read in (load_checkpoint(tmp_path / "a.safetensors"), load_file(tmp_path / "a.safetensors")):
        assert read["x"].dtype == kind
        assert torch.equal(read["x"].view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.ones(1, 3).expand(4, 3),
        torch.arange(10.0)[::3],
        torch.arange(6.0).reshape(3, 2)[:1, 1],
        torch.arange(6.0).reshape(3, 2)[:0, 1],
        torch.arange(6.0).reshape(3, 2)[1, 1],
        torch.empty(0, 3),
        torch.empty(2, 0, dtype=torch.bfloat16),
    ],
    ids=["transposed", "channels_last", "expanded", "stepped", "one", "none", "0-d", "empty", "empty bf16"],
)
def test_a_tensor_of_any_layout_is_read_back_in_rows(tmp_path, tensor):
    save_checkpoint(tmp_path / "a.safetensors", {"x": tensor, "y": torch.ones(2)})
    read = load_checkpoint(tmp_path / "a.safetensors")["x"]
    assert same(read, tensor) and read.is_contiguous()
    assert same(load_file(tmp_path / "a.safetensors")["x"], tensor)


def test_tied_tensors_are_stored_once_and_are_one_tensor_again(tmp_path):
    weight = torch.rand(100, 100)
    state = {
        "embedding": weight,
        "head": torch.nn.Parameter(weight),
        "turned": weight.t(),
        "none": [torch.empty(0)] * 2,
    }
    save_checkpoint(tmp_path / "a.safetensors", state)
    read = load_checkpoint(tmp_path / "a.safetensors")
    assert read["embedding"] is read["head"] and torch.equal(read["embedding"], weight)
    assert torch.equal(read["turned"], weight.t()) and read["turned"] is not read["head"]
    assert len(load_file(tmp_path / "a.safetensors")) == 3


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": 1.0, "a": {"b": 2.0, "b'": 3.0}},
        {"1": 1.0, 1: 2.0, "": {"": 3.0}},
        {"__metadata__": 1.0, "a": {"\ud800": 2.0, "?": 3.0}},
        {"$tensor": 1.0},
        {"a": {"$tuple": [1.0]}, "b": {"$dict": {}}, "c": {"$float": "nan"}},
    ],
    ids=["dots", "numbers and empty names", "odd names", "a mark", "marks"],
)
def test_keys_that_look_alike_or_like_marks_stay_apart(tmp_path, state):
    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tensors(part) for key, part in value.items()}
        return torch.tensor(value) if isinstance(value, float) else value

    save_checkpoint(tmp_path / "a.safetensors", tensors(state))
    assert same(load_checkpoint(tmp_path / "a.safetensors"), tensors(state))
    load_file(tmp_path / "a.safetensors")


def test_a_state_that_other_programs_could_not_open_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(form, "_MOST_HEADER_BYTES", 1000)
    with pytest.raises(ValueError, match="bytes that are no tensor's; at most 1000 can be read"):
        save_checkpoint(tmp_path / "a.safetensors", {"text": "x" * 1000})
    assert names_in(tmp_path) == set()


class Interruption:
    """Calls `action` at the n-th of the file operations of one save: halves of writes, fsyncs and the rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_call: int, action: Callable[[], None]) -> None:
        self.calls, self.at_call, self.action = 0, at_call, action
        fsync, replace = os.fsync, os.replace
        monkeypatch.setattr(atomic_write, "open", partial(Watched, self), raising=False)
        monkeypatch.setattr(os, "fsync", lambda descriptor: (self.count(), fsync(descriptor)))
        monkeypatch.setattr(os, "replace", lambda source, target: (self.count(), replace(source, target)))

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.at_call:
            self.action()


class Watched:
    """A file that is written in halves, each of which is counted first and then reaches the system."""

    def __init__(self, interruption: Interruption, path: Path, mode: str) -> None:
        self.interruption, self.file = interruption, open(path, mode)  # noqa: SIM115

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> None:
        content = bytes(data)
        for half in (content[: len(content) // 2], content[len(content) // 2 :]):
            self.interruption.count()
            self.file.write(half)
            self.file.flush()


def file_operations(folder: Path) -> int:
    """How many interruptible file operations one save takes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        counter = Interruption(monkeypatch, 0, lambda: None)
        save_checkpoint(folder / "count.safetensors", small_state())
    assert counter.calls > 10
    return counter.calls


def save_and_die(path: Path, at_call: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        Interruption(monkeypatch, at_call, lambda: os.kill(os.getpid(), signal.SIGKILL))
        save_checkpoint(path, small_state(2))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked, which is fast enough for one kill a write")
def test_a_process_killed_at_any_file_operation_leaves_an_intact_checkpoint(tmp_path, scratch):
    path = tmp_path / "checkpoint_last.safetensors"
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
def test_an_error_at_any_file_operation_leaves_the_old_or_the_new_file_and_nothing_else(tmp_path, scratch, error):
    path = tmp_path / "checkpoint_last.safetensors"

    def fail() -> None:
        raise error

    for at_call in range(1, file_operations(scratch) + 1):
        save_checkpoint(path, small_state(1))
        with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(type(error)):
            Interruption(monkeypatch, at_call, fail)
            save_checkpoint(path, small_state(2))
        assert step_of(path) in (1, 2)
        assert names_in(tmp_path) == {path.name}


def test_a_disk_that_is_full_at_any_byte_is_one_clear_error(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=1) as folder:
        path = folder / "checkpoint_last.safetensors"
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
    save_checkpoint(scratch / "intact.safetensors", small_state(1))
    return (scratch / "intact.safetensors").read_bytes()


def test_every_flipped_bit_of_the_start_and_some_of_the_rest_are_recognised(scratch, intact):
    for bit in [*range(8 * 160), *range(8 * 160, 8 * len(intact), 41)]:
        changed = bytearray(intact)
        changed[bit // 8] ^= 1 << bit % 8
        assert_recognised(scratch / "flipped.safetensors", bytes(changed))


def test_a_file_that_is_cut_or_has_grown_is_recognised(scratch, intact):
    for size in [*range(0, len(intact), 10), len(intact) - 1]:
        assert_recognised(scratch / "cut.safetensors", intact[:size])
    assert_recognised(scratch / "grown.safetensors", intact + b"\0")


@pytest.mark.parametrize(
    "content", [b"", bytes(500), b'{"a": 1}' * 50, b"PK\x03\x04" * 50, save({"weight": torch.ones(3)}, {"step": "1"})]
)
def test_a_foreign_file_is_recognised(tmp_path, content):
    assert_recognised(tmp_path / "foreign.safetensors", content, "not a course_lm checkpoint")


def assert_recognised(path: Path, content: bytes, told: str = "is cut short") -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name} .*{told}"):
        load_checkpoint(path)


def save_as_format(path: Path, version: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(checkpoints, "FORMAT_VERSION", version)
        save_checkpoint(path, small_state())


def test_a_missing_checkpoint_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        load_checkpoint(tmp_path / "none.safetensors")


@pytest.mark.parametrize("rest", [b"}", b"},", b'},"w":', b',"state":3}', b',"state":"3', b',"state":"[1"}}', b"\xff"])
def test_a_start_without_a_state_behind_it_is_one_clear_error(tmp_path, rest):
    header = json.dumps({"__metadata__": beginning()}, separators=(",", ":")).encode()[:-2] + rest
    (tmp_path / "odd.safetensors").write_bytes(sealed(header))
    with refused(CheckpointError, r"odd\.safetensors has a right checksum, but not the state"):
        load_checkpoint(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_regular_file_is_no_checkpoint_and_is_not_waited_for(tmp_path, make):
    save_checkpoint(tmp_path / "checkpoint_step_1.safetensors", {"step": 1})
    odd = tmp_path / "checkpoint_last.safetensors"
    make(odd)
    make(tmp_path / "checkpoint_best.safetensors")
    with pytest.raises(OSError, match=r"checkpoint_last\.safetensors is no regular file"):
        load_checkpoint(odd)
    with pytest.warns(UserWarning, match="passing over a checkpoint: .* is no regular file"):
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_1.safetensors"
    assert saved_step(odd) is None
    save_all(tmp_path, "checkpoint_step_2.safetensors")


def test_latest_is_the_last_one_saved_whatever_its_step_and_modification_time(tmp_path):
    save_all(
        tmp_path,
        "checkpoint_step_500.safetensors",
        "checkpoint_epoch_1.safetensors",
        "checkpoint_last.safetensors",
        "checkpoint_step_20.safetensors",
    )
    for age, path in enumerate(sorted(tmp_path.iterdir())):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    os.utime(tmp_path / "checkpoint_step_500.safetensors", None)
    flip_bit(tmp_path / "checkpoint_last.safetensors", 5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a damaged file that is older nothing is said
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_20.safetensors"


@pytest.mark.parametrize("steps", [(20, 30), (30, 20)])
def test_of_two_files_with_one_serial_the_later_step_is_the_newer(tmp_path, steps):
    """As two runs leave them whose folders are copied into one: each file is the first of its run."""
    for step in steps:
        (tmp_path / str(step)).mkdir()
        save_checkpoint(tmp_path / str(step) / "checkpoint_last.safetensors", small_state(step))
        shutil.move(
            tmp_path / str(step) / "checkpoint_last.safetensors", tmp_path / f"checkpoint_epoch_{step}.safetensors"
        )
    shutil.copy(tmp_path / "checkpoint_epoch_20.safetensors", tmp_path / "checkpoint_last.safetensors")
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_epoch_30.safetensors"


def test_latest_passes_over_damaged_files_and_names_them(tmp_path):
    save_all(tmp_path, "checkpoint_step_1.safetensors", "checkpoint_step_2.safetensors", "checkpoint_last.safetensors")
    flip_bit(tmp_path / "checkpoint_step_2.safetensors", 5000)
    os.truncate(tmp_path / "checkpoint_last.safetensors", 1000)
    with pytest.warns(UserWarning) as caught:
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_1.safetensors"
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2
    assert "checkpoint_last.safetensors is cut short" in messages[0]
    assert "checkpoint_step_2.safetensors is cut short or damaged" in messages[1]


@pytest.mark.filterwarnings("ignore:passing over")
def test_latest_is_none_when_nothing_can_be_resumed(tmp_path):
    assert latest_checkpoint(tmp_path / "missing") is None
    assert latest_checkpoint(tmp_path) is None
    save_all(tmp_path, "checkpoint_best.safetensors", "checkpoint_last.safetensors", "other.safetensors")
    for name in ("checkpoint_best.safetensors", "checkpoint_last.safetensors"):
        os.truncate(tmp_path / name, 10)
    assert latest_checkpoint(tmp_path) is None


def test_latest_passes_over_what_the_disk_cannot_read(tmp_path, monkeypatch):
    save_all(tmp_path, "checkpoint_step_1.safetensors", "checkpoint_last.safetensors")
    (tmp_path / "checkpoint_epoch_1.safetensors").mkdir()
    verify = checkpoints._verify

    def failing(path: Path, file: Any) -> Any:
        if "last" in path.name:
            raise OSError(errno.EIO, "Input/output error")
        return verify(path, file)

    monkeypatch.setattr(checkpoints, "_verify", failing)
    with pytest.warns(UserWarning, match="Input/output error"), pytest.warns(UserWarning, match="is no regular file"):
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint_step_1.safetensors"
    prune_checkpoints(tmp_path, keep=0)
    assert (tmp_path / "checkpoint_step_1.safetensors").exists()


def test_latest_does_not_go_back_behind_a_file_that_belongs_to_another_user(tmp_path, monkeypatch):
    save_all(tmp_path, "checkpoint_step_1.safetensors", "checkpoint_last.safetensors")

    def refused(file: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoints, "_start_of", refused)
    with pytest.raises(PermissionError):
        latest_checkpoint(tmp_path)


def test_latest_does_not_go_back_behind_a_newer_format(tmp_path):
    save_all(tmp_path, "checkpoint_step_1.safetensors")
    save_as_format(tmp_path / "checkpoint_last.safetensors", 4)
    with pytest.raises(CheckpointError, match="format 4"):
        latest_checkpoint(tmp_path)


def test_pruning_keeps_the_newest_step_and_epoch_checkpoints_and_every_other_file(tmp_path):
    numbered = [f"checkpoint_{name}.safetensors" for name in ("step_90", "epoch_9", "step_100", "epoch_10", "step_5")]
    others = ["checkpoint_best.safetensors", "checkpoint_last.safetensors"]
    save_all(tmp_path, *others, *numbered)
    (tmp_path / "checkpoint_step_7.safetensors").write_bytes(b"not ours")
    deleted = prune_checkpoints(tmp_path, keep=2)
    assert {path.name for path in deleted} == set(numbered[:3])
    assert names_in(tmp_path) == {*others, *numbered[3:], "checkpoint_step_7.safetensors"}


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped": lambda path: flip_bit(path, 5000),
    "checksum flipped": lambda path: flip_bit(path, 8 * 60),
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
def test_pruning_never_changes_where_a_run_goes_on(tmp_path_factory, names, damages, keep):
    folder = tmp_path_factory.mktemp("prune")
    save_all(folder, *(f"checkpoint_{name}.safetensors" for name in names))
    for name, damage in damages.items():
        if (path := folder / f"checkpoint_{name}.safetensors").exists():
            DAMAGES[damage](path)
    before, newest = names_in(folder), latest_checkpoint(folder)
    deleted = {path.name for path in prune_checkpoints(folder, keep)}
    assert latest_checkpoint(folder) == newest
    assert names_in(folder) == before - deleted
    assert not deleted & {"checkpoint_best.safetensors", "checkpoint_last.safetensors"}
    whole = [name for name in dict.fromkeys(reversed(names)) if name not in ("best", "last", *damages)]
    assert not deleted & {f"checkpoint_{name}.safetensors" for name in whole[: max(0, keep - len(damages))]}
    assert len(set(whole) - {name[len("checkpoint_") : -len(".safetensors")] for name in deleted}) <= keep + 1


@pytest.mark.parametrize("keep", [-1, 0.5, None, True])
def test_pruning_a_number_that_is_none_is_refused(tmp_path, keep):
    with pytest.raises(ValueError, match=f"keep must be a whole number of at least 0, got {keep}"):
        prune_checkpoints(tmp_path, keep)


def test_the_versions_are_those_of_the_libraries_that_run():
    versions = library_versions()
    assert versions["torch"] == torch.__version__ and versions["numpy"] == np.__version__
    assert set(versions) == {"python", "course_lm", "torch", "numpy", "tokenizers"}
    assert all(re.match(r"\d+\.\d+", version) for version in versions.values())
