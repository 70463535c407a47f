"""Exercises of lesson 11: where a run stands in its data, the stops that a resume does not survive, a power cut."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby

from course_lm.classroom.checks import at_each, exercise


@exercise(
    cases={
        "epochs of ten batches, a tail of two": (range(8), 10, 4),
        "no tail": ([5, 0, 3, 7], 9, 3),
        "one batch a step": ([11, 4], 5, 1),
        "a tail of three batches": ([3, 7, 12], 11, 4),
    },
    run=at_each(0),
)
def position_after(step, batches_per_epoch, accumulation_steps):
    """(epoch, batch) after some steps: `fn(step, batches_per_epoch, accumulation_steps)`; a tail is a step too."""
    steps_per_epoch = -(-batches_per_epoch // accumulation_steps)  # rounded up
    epoch, steps = divmod(step, steps_per_epoch)
    return epoch, steps * accumulation_steps


class _Toy:
    """A run in whole numbers. Its state lacks the part that it forgets, which then stays as in a new run."""

    def __init__(self, forgets: str) -> None:
        self._forgets = forgets
        self._parts = {"weight": 1, "moment": 0, "step": 0, "epoch": 0, "batch": 0}

    def step(self) -> int:
        weight, moment, step, epoch, batch = self._parts.values()
        # Without its moment or its step a resumed run is wrong from the second loss on, and right again soon after.
        after = moment + min(step, 2), 1 + (5 * epoch + 3 * batch) % 7, step + 1, *divmod(4 * epoch + batch + 1, 4)
        self._parts = dict(zip(self._parts, after))
        return weight + 10 * epoch + batch

    def state_dict(self) -> dict[str, int]:
        return {part: value for part, value in self._parts.items() if part != self._forgets}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._parts |= state


def _stops_of(fn: Callable[..., object], forgets: str, steps: int) -> object:
    return fn(partial(_Toy, forgets), steps)


@exercise(
    cases={
        "nothing is forgotten": ("nothing", 6),
        "the batch is forgotten": ("batch", 9),
        "the epoch is forgotten": ("epoch", 7),
        "the moments are forgotten": ("moment", 6),
        "the step is forgotten": ("step", 6),
    },
    run=_stops_of,
)
def broken_stops(new_run, steps):
    """The stops after which a resumed run differs: `fn(new_run, steps)`, a list of k from 0 to steps − 1."""
    whole, broken = new_run(), []
    losses = [whole.step() for _ in range(steps)]
    for k in range(steps):
        begun, resumed = new_run(), new_run()
        for _ in range(k):
            begun.step()
        resumed.load_state_dict(begun.state_dict())
        if [resumed.step() for _ in range(steps - k)] != losses[k:]:
            broken.append(k)
    return broken


class _Disk:
    """A pretend disk that remembers what has reached the platter: everything else may be lost with the power.

    `write(name, content)` makes a file or overwrites it, `sync(name)` forces its content to the platter, not its name;
    `rename(old, new)` gives it another name and replaces a file of that name, `sync_folder()` forces the names.
    `moments` holds what may be found under the name `watched` before the first operation and after each.
    """

    def __init__(self, files: Mapping[str, str], watched: str) -> None:
        self._contents = dict(enumerate(files.values()))
        self._unsynced: set[int] = set()
        self._names = {name: number for number, name in enumerate(files)}
        # Changes that are not on the platter: the number of a new file or the old name of another, and the new name.
        self._pending: list[tuple[int | str, str]] = []
        self._on_platter = dict(self._names)
        self._watched = watched
        self.moments = [self.after_power_cut(watched)]

    def write(self, name: str, content: str) -> None:
        name = os.fspath(name)
        if not isinstance(content, str):
            raise TypeError(f"disk.write takes the content as it is, a text, got {type(content).__name__}")
        if name not in self._names:
            self._names[name] = number = len(self._contents)
            self._pending.append((number, name))
        self._contents[self._names[name]] = content
        self._unsynced.add(self._names[name])
        self._remember()

    def sync(self, name: str) -> None:
        self._unsynced.discard(self._number(name))
        self._remember()

    def rename(self, old: str, new: str) -> None:
        number, old, new = self._number(old), os.fspath(old), os.fspath(new)
        del self._names[old]
        self._names[new] = number
        self._pending.append((old, new))
        self._remember()

    def sync_folder(self) -> None:
        self._pending.clear()
        self._on_platter = dict(self._names)
        self._remember()

    def exists(self, name: str) -> bool:
        return os.fspath(name) in self._names

    def after_power_cut(self, name: str) -> str:
        """What may be found under a name if the power goes now: "missing", "half", or a content."""
        names, found = dict(self._on_platter), self._readable(self._on_platter.get(name))
        for old, new in self._pending:  # any number of the changes may have reached the platter, in their order
            names[new] = old if isinstance(old, int) else names.pop(old)
            found |= self._readable(names.get(name))
        return " or ".join(sorted(found))

    def _number(self, name: str) -> int:
        name = os.fspath(name)
        if name not in self._names:
            raise FileNotFoundError(f"there is no file {name!r}")
        return self._names[name]

    def _readable(self, number: int | None) -> set[str]:
        if number is None:
            return {"missing"}
        return {self._contents[number]} | ({"half"} if number in self._unsynced else set())

    def _remember(self) -> None:
        self.moments.append(self.after_power_cut(self._watched))


def _found_after_power_cuts(fn: Callable[..., object], files: Mapping[str, str], name: str) -> list[str] | None:
    """What may be found under the name before the first operation and after each, without repetitions.

    After that, what has become of the other files, where they are not what they were.
    """
    disk = _Disk(files, name)
    fn(disk, name, "new")
    if len(disk.moments) == 1:
        return None
    others = {other: disk.after_power_cut(other) for other in files if other != name}
    lost = [f"{other}: {left}" for other, left in others.items() if left != files[other]]
    return [moment for moment, _ in groupby(disk.moments)] + lost


@exercise(
    cases={
        "an old one is there": ({"a.pt": "old", "b.pt": "other"}, "a.pt"),
        "the first of a run": ({"checkpoint_best.pt": "best"}, "checkpoint_last.pt"),
        "a name without an ending": ({"weights": "old"}, "weights"),
    },
    run=_found_after_power_cuts,
    unchanged="nothing is written: are `disk.write` and `disk.rename` called?",
)
def survive_power_cut(disk, name, content):
    """Save without a moment of danger: `fn(disk, name, content)`; what a power cut leaves on the disk is compared."""
    temporary = name + ".tmp"
    disk.write(temporary, content)
    disk.sync(temporary)
    disk.rename(temporary, name)
    disk.sync_folder()
