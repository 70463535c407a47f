"""A short run with all that makes going on hard: dropout, accumulation with a tail, shuffled batches, early stopping.

`start` begins it, or goes on with it, in a folder. `counting` makes a loss that calls an act with the number of
micro-batches so far; `interrupt_at` and `crash_at` are acts, and `stop_and_go_on` stops a run and goes on with it.
`outcome` reads from the folder what must not depend on where the run was stopped, and `assert_same` compares two
outcomes bit for bit.
"""

import json
import math
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lm.batching import Batch, Loader, make_loader
from course_lm.checkpoints import load_checkpoint
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer

VOCABULARY, LENGTH = 262, 16
ANIMALS, PLACES = ("cat", "dog", "little cow", "very old horse"), ("mat", "hat", "sun", "road", "old bed", "green hill")
DOCUMENTS = [f"the {animal} sat on a {place}" for animal in ANIMALS for place in PLACES]
TOKENIZER = train_tokenizer(DOCUMENTS, VOCABULARY)
MEASURED = ("tokens_per_second", "peak_memory_bytes", "budget")
NAME = "toy"

Loss = Callable[..., Tensor]
Act = Callable[[int], None]


def loaders(mode: str, documents: int = len(DOCUMENTS)) -> tuple[Loader, Loader]:
    """Fresh training and validation data."""

    def loader(texts: list[str], shuffle: bool) -> Loader:
        return make_loader(texts, TOKENIZER, mode=mode, batch_size=4, max_length=LENGTH, seed=7, shuffle=shuffle)

    return loader(DOCUMENTS[:documents], True), loader(DOCUMENTS[-4:], False)


def model_of(length: int = LENGTH, dtype: torch.dtype = torch.float32) -> GPT:
    """The model with its first weights, the same every time; dropout needs the random numbers of the right step."""
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.2), VOCABULARY, length).to(dtype)


def configure(folder: Path | str, learning_rate: float = 3e-3, **training: Any) -> TrainingConfig:
    """Three micro-batches a step; a record, a checkpoint or a validation after almost every one."""
    values: dict[str, Any] = {
        "gradient_accumulation_steps": 3,
        "num_epochs": 2,
        "precision": "fp32",
        "device": "cpu",
        "logging_steps": 2,
        "save_steps": 2,
        "save_total_limit": 2,
        "early_stopping_patience": 10_000,
        "output_dir": str(folder),
    }
    return TrainingConfig(
        experiment_name=NAME,
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        training=LoopConfig(**{**values, **training}),
    )


def start(
    config: TrainingConfig, train: Iterable[Batch], validation: Loader, loss_fn: Loss = next_token_loss
) -> Trainer:
    """Train, or go on training, with a model and a trainer built anew."""
    trainer = Trainer(model_of(), config, loss_fn=loss_fn)
    trainer.train(train, validation)
    return trainer


def outcome(folder: Path) -> dict[str, Any]:
    """Every checkpoint, record and setting that a finished run left in its folder, but for speed and memory."""
    run = folder / NAME
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {
        "checkpoints": {
            path.name: without_measures(load_checkpoint(path)) for path in sorted(run.glob("checkpoint_*.safetensors"))
        },
        "lines": without_measures([json.loads(line) for line in lines]),
        "config": without_folder((run / "config.yaml").read_text()),
        "files": sorted(path.name for path in run.iterdir() if not path.name.startswith(".")),
    }


def without_measures(value: Any) -> Any:
    """A copy without speed, memory and the name of the output folder: what a machine measures, or a test chooses."""
    if isinstance(value, dict):
        if isinstance(value.get("history"), Tensor):  # as a checkpoint has it
            value = {**value, "history": [json.loads(line) for line in bytes(value["history"].numpy()).splitlines()]}
        return {key: without_measures(part) for key, part in value.items() if key not in (*MEASURED, "output_dir")}
    if isinstance(value, list):
        return [without_measures(part) for part in value]
    return value


def without_folder(text: str) -> list[str]:
    return [line for line in text.splitlines() if "output_dir" not in line]


def assert_same(mine: Any, other: Any, where: str = "run") -> None:
    """Equal bit for bit, all the way down; says where not."""
    if isinstance(mine, Tensor):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), where
        assert torch.equal(bytes_of(mine), bytes_of(other)), where
    elif isinstance(mine, dict):
        assert list(mine) == list(other), f"{where}: {list(mine)} against {list(other)}"
        for key in mine:
            assert_same(mine[key], other[key], f"{where}.{key}")
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(other), f"{where}: {mine} against {other}"
        for index, (a, b) in enumerate(zip(mine, other)):
            assert_same(a, b, f"{where}[{index}]")
    else:
        both_nan = isinstance(mine, float) and math.isnan(mine) and math.isnan(other)
        assert mine == other or both_nan, f"{where}: {mine!r} against {other!r}"


def bytes_of(tensor: Tensor) -> Tensor:
    """Bytes, because NaN is not equal to itself."""
    return tensor.cpu().reshape(-1).view(torch.uint8)


def counting(act: Act, loss_fn: Loss = next_token_loss) -> Loss:
    """The loss; `act` is called with the number of micro-batches so far.

    Without gradients the loss is only asked whether it sums.
    """
    counted = Counted(loss_fn)
    counted.count, counted.act = 0, act
    return counted


class Counted(partial):
    """A loss with an act beside it, which to a run is the loss itself: what stops a run is no part of it."""

    count: int
    act: Act

    def __call__(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        if torch.is_grad_enabled():
            self.count += 1
            self.act(self.count)
        return super().__call__(logits, labels, reduction=reduction)


class Crash(BaseException):
    """Stands for a process that dies: no error, after which a run would save."""


def quiet(count: int) -> None:
    """Leave the run alone."""


def interrupt_at(micro_batch: int, number: int = signal.SIGINT) -> Act:
    """Send this process a signal, once."""

    def act(count: int) -> None:
        if count == micro_batch:
            os.kill(os.getpid(), number)

    return act


def crash_at(micro_batch: int) -> Act:
    """Raise Crash, once."""

    def act(count: int) -> None:
        if count == micro_batch:
            raise Crash

    return act


def stop_and_go_on(
    run: Callable[[Act], Trainer],
    micro_batch: int,
    number: int = signal.SIGINT,
    check_stopped: Callable[[Trainer], None] = lambda trainer: None,
) -> Trainer:
    """Stop the run by a signal in the step of this micro-batch, and go on to its end.

    `run` trains, or goes on training, with everything built anew and a loss that is `counting` the act.
    """
    stopped = run(interrupt_at(micro_batch, number))
    assert stopped.interrupted == number
    check_stopped(stopped)
    resumed = run(quiet)
    assert resumed.interrupted is None
    return resumed
