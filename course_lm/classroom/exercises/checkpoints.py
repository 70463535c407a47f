"""Exercises of lesson 11: how often to save, where a run stands in its data, a power cut, the newest intact file."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

from course_lm.classroom.checks import exercise


def _for_each(fn: Callable[..., object], firsts: Iterable[float], *args: float) -> list[object]:
    return [fn(first, *args) for first in firsts]


@exercise(
    cases={
        "a laptop": ([0.25, 1.3, 0.01], 2.0, 24.0),
        "a failure every three hours": ([12.0, 25.0, 7.0], 60.0, 3.0),
        "steps longer than the interval": ([100.0, 21.0, 17.0, 40.0], 0.5, 0.25),
    },
    run=_for_each,
)
def steps_between_checkpoints(step_seconds, save_seconds, mtbf_hours):
    """Young's interval in whole steps: `fn(step_seconds, save_seconds, mtbf_hours)`, rounded, at least 1."""
    seconds = (2 * save_seconds * mtbf_hours * 3600) ** 0.5
    return max(1, round(seconds / step_seconds))


@exercise(
    cases={
        "epochs of ten batches, a tail of two": (range(8), 10, 4),
        "no tail": ([5, 0, 3, 7], 9, 3),
        "one batch a step": ([11, 4], 5, 1),
        "a tail of three batches": ([3, 7, 12], 11, 4),
    },
    run=_for_each,
)
def position_after(step, batches_per_epoch, accumulation_steps):
    """(epoch, batch) after some steps: `fn(step, batches_per_epoch, accumulation_steps)`; a tail is a step too."""
    steps_per_epoch = -(-batches_per_epoch // accumulation_steps)  # rounded up
    epoch, steps = divmod(step, steps_per_epoch)
    return epoch, steps * accumulation_steps


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


def _files(*steps: int, damaged: tuple[int, ...] = ()) -> dict[str, tuple[bytes, str]]:
    """Checkpoints of these steps; one bit of the damaged ones is flipped after their checksum was taken."""
    files = {}
    for step in steps:
        content = f"weights after step {step}".encode()
        stored = hashlib.sha256(content).hexdigest()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        files[f"checkpoint_step_{step}.pt"] = (flipped if step in damaged else content, stored)
    return files


@exercise(
    cases={
        "all intact": (_files(200, 300, 100),),
        "the newest is damaged": (_files(300, 100, 200, damaged=(300,)),),
        "three digits and four": (_files(900, 1100, 1000, 800, damaged=(1100,)),),
        "the two newest are damaged": (_files(60, 700, 65, 50, 1000, damaged=(700, 1000)),),
        "one in the middle is damaged": (_files(400, 90, 310, 250, damaged=(310,)),),
        "none is intact": (_files(10, 20, damaged=(10, 20)),),
        "an empty folder": (_files(),),
    },
)
def newest_intact(files):
    """The file to go on from: `fn(files)`, files being name → (content, stored sha256); "" where none is intact."""
    intact = []
    for name, (content, stored) in files.items():
        if hashlib.sha256(content).hexdigest() == stored:
            intact.append(name)
    return max(intact, key=lambda name: int(name.split("_")[-1].removesuffix(".pt")), default="")
