"""What every adapter needs: an optimizer and its rates, the textbook loss, and silence."""

import logging
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from course_lm.audit.features import PACKED
from course_lm.audit.spec import Batches, Settings
from course_lm.forward import logits_of
from course_lm.optim import parameter_groups
from course_lm.reproducibility import generators_kept
from course_lm.validation import did_you_mean, ensure

Batch = Mapping[str, Any]
Loop = Callable[[nn.Module, Sequence[Batches], Settings], Mapping[str, Any]]
UNSCALED = ("loss_scale", "overflow_steps")  # trainers leave both to a CUDA scaler, which no run on the CPU has


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """torch's own optimizer as `settings` ask for it; decay is for matrices only. Its rate is 1, see `build_rates`."""
    groups = parameter_groups(model, settings.weight_decay)
    if settings.optimizer == "sgd":
        return SGD(groups, lr=1.0, momentum=settings.momentum)
    kind = {"adam": Adam, "adamw": AdamW}[settings.optimizer]
    return kind(groups, lr=1.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon)


def build_rates(optimizer: Optimizer, settings: Settings) -> LambdaLR:
    """The schedule of `settings` as torch has it: its factors are the rates, as the optimizer's own rate is 1."""
    return LambdaLR(optimizer, settings.schedule)


def logits_for(model: nn.Module, batch: Batch) -> Tensor:
    """The model's logits (B, T, V) for a batch."""
    packed = {name: batch[name] for name in PACKED if batch.get(name) is not None}
    return logits_of(model(batch["input_ids"], attention_mask=batch["attention_mask"], **packed))


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of a batch's own targets, in nats: what most loops call the loss."""
    logits = logits_for(model, batch)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def check_arguments(given: Mapping[str, Any], known: Collection[str], decided: Collection[str], owner: str) -> None:
    """Raise ValueError for an argument that `owner` does not know, or that the audit itself decides."""
    for name in given:
        ensure(name in known, f"{owner} has no argument {name}; {did_you_mean(name, list(known))}".rstrip("; "))
        ensure(name not in decided, f"{name} is decided by each run of the audit: leave it out of {owner}'s arguments")


@contextmanager
def silence(*loggers: str) -> Iterator[None]:
    """Let a library run without a word, then put back what it changes for the whole process.

    That is the environment, the levels of these loggers, and the global random generators, which trainers seed.
    """
    levels = {name: logging.getLogger(name).level for name in loggers}
    environment = dict(os.environ)
    with warnings.catch_warnings(), generators_kept():
        warnings.simplefilter("ignore")
        for name in loggers:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            os.environ.clear()
            os.environ.update(environment)
