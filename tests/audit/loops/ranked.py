"""Loops on several ranks: by hand, under DDP and by this package, right or with faults of ranks."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.conformance.adapters import ours
from course_lm.accumulation import windows
from course_lm.audit.spec import Batches, Settings

from .plain import Plain


class ByHand(Plain):
    """The gradient of a rank's share is of the sum of its token losses over the targets of all; all are added up."""

    def __init__(self, model: nn.Module, settings: Settings, faults: Collection[str] = ()) -> None:
        super().__init__(model, settings)
        self.faults = frozenset(faults)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.bare = model

    def train(self, epochs: Sequence[Batches]) -> None:
        if "same_seed_on_every_rank" in self.faults:
            torch.manual_seed(0)
        alone = "ranks_read_all" in self.faults
        stride = 1 if alone else self.world
        begin = 0 if alone or "ranks_read_the_same_share" in self.faults else self.rank
        for batches in epochs:
            for window in windows(self.evened(batches), self.settings.accumulation_steps * stride):
                self.run_window(window[begin::stride])

    def evened(self, batches: Batches) -> Batches:
        """The epoch as a sampler gives it that makes all shares as long; without the faults as it is."""
        missing = -len(batches) % self.world
        if "rank_tail_dropped" in self.faults:
            return batches[: len(batches) // self.world * self.world]
        return [*batches, *batches[:missing]] if "rank_tail_filled" in self.faults else batches

    def run_window(self, window: Batches) -> None:
        tokens = torch.tensor(float(self.count(*window)))
        dist.all_reduce(tokens)
        if not tokens:
            return
        divisor = self.count(*window) * self.world if "rank_means" in self.faults else float(tokens)
        self.backward(window, divisor)
        alone = "rank_skips_alone" in self.faults and not all(bool(g.isfinite().all()) for g in self.gradients())
        if alone:
            for gradient in self.gradients():
                gradient.zero_()
        self.exchange()
        self.clip_whole()
        if not alone and self.may_step(overflow=False):
            self.set_rates()
            self.step()
            self.steps += 1
        self.optimizer.zero_grad()

    def backward(self, window: Batches, divisor: float) -> None:
        for batch in window:
            (self.loss_sum(batch) / divisor).backward()

    def exchange(self) -> None:
        self.scale({"clip_before_average": self.world, "gradients_not_averaged": self.world})
        if {"clip_before_average", "clip_before_sum"} & self.faults:
            self.clip()
        if not {"gradients_not_averaged", "gradients_not_summed"} & self.faults:
            for p in self.parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
        factors = {"ranks_added_up": self.world, "ranks_averaged_twice": 1 / self.world}
        self.scale({"clip_before_average": 1 / self.world, **factors})

    def scale(self, factors: dict[str, float]) -> None:
        for gradient in self.gradients():
            for name in self.faults & factors.keys():
                gradient *= factors[name]

    def clip_whole(self) -> None:
        if not {"clip_before_average", "clip_before_sum"} & self.faults:
            self.clip()

    def rate(self) -> float:
        return self.settings.schedule(self.steps * (self.world if "schedule_per_rank" in self.faults else 1))


class ByDDP(ByHand):
    """DDP averages the gradients, so a rank's share is multiplied by the ranks' number."""

    def __init__(self, model: nn.Module, settings: Settings, faults: Collection[str] = ()) -> None:
        super().__init__(model, settings, faults)
        self.model: Any = DistributedDataParallel(model)
        self.empty = {"input_ids": torch.tensor([[2, 2]]), "labels": torch.tensor([[-100, -100]])}

    def backward(self, window: Batches, divisor: float) -> None:
        batches = list(window) or [self.empty]  # a rank without a micro-batch takes part
        for place, batch in enumerate(batches):
            quiet = self.model.no_sync() if place + 1 < len(batches) else nullcontext()
            with quiet:
                (self.loss_sum(batch) / divisor * self.world).backward()

    def exchange(self) -> None:
        self.scale({"ranks_averaged_twice": 1 / self.world})


def by_hand(model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = ()) -> None:
    ByHand(model, settings, faults).train(epochs)


def by_ddp(model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = ()) -> None:
    ByDDP(model, settings, faults).train(epochs)


def by_trainer(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> None:
    """`Trainer`, whose accumulation counts the micro-batches of all ranks."""
    ours.loop(model, epochs, replace(settings, accumulation_steps=settings.accumulation_steps * dist.get_world_size()))
