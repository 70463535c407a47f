"""The configuration of a run: one dataclass per section, put together, read from YAML and checked.

A misspelt key or a bad value is refused with one line that names the key, the value, where it came from and what is
accepted. Each module of the package owns its section; the two that belong to no single module stand here.
"""

import dataclasses
import difflib
import math
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.utils.deterministic as deterministic_settings
from jsonargparse import ArgumentError, ArgumentParser, set_loader

from course_lm.checkpoints import atomic_file
from course_lm.curriculum.settings import CurriculumConfig, gather_settings, is_setting, keys_of
from course_lm.model import ModelConfig
from course_lm.monitoring import TensorBoardConfig, WandbConfig
from course_lm.optim import OptimizerConfig
from course_lm.schedules import ScheduleConfig
from course_lm.tokenizer import MAX_VOCAB_SIZE, MIN_VOCAB_SIZE
from course_lm.validation import one_line, require, require_kinds, shown
from course_lm.yaml_tree import dump_yaml, load_yaml, read_yaml_file

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_YAML_MODE = "course_lm"

Device = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how it becomes batches.

    Args:
        corpus: "stories", "python-docs", a path, a glob, or "hf:<dataset>[:<split>[:<column>]]".
        vocab_size: tokens in the vocabulary, `<pad>` and `<eos>` among them.
        max_length: tokens in a row.
        batching: how documents fill rows.
        val_fraction: share of the documents held out for validation.
    """

    corpus: str = "python-docs"
    vocab_size: int = 2048
    max_length: int = 128
    batching: Literal["fixed", "dynamic", "bucketed", "packed"] = "packed"
    val_fraction: float = 0.1

    def __post_init__(self) -> None:
        require_kinds(type(self), vars(self))
        require(self.corpus != "", "corpus", "a name, a path, a glob or hf:<dataset>", self.corpus)
        accepted = f"from {MIN_VOCAB_SIZE} (256 bytes and two specials) to {MAX_VOCAB_SIZE:,}"
        require(MIN_VOCAB_SIZE <= self.vocab_size <= MAX_VOCAB_SIZE, "vocab_size", accepted, self.vocab_size)
        require(self.max_length >= 2, "max_length", "at least 2", self.max_length)
        require(0 < self.val_fraction < 1, "val_fraction", "in (0, 1)", self.val_fraction)


@dataclass(frozen=True)
class LoopConfig:
    """How the loop runs.

    Args:
        batch_size: rows in a micro-batch.
        gradient_accumulation_steps: micro-batches in an optimizer step.
        num_epochs: passes over the training text; `max_steps` wins where it is given.
        max_steps: optimizer steps of the run, or null.
        max_grad_norm: bound on the global gradient norm, or null for no clipping.
        precision: "auto" takes bf16 where the hardware multiplies it, else fp32.
        device: "auto" takes CUDA, then MPS, then the CPU.
        on_nonfinite: what a NaN or infinite gradient does: "raise" ends the run, "skip" drops the step and counts it.
        logging_steps: optimizer steps between log records.
        eval_steps: optimizer steps between validations; null validates after each epoch.
        save_steps: optimizer steps between checkpoints.
        save_total_limit: how many `checkpoint_step_*.pt` and `checkpoint_epoch_*.pt` are kept, or null for all.
        restore_best: give the model its best weights back when the run is over; without validation, the last ones.
        early_stopping_patience: validations without improvement before the run stops, or null.
        early_stopping_threshold: by how many nats per token the loss must fall to count as an improvement.
        seed: fixes weights, dropout and the order of the data.
        deterministic: use deterministic kernels where torch has them.
        compile: compile the model with `torch.compile`.
        resume: "auto" goes on from the newest checkpoint in the run's folder, "never" starts anew.
        output_dir: the run's folder is `<output_dir>/<experiment_name>`; null writes nothing.
    """

    batch_size: int = 32
    gradient_accumulation_steps: int = 4
    num_epochs: int = 10
    max_steps: int | None = None
    max_grad_norm: float | None = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: Device = "auto"
    on_nonfinite: Literal["raise", "skip"] = "raise"
    logging_steps: int = 10
    eval_steps: int | None = None
    save_steps: int = 500
    save_total_limit: int | None = 3
    restore_best: bool = False
    early_stopping_patience: int | None = None
    early_stopping_threshold: float = 0.0
    seed: int = 42
    deterministic: bool = True
    compile: bool = False
    resume: Literal["auto", "never"] = "auto"
    output_dir: str | None = "runs"

    def __post_init__(self) -> None:
        require_kinds(type(self), vars(self))
        for key in ("batch_size", "gradient_accumulation_steps", "num_epochs", "logging_steps", "save_steps"):
            require(getattr(self, key) >= 1, key, "at least 1", getattr(self, key))
        for key in ("max_steps", "eval_steps", "save_total_limit", "early_stopping_patience"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "at least 1, or null", value)
        norm = self.max_grad_norm
        require(norm is None or norm > 0, "max_grad_norm", "a positive number, or null", norm)
        threshold = self.early_stopping_threshold
        require(0 <= threshold < math.inf, "early_stopping_threshold", "a finite number of at least 0", threshold)
        require(0 <= self.seed < 2**32, "seed", "in [0, 2**32)", self.seed)


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides a run.

    Args:
        experiment_name: names the run's folder.
    """

    experiment_name: str = "my-lm"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lr_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    training: LoopConfig = field(default_factory=LoopConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    def __post_init__(self) -> None:
        require_kinds(type(self), vars(self))
        plain = self.experiment_name not in ("", ".", "..") and not re.search(r"[/\\\0]", self.experiment_name)
        require(plain, "experiment_name", "a folder name", self.experiment_name)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "TrainingConfig":
        """Read a YAML file, or a shipped configuration by name; keys that it leaves out keep their defaults.

        Raises:
            FileNotFoundError: no such file and no shipped configuration of that name.
            ValueError: not YAML, an unknown key, or a bad value.
        """
        source = find_config(path)
        return _build(cls(), read_yaml(source), str(source))

    def to_yaml(self, path: str | Path) -> None:
        """Write the whole tree, so that `from_yaml(path)` gives this configuration again."""
        text = dump_yaml(dataclasses.asdict(self))
        with atomic_file(path) as file:  # half a configuration would start another run, from defaults
            file.write(text.encode())


def sections() -> dict[str, type]:
    """The dataclass of each section of the tree, by name."""
    made = {part.name: part.default_factory for part in dataclasses.fields(TrainingConfig)}
    return {name: kind for name, kind in made.items() if isinstance(kind, type)}


def find_config(name_or_path: str | Path) -> Path:
    """The file itself, or the shipped configuration of that name; FileNotFoundError for neither."""
    shipped = {Path(entry.name).stem: entry for entry in resources.files("course_lm").joinpath("configs").iterdir()}
    if str(name_or_path) in shipped:
        return Path(str(shipped[str(name_or_path)]))
    path = Path(name_or_path)
    if not path.is_file():
        raise FileNotFoundError(f"no configuration {path}: give a YAML file or one of {', '.join(sorted(shipped))}")
    return path


def read_yaml(path: Path) -> Any:
    """The file's tree, {} for an empty one; ValueError names the file and what is wrong with it."""
    tree = read_yaml_file(path)
    return {} if tree is None else tree


def config_parser() -> ArgumentParser:
    """A parser with an option for every key of the tree, such as `--optimizer.learning_rate`."""
    set_loader(_YAML_MODE, load_yaml, exceptions=(ValueError,))  # one reading of values for files and arguments
    parser = ArgumentParser(prog="course-lm train", exit_on_error=False, allow_abbrev=False, parser_mode=_YAML_MODE)
    parser.add_class_arguments(TrainingConfig)
    return parser


def parse_config(parser: ArgumentParser, tree: Any, source: str, arguments: Sequence[str] = ()) -> TrainingConfig:
    """The configuration in `tree`, overridden by command-line `arguments`.

    Settings of the curriculum's strategy may stand beside its own keys, in the tree and as arguments.

    Raises:
        ValueError: names the key, the value, where it came from and what is accepted.
    """
    config = _build(TrainingConfig(), tree, source)
    if not arguments:
        return config
    parser.set_defaults(_flat(config))  # `--help` shows them
    arguments = [_to_settings(argument) for argument in arguments]
    try:
        given = parser.parse_args(arguments, defaults=False).as_dict()
    except (ArgumentError, RecursionError) as error:
        raise ValueError(f"command line: {_one_line(error)}") from None
    settings = given.get("curriculum", {}).get("settings")
    if settings is not None and not any(argument.split("=")[0] == "--curriculum.settings" for argument in arguments):
        given["curriculum"]["settings"] = {**config.curriculum.settings, **settings}
    parts = {part.name for part in dataclasses.fields(TrainingConfig)}  # a parser may have options of its own
    return _build(config, {name: value for name, value in given.items() if name in parts}, "command line")


def seed_everything(seed: int, deterministic: bool = True) -> None:
    """Seed Python, NumPy and torch on every device; `deterministic` also asks torch for deterministic kernels."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    _choose_kernels(deterministic)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Have torch take deterministic kernels, or not, while the body runs; what was set before is set again."""
    chosen = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic_settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_WORKSPACE)
    _choose_kernels(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])
        deterministic_settings.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


def _choose_kernels(deterministic: bool) -> None:
    if deterministic:
        os.environ.setdefault(_WORKSPACE, ":4096:8")  # read when CUDA starts
        deterministic_settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a costly debugging aid
    torch.use_deterministic_algorithms(deterministic, warn_only=True)


def resolve_device(name: str) -> torch.device:
    """The device that `training.device` names; ValueError where this machine has none of that kind."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if not available.get(name, False):
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ValueError(f"training.device {name!r} is not on this machine; it has {there}")
    return torch.device(name)


def _build(base: TrainingConfig, tree: Any, source: str) -> TrainingConfig:
    """`base` with the values of `tree` in place of its own."""
    where = ""
    try:
        _check_keys(tree, [part.name for part in dataclasses.fields(TrainingConfig)], "")
        changed = dict(tree)
        for name, kind in sections().items():
            if name in tree:
                where, old = "", getattr(base, name)
                values = _keys_and_values(old, tree[name], f"{name}.")
                where = f"{name}."
                require_kinds(kind, dict(values))
                changed[name] = dataclasses.replace(old, **values)
        where = ""
        return dataclasses.replace(base, **changed)
    except ValueError as error:
        raise ValueError(f"{source}: {where}{error}") from None


def _keys_and_values(base: Any, values: Any, where: str) -> Mapping[str, Any]:
    """What replaces values of the section `base`, its keys checked."""
    accepted = [part.name for part in dataclasses.fields(base)]
    if isinstance(base, CurriculumConfig) and isinstance(values, Mapping):
        values = gather_settings({"strategy": base.strategy, **values}, where)
        accepted += keys_of(values["strategy"])
    _check_keys(values, accepted, where)
    return values


def _check_keys(values: Any, accepted: Sequence[str], where: str) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where.rstrip('.') or 'the file'} must hold keys and values, got {shown(values)}")
    for key in values:
        if key not in accepted:
            close = difflib.get_close_matches(str(key), accepted, n=1)
            hint = f"did you mean {where}{close[0]}? " if close else ""
            raise ValueError(f"unknown key {where}{one_line(key)}; {hint}accepted: {', '.join(accepted)}")


def _flat(config: TrainingConfig) -> dict[str, Any]:
    """Every value by its full key, such as "optimizer.learning_rate"."""
    tree = vars(config)
    nested = {f"{name}.{key}": value for name in sections() for key, value in vars(tree[name]).items()}
    return {"experiment_name": config.experiment_name, **nested}


def _to_settings(argument: str) -> str:
    """`--curriculum.max_length` as `--curriculum.settings.max_length`; other arguments as they are."""
    prefix = "--curriculum."
    key = argument.removeprefix(prefix).split("=")[0]
    moves = argument.startswith(prefix) and is_setting(key)
    return argument.replace(prefix, f"{prefix}settings.", 1) if moves else argument


def _one_line(error: Exception) -> str:
    """A library's message of several lines, with Python's spelling of types made readable."""
    text = re.sub(r"<class '(\w+)'>", r"\1", " ".join(str(error).split()))
    text = re.sub(r"typing\.Literal\[([^]]*)\]", r"one of \1", text)
    text = text.replace("Expected a one of", "Expected one of").replace("Expected a int", "Expected an int")
    return text.replace('Parser key "', "").replace('": ', ": ", 1).replace("NoneType", "null")
