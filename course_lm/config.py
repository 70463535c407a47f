"""The configuration of a run: one dataclass per section, put together, read from YAML and checked.

A misspelt key or a bad value is refused with one line that names the key, the value, where it came from and what is
accepted. Each module of the package owns its section; the two that belong to no single module stand here.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from course_lm.checkpoints import atomic_file
from course_lm.curriculum.settings import CurriculumConfig, gather_settings
from course_lm.distributed.settings import DistributedConfig
from course_lm.loss import LossConfig
from course_lm.model import ModelConfig
from course_lm.monitoring import TensorBoardConfig, WandbConfig
from course_lm.optim import OptimizerConfig
from course_lm.reproducibility import resolve_device as resolve_device  # re-exported, as is the next: public names
from course_lm.reproducibility import seed_everything as seed_everything
from course_lm.schedules import ScheduleConfig
from course_lm.tokenizer import MAX_VOCAB_SIZE, MIN_VOCAB_SIZE
from course_lm.validation import (
    PLACES,
    Count,
    NotNegative,
    Positive,
    Section,
    Text,
    Within,
    did_you_mean,
    require,
    shown,
    updated,
)
from course_lm.yaml_tree import dump_yaml, read_yaml_file

Device = Literal["auto", "cpu", "cuda", "mps"]
LONGEST_ROW = 2**20  # tokens; attention over one that long would need a terabyte
MOST_EPOCHS = 10**6  # whose steps are counted before the first one
MOST_MINUTES = 10**7  # 19 years
MOST_WORKERS = 256  # each is a process, twice over where training and validation are read at a time
Folder = Annotated[str, Text("a folder")]
TextName = Annotated[str, Text("a name, a path, a glob or hf:<dataset>")]
LENGTHS = ("max_steps", "time_budget", "num_epochs")  # keys of `training`: the first that is given decides the length


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text, and how it becomes batches.

    Args:
        corpus: "stories", "python-docs", a path, a glob, or "hf:<dataset>[:<split>[:<column>]]".
        validation: held-out text of your own, named as `corpus` is, or null. With one all of `corpus` is trained on.
        tokenizer: a `tokenizer.json` of your own, which is used as it is, or null: one is trained on the training text.
            It is byte-level, as GPT-2's, and on the command line the vocabulary's size is its own.
        vocab_size: tokens in the vocabulary, including the 256 bytes, `<pad>` and `<eos>`.
        max_length: tokens in a row.
        batching: how rows are made of documents; lesson 02 compares the four.
        val_fraction: share of the documents held out for validation.
        test_fraction: share of the documents kept for `course-lm evaluate`; the run never trains on them.
        num_workers: extra processes that prepare batches, for each loader; with 0 the run's own process does.
        pin_memory: copy batches from page-locked memory, while a step computes; no effect without an accelerator.
        cache: folder for the token ids of a text of more than 64 MiB; null is `course_lm` in `$XDG_CACHE_HOME` or
            `~/.cache`.
    """

    corpus: TextName = "python-docs"
    validation: TextName | None = None
    tokenizer: Annotated[str, Text("a file")] | None = None
    vocab_size: Annotated[int, Within(MIN_VOCAB_SIZE, MAX_VOCAB_SIZE)] = 2048
    max_length: Annotated[int, Within(2, LONGEST_ROW)] = 128  # a single token has no next
    batching: Literal["fixed", "dynamic", "bucketed", "packed"] = "packed"
    val_fraction: Annotated[float, Within(0, 1, "()")] = 0.1
    test_fraction: Annotated[float, Within(0, 1, "[)")] = 0.0
    num_workers: Annotated[int, Within(0, MOST_WORKERS)] = 0
    pin_memory: bool = True
    cache: Folder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        left = self.test_fraction < 1 - self.val_fraction
        require(left, "test_fraction", f"in [0, {1 - self.val_fraction:g}), beside the validation", self.test_fraction)

    def unread(self) -> dict[str, str]:
        """The fractions, beside a validation text: then nothing is split off."""
        return {} if self.validation is None else dict.fromkeys(("val_fraction", "test_fraction"), "validation")

    @property
    def fractions(self) -> tuple[float, float]:
        """Shares of the documents of `corpus` that are held out for validation and for the test part."""
        return (self.val_fraction, self.test_fraction) if self.validation is None else (0.0, 0.0)


@dataclass(frozen=True)
class LoopConfig(Section):
    """How the loop runs.

    Args:
        batch_size: rows in a micro-batch.
        gradient_accumulation_steps: micro-batches in an optimizer step.
        num_epochs: passes over the training text; ignored if `max_steps` or `time_budget` is given.
        max_steps: optimizer steps of the run, or null.
        time_budget: minutes that the whole run may take, or null. The run chooses `max_steps` to fit, and chooses again
            if the machine becomes slower or faster. Ignored if `max_steps` is given.
        lengths: written by a run with a `time_budget`, one [completed steps, steps of the run] for each decision; the
            last is `max_steps`, and the schedule was made for the first. Or null.
        max_grad_norm: largest global norm of the gradient, or null to leave the norm alone.
        max_grad_value: largest size of each number in the gradient, or null to leave them alone. If both are given, the
            numbers are clipped first, so that a few huge ones do not shrink all the others.
        precision: "auto" takes bf16 where the hardware multiplies it, else fp32.
        device: "auto" takes CUDA, then MPS, then the CPU.
        on_nonfinite: what a NaN or infinite gradient does: "raise" ends the run, "skip" drops the step and counts it.
        logging_steps: optimizer steps between log records.
        layer_statistics: optimizer steps between records of each weight matrix (its norm, its gradient's and its
            update's), or null for none.
        eval_steps: optimizer steps between validations; null validates after each epoch.
        eval_tokens: target tokens that a validation reads, of documents that `seed` draws, the same each time; null
            reads all held-out text. The default gives the loss to 0.003 (`stories`) or 0.009 nats (`python-docs`), one
            standard error, and the difference of two models on the same documents to 0.001 or 0.002: the last 40 to 60
            steps of a run gained 0.02 to 0.1. Texts of long documents need more.
        save_steps: optimizer steps between checkpoints.
        save_total_limit: how many of the files `checkpoint_step_*` and `checkpoint_epoch_*` are kept, or null for all.
        restore_best: give the model its best weights back when the run is over; without validation, the last ones.
        average_weights: decay of an exponential moving average of the weights over the steps (0.99 spans about 100),
            which is validated, kept as the best and exported; or null.
        early_stopping_patience: validations without improvement before the run stops, or null.
        early_stopping_threshold: by how many nats per token the loss must fall to count as an improvement.
        seed: fixes weights, dropout and the order of the data.
        deterministic: use only deterministic kernels; an operation that has none on the device is refused.
        compile: compile the model and its loss with `torch.compile`; "auto" does so on CUDA if the run is long enough
            to win back the minute or more that compiling takes.
        resume: "auto" continues from the newest checkpoint in the run's folder, "never" starts anew.
        output_dir: the run's folder is `<output_dir>/<experiment_name>`; null writes nothing.
        init_from: where the first weights of a new run come from: the folder of a run, an exported folder, its
            `model.safetensors`, a checkpoint or a file of `torch.save`; or null. On the command line the model's sizes
            and the tokenizer come from there too.
    """

    batch_size: Count = 32
    gradient_accumulation_steps: Count = 4
    num_epochs: Annotated[int, Within(1, MOST_EPOCHS)] = 10
    max_steps: Count | None = None
    time_budget: Annotated[float, Within(0, MOST_MINUTES, "(]")] | None = None
    lengths: list[list[int]] | None = None
    max_grad_norm: Positive | None = 1.0
    max_grad_value: Positive | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: Device = "auto"
    on_nonfinite: Literal["raise", "skip"] = "raise"
    logging_steps: Count = 10
    layer_statistics: Count | None = None
    eval_steps: Count | None = None
    eval_tokens: Count | None = 2**18
    save_steps: Count = 500
    save_total_limit: Count | None = 3
    restore_best: bool = False
    average_weights: Annotated[float, Within(0, 1, "()")] | None = None
    early_stopping_patience: Count | None = None
    early_stopping_threshold: NotNegative = 0.0
    seed: Annotated[int, Within(0, 2**32 - 1)] = 42  # NumPy takes no larger one
    deterministic: bool = True
    compile: bool | Literal["auto"] = "auto"
    resume: Literal["auto", "never"] = "auto"
    output_dir: Folder | None = "runs"
    init_from: Annotated[str, Text("a folder or a file")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = self.lengths
        if lengths is not None:
            accepted = (
                "null, or pairs such as [[0, 1000], [431, 1204]]: steps that rise from 0, each with a larger total"
            )
            pairs = bool(lengths) and all(len(pair) == 2 and pair[0] < pair[1] for pair in lengths)
            require(pairs and lengths[0][0] == 0, "lengths", accepted, lengths)
            require(all(one[0] < other[0] for one, other in pairwise(lengths)), "lengths", accepted, lengths)
            ends = f"null, or end with max_steps, which is {shown(self.max_steps)}"
            require(lengths[-1][1] == self.max_steps, "lengths", ends, lengths)

    @property
    def first_length(self) -> int | None:
        """The steps that a schedule, or a curriculum over steps, is made for."""
        return self.lengths[0][1] if self.lengths else self.max_steps

    @property
    def norm_bound(self) -> float | None:
        """What the gradients are clipped to by their norm: infinity where they are clipped by value alone."""
        alone = self.max_grad_norm is None and self.max_grad_value is not None
        return math.inf if alone else self.max_grad_norm

    @property
    def must_be_timed(self) -> bool:
        """Whether nobody knows yet how many steps `time_budget` makes."""
        return self.time_budget is not None and self.max_steps is None


@dataclass(frozen=True)
class TrainingConfig(Section):
    """Everything that decides a run.

    Args:
        experiment_name: names the run's folder.
    """

    # a path separator, of either system, would put the run's folder somewhere else
    experiment_name: Annotated[str, Text("a folder name", r"(?!\.{1,2}$)[^/\\\0]+")] = "my-lm"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lr_scheduler: ScheduleConfig = field(default_factory=ScheduleConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    training: LoopConfig = field(default_factory=LoopConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    tensorboard: TensorBoardConfig = field(default_factory=TensorBoardConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    @classmethod
    def from_yaml(cls, path: str | Path, base: "TrainingConfig | None" = None) -> "TrainingConfig":
        """Read a YAML file, or a shipped configuration by name; keys that it leaves out are those of `base`.

        base: by default the defaults of each section; on the command line a file is laid over the default job.

        Raises:
            FileNotFoundError: no such file and no shipped configuration of that name.
            ValueError: not YAML, an unknown key, or a bad value.
        """
        source = find_config(path)
        return (base or cls()).updated(read_yaml_file(source), str(source))

    def updated(self, tree: Any, source: str) -> "TrainingConfig":
        """This configuration with the values of `tree` in place of its own.

        Settings of the curriculum's strategy may stand beside the other keys of its section. A length of the run
        (`LENGTHS`) in the tree takes the place of any that this configuration has. `source` says in messages where the
        tree comes from.

        Raises:
            ValueError: names the source, the key, the value and what is accepted.
        """
        section = tree.get("curriculum") if isinstance(tree, Mapping) else None  # else `updated` refuses it
        try:
            if isinstance(section, Mapping) and section:
                tree = {**tree, "curriculum": gather_settings(section, self.curriculum, "curriculum.")}
            tree = _with_one_length(tree)
            return updated(self, tree)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    def to_yaml(self, path: str | Path) -> None:
        """Write the whole tree, so that `from_yaml(path)` gives this configuration again."""
        text = dump_yaml(dataclasses.asdict(self))
        with atomic_file(path) as file:  # half a configuration would start another run, from defaults
            file.write(text.encode())


def sections() -> dict[str, type]:
    """The dataclass of each section of the tree, by name."""
    return {name: type(part) for name, part in vars(TrainingConfig()).items() if dataclasses.is_dataclass(part)}


# What other tools call a key; one that is not here has the name that it has here.
OTHER_NAMES = {
    "data.max_length": "block_size max_seq_len max_seq_length",
    "model.n_layer": "n_layers num_hidden_layers num_layers",
    "optimizer.epsilon": "adam_epsilon eps",
    "optimizer.learning_rate": "lr max_lr",
    "training.batch_size": "per_device_train_batch_size train_batch_size",
    "training.early_stopping_patience": "patience",
    "training.gradient_accumulation_steps": "accumulate_grad_batches accumulation_steps",
    "training.max_grad_norm": "clip_grad_norm grad_clip gradient_clip_val gradient_clipping",
    "training.max_steps": "max_iters num_training_steps",
    "training.num_epochs": "epochs max_epochs num_train_epochs",
    "training.output_dir": "checkpoint_dir save_dir",
    "training.precision": "bf16 fp16 mixed_precision",
}
PLACES.update(name=["experiment_name"], run_name=["experiment_name"])
for _name, _kind in sections().items():
    for _key in get_type_hints(_kind):
        for _word in (_key, *OTHER_NAMES.get(f"{_name}.{_key}", "").split()):
            PLACES.setdefault(_word, []).append(f"{_name}.{_key}")


def _with_one_length(tree: Any) -> Any:
    """The tree; where it gives a length of the run, the lengths that would come before it are null unless it has them.

    So `--training.time_budget 4` is heeded over a file with `max_steps`, and `--training.num_epochs 3` over either.
    """
    section = tree.get("training") if isinstance(tree, Mapping) else None
    if not isinstance(section, Mapping) or all(section.get(key) is None for key in LENGTHS):
        return tree
    return {**tree, "training": {"max_steps": None, "time_budget": None, "lengths": None, **section}}


def shipped_configs() -> dict[str, Path]:
    """The files of the shipped configurations, by name."""
    entries = resources.files("course_lm").joinpath("configs").iterdir()
    return {path.stem: path for path in sorted(Path(str(entry)) for entry in entries)}


def find_config(name_or_path: str | Path) -> Path:
    """The file itself, or the shipped configuration of that name; FileNotFoundError for neither."""
    shipped = shipped_configs()
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    path = Path(name_or_path)
    if not path.is_file():
        hint = did_you_mean(path, shipped)
        raise FileNotFoundError(f"no configuration {path}: {hint}give a YAML file or one of {', '.join(shipped)}")
    return path
