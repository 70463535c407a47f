"""Whether a run may go on from a checkpoint: it must be the same run, in all settings that its numbers depend on.

A run is decided by its configuration. Going on with another one would give weights that no configuration describes, so
every key either has the value that it was saved with, or stands in one of the three lists below, or the checkpoint is
refused in one line.
"""

import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lm import __version__
from course_lm.batching.data import NEW_RUN
from course_lm.checkpoints import latest_checkpoint, library_versions, load_checkpoint
from course_lm.checkpoints.parts import Target
from course_lm.config import LoopConfig, TrainingConfig, sections
from course_lm.distributed import Group
from course_lm.monitoring.trackers import TrackerConfig
from course_lm.reproducibility import float32_products
from course_lm.schedules import ScheduleConfig
from course_lm.trainer.budget import schedule_over
from course_lm.trainer.code import digest_of, digests_of_modules, library_of
from course_lm.trainer.init_from import Beginning
from course_lm.trainer.made_by import processor
from course_lm.trainer.run import GO_ON_ANEW
from course_lm.validation import ensure, one_line, shown

# No step depends on these.
MAY_CHANGE = {
    "data.num_workers",
    "data.pin_memory",
    "experiment_name",
    "data.cache",
    "training.early_stopping_patience",
    "training.init_from",  # the weights decide, see `describe_parts`
    "training.layer_statistics",
    "training.logging_steps",
    "training.output_dir",
    "training.restore_best",
    "training.resume",
    "training.save_steps",
    "training.save_total_limit",
    "training.time_budget",  # `max_steps` follows from it, and is saved; see `with_saved_length`
    "distributed.checkpoint",
    "distributed.timeout_seconds",
    *(
        f"{name}.{part.name}"
        for name, kind in sections().items()
        if issubclass(kind, TrackerConfig)
        for part in fields(kind)
    ),
}
# These change how numbers are rounded and nothing else: the run goes on, with a warning.
ROUNDING = {
    "distributed.shard_size",
    "distributed.strategy",
    "model.gradient_checkpointing",
    "training.compile",
    "training.deterministic",
    "training.device",
}
# These may change as long as the steps that were taken keep their learning rates: see `check_length`.
LENGTH = {"training.lengths", "training.max_steps", "training.num_epochs"}

MOST_COMPARED = 100_000  # rates of steps that were taken; of a longer run every n-th
WHAT_TO_DO = f"change it back, {NEW_RUN}"


def check_same_run(mine: TrainingConfig, saved: Mapping[str, Any]) -> None:
    """Compare a run's settings with those in a checkpoint; `saved` is the tree that `dataclasses.asdict` makes.

    Warns of a change in `ROUNDING`.

    Raises:
        ValueError: names the first key that decides the run and differs, with both values.
    """
    # a key that was not there yet when a run was saved: it computed what the default stands for now
    now, then = _flat(asdict(mine)), _flat(asdict(TrainingConfig())) | _flat(saved)
    free = MAY_CHANGE | LENGTH | {f"{name}.{key}" for name in sections() for key in getattr(mine, name).unread()}
    changed = [key for key in now if now[key] != then.get(key) and key not in free]
    differ = {
        key: f"the checkpoint was saved with {key} {shown(then.get(key))}, this run has {shown(now[key])}"
        for key in changed
    }
    for key, difference in differ.items():
        if key not in ROUNDING:
            raise ValueError(f"{difference}: {WHAT_TO_DO}" + f"; {GO_ON_ANEW}" * key.startswith("data."))
    for difference in differ.values():
        warnings.warn(f"{difference}: it may not go on bit for bit", stacklevel=2)


def with_saved_length(settings: LoopConfig, saved: Mapping[str, Any]) -> LoopConfig:
    """The settings of a run that goes on; where a budget is still to be timed, with the length of the saved tree.

    Raises:
        ValueError: that run had another budget, or none.
    """
    if not settings.must_be_timed:
        return settings
    budget, steps, lengths = (saved["training"].get(key) for key in ("time_budget", "max_steps", "lengths"))
    if budget != settings.time_budget or steps is None:
        raise ValueError(
            f"the checkpoint was saved with training.time_budget {shown(budget)}, this run has "
            f"{shown(settings.time_budget)}: {WHAT_TO_DO}; {GO_ON_ANEW}"
        )
    return replace(settings, max_steps=steps, lengths=lengths)


def check_held_out(name: str, saved: str | None, found: str | None) -> None:
    """Raise ValueError if the validation text `name` has another fingerprint than the one that the checkpoint holds."""
    problem = f"data.validation {name} is another text than when the checkpoint was saved: {WHAT_TO_DO}"
    ensure(saved in (None, found), problem)


def check_length(settings: LoopConfig, step: int, epoch: int) -> None:
    """Refuse an end that lies before what the run has done; ValueError names both."""
    if settings.max_steps is not None and settings.max_steps < step:
        raise ValueError(f"training.max_steps is {settings.max_steps}, the run has taken {step} steps: {WHAT_TO_DO}")
    if settings.max_steps is None and settings.num_epochs < epoch:
        raise ValueError(f"training.num_epochs is {settings.num_epochs}, the run has done {epoch}: {WHAT_TO_DO}")


def check_rates(
    saved: Mapping[str, Any], schedule: Callable[[int], float], total_steps: int, settings: LoopConfig
) -> None:
    """Raise ValueError unless the steps that were taken had the rates that this run's schedule gives them.

    So a run can be made longer where its schedule does not look at its end (a constant rate, "inverse_sqrt", "step"
    with milestones, each with `warmup_steps`), or has not begun to (the decay of "warmup_stable_decay").

    Args:
        saved: "step", "last_rate" (of the last completed step), "own_schedule" (whether it is a function of the user's
            own), "total_steps" and "config" of the checkpoint.
        total_steps: of the run now. settings: of the run now.

    Raises:
        ValueError: names the first step whose rate would be another one.
    """
    step = saved["step"]
    rates = {step - 1: saved["last_rate"]} if step else {}  # all that is saved of a user's own schedule
    if not saved["own_schedule"]:
        then = _saved_schedule(saved["config"], saved["total_steps"])
        rates |= {k: then(k) for k in range(0, step, max(1, step // MOST_COMPARED))}
    for k, rate in rates.items():
        # not exactly: C libraries differ in the last bit of a cosine
        if not math.isclose(rate, schedule(k), rel_tol=1e-9):
            raise ValueError(
                f"step {k + 1} was taken with learning rate {rate:g}, and would now have {schedule(k):g}: "
                f"{_what_changed(saved, total_steps, settings)}; {WHAT_TO_DO}; {GO_ON_ANEW}"
            )


def _what_changed(saved: Mapping[str, Any], total_steps: int, settings: LoopConfig) -> str:
    if saved["total_steps"] == total_steps:
        return "the schedule is another one"
    length = f"the run has {total_steps} steps now and had {saved['total_steps']}"
    for key in ("max_steps", "num_epochs"):
        then, now = saved["config"]["training"].get(key), getattr(settings, key)
        if then != now:
            spans = "under a schedule that does not depend on the run's length it could change"
            return f"training.{key} was {shown(then)} and is {shown(now)}, {length} ({spans})"
    return f"the training data has another length, {length}"


def _saved_schedule(config: Mapping[str, Any], total_steps: int) -> Callable[[int], float]:
    try:
        settings, peak = ScheduleConfig(**config["lr_scheduler"]), config["optimizer"]["learning_rate"]
        return schedule_over(config["training"].get("lengths"), settings, peak_lr=peak, total_steps=total_steps)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the checkpoint holds no schedule that can be built again: {one_line(error)}") from None


def load_newest(folder: Path, group: Group, target: Target) -> tuple[Path, dict[str, Any]] | None:
    """The newest intact checkpoint in the run's folder and the state in it, or None where there is no checkpoint.

    Rank 0 chooses it, every rank reads it. `target` gives the memory for sharded tensors, see `load_checkpoint`.

    Raises:
        ValueError: there are checkpoints and none can be read: a new run would write over them.
        FileNotFoundError: this rank does not see the folder of rank 0.
    """
    found = group.leader_does(lambda: latest_checkpoint(folder))
    if found is None:
        if group.tell(holds_checkpoints(folder)):
            raise ValueError(f"no checkpoint in {folder} can be read; training.resume never starts anew beside it")
        return None
    try:
        return found, load_checkpoint(found, target=target)
    except FileNotFoundError:
        place = f"rank {group.rank} does not see {found}"
        raise FileNotFoundError(f"{place}: training.output_dir must lie on storage that all machines share") from None


def holds_checkpoints(folder: Path) -> bool:
    """Whether a run has saved something in this folder: intact or not, by this course_lm or an older one."""
    return any(path for ending in ("safetensors", "pt") for path in folder.glob(f"checkpoint_*.{ending}"))


def put_aside(folder: Path) -> None:
    """Rename a run's folder, if it is there, to the first of `<name>.1`, `.2`, … that is free; a link to it stays."""
    folder = folder.resolve()
    if folder.exists():
        number = next(n for n in itertools.count(1) if not folder.with_name(f"{folder.name}.{n}").exists())
        folder.rename(folder.with_name(f"{folder.name}.{number}"))
        folder.mkdir()  # where the link leads


def describe_parts(
    model: nn.Module, loss_fn: object, clip: object, schedule: object, beginning: Beginning | None
) -> dict[str, str]:
    """What a run is made of beside its configuration, as text: its modules and functions, with the code of the user's.

    Of a schedule that `build_schedule` made nothing is said: the configuration names it, and `check_rates` compares it.
    """
    modules = re.sub(r" at 0x[0-9a-f]+", "", repr(model))  # addresses differ from process to process
    modules = re.sub(r"\bFSDP(?=[A-Z]\w*\()", "", modules)  # the class that fully_shard makes of a module's own
    libraries = {library_of(type(module)) or "" for module in model.modules()}
    versions = sorted({*libraries, f"course_lm {__version__}", f"torch {torch.__version__}"} - {""})
    parts = {
        _LIBRARIES: ", ".join(versions),
        "model": modules,
        "loss_fn": _describe_function(loss_fn),
        "clip": _describe_function(clip),
    }
    if digest_of(schedule) is not None:
        parts["schedule"] = _describe_function(schedule)
    if beginning is not None:
        parts["init_from"] = f"{beginning.init_from}{_CODE}weights {beginning.sha256}"
    return parts | {f"model's {kind}": f"{kind}{_CODE}{code}" for kind, code in digests_of_modules(model).items()}


def compare_parts(mine: dict[str, str], saved: dict[str, str], left: Mapping[str, str] | None = None) -> dict[str, str]:
    """Refuse to go on with other code of the user's, or with a model that is built otherwise, or another function.

    left: what the saved run has made of its own, such as of a tensor in a loss; in the same process they go on so.
    Returns what the run that goes on is made of.

    Where a library is another version than it was, what has changed without the user's code is only warned of.

    Raises:
        ValueError: names the part that is another one.
    """
    if mine == left:
        return saved
    for name in dict.fromkeys([*mine, *saved]):
        old, new = saved.get(name, "nothing"), mine.get(name, "nothing")
        (was, code_then), (now, code_now) = (text.partition(_CODE)[::2] for text in (old, new))
        of_another_python = code_then and code_now and code_then.split()[0] != code_now.split()[0]
        if name == _LIBRARIES or old == new or (code_then and code_then == code_now) or of_another_python:
            continue
        pairs = itertools.zip_longest(was.splitlines(), now.splitlines(), fillvalue="nothing")
        different = next((f", which had {one_line(a)} for {one_line(b)}" for a, b in pairs if a != b), "")
        problem = f"the {name} is not the one of the checkpoint" + (different or f": {now} has changed since")
        if saved.get(_LIBRARIES) == mine[_LIBRARIES] or (_LIBRARIES in saved and (code_then or code_now)):
            raise ValueError(f"{problem}: {WHAT_TO_DO}")
        warnings.warn(problem, stacklevel=2)
    return mine


def warn_of_unsaved(mine: Mapping[str, str], saved: Mapping[str, Any]) -> None:
    """Warn of parts that are again as when the run began, though it has changed what their code reads."""
    for name, left in saved.get("parts_now", {}).items():
        if left != mine.get(name) == saved["parts"].get(name):
            unsaved = "the run has changed a value that no checkpoint holds, such as a tensor that is no buffer"
            warnings.warn(f"the {name} begins anew: {unsaved}", stacklevel=2)


_LIBRARIES = "libraries"
_CODE = ", digest "  # between the name of what is the user's and what it holds


def _describe_function(function: object) -> str:
    if (code := digest_of(function)) is not None:
        name = function.func if isinstance(function, partial) else function
        return f"{getattr(name, '__qualname__', type(name).__qualname__)}{_CODE}{code}"
    if isinstance(function, partial):
        settings = ", ".join(f"{key}={shown(value)}" for key, value in sorted(function.keywords.items()))
        return _describe_function(function.func) + (settings and f"({settings})")
    return getattr(function, "__qualname__", type(function).__qualname__)


def machine_of(device: torch.device) -> dict[str, str]:
    """What else decides how numbers are rounded: versions, threads, the processor and which of its instructions."""
    chosen = {
        "instructions": torch.backends.cpu.get_cpu_capability(),  # ATEN_CPU_CAPABILITY may choose lesser ones
        "float32 products": float32_products(),
    }
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {**library_versions(), "threads": str(torch.get_num_threads()), "processor": name, **chosen}


def warn_of_machine(mine: Mapping[str, str], saved: Mapping[str, str]) -> None:
    """Warn where a run goes on with other libraries, threads or another processor: results may round differently."""
    changed = [f"{name} {saved.get(name)} (now {mine[name]})" for name in mine if saved.get(name) != mine[name]]
    if changed:
        warnings.warn(f"the checkpoint was saved with {', '.join(changed)}: it may not go on bit for bit", stacklevel=2)


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration by their dotted keys, `section.key`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat
