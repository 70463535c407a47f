"""A run that is over, opened from its folder: what `generate`, `evaluate` and `export` read."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from course_lm.checkpoints import load_weights, saved_step
from course_lm.config import TrainingConfig
from course_lm.model import GPT
from course_lm.reproducibility import resolve_device
from course_lm.run_records import CONFIG, TOKENIZER
from course_lm.tokenizer import bytes_per_token, load_tokenizer
from course_lm.trainer.init_from import WEIGHTS, check_made_for
from course_lm.use.run_folder import find_run
from course_lm.validation import ensure, one_line


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder and what stands in it; the model is in eval mode, on the CPU."""

    folder: Path
    config: TrainingConfig
    tokenizer: Tokenizer
    model: GPT


def open_run(name: str) -> FinishedRun:
    """The run in the folder `name`, or in the folder of that name where runs are kept by default.

    Warns where the run has gone on since its weights were exported.

    Raises:
        ValueError: there is no such folder, or it holds no finished run, or what it holds does not fit together; one
            line says what is missing and what to do.
        OSError: a file that cannot be read.
    """
    folder = find_run(name)
    config = TrainingConfig.from_yaml(folder / CONFIG)
    for file in (TOKENIZER, WEIGHTS):
        if not (folder / file).is_file():
            raise ValueError(f"the run in {folder} is not finished: it has no {file}; {_how_to_finish(folder)}")
    tokenizer = load_tokenizer(folder / TOKENIZER)
    size = len(bytes_per_token(tokenizer))
    fits = size == config.data.vocab_size
    ensure(fits, f"{folder / TOKENIZER} has {size} tokens, {CONFIG} beside it says {config.data.vocab_size}")
    model = GPT(config.model, config.data.vocab_size, config.data.max_length)
    try:
        load_weights(model, load_file(folder / WEIGHTS))
        check_made_for(folder / WEIGHTS, model)
    except (SafetensorError, ValueError) as error:
        reason = f"{folder / WEIGHTS} cannot be used: {one_line(error)}"
        raise ValueError(f"{reason}; {_how_to_finish(folder)}") from error
    _warn_of_newer_checkpoint(folder)
    return FinishedRun(folder, config, tokenizer, model.eval())


def device_for(config: TrainingConfig) -> torch.device:
    """The device of the run's configuration, or the best one where this machine has none of that kind."""
    try:
        return resolve_device(config.training.device)
    except ValueError:
        return resolve_device("auto")


def fingerprints_of(folder: Path) -> dict[str, str | None]:
    """Those of the training and the validation text, by the last checkpoint's header; none where it cannot be read."""
    try:
        with safe_open(folder / "checkpoint_last.safetensors", "pt") as file:
            state = json.loads(file.metadata()["state"])
            return {"train": state["data"]["fingerprint"], "validation": state.get("held_out")}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return {}


def _how_to_finish(folder: Path) -> str:
    place = folder.resolve()  # which may have been moved since
    command = f"course-lm train --config {folder / CONFIG} --experiment_name {place.name}"
    command += f" --training.output_dir {place.parent}"
    if any(folder.glob("checkpoint_*.safetensors")):
        return f"`{command}` goes on from its checkpoint and writes it"
    return f"`{command}` trains it"


def _warn_of_newer_checkpoint(folder: Path) -> None:
    with safe_open(folder / WEIGHTS, "pt") as file:
        exported = (file.metadata() or {}).get("step", "")
    steps = {path.name: saved_step(path) or 0 for path in sorted(folder.glob("checkpoint_*.safetensors"))}
    newest = max(steps, key=lambda name: steps[name], default=None)
    if newest is not None and exported.isdigit() and steps[newest] > int(exported):
        warnings.warn(
            f"the run in {folder} has gone on since its weights were exported: {newest} is of step {steps[newest]:,}, "
            f"{WEIGHTS}, which is written when the run ends, of step {int(exported):,}",
            stacklevel=3,
        )
