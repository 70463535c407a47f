"""What the ranks of a run must have in common; where they have not, all of them refuse.

Ranks that read other data, hold other models or take another number of steps would go on without a word: their numbers
are added up whatever they are.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.batching import AnyBatch
from course_lm.batching.data import digest_of, fingerprint_of, length_of
from course_lm.config import TrainingConfig
from course_lm.distributed import Group, check_same_batches
from course_lm.shards import map_tensors
from course_lm.validation import one_line


def check_parameters(optimizer: Optimizer, model: nn.Module, group: Group) -> None:
    """Refuse trained parameters outside the model, such as weights of the loss: nobody exchanges their gradients."""
    own = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(parameter) not in own for part in optimizer.param_groups for parameter in part["params"])
    if group.world > 1 and foreign:
        raise ValueError(
            f"the optimizer holds {foreign} parameters that are not the model's, whose gradients no rank exchanges: "
            "put weights of the loss into the model; build an optimizer after fully_shard, not before"
        )


def check_same_run_on_all(config: TrainingConfig, model: nn.Module, loaders: Iterable[Any], group: Group) -> None:
    """Refuse ranks that were given other configurations, models or data; ValueError on each of them."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    data = [(fingerprint_of(loader), length_of(loader)) for loader in loaders]
    for what, value in (("configuration", asdict(config)), ("model", shapes), ("data", data)):
        if group.largest(group.tell(value) != value):
            raise ValueError(f"the ranks must be given the same {what}, got another on some than on rank 0")


def own_of_ranks(own: dict[str, Any], group: Group) -> dict[str, Any] | list[Any]:
    """What the parts of a run keep beside, see `OwnState`: by ranks where they differ, such as means of their losses.

    A collective call.
    """
    every = group.gather(map_tensors(own, lambda one: one.detach().cpu())) if group.world > 1 else [own]
    return own if len(set(map(digest_of, every))) == 1 else every


def own_of_rank(saved: dict[str, Any] | list[Any], group: Group) -> dict[str, Any]:
    """What this rank's parts kept; warns where it must take what those of rank 0 did."""
    if isinstance(saved, dict):
        return saved
    if len(saved) == group.world and None not in saved:
        return saved[group.rank]
    names = one_line(", ".join(dict.fromkeys(name for one in saved for name in one or ())))
    warnings.warn(
        f"each rank that saved the checkpoint may have had its own {names}: all go on with what rank 0 had",
        stacklevel=2,
    )
    return saved[0]


def in_step(windows: Iterable[list[AnyBatch]], group: Group) -> Iterator[list[AnyBatch]]:
    """The windows, as long as every rank has one.

    Raises:
        ValueError: the first window of a rank is not that of rank 0, or it has come to its end before another.
    """
    first, reader = True, iter(windows)
    while True:
        window = next(reader, None)
        if group.world > 1:
            some_end, some_go_on = group.largest(window is None), group.largest(window is not None)
            if some_end and some_go_on:
                has = "no more data" if window is None else "more data"
                raise ValueError(f"the ranks must read the same batches, got {has} on rank {group.rank} than on others")
        if window is None:
            return
        if first:
            check_same_batches(window, group)
        first = False
        yield window


class BufferWatch:
    """The model's buffers before the first step of several ranks, which none of them may change.

    Running means, as those of a BatchNorm, would be those of a rank's own micro-batches.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        watched = model.named_buffers() if group.world > 1 else ()
        self._before: dict[str, Tensor] = {name: buffer.clone() for name, buffer in watched}

    def check(self, model: nn.Module) -> None:
        """Raise ValueError where the step has changed one; only the first step is looked at."""
        before, self._before = self._before, {}
        for name, buffer in model.named_buffers():
            if name in before and not torch.equal(before[name], buffer):
                raise ValueError(
                    "the model must not change its buffers with several ranks, which would each have their own, got a "
                    f"change of {name}: take a layer without running statistics, or train in one process"
                )
