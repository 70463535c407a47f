"""Claims about states that no trainer wrote: each is loaded right or refused in one line, and then nothing has changed.

`mutants` makes them, from a seed: parts of a saved state deleted, renamed, exchanged and retyped, tensors in other
shapes, types and layouts, numbers that no run can have, and the file itself changed under a right checksum.
"""

import copy
import enum
import json
import math
import random
import re
import resource
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from course_lm.batching.data import Data
from course_lm.checkpoints import (
    CheckpointError,
    as_plain,
    load_checkpoint,
    save_checkpoint,
)
from course_lm.checkpoints import files as checkpoints
from course_lm.trainer import Trainer
from tests.checkpoints.by_hand import ZEROS, beginning, sealed, taken_apart
from tests.refusals import refused
from tests.small_run import small_batches, small_trainer
from tests.training_run import assert_same, without_measures

SETTINGS: dict[str, Any] = {"early_stopping_patience": 5, "logging_steps": 2, "eval_steps": 2, "precision": "fp16"}


@cache
def saved_state() -> dict[str, Any]:
    """Of a run that has a record, a validation, a step that no record covers, and a loss scale."""
    trainer = small_trainer(3, **SETTINGS)
    trainer.train_epoch(small_batches(5), small_batches(1))
    state = trainer.state_dict()
    assert state["history"].numel() and state["pending"] and state["scaler"]
    return state


def fresh_trainer() -> Trainer:
    return small_trainer(6, **SETTINGS)


def saved(folder: Path, state: dict[str, Any]) -> bytes:
    """The file of a state; ValueError where there is none of it."""
    save_checkpoint(folder / "saved.safetensors", state)
    return (folder / "saved.safetensors").read_bytes()


# A mutator of states

ODD_VALUES: list[Any] = [
    *(-1, 0, 2**31, 2**40, 2**63, -(2**70), True, None, "x", "", 1.5, -1.0, math.nan, math.inf, 1e300),
    *([], {}, (), [[]], {"a": {"b": [1]}}, [1] * 50, {0: 1}, "a\nb"),
    *(torch.zeros(()), torch.zeros(3), torch.tensor(-1), torch.zeros(0)),
]
TENSOR_CHANGES: list[Callable[[Tensor], Any]] = [
    lambda t: t.reshape(-1)[:1].expand(t.shape if t.ndim else 1),
    lambda t: t[..., :-1] if t.ndim and t.shape[-1] else t[None],
    lambda t: t.t() if t.ndim == 2 else t[None],
    lambda t: t.double() if t.dtype != torch.float64 else t.int(),
    lambda t: t.to(torch.bfloat16),
    lambda t: t.to(torch.complex64),
    lambda t: t.to(torch.bool),
    lambda t: torch.full_like(t, math.nan) if t.is_floating_point() else torch.full_like(t, -1),
    lambda t: torch.full_like(t, -1.0) if t.is_floating_point() else torch.full_like(t, 127),
    lambda t: torch.full_like(t, math.inf) if t.is_floating_point() else t * 0,
    lambda t: t.to_sparse() if t.is_floating_point() else t.float(),
    lambda t: t.to("meta"),
    lambda t: nn.Parameter(t, requires_grad=t.is_floating_point()),
    lambda t: torch.zeros(t.numel() * 2 + 2, dtype=t.dtype)[1::2][: t.numel()].reshape(t.shape),
    lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    lambda t: t.tolist(),
    lambda t: torch.flip(t, [0]) if t.ndim else t + 1,
]


def places(value: Any, above: tuple[Any, Any] = (None, None)) -> list[tuple[Any, Any]]:
    """Every (container, key) in a state."""
    found = [above] if above[0] is not None else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (value, key))
    return found


def mutate(tree: Any, draw: random.Random, odd: list[Any]) -> Any:
    """Change one to three things in a copy: values, keys, and what lies where."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        every = places(tree)
        tensors = [place for place in every if isinstance(place[0][place[1]], Tensor)]
        container, key = draw.choice(tensors if tensors and draw.random() < 0.4 else every)
        value, kind = container[key], draw.randrange(6)
        if isinstance(value, Tensor) and kind < 4:
            if value.is_cpu and value.layout == torch.strided and not value.is_quantized:  # not changed already
                container[key] = draw.choice(TENSOR_CHANGES)(value)
        elif kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[draw.choice(("other", "", 3, "step", "$tuple", "__metadata__", "dtype"))] = container.pop(key)
        elif kind == 2:
            other, its_key = draw.choice(every)
            has = its_key in other if isinstance(other, dict) else its_key < len(other)
            container[key] = copy.deepcopy(other[its_key]) if has else None  # another change may have taken it away
        elif kind == 3 and isinstance(value, list):
            del value[draw.randrange(len(value) + 1) :]
        elif kind == 4 and type(value) in (int, float):
            container[key] = draw.choice((-value, value + 1, value * 10**9, type(value)(0), float(value), str(value)))
        else:
            container[key] = copy.deepcopy(draw.choice(odd))
    return tree


START_BYTES = 130  # of a header: its checksum, format, serial and step
ODD_JSON: list[Any] = [
    *(None, True, -1, 0, 1.5, 2**62, 2**70, 1e308, "x", "", "F64", "Q9", "\ud800"),
    *([], {}, [1] * 5, [2**62, 2**62], [-1], [1] * 100, [2**61] * 64, [[1]], ["a", 1], {"a": [1]}),
    *({"$tensor": "model.norm.weight"}, {"$tensor": []}, {"$tensor": "none"}, {"$tuple": 3}, {"$tuple": {}}),
    *({"$dict": [[[], 1]]}, {"$dict": [1]}, {"$dict": "ab"}, {"$dict": [[{"$tuple": [1]}, 2]]}, {"$float": "x"}),
    *({"$float": []}, {"$sharded": [1]}, {"$sharded": ["a", ["a"], [2**40], "F32"]}, {"$other": 1}),
]


def mutate_text(text: bytes, first: int, draw: random.Random) -> bytes:
    """Change bytes from `first` on."""
    changed = bytearray(text)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if len(changed) <= first:
            break
        place = draw.randrange(first, len(changed))
        kind = draw.randrange(4)
        if kind == 0:
            changed[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[place] = draw.choice(b'{}[]",:\\0123456789-.eE$ \x00\xff')
        elif kind == 2:
            size, source = draw.randrange(1, 40), draw.randrange(first, len(text))
            part = text[source : source + size][: len(text) - place]
            changed[place : place + len(part)] = part
        else:
            del changed[place : place + draw.randrange(1, 20)]
    return bytes(changed)


def mutate_file(content: bytes, draw: random.Random) -> bytes:
    """A checkpoint with another header, other values or other numbers, and a checksum that fits."""
    header, body = taken_apart(content)
    length = int.from_bytes(content[:8], "little")
    kind = draw.randrange(6)
    if kind == 0:
        start = content[8 : 8 + length].replace(header["__metadata__"]["sha256"].encode(), ZEROS.encode())
        return sealed(mutate_text(start, START_BYTES, draw), body)
    if kind == 1:
        return sealed(header, mutate_text(body, 0, draw))
    if kind == 2:
        return sealed(header, body, length=draw.choice((0, 1, length - 8, length + 8, len(content), 2**40, 2**64 - 1)))
    about = header.pop("__metadata__")
    if kind == 3:
        about["state"] = json.dumps(mutate(json.loads(about["state"]), draw, ODD_JSON))
    elif kind == 4:
        about["state"] = draw.choice(
            ("[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"a":' + "[" * 900 + "]" * 900 + "}")
        )
    else:
        header = mutate(header, draw, ODD_JSON)
    return sealed({"__metadata__": about, **header}, body)


def attempt(trainer: Trainer, before: dict[str, Any], path: Path) -> str:
    """Load the file: "taken" when it was, and one more step was right or refused in one line; else the refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.load_checkpoint(path)
    except ValueError as error:
        assert "\n" not in str(error) and 10 < len(str(error)) < 700, str(error)
        assert_same(trainer.state_dict(), before)
        return str(error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train_epoch(small_batches(8), small_batches(1))
    except (ValueError, ArithmeticError) as error:
        assert "\n" not in str(error), str(error)
    trainer.state_dict()
    return "taken"


def run_cases(seeds: range, folder: Path) -> int:
    """How many of these mutants were taken."""
    path, taken = folder / "mutant.safetensors", 0
    content = saved(folder, saved_state())
    trainer = fresh_trainer()
    before = trainer.state_dict()
    for seed in seeds:
        draw = random.Random(seed)
        print(f"case {seed}", flush=True)
        if seed % 4 == 3:
            path.write_bytes(mutate_file(content, draw))
        else:
            try:
                path.write_bytes(saved(folder, mutate(saved_state(), draw, ODD_VALUES)))
            except ValueError as error:  # no checkpoint can hold it
                assert "\n" not in str(error) and str(error).startswith("state"), str(error)
                continue
        if attempt(trainer, before, path) == "taken":
            taken += 1
            trainer = fresh_trainer()
            before = trainer.state_dict()
    return taken


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_no_mutant_ends_the_process_or_takes_memory(tmp_path, first):
    command = [sys.executable, "-m", "tests.checkpoints.test_edges_checkpoints", str(first), "250", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    last = done.stdout.splitlines()[-2:]
    assert done.returncode == 0, f"exit code {done.returncode} after {last}: {done.stderr[-2000:]}"
    grown = re.search(r"grew (\d+) MiB", done.stdout)
    assert grown is not None and int(grown[1]) < 200, last


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_no_hostile_file_does_more_than_be_refused(tmp_path, first):
    """It raises CheckpointError in one line, or gives a dict; and takes no memory that its bytes do not fill."""
    content = saved(tmp_path, {"model": nn.Linear(3, 2).state_dict(), "x": [(1, math.nan), {2: None}, torch.ones(3)]})
    path, refused = tmp_path / "hostile.safetensors", 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(first, first + 500):
        path.write_bytes(mutate_file(content, random.Random(seed)))
        try:
            assert isinstance(load_checkpoint(path), dict)
        except CheckpointError as error:
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 700
            refused += 1
    assert refused > 250
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


# Whole states


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return fresh_trainer()


def changed(state: dict[str, Any], *way: Any, to: Any) -> dict[str, Any]:
    """A copy of `state` in which one value is another: `to`, or what the function `to` makes of it."""
    state = copy.deepcopy(state)
    inner = state
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = to(inner[way[-1]]) if callable(to) else to
    return state


def without(state: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != name}


def loaded_parts(state: dict[str, Any]) -> dict[str, Any]:
    """All but the settings, which a trainer has of its own."""
    return without(without(state, "config"), "last_rate")


def assert_refused(trainer: Trainer, state: Any, match: str) -> None:
    """In one line, and the trainer is as it was."""
    before = trainer.state_dict()
    with refused(ValueError, match):
        trainer.load_state_dict(state)
    assert_same(trainer.state_dict(), before)


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ([], r"the state must be a dict, got \[\]"),
        ({}, r"lacks 'tokens', 'skipped', 'skipped_in_a_row' and others: it was written by an older version"),
        ({**saved_state(), "extra": 1}, "has 'extra', which this version"),
    ],
    ids=["no dict", "empty", "more"],
)
def test_what_is_no_state_is_refused(trainer, state, match):
    assert_refused(trainer, state, match)


@pytest.mark.parametrize("name", sorted(saved_state().keys() - {"own"}))
def test_a_state_without_one_of_its_parts_is_refused_by_its_name(trainer, name):
    assert_refused(trainer, without(saved_state(), name), f"the state lacks '{name}': it was written by an older")


@pytest.mark.parametrize(
    ("way", "value", "match"),
    [
        (("step",), -1, "the state's step must be 0 or more, got -1"),
        (("total_steps",), "6", "the state's total_steps must be a whole number.* or null, got '6'"),
        (("scaler", "scale"), "x", "the state's scaler must be keys and values, each of them a number, got"),
        (("pending", "loss"), 1.0, "the state's pending must be keys and values, each of them Tensor, got"),
        (("data", "untaken"), [1], "the state's data's untaken must be a list, each item"),
        (("machine", "torch"), 2, "the state's machine must be keys and values, each of them text"),
        (("optimizer", "state", "norm.weight", "exp_avg"), torch.ones(3), r"exp_avg of norm\.weight is \(3,\) float32"),
        (("optimizer", "groups"), None, "this is not the state of such a run: TypeError"),
        (("history",), torch.ones(3, dtype=torch.uint8), "the history must hold a line of JSON for each record"),
        (("pending", "loss"), lambda value: value[:-1], "pending must be columns of one length"),
        (("config", "training", "seed"), [1], r"saved with training\.seed \[1\], this run has 42"),
        (("best_weights", "norm.weight"), torch.ones(2), r"best_weights are those of another model: norm\.weight is"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_name(trainer, way, value, match):
    assert_refused(trainer, changed(saved_state(), *way, to=value), match)


def test_a_run_that_has_refused_a_state_goes_on_as_if_it_had_not_been_asked():
    ends = []
    for asked in (False, True):
        trainer = fresh_trainer()
        trainer.train_epoch(small_batches(3), small_batches(1))
        if asked:
            bad = changed(saved_state(), "optimizer", "state", "norm.weight", "exp_avg", to=torch.ones(3))
            assert_refused(trainer, bad, "exp_avg of norm")
        trainer.train_epoch(small_batches(3), small_batches(1))
        ends.append(loaded_parts(trainer.state_dict()))
    assert_same(without_measures(ends[1]), without_measures(ends[0]))


def test_saving_a_file_copies_no_weights(tmp_path, monkeypatch):
    trainer = fresh_trainer()
    seen: list[int] = []
    write = checkpoints.write_file

    def watched(file: Any, tensors: dict[str, Tensor], about: dict[str, str]) -> str:
        seen.append(tensors["model.norm.weight"].data_ptr())
        return write(file, tensors, about)

    monkeypatch.setattr(checkpoints, "write_file", watched)
    trainer.save_checkpoint(tmp_path / "a.safetensors")
    copied = trainer.state_dict()["model"]["norm.weight"].data_ptr()
    assert seen == [trainer.model.state_dict()["norm.weight"].data_ptr()] != [copied]


def test_a_loader_that_does_not_take_its_position_is_one_line():
    class Loader:
        def load_state_dict(self, state: dict[str, Any]) -> None:
            state["another key"]

        def state_dict(self) -> dict[str, Any]:
            return {}

        def __iter__(self) -> Any:
            return iter(())

    data = Data(Loader())
    state: Any = data.state_dict(0, 1) | {"own": {"key": 1}}
    with pytest.raises(ValueError, match="does not take the position that was saved: KeyError: 'another key'"):
        Data(Loader(), state=state).read_from(0, 1)


# Plain data


class Level(enum.IntEnum):
    LOW = 3


class Colour(str, enum.Enum):  # noqa: UP042  # the older way, which NumPy's users meet
    RED = "red"


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(2.5), 2.5),
        (Level.LOW, 3),
        (Colour.RED, "red"),
        (Pair(1, np.float64(2)), (1, 2.0)),
        (OrderedDict(a=np.int8(1)), {"a": 1}),
        ({np.int64(7): [np.float16(1)]}, {7: [1.0]}),
        (torch.Size([2, 3]), (2, 3)),
    ],
)
def test_numbers_and_containers_of_other_libraries_become_plain(tmp_path, value, plain):
    def types(value: Any) -> Any:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return type(value), [types(item) for item in inside]

    assert as_plain(value) == plain and types(as_plain(value)) == types(plain)
    save_checkpoint(tmp_path / "a.safetensors", {"x": value})
    assert load_checkpoint(tmp_path / "a.safetensors") == {"x": plain}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"a": [1, {2}]}, r"^state\['a'\]\[1\] is a builtins\.set; a checkpoint holds"),
        ({"a": np.zeros(2)}, r"^state\['a'\] is a numpy\.ndarray"),
        ({"a": b"x"}, "is a builtins.bytes"),
        ({(1, 2): 3}, "has a tuple as a key"),
        ({"a": {b"k": 3}}, r"^state\['a'\]'s key b'k' is a builtins\.bytes"),
        ({"a": torch.eye(2).to_sparse()}, "is a sparse, quantised, nested"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, r"^state\['a'\] is a dense Tensor of torch.complex128"),
        ({"a": torch.ones(2).to(torch.float8_e8m0fnu)}, r"^state\['a'\] is a dense Tensor of torch.float8_e8m0fnu"),
        ({"a": nested(101)}, "lies more than 100 dicts and lists deep"),
    ],
)
def test_what_has_no_plain_form_is_refused_by_its_place(value, match):
    with refused(ValueError, match):
        as_plain(value)


def test_as_plain_copies_no_tensor_and_shares_no_list():
    state = {"w": torch.ones(2), "p": nn.Parameter(torch.ones(2)), "l": [1]}
    plain = as_plain(state)
    assert plain["w"] is state["w"] and plain["p"].data_ptr() == state["p"].data_ptr()
    assert not plain["p"].requires_grad and plain["l"] is not state["l"]


# Files with lies in them, under a right checksum


def with_tensors(**entries: Any) -> bytes:
    """A file of 16 bytes of numbers, with these tensors in its header."""
    state = json.dumps({name: {"$tensor": name} for name in entries})
    return sealed({"__metadata__": beginning(state=state), **entries}, bytes(16))


def entry(shape: Any, begin: Any, end: Any, kind: Any = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def test_the_header_that_the_next_tests_change_is_a_right_one(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(with_tensors(a=entry([2], 0, 8), b=entry([2, 1], 8, 16)))
    assert_same(load_checkpoint(tmp_path / "a.safetensors"), {"a": torch.zeros(2), "b": torch.zeros(2, 1)})


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"a": entry([4], 0, 8)}, "'a' does not lie behind"),
        ({"a": entry([8], 0, 32)}, "'a' lies outside of the file"),
        ({"a": entry([2**61, 2**61], 0, 16)}, "'a' does not lie behind"),
        ({"a": entry([2**64], 0, 16)}, "holds no tensor of"),
        ({"a": entry([-4], 0, 16)}, "holds no tensor of"),
        ({"a": entry([1] * 65, 0, 4)}, "holds no tensor of"),
        ({"a": entry([4], 0, 16, "F33")}, "holds no tensor of"),
        ({"a": entry([4], 0, 16), "b": entry([4], 0, 16)}, "'b' does not lie behind"),
        ({"a": entry([2], 0, 8), "b": entry([1], 12, 16)}, "'b' does not lie behind"),
        ({"a": entry([2], 8, 16)}, "'a' does not lie behind"),
        ({"a": None}, "not the state of a run"),
    ],
)
def test_a_header_that_lies_about_its_tensors_is_refused_in_one_line(tmp_path, entries, match):
    (tmp_path / "a.safetensors").write_bytes(with_tensors(**entries))
    with refused(CheckpointError, match):
        load_checkpoint(tmp_path / "a.safetensors")


if __name__ == "__main__":
    first, count, where = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    saved_state()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("taken", run_cases(range(first, first + count), where))
    print("grew", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024, "MiB")
