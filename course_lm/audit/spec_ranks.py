"""What a run on several ranks leaves if it has a mistake that one process cannot have.

A rank makes each of its steps of its own `accumulation_steps` micro-batches: rank r of W reads the micro-batches
r, r + W, … of an epoch. Right ranks leave what one process leaves that accumulates W times as many micro-batches, so
`spec.train` is their specification too. What is here is W runs of it in lockstep, for the faults alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lm.audit.spec import Batches, BatchLoss, Run, Settings

FAULTS: Mapping[str, str] = {
    "rank_means": "each rank divides by its own targets, and ranks weigh the same however many targets each one holds",
    "ranks_added_up": "gradients of the ranks are added up where their mean is due: too long by the number of ranks",
    "ranks_averaged_twice": "gradients of the ranks are averaged where their sum is due: too short by their number",
    "clip_before_average": "each rank clips its own gradient, and the ranks average what is left",
    "clip_before_sum": "each rank clips its own share of the gradient, and the ranks add up what is left",
    "gradients_not_averaged": "the ranks do not average their gradients: each steps by its own, and they drift apart",
    "gradients_not_summed": "the ranks do not add up their shares of the gradient: each steps by its own",
    "ranks_read_all": "each rank reads all micro-batches of an epoch, not a share of them",
    "ranks_read_the_same_share": "every rank reads the share of rank 0",
    "rank_tail_dropped": "an epoch's last micro-batches are left out where there is not one for each rank",
    "rank_tail_filled": "ranks that find no micro-batch at an epoch's end read its first ones again",
    "rank_skips_alone": "a rank whose own gradient is not finite makes no step; the others step without it",
    "schedule_per_rank": "the schedule advances once for each rank at each step: the rate moves as many times as fast",
    "same_seed_on_every_rank": "all ranks draw the same random numbers: dropout masks the same places on each",
}
_CLIPPED_EARLY = {"clip_before_average", "clip_before_sum"}


def train(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, world: int, faults: Collection[str] = frozenset()
) -> list[dict[str, Tensor]]:
    """Train float64 copies of `model` on `world` ranks; return the weights of each.

    `faults` are of `FAULTS` here and of `spec.FAULTS`. There is no validation. The fault `same_seed_on_every_rank`
    changes nothing, as nothing here is random.
    """
    size = settings.accumulation_steps * world  # micro-batches of a window, those of all ranks
    own = replace(settings, accumulation_steps=size, validation=())
    if "schedule_per_rank" in faults:
        own = replace(own, schedule=lambda k: settings.schedule(k * world))
    ranks = [_Rank.before(model, epochs, own, faults) for _ in range(world)]
    if "ranks_read_all" in faults:
        size //= world
    window: list[Mapping[str, Any]] = []
    for number, batches in enumerate(epochs):
        for rank in ranks:
            rank.begin_epoch(number)
        for batch in _read(batches, world, faults):
            window.append(batch)
            if len(window) == size:
                _make_step(ranks, window, faults)
                window = []
        if window and (number == len(epochs) - 1 or "windows_across_epochs" not in faults):
            _make_step(ranks, window, faults)
            window = []
    return [rank.copied_weights() for rank in ranks]


def _read(batches: Batches, world: int, faults: Collection[str]) -> Batches:
    """The epoch as the ranks share it out; with two faults they make all shares as long."""
    missing = -len(batches) % world
    if "rank_tail_dropped" in faults and missing:
        return batches[: len(batches) - world + missing]
    if "rank_tail_filled" in faults:
        return [*batches, *batches[:missing]]
    return batches


def _make_step(ranks: "Sequence[_Rank]", window: Batches, faults: Collection[str]) -> None:
    """Let each rank read its share of the window, exchange gradients with the others, and make its step."""
    world = len(ranks)
    for place, rank in enumerate(ranks):
        first = 0 if "ranks_read_the_same_share" in faults else place
        share = window if "ranks_read_all" in faults else window[first::world]
        rank.own = [rank.loss(batch) for batch in share]
    whole = [each for rank in ranks for each in rank.own]
    for rank in ranks:  # all gradients before any update
        rank.compute_share(whole, world)
    for rank in ranks:
        rank.received = rank.exchange(ranks)
    for rank in ranks:
        rank.micro_batches += len(rank.own) - len(whole)  # `step` adds the whole window, a rank counts its own
        rank.window = whole
        rank.close_window()


@dataclass
class _Rank(Run):
    own: list[BatchLoss] = field(default_factory=list)
    whole: list[BatchLoss] = field(default_factory=list)
    share: dict[str, Tensor] = field(default_factory=dict)  # of the window's gradient
    received: dict[str, Tensor] = field(default_factory=dict)
    world: int = 1

    def compute_share(self, whole: list[BatchLoss], world: int) -> None:
        """Find this rank's share of the gradient; the shares of all ranks add up to that of the whole window."""
        self.whole, self.world = whole, world
        before = self.gradients()  # left there only by faults
        self.model.zero_grad()
        super().accumulate(self.own)
        self.share = self.gradients()
        if _CLIPPED_EARLY & set(self.faults):
            times = world if "clip_before_average" in self.faults else 1
            for gradient in self.share.values():
                gradient *= times
            super().clip(self.scale)
            for gradient in self.share.values():
                gradient /= times
        for name, weight in self.parameters.items():
            weight.grad = before.get(name)

    def divisor(self, micro_batch: BatchLoss, window: Sequence[BatchLoss]) -> float:
        """Return what the token losses of a micro-batch are divided by: the targets of all ranks."""
        if "rank_means" in self.faults:
            return super().divisor(micro_batch, window) * self.world
        return super().divisor(micro_batch, self.whole)

    def exchange(self, ranks: "Sequence[_Rank]") -> dict[str, Tensor]:
        """Return the gradient that this rank has once the ranks have exchanged their shares."""
        times = 1.0
        if "ranks_added_up" in self.faults:
            times *= self.world
        if "ranks_averaged_twice" in self.faults:
            times /= self.world
        if "gradients_not_averaged" in self.faults:
            ranks, times = [self], times * self.world
        if "gradients_not_summed" in self.faults:
            ranks = [self]
        shares = [rank.share for rank in ranks if "rank_skips_alone" not in self.faults or rank.is_finite()]
        names = {name for share in shares for name in share}
        return {name: times * torch.stack([one[name] for one in shares if name in one]).sum(0) for name in names}

    def is_finite(self) -> bool:
        """Whether this rank's share of the gradient is finite."""
        return all(bool(gradient.isfinite().all()) for gradient in self.share.values())

    def accumulate(self, window: Sequence[BatchLoss]) -> float:
        """Take what the ranks have exchanged for the gradient."""
        for name, gradient in self.received.items():
            held = self.parameters[name].grad
            self.parameters[name].grad = gradient if held is None else held + gradient
        return 0.0  # of the loss nothing is asked

    def clip(self, scale: float = 1.0) -> None:
        """Clip as one process does, if no rank has clipped before."""
        if not _CLIPPED_EARLY & set(self.faults):
            super().clip(scale)

    def may_step(self, overflow: bool, loss: float) -> bool:
        """Say whether the gradient may reach the optimizer."""
        if "rank_skips_alone" in self.faults and not self.is_finite():
            return False
        return super().may_step(overflow, loss)
