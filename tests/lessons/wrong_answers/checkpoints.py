"""Answers to the exercises of lesson 11: wrong ones, each with the mistake that must be named, and right ones."""

import hashlib
import math
import re

import numpy as np

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("checkpoints.files", "checkpoints.atomic_write", "checkpoints.state")
SABOTAGE = (
    "trainer/loop.py",
    'self.step, self.epoch, self.batch = saved["step"], saved["epoch"], saved["batch"]',
    'self.step = saved["step"]',
)


def counted(step, batches_per_epoch, accumulation_steps, *, tail=True, closed=False):
    """Walk through the data step by step."""
    epoch = batch = 0
    for _ in range(step):
        if batch >= batches_per_epoch:
            epoch, batch = epoch + 1, 0
        batch += accumulation_steps
        if not tail and batch + accumulation_steps > batches_per_epoch:
            batch = batches_per_epoch
    batch = min(batch, batches_per_epoch)
    return (epoch, batch) if batch < batches_per_epoch or closed else (epoch + 1, 0)


def position_after_without_tail(step, batches_per_epoch, accumulation_steps):
    return counted(step, batches_per_epoch, accumulation_steps, tail=False)


def position_after_across_epochs(step, batches_per_epoch, accumulation_steps):
    taken = step * accumulation_steps
    return taken // batches_per_epoch, taken % batches_per_epoch


def position_after_one_batch_each(step, batches_per_epoch, accumulation_steps):
    return step // batches_per_epoch, step % batches_per_epoch


def position_after_in_windows(step, batches_per_epoch, accumulation_steps):
    windows = len(range(0, batches_per_epoch, accumulation_steps))
    return [step // windows, step % windows]


def position_after_with_a_closed_end(step, batches_per_epoch, accumulation_steps):
    return counted(step, batches_per_epoch, accumulation_steps, closed=True)


def position_after_from_one(step, batches_per_epoch, accumulation_steps):
    epoch, batch = counted(step, batches_per_epoch, accumulation_steps)
    return epoch + 1, batch


def position_after_swapped(step, batches_per_epoch, accumulation_steps):
    return counted(step, batches_per_epoch, accumulation_steps)[::-1]


def position_after_rounded(step, batches_per_epoch, accumulation_steps):
    epoch, steps = divmod(step, round(batches_per_epoch / accumulation_steps))
    return epoch, accumulation_steps * steps


def position_after_with_a_tail_always(step, batches_per_epoch, accumulation_steps):
    epoch = batch = 0
    for _ in range(step):
        batch += accumulation_steps
        if batch > batches_per_epoch:
            epoch, batch = epoch + 1, 0
    return epoch, batch


def position_after_as_an_array(step, batches_per_epoch, accumulation_steps):
    return np.array(divmod(step, math.ceil(batches_per_epoch / accumulation_steps))) * [1, accumulation_steps]


def position_after_by_windows(step, batches_per_epoch, accumulation_steps):
    starts = range(0, batches_per_epoch, accumulation_steps)
    return [step // len(starts), starts[step % len(starts)]]


def is_whole(content, stored):
    return hashlib.new("sha256", content).hexdigest() == stored


def number_in(name):
    return int(re.findall(r"\d+", name)[-1])


def newest_by_text(files):
    whole = [name for name in files if is_whole(*files[name])]
    return max(whole, default="")


def newest_unread(files):
    return max(files, key=number_in, default="")


def newest_or_nothing(files):
    name = max(files, key=number_in, default="")
    return name if name and is_whole(*files[name]) else ""


def oldest_whole(files):
    return min((name for name in files if is_whole(*files[name])), key=number_in, default="")


def first_listed(files):
    for name, (content, stored) in files.items():
        if is_whole(content, stored):
            return name
    return ""


def last_listed(files):
    found = ""
    for name, (content, stored) in files.items():
        found = name if is_whole(content, stored) else found
    return found


def whole_by_digest(files):
    whole = [name for name, (content, stored) in files.items() if hashlib.sha256(content).digest() == stored]
    return max(whole, key=number_in, default="")


def whole_by_another_sum(files):
    whole = [name for name, (content, stored) in files.items() if hashlib.md5(content).hexdigest() == stored]
    return max(whole, key=number_in, default="")


def listed_until_damaged(files):
    found = ""
    for name in files:
        if not is_whole(*files[name]):
            break
        found = name
    return found


def newest_number(files):
    return max((number_in(name) for name in files if is_whole(*files[name])), default="")


def newest_by_bytes(files):
    whole = {
        number_in(name): name for name in files if hashlib.sha256(files[name][0]).digest() == stored_in(files, name)
    }
    return whole[max(whole)] if whole else ""


def stored_in(files, name):
    return bytes.fromhex(files[name][1])


def newest_by_loop(files):
    best = ""
    for name, (content, stored) in files.items():
        if is_whole(content, stored) and (not best or number_in(name) > number_in(best)):
            best = name
    return best


def newest_by_length(files):
    names = sorted(files, key=lambda name: (len(name), name))
    return next((name for name in reversed(names) if is_whole(*files[name])), "")


def save_in_place(disk, name, content):
    disk.write(name, content)
    disk.sync(name)
    disk.sync_folder()


def save_in_place_and_hope(disk, name, content):
    disk.write(name, content)
    disk.sync_folder()


def save_without_sync(disk, name, content):
    disk.write("new", content)
    disk.rename("new", name)
    disk.sync_folder()


def save_without_any_sync(disk, name, content):
    disk.write("new", content)
    disk.rename("new", name)


def save_and_sync_late(disk, name, content):
    disk.write("new", content)
    disk.rename("new", name)
    disk.sync(name)
    disk.sync_folder()


def save_without_the_folder(disk, name, content):
    disk.write("new", content)
    disk.sync("new")
    disk.sync_folder()
    disk.rename("new", name)


def save_after_moving_the_old(disk, name, content):
    if disk.exists(name):
        disk.rename(name, "backup")
    disk.write("new", content)
    disk.sync("new")
    disk.rename("new", name)
    disk.sync_folder()


def save_under_another_name(disk, name, content):
    disk.write("new", content)
    disk.sync("new")


def save_in_place_and_return(disk, name, content):
    disk.write(name, content)


def save_and_sync_last(disk, name, content):
    disk.write("new", content)
    disk.rename("new", name)
    disk.sync_folder()
    disk.sync(name)


def save_with_care(disk, name, content):
    disk.write("new", content)
    disk.sync("new")
    disk.sync_folder()
    disk.rename("new", name)
    disk.sync(name)
    disk.sync_folder()


def save_plainly(disk, name, content):
    disk.write(f".{name}.partial", content)
    disk.sync(f".{name}.partial")
    disk.rename(f".{name}.partial", name)
    disk.sync_folder()


def interval(step_seconds, save_seconds, mtbf_hours, *, factor=2.0, power=0.5, hour=60 * 60):
    return (factor * save_seconds * mtbf_hours * hour) ** power / step_seconds


def steps_without_the_two(step_seconds, save_seconds, mtbf_hours):
    return max(1, round(interval(step_seconds, save_seconds, mtbf_hours, factor=1.0)))


def steps_in_hours(step_seconds, save_seconds, mtbf_hours):
    return max(1, round(interval(step_seconds, save_seconds, mtbf_hours, hour=1)))


def steps_without_the_root(step_seconds, save_seconds, mtbf_hours):
    return max(1, round(interval(step_seconds, save_seconds, mtbf_hours, power=1.0)))


def seconds_for_steps(step_seconds, save_seconds, mtbf_hours):
    return max(1, round(interval(1.0, save_seconds, mtbf_hours)))


def steps_down_to_none(step_seconds, save_seconds, mtbf_hours):
    return round(interval(step_seconds, save_seconds, mtbf_hours))


def steps_cut_off(step_seconds, save_seconds, mtbf_hours):
    return max(1, math.floor(interval(step_seconds, save_seconds, mtbf_hours)))


def steps_not_rounded(step_seconds, save_seconds, mtbf_hours):
    return max(1, interval(step_seconds, save_seconds, mtbf_hours))


def steps_by_square_root(step_seconds, save_seconds, mtbf_hours):
    steps = int(0.5 + math.sqrt(7200 * save_seconds * mtbf_hours) / step_seconds)
    return steps or 1


def steps_by_numpy(step_seconds, save_seconds, mtbf_hours):
    return np.maximum(1, np.rint(np.sqrt(2 * save_seconds * mtbf_hours * 3600) / step_seconds))


def steps_rounded_up(step_seconds, save_seconds, mtbf_hours):
    return math.ceil(interval(step_seconds, save_seconds, mtbf_hours))


def steps_in_minutes(step_seconds, save_seconds, mtbf_hours):
    return max(1, round(interval(step_seconds, save_seconds, mtbf_hours, hour=60)))


def steps_with_the_two_outside(step_seconds, save_seconds, mtbf_hours):
    return max(1, round(2 * interval(step_seconds, save_seconds, mtbf_hours, factor=1.0)))


OTHER_SUM = "`digest()` for hex digits, another function than SHA-256, or of something else"

WRONG_ANSWERS = {
    "position_after": [
        (position_after_without_tail, "the tail of an epoch is not counted as a step"),
        (position_after_across_epochs, "a window is taken to reach across the end of an epoch"),
        (position_after_one_batch_each, "a step is taken for one batch"),
        (position_after_in_windows, "the windows of the epoch are counted, not its batches"),
        (position_after_with_a_closed_end, "the end of an epoch is not yet the start of the next"),
        (position_after_from_one, "the epochs are counted from 1"),
        (position_after_swapped, "the two numbers stand in the other order: (batch, epoch)"),
        (position_after_rounded, "the steps of an epoch are rounded to the nearest number, not up"),
        (position_after_with_a_tail_always, "an epoch has a step for its tail even where there is no tail"),
    ],
    "newest_intact": [
        (newest_by_text, "the names are sorted as text, where 900 comes after 1000"),
        (newest_unread, "the newest is taken without a look at its checksum"),
        (newest_or_nothing, "the search ends at the first damaged file, or a damaged one clears what was found"),
        (oldest_whole, "the oldest intact one is taken"),
        (first_listed, "the files are taken in the order in which they are listed"),
        (last_listed, "the last one listed is taken for the newest"),
        (whole_by_digest, f"no checksum fits: {OTHER_SUM}"),
        (whole_by_another_sum, f"no checksum fits: {OTHER_SUM}"),
        (listed_until_damaged, "the loop over the files as listed ends at the first damaged one"),
        (newest_number, "the step is given, not the name of its file"),
    ],
    "survive_power_cut": [
        (save_in_place, "the file is overwritten in place"),
        (save_in_place_and_hope, "the file is overwritten in place, and its content never synced"),
        (save_without_sync, "the content is not synced: the new name may lead to half a file"),
        (save_without_any_sync, "neither content nor folder is synced"),
        (
            save_and_sync_late,
            "the content is synced after the rename: in between, the name may lead to half a file",
        ),
        (save_without_the_folder, "the folder is not synced after the rename, which may be lost"),
        (save_after_moving_the_old, "the old file is moved away first: for a moment there is none"),
        (save_under_another_name, "the new file never takes the name"),
        (save_in_place_and_return, "the file is overwritten in place, and nothing is synced"),
        (
            save_and_sync_last,
            "the content is synced last, after rename and folder: until then the name may lead to half a file",
        ),
    ],
    "steps_between_checkpoints": [
        (steps_without_the_two, "the factor 2 under the root is missing"),
        (steps_in_hours, "hours are not turned into seconds"),
        (steps_without_the_root, "the root is missing"),
        (seconds_for_steps, "the seconds are returned, not the steps"),
        (steps_down_to_none, "an interval shorter than a step gives no step at all"),
        (steps_cut_off, "the steps are cut off, not rounded"),
        (steps_not_rounded, "the steps are not rounded"),
        (steps_rounded_up, "the steps are rounded up, not to the nearest"),
        (steps_in_minutes, "hours are turned into minutes, not into seconds"),
        (steps_with_the_two_outside, "the factor 2 stands before the root, not under it"),
    ],
}

EQUIVALENT = {
    "position_after": [counted, position_after_by_windows, position_after_as_an_array],
    "newest_intact": [newest_by_loop, newest_by_length, newest_by_bytes],
    "survive_power_cut": [save_plainly, save_with_care],
    "steps_between_checkpoints": [steps_by_square_root, steps_by_numpy],
}
