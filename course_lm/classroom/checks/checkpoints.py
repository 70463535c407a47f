"""Checks of lesson 11: where a run stands in its data, the newest intact file, a power cut, how often to save."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping

from course_lm.classroom.checks.report import Report, compare

Files = Mapping[str, tuple[bytes, str]]


def position_after(fn: Callable[..., object]) -> Report:
    """(epoch, batch) after some steps: `fn(step, batches_per_epoch, accumulation_steps)`; a tail is a step too."""

    def by(steps_per_epoch: Callable[[int, int], int], in_batches: bool = True) -> Callable[[int, int, int], object]:
        def position(step: int, batches: int, size: int) -> tuple[int, int]:
            epoch, window = divmod(step, steps_per_epoch(batches, size))
            return epoch, window * size if in_batches else window

        return position

    def with_closed_end(step: int, batches: int, size: int) -> tuple[int, int]:
        epoch, window = divmod(step - 1, math.ceil(batches / size))
        return (epoch, min((window + 1) * size, batches)) if step else (0, 0)

    def from_one(step: int, batches: int, size: int) -> tuple[int, int]:
        epoch, window = divmod(step, math.ceil(batches / size))
        return epoch + 1, window * size

    return compare(
        fn,
        reference=by(lambda batches, size: math.ceil(batches / size)),
        cases={
            "before the first step": (0, 10, 4),
            "in the first epoch": (2, 10, 4),
            "after a tail of two batches": (3, 10, 4),
            "in the third epoch": (7, 10, 4),
            "no tail": (5, 9, 3),
            "one batch a step": (11, 5, 1),
            "more batches a step than an epoch has": (3, 2, 4),
        },
        mistakes={
            "the tail of an epoch is not counted as a step": by(lambda batches, size: max(1, batches // size)),
            "a window is taken to reach across the end of an epoch": lambda step, batches, size: divmod(
                step * size, batches
            ),
            "a step is taken for one batch": lambda step, batches, size: divmod(step, batches),
            "the windows of the epoch are counted, not its batches": by(
                lambda batches, size: math.ceil(batches / size), in_batches=False
            ),
            "the end of an epoch is not yet the start of the next": with_closed_end,
            "the epochs are counted from 1": from_one,
        },
        run=lambda fn, *args: _as_pair(fn(*args)),
    )


def _as_pair(result: object) -> object:
    """A position as a tuple; a list is as good."""
    return tuple(result) if isinstance(result, list) else result


def newest_intact(fn: Callable[..., object]) -> Report:
    """The file to go on from: `fn(files)`, files being name → (content, stored sha256); "" where none is intact."""

    def chosen(
        names: Callable[[Files], Iterable[str]], intact: Callable[[bytes, str], bool] = _is_intact
    ) -> Callable[[Files], str]:
        """The first of `names(files)` that is intact."""
        return lambda files: next((name for name in names(files) if intact(*files[name])), "")

    def newest_first(files: Files) -> list[str]:
        return sorted(files, key=_step, reverse=True)

    def always(content: bytes, stored: str) -> bool:
        return True

    def given_up(files: Files) -> str:
        return next((name if _is_intact(*files[name]) else "" for name in newest_first(files)), "")

    return compare(
        fn,
        reference=chosen(newest_first),
        cases={
            "all intact": (_files(200, 300, 100),),
            "the newest is damaged": (_files(300, 100, 200, damaged=(300,)),),
            "three digits and four": (_files(900, 1100, 1000, damaged=(1100,)),),
            "the two newest are damaged": (_files(60, 700, 50, 800, damaged=(700, 800)),),
            "none is intact": (_files(10, 20, damaged=(10, 20)),),
            "an empty folder": (_files(),),
        },
        mistakes={
            "the names are sorted as text, where 900 comes after 1000": chosen(lambda files: sorted(files)[::-1]),
            "the newest is taken without a look at its checksum": chosen(newest_first, always),
            "the search ends at the first damaged file": given_up,
            "the oldest intact one is taken": chosen(lambda files: newest_first(files)[::-1]),
            "the files are taken in the order in which they are listed": chosen(lambda files: files),
            "the last one listed is taken for the newest": chosen(lambda files: list(files)[::-1]),
        },
    )


def _step(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def _is_intact(content: bytes, stored: str) -> bool:
    return hashlib.sha256(content).hexdigest() == stored


def _files(*steps: int, damaged: tuple[int, ...] = ()) -> dict[str, tuple[bytes, str]]:
    """Checkpoints of these steps; one bit of the damaged ones is flipped after their checksum was taken."""
    files = {}
    for step in steps:
        content = f"weights after step {step}".encode()
        stored = hashlib.sha256(content).hexdigest()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        files[f"checkpoint_step_{step}.pt"] = (flipped if step in damaged else content, stored)
    return files


class Disk:
    """A pretend disk that remembers what has reached the platter: everything else may be lost with the power.

    `write(name, content)` makes a file or overwrites it, `sync(name)` forces its content to the platter,
    `rename(old, new)` gives it another name and replaces a file of that name, `sync_folder()` forces the names.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._contents = dict(enumerate(files.values()))
        self._unsynced: set[int] = set()
        self._names = {name: number for number, name in enumerate(files)}
        self._pending: list[tuple[str, str]] = []  # (old name, new name) of changes that are not on the platter
        self._on_platter = dict(self._names)
        self.history: list[dict[str, set[str]]] = []

    def write(self, name: str, content: str) -> None:
        """Make the file or overwrite it; its content is in memory."""
        if name not in self._names:
            self._names[name] = number = len(self._contents)
            self._pending.append((f"new {number}", name))
        self._contents[self._names[name]] = content
        self._unsynced.add(self._names[name])
        self._remember()

    def sync(self, name: str) -> None:
        """Force the file's content to the platter; not its name."""
        self._unsynced.discard(self._number(name))
        self._remember()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file of that name is replaced."""
        number = self._number(old)
        del self._names[old]
        self._names[new] = number
        self._pending.append((old, new))
        self._remember()

    def sync_folder(self) -> None:
        """Force all names to the platter."""
        self._pending.clear()
        self._on_platter = dict(self._names)
        self._remember()

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name in self._names

    def after_power_cut(self, name: str) -> list[str]:
        """What may be found under a name if the power goes now: "missing", "half", or a content."""
        names, found = dict(self._on_platter), self._readable(self._on_platter.get(name))
        for old, new in self._pending:  # any number of the changes may have reached the platter, in their order
            names[new] = int(old.removeprefix("new ")) if old.startswith("new ") else names.pop(old)
            found |= self._readable(names.get(name))
        return sorted(found)

    def _number(self, name: str) -> int:
        if name not in self._names:
            raise FileNotFoundError(f"there is no file {name!r}")
        return self._names[name]

    def _readable(self, number: int | None) -> set[str]:
        if number is None:
            return {"missing"}
        return {self._contents[number]} | ({"half"} if number in self._unsynced else set())

    def _remember(self) -> None:
        names = {*self._names, *self._on_platter}
        self.history.append({name: set(self.after_power_cut(name)) for name in names})


def survive_power_cut(fn: Callable[..., object]) -> Report:
    """Save without a moment of danger: `fn(disk, name, content)` on a `Disk`; what a power cut leaves is compared."""

    def play(fn: Callable[..., object], files: dict[str, str], name: str) -> object:
        """What may be found under the name before the first operation and after each, without repetitions."""
        disk = Disk(files)
        moments = [disk.after_power_cut(name)]
        fn(disk, name, "new")
        if not disk.history:
            return None
        moments += [sorted(moment.get(name, {"missing"})) for moment in disk.history]
        return [moment for at, moment in enumerate(moments) if at == 0 or moment != moments[at - 1]]

    return compare(
        fn,
        reference=_operations("write", "sync", "rename", "sync_folder"),
        cases={
            "an old one is there": ({"checkpoint_last.pt": "old"}, "checkpoint_last.pt"),
            "the first of a run": ({"checkpoint_best.pt": "best"}, "checkpoint_last.pt"),
            "another name": ({"a.pt": "old", "b.pt": "other"}, "a.pt"),
        },
        mistakes={
            "the file is overwritten in place": _operations("write here", "sync here", "sync_folder"),
            "the file is overwritten in place, and its content never synced": _operations("write here", "sync_folder"),
            "the content is not synced: the new name may lead to half a file": _operations(
                "write", "rename", "sync_folder"
            ),
            "neither content nor folder is synced": _operations("write", "rename"),
            "the content is synced after the rename: in between, the name may lead to half a file": _operations(
                "write", "rename", "sync here", "sync_folder"
            ),
            "the folder is not synced after the rename, which may be lost": _operations("write", "sync", "rename"),
            "the old file is moved away first: for a moment there is none": _operations(
                "move away", "write", "sync", "rename", "sync_folder"
            ),
            "the new file never takes the name": _operations("write", "sync", "sync_folder"),
        },
        run=play,
    )


def _operations(*operations: str) -> Callable[[Disk, str, str], None]:
    def save(disk: Disk, name: str, content: str) -> None:
        temporary = f"{name}.tmp"
        steps = {
            "write": lambda: disk.write(temporary, content),
            "write here": lambda: disk.write(name, content),
            "sync": lambda: disk.sync(temporary),
            "sync here": lambda: disk.sync(name),
            "rename": lambda: disk.rename(temporary, name),
            "move away": lambda: disk.rename(name, f"{name}.old") if disk.exists(name) else None,
            "sync_folder": disk.sync_folder,
        }
        for operation in operations:
            steps[operation]()

    return save


def steps_between_checkpoints(fn: Callable[..., object]) -> Report:
    """Young's interval in whole steps: `fn(step_seconds, save_seconds, mtbf_hours)`, rounded, at least 1."""

    def by(seconds: Callable[[float, float], float], hour: float = 3600.0) -> Callable[[float, float, float], int]:
        return lambda step, save, hours: max(1, round(seconds(save, hours * hour) / step))

    def young(save: float, mtbf: float) -> float:
        return math.sqrt(2 * save * mtbf)

    return compare(
        fn,
        reference=by(young),
        cases={
            "a laptop": (0.25, 2.0, 24.0),
            "a failure every three hours": (12.0, 60.0, 3.0),
            "a slow step": (90.0, 1.0, 0.5),
            "a step longer than the interval": (100.0, 0.5, 0.25),
        },
        mistakes={
            "the factor 2 under the root is missing": by(lambda save, mtbf: math.sqrt(save * mtbf)),
            "hours are not turned into seconds": by(young, hour=1.0),
            "the root is missing": by(lambda save, mtbf: 2 * save * mtbf),
            "the seconds are returned, not the steps": lambda step, save, hours: max(
                1, round(young(save, hours * 3600))
            ),
            "an interval shorter than a step gives no step at all": lambda step, save, hours: round(
                young(save, hours * 3600) / step
            ),
            "the steps are cut off, not rounded": lambda step, save, hours: max(
                1, int(young(save, hours * 3600) / step)
            ),
            "the steps are not rounded": lambda step, save, hours: max(1.0, young(save, hours * 3600) / step),
        },
    )
