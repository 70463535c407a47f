"""Checks of lesson 11: where a run stands in its data, the newest intact file, a power cut, how often to save."""

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, islice, takewhile

from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare

Files = Mapping[str, tuple[bytes, str]]


def position_after(fn: Callable[..., object]) -> Report:
    """(epoch, batch) after some steps: `fn(step, batches_per_epoch, accumulation_steps)`; a tail is a step too."""
    per_epoch, position = "-(-batches_per_epoch // accumulation_steps)", "return epoch, steps * accumulation_steps"
    rounded, divided = "batches_per_epoch // accumulation_steps", "divmod(step, steps_per_epoch)"

    def right(step: int, batches: int, size: int) -> tuple[int, int]:
        epoch, window = divmod(step, math.ceil(batches / size))
        return epoch, window * size

    def with_closed_end(step: int, batches: int, size: int) -> tuple[int, int]:
        epoch, window = divmod(step - 1, math.ceil(batches / size))
        return (epoch, min((window + 1) * size, batches)) if step else (0, 0)

    def with_open_tail(step: int, batches: int, size: int) -> tuple[int, int]:
        epoch, window = divmod(step - 1, math.ceil(batches / size))
        return (epoch, (window + 1) * size) if step else (0, 0)

    return compare(
        fn,
        reference=right,
        cases={
            "epochs of ten batches, a tail of two": (range(8), 10, 4),
            "no tail": ([5, 0, 3, 7], 9, 3),
            "one batch a step": ([11, 4], 5, 1),
            "a tail of three batches": ([3, 7, 12], 11, 4),
        },
        shown=["one batch a step", "no tail"],
        mistakes={
            "the tail of an epoch is not counted as a step": Edit(per_epoch, rounded),
            "a window is taken to reach across the end of an epoch": lambda step, batches, size: divmod(
                step * size, batches
            ),
            "a step is taken for one batch": lambda step, batches, size: divmod(step, batches),
            "the windows of the epoch are counted, not its batches": Edit("steps * accumulation_steps", "steps"),
            "the end of an epoch is not yet the start of the next": with_closed_end,
            "the end of an epoch is not yet the start of the next, and its tail is counted as a whole window": (
                with_open_tail
            ),
            "the epochs are counted from 1": Edit("return epoch,", "return epoch + 1,"),
            "the two numbers stand in the other order: (batch, epoch)": Edit(
                position, "return steps * accumulation_steps, epoch"
            ),
            "the steps of an epoch are rounded to the nearest number, not up": Edit(
                per_epoch, "round(batches_per_epoch / accumulation_steps)"
            ),
            "an epoch has a step for its tail even where there is no tail": Edit(per_epoch, f"{rounded} + 1"),
            "the batches are counted from the start of the run, a tail as a whole window": Edit(
                "steps * accumulation_steps", "step * accumulation_steps"
            ),
            "the batches are counted from the start of the run": Edit(
                "steps * accumulation_steps", "epoch * batches_per_epoch + steps * accumulation_steps"
            ),
            "the epoch is right, but its batches are counted as if no epoch had a smaller tail": Edit(
                "steps * accumulation_steps", "step * accumulation_steps % batches_per_epoch"
            ),
            "the batch is right, but the epochs are counted as if none had a smaller tail": Edit(
                "return epoch,", "return step * accumulation_steps // batches_per_epoch,"
            ),
            "the batches that are still to be read are counted, not those that were read": Edit(
                "steps * accumulation_steps", "batches_per_epoch - steps * accumulation_steps"
            ),
            "the steps are counted one too low": AnyOf(
                Edit(divided, "divmod(max(0, step - 1), steps_per_epoch)"),
                Edit(divided, "divmod(step - 1, steps_per_epoch)"),
            ),
            "an epoch is taken to have as many steps as batches": Edit(per_epoch, "batches_per_epoch"),
            "the epochs are not rounded down": Edit("return epoch,", "return step / steps_per_epoch,"),
            "the steps are counted one too high": Edit(divided, "divmod(step + 1, steps_per_epoch)"),
            "the batch is that of the next step's end, not of its start": Edit(
                "steps * accumulation_steps", "min((steps + 1) * accumulation_steps, batches_per_epoch)"
            ),
            "batches count from 1": Edit("steps * accumulation_steps", "steps * accumulation_steps + 1"),
            "the last batch that was read is given, not the number of batches": Edit(
                "steps * accumulation_steps", "max(0, steps * accumulation_steps - 1)"
            ),
        },
        run=_for_each,
        hints={
            "steps_per_epoch = ": "An epoch's last step may be smaller, and counts: round up.",
            "divmod(step": "`divmod(step, steps_per_epoch)` gives the complete epochs and the steps of the next one.",
            "return epoch": "Every step of an epoch that is under way has read `accumulation_steps` batches.",
        },
    )


def _for_each(fn: Callable[..., object], firsts: Iterable[float], *args: float) -> list[object]:
    return [fn(first, *args) for first in firsts]


def newest_intact(fn: Callable[..., object]) -> Report:
    """The file to go on from: `fn(files)`, files being name → (content, stored sha256); "" where none is intact."""
    chosen = 'max(intact, key=step, default="")'
    condition = "        if hashlib.sha256(content).hexdigest() == stored\n"

    def first_intact(names: Callable[[Files], Iterable[str]], tries: int | None = None) -> Callable[[Files], str]:
        """The first of `names(files)` that is intact, `tries` of them looked at."""
        return lambda files: next((name for name in islice(names(files), tries) if _is_intact(*files[name])), "")

    def newest_first(files: Files) -> list[str]:
        return sorted(files, key=_step, reverse=True)

    def last_as_text(files: Files) -> list[str]:
        return sorted(files, reverse=True)

    def until_damaged(files: Files) -> str:
        intact = list(takewhile(lambda name: _is_intact(*files[name]), files))
        return intact[-1] if intact else ""

    def upwards(files: Files) -> str:
        intact = list(takewhile(lambda name: _is_intact(*files[name]), sorted(files, key=_step)))
        return intact[-1] if intact else ""

    def with_highest_so_far(files: Files) -> str:
        best, highest = "", -1
        for name in files:
            if _step(name) > highest:
                highest = _step(name)
                best = name if _is_intact(*files[name]) else best
        return best

    def by_first_digit(name: str) -> int:
        return int(str(_step(name))[0])

    return compare(
        fn,
        reference=first_intact(newest_first),
        cases={
            "all intact": (_files(200, 300, 100),),
            "the newest is damaged": (_files(300, 100, 200, damaged=(300,)),),
            "three digits and four": (_files(900, 1100, 1000, 800, damaged=(1100,)),),
            "the two newest are damaged": (_files(60, 700, 65, 50, 1000, damaged=(700, 1000)),),
            "one in the middle is damaged": (_files(400, 90, 310, 250, damaged=(310,)),),
            "none is intact": (_files(10, 20, damaged=(10, 20)),),
            "an empty folder": (_files(),),
        },
        shown=["all intact", "the newest is damaged", "an empty folder"],
        mistakes={
            "the names are sorted as text, where 900 comes after 1000": Edit("key=step, ", ""),
            "the newest is taken without a look at its checksum": Edit(condition, ""),
            "the last name as text is taken, without a look at its checksum": (
                Edit(condition, ""),
                Edit("key=step, ", ""),
            ),
            "the search ends at the first damaged file, or a damaged one clears what was found": first_intact(
                newest_first, 1
            ),
            "the names are sorted as text, and the search ends at the first damaged file": first_intact(
                last_as_text, 1
            ),
            "only the two newest are looked at": first_intact(newest_first, 2),
            "the oldest intact one is taken": Edit("max(", "min("),
            "the files are taken in the order in which they are listed": Edit(chosen, 'next(iter(intact), "")'),
            "the last one listed is taken for the newest": Edit(chosen, 'intact[-1] if intact else ""'),
            "the loop over the files as listed ends at the first damaged one": until_damaged,
            "the search goes upwards and ends at the first damaged file: intact ones after it are missed": upwards,
            "the highest step so far is that of a damaged file too, which hides the intact ones after it": (
                with_highest_so_far
            ),
            "the first digit of the step alone is compared": lambda files: max(
                filter(lambda name: _is_intact(*files[name]), files), key=by_first_digit, default=""
            ),
            "the number of digits alone is compared": Edit("key=step", "key=len"),
            "no checksum fits: `digest()` for hex digits, another function than SHA-256, or of something else": Edit(
                "hexdigest", "digest"
            ),
            "the damaged files are taken, not the intact ones": Edit("== stored", "!= stored"),
            "the step is given, not the name of its file": Edit(chosen, 'max(map(step, intact), default="")'),
            "the names of all intact files are given": Edit(chosen, "intact"),
            "the content is given, not the name of its file": Edit(chosen, f"files[{chosen}][0] if intact else b''"),
            "name and content are given, not the name alone": Edit(
                chosen, "max(files.items(), key=lambda item: step(item[0]) if item[0] in intact else -1, default='')"
            ),
        },
        hints={
            "int(name": 'Compare the steps as numbers: as text, "900" comes after "1000".',
            "hashlib": "A file is intact if `hashlib.sha256(content).hexdigest()` is what was stored.",
            "max(intact": "Collect the intact files first, then take the one with the highest step.",
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
        # Changes that are not on the platter: the number of a new file or the old name of another, and the new name.
        self._pending: list[tuple[int | str, str]] = []
        self._on_platter = dict(self._names)
        self.history: list[dict[str, set[str]]] = []

    def write(self, name: str, content: str) -> None:
        """Make the file or overwrite it; its content is in memory."""
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
        """Force the file's content to the platter; not its name."""
        self._unsynced.discard(self._number(name))
        self._remember()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file of that name is replaced."""
        number, old, new = self._number(old), os.fspath(old), os.fspath(new)
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
        return os.fspath(name) in self._names

    def after_power_cut(self, name: str) -> list[str]:
        """What may be found under a name if the power goes now: "missing", "half", or a content."""
        names, found = dict(self._on_platter), self._readable(self._on_platter.get(name))
        for old, new in self._pending:  # any number of the changes may have reached the platter, in their order
            names[new] = old if isinstance(old, int) else names.pop(old)
            found |= self._readable(names.get(name))
        return sorted(found)

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
        names = {*self._names, *self._on_platter}
        self.history.append({name: set(self.after_power_cut(name)) for name in names})


def survive_power_cut(fn: Callable[..., object]) -> Report:
    """Save without a moment of danger: `fn(disk, name, content)` on a `Disk`; what a power cut leaves is compared."""
    write, sync = "disk.write(temporary, content)", "disk.sync(temporary)"
    rename, folder = "disk.rename(temporary, name)", "disk.sync_folder()"
    here, sync_here = Edit(write, "disk.write(name, content)"), Edit(sync, "disk.sync(name)")
    away = 'disk.rename(name, name + ".old") if disk.exists(name) else None'
    to_middle = (Edit(sync, rename), Edit(rename, "disk.sync(name)"))
    return compare(
        fn,
        reference=_operations("write", "sync", "rename", "sync_folder"),
        cases={
            "an old one is there": ({"a.pt": "old", "b.pt": "other"}, "a.pt"),
            "the first of a run": ({"checkpoint_best.pt": "best"}, "checkpoint_last.pt"),
            "a name without an ending": ({"weights": "old"}, "weights"),
        },
        shown=["an old one is there"],
        mistakes={
            "the file is overwritten in place": (here, sync_here, Edit(rename, "pass")),
            "the temporary name is the name itself where that does not end in .pt, and is overwritten in place": Edit(
                'name + ".tmp"', 'name.replace(".pt", ".tmp")'
            ),
            "the file is overwritten in place, and its content never synced": (
                here,
                Edit(sync, "pass"),
                Edit(rename, "pass"),
            ),
            "the file is overwritten in place, and the folder is not synced": (
                here,
                sync_here,
                Edit(rename, "pass"),
                Edit(folder, "pass"),
            ),
            "the file is overwritten in place, and nothing is synced": (
                here,
                Edit(sync, "pass"),
                Edit(rename, "pass"),
                Edit(folder, "pass"),
            ),
            "the content is not synced: the new name may lead to half a file": Edit(sync, "pass"),
            "neither content nor folder is synced": (Edit(sync, "pass"), Edit(folder, "pass")),
            "the content is synced after the rename: in between, the name may lead to half a file": to_middle,
            "the content is synced after the rename, and the folder never": (*to_middle, Edit(folder, "pass")),
            "the content is synced last, after rename and folder: until then the name may lead to half a file": (
                Edit(sync, "pass"),
                Edit(folder, f"{folder}; disk.sync(name)"),
            ),
            "the folder is not synced after the rename, which may be lost": Edit(folder, "pass"),
            "the old file is moved away first: for a moment there is none": AnyOf(
                Edit(write, f"{away}; {write}"),
                (Edit(write, f"{away}; {write}"), Edit(folder, "pass")),
                (Edit(write, f"{away}; {write}"), Edit(rename, f"{folder}; {rename}")),
                Edit(write, f'disk.rename(name, name + ".old"); {write}'),
            ),
            "the old file is moved away first, and the new one written under the name itself": AnyOf(
                (Edit(write, f"{away}; disk.write(name, content)"), sync_here, Edit(rename, "pass")),
                (
                    Edit(write, f"{away}; disk.write(name, content)"),
                    sync_here,
                    Edit(rename, "pass"),
                    Edit(folder, "pass"),
                ),
                (
                    Edit(write, 'disk.rename(name, name + ".old"); disk.write(name, content)'),
                    sync_here,
                    Edit(rename, "pass"),
                ),
            ),
            "the new file never takes the name": Edit(rename, "pass"),
            "after the rename the file is written once more, in place": Edit(
                folder, f"disk.write(name, content); disk.sync(name); {folder}"
            ),
            "the temporary name is that of another file, which is lost": AnyOf(
                Edit('name + ".tmp"', '"b.pt"'), Edit('name + ".tmp"', '"checkpoint_best.pt"')
            ),
            "the rename goes the other way: the old file takes the new one's name": Edit(
                "rename(temporary, name)", "rename(name, temporary)"
            ),
        },
        run=_found_after_power_cuts,
        unchanged="nothing is written: are `disk.write` and `disk.rename` called?",
        hints={
            "disk.write": "Until the new file is whole, it needs a name of its own.",
            "disk.sync(": "Before a name leads to a content, the content must be on the platter.",
            "disk.rename": "A rename replaces the old file at once: at every moment the name leads to a whole one.",
            "disk.sync_folder": "A rename is safe only when the folder, which holds the names, is synced after it.",
        },
    )


def _found_after_power_cuts(fn: Callable[..., object], files: Mapping[str, str], name: str) -> list[str] | None:
    """What may be found under the name before the first operation and after each, without repetitions.

    After that, what has become of the other files, where they are not what they were.
    """
    disk = Disk(files)
    moments = [disk.after_power_cut(name)]
    fn(disk, name, "new")
    if not disk.history:
        return None
    moments += [sorted(moment.get(name, {"missing"})) for moment in disk.history]
    others = {other: disk.after_power_cut(other) for other in files if other != name}
    lost = [f"{other}: {' or '.join(left)}" for other, left in others.items() if left != [files[other]]]
    return [" or ".join(moment) for moment, _ in groupby(moments)] + lost


def _operations(*operations: str) -> Callable[[Disk, str, str], None]:
    def save(disk: Disk, name: str, content: str) -> None:
        temporary = f"{name}.tmp"
        steps = {
            "write": lambda: disk.write(temporary, content),
            "sync": lambda: disk.sync(temporary),
            "rename": lambda: disk.rename(temporary, name),
            "sync_folder": disk.sync_folder,
        }
        for operation in operations:
            steps[operation]()

    return save


def steps_between_checkpoints(fn: Callable[..., object]) -> Report:
    """Young's interval in whole steps: `fn(step_seconds, save_seconds, mtbf_hours)`, rounded, at least 1."""
    root = "(2 * save_seconds * mtbf_hours * 3600) ** 0.5"
    whole = "max(1, round(seconds / step_seconds))"

    def right(step: float, save: float, hours: float) -> int:
        return max(1, round(math.sqrt(2 * save * hours * 3600) / step))

    return compare(
        fn,
        reference=right,
        cases={
            "a laptop": ([0.25, 1.3, 0.01], 2.0, 24.0),
            "a failure every three hours": ([12.0, 25.0, 7.0], 60.0, 3.0),
            "steps longer than the interval": ([100.0, 21.0, 17.0, 40.0], 0.5, 0.25),
        },
        shown=["a failure every three hours"],
        mistakes={
            "the factor 2 under the root is missing": Edit("(2 * save", "(save"),
            "the factor 2 stands before the root, not under it": Edit(
                root, "2 * (save_seconds * mtbf_hours * 3600) ** 0.5"
            ),
            "it is divided by 2 under the root": Edit(root, "(save_seconds * mtbf_hours * 3600 / 2) ** 0.5"),
            "hours are not turned into seconds": Edit(" * 3600", ""),
            "hours are turned into minutes, not into seconds": Edit("* 3600", "* 60"),
            "hours are turned into seconds by 60 · 24": Edit("* 3600", "* 60 * 24"),
            "hours are taken for days": Edit("* 3600", "* 86400"),
            "hours are turned into milliseconds": Edit("* 3600", "* 3600000"),
            "hours are turned into seconds after the root, not under it": Edit(
                root, "(2 * save_seconds * mtbf_hours) ** 0.5 * 3600"
            ),
            "the root is missing": Edit(" ** 0.5", ""),
            "the seconds are returned, not the steps": Edit("seconds / step_seconds", "seconds"),
            "the seconds are multiplied by those of a step, not divided": Edit(
                "seconds / step_seconds", "seconds * step_seconds"
            ),
            "the seconds of a step are divided by those of the interval": Edit(
                "seconds / step_seconds", "step_seconds / seconds"
            ),
            "an interval shorter than a step gives no step at all": Edit(whole, "round(seconds / step_seconds)"),
            "an interval shorter than a step gives no step at all, and the steps are cut off": Edit(
                whole, "int(seconds / step_seconds)"
            ),
            "the steps are cut off, not rounded": Edit("round(", "int("),
            "the steps are rounded up, not to the nearest": Edit(whole, "int(-(-seconds // step_seconds))"),
            "the steps are not rounded": AnyOf(
                Edit("round(seconds / step_seconds)", "seconds / step_seconds"),
                Edit(whole, "seconds / step_seconds"),
            ),
            "one step is added instead of a lower bound of 1": Edit(whole, "1 + round(seconds / step_seconds)"),
            "the steps are at most 1: `min` stands for `max`": Edit("max(", "min("),
            "the time of a save is subtracted from the interval": Edit(root, f"{root} - save_seconds"),
            "the time of a save is added to the interval": Edit(root, f"{root} + save_seconds"),
            "the step's seconds are divided by under the root": (
                Edit("* 3600)", "* 3600 / step_seconds)"),
                Edit("seconds / step_seconds", "seconds"),
            ),
            "the time of a save is left out": Edit("save_seconds * ", ""),
            "the time between failures is left out": Edit("mtbf_hours * ", ""),
            "the times of a save and of a step are exchanged": (
                Edit("(2 * save_seconds", "(2 * step_seconds"),
                Edit("/ step_seconds", "/ save_seconds"),
            ),
            "hours are divided by 3600, not multiplied": Edit("* 3600", "/ 3600"),
            "the result is 1 everywhere, as if each interval were shorter than a step": Edit(whole, "1"),
            "one step is taken off": AnyOf(Edit(whole, f"{whole} - 1"), Edit("step_seconds))", "step_seconds) - 1)")),
            "the time of a save is added to that of each step": Edit(
                "/ step_seconds", "/ (step_seconds + save_seconds)"
            ),
            "the time of a step is added to that of a save under the root": Edit(
                "* save_seconds", "* (save_seconds + step_seconds)"
            ),
        },
        run=_for_each,
        hints={
            "seconds = ": "√(2·C·M) seconds, where C and M are both in seconds: an hour has 3600.",
            "return max": "The interval divided by the seconds of a step, rounded to the nearest, and at least 1.",
        },
    )
