"""A loop on several ranks: processes of their own, the runs that they make, and what they should leave."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from course_lm.audit import spec, spec_ranks
from course_lm.audit.model import POISONED_GRADIENT
from course_lm.audit.outcome import Outcome, Precision, flat
from course_lm.audit.play import Loop, Play, Player, Trouble
from course_lm.audit.runs import Batch, Case, Moving, Rows, adam, sgd, without_targets
from course_lm.audit.search import STEPS, Noting, Specification
from course_lm.reproducibility import seed_generators
from course_lm.validation import import_extra, one_line

SEED = "same_seed_on_every_rank"
START_SECONDS = 120.0  # for the first optimizer of each process, which imports torch._dynamo


def ladder_of_ranks(seed: int, world: int) -> list[Case]:
    """The runs in their order: those that leave a rank without a micro-batch come last, as many loops hang there."""
    return [Case(name, *about, seed=seed) for name, about in _runs(Rows(seed), world).items()]


def _runs(rows: Rows, world: int) -> Mapping[str, tuple[Any, ...]]:
    def batches(number: int) -> list[Batch]:
        return [rows.batch(length) for length in islice(cycle((9, 3, 5, 8, 4, 7, 6)), number)]

    moving, decayed = sgd(schedule=Moving(0.5)), adam(schedule=Moving(0.05), weight_decay=0.5)
    idle = [without_targets(batch) if place == 1 else batch for place, batch in enumerate(batches(2 * world))]
    poisoned = batches(4 * world)
    poisoned[2 * world - 1] = rows.poisoned(POISONED_GRADIENT, 5)
    skips = replace(moving, momentum=0.5, on_nonfinite="skip")
    clipped = sgd(2.0, accumulation_steps=2, max_grad_norm=0.05)
    two, two_epochs = 2 * world, [batches(2 * world), batches(2 * world)]
    alike, uneven_ends = [rows.batch(6) for _ in range(world)], [batches(two + 1), batches(two + 1)]
    all_on = replace(decayed, accumulation_steps=2, max_grad_norm=0.7)
    return {
        "a micro-batch on each rank, all alike in length": ("data", "C3", [alike], sgd()),
        "a micro-batch on each rank, of unequal tokens": ("accumulation", "C3", [batches(world)], sgd()),
        "three steps of the ranks": ("data", "C10", [batches(3 * world)], sgd()),
        "two epochs of the ranks": ("data", "C10", two_epochs, sgd()),
        "two micro-batches on each rank": ("accumulation", "C3", [batches(2 * two)], sgd(accumulation_steps=2)),
        "gradients of the ranks that are clipped": ("clipping", "C6", [batches(2 * two)], clipped),
        "some gradients of the ranks that are clipped": ("clipping", "C6", [batches(2 * two)], sgd(max_grad_norm=0.9)),
        "rates that move on the ranks": ("schedule", "C8", two_epochs, moving),
        "AdamW on the ranks": ("optimizer", "C9", two_epochs, decayed),
        "a rank without a target": ("accumulation", "C3", [idle], sgd()),
        "a gradient of one rank that is not finite, to be skipped": ("finite", "C7", [poisoned], skips),
        "all features on the ranks": ("optimizer", "C10", [batches(2 * two), batches(two)], all_on),
        "an end that leaves ranks without a micro-batch": ("accumulation", "C4", uneven_ends, sgd()),
        "a tail that is shorter on some ranks": ("accumulation", "C4", [batches(3 * world + 1)], all_on),
    }


class RankSpecification(Specification):
    """What each rank should leave: what one process leaves that accumulates the micro-batches of all."""

    steps = (*STEPS, *((name,) for name in spec_ranks.FAULTS))
    seen: Mapping[str, str] = {SEED: "the model drew the same random number on two ranks"}

    def __init__(self, world: int) -> None:
        super().__init__()
        self.processes = world

    def _left(self, case: Case, model: nn.Module, names: list[str], faults: Noting) -> Outcome:
        faults.asked.update(spec.FAULTS, spec_ranks.FAULTS)  # a run without a fault asks for none
        if faults:
            weights = spec_ranks.train(model, case.epochs, case.settings, self.processes, faults)
        else:
            size = case.settings.accumulation_steps * self.processes
            settings = replace(case.settings, accumulation_steps=size)
            weights = [spec.train(model, case.epochs, settings).weights] * self.processes
        return Outcome(torch.cat([flat(one, names) for one in weights]), seen=frozenset({SEED}) & faults)


class RankPlayer(Player):
    """Lets one loop make runs on several ranks, in processes that end with the player."""

    def __init__(self, loop: Loop, precision: Precision, timeout: float, world: int) -> None:
        import_extra("cloudpickle", "lab")
        from course_lm.use.ranks import Ranks

        super().__init__(loop, precision, timeout)
        self.ranks = Ranks(world, timeout_seconds=timeout)

    def __enter__(self) -> Self:
        """Start the processes, of whose seconds none is a loop's."""
        self.ranks.run(_warm_up, timeout_seconds=START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.ranks.close()

    def play(self, case: Case, watch: Callable[[nn.Module], None] | None = None) -> Play:
        """One run, from seeds that differ from rank to rank.

        Raises:
            Trouble: a rank raises, does not end in time, or leaves what cannot be compared.
            ValueError: the loop cannot be sent to another process.
        """
        try:
            made = self.ranks.run(_play_on_rank, self.loop, self.precision, case)
        except (TimeoutError, RuntimeError) as error:
            raise Trouble(one_line(error).replace("Trouble: ", "", 1)) from error
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the loop cannot be sent to another process: {one_line(error)}") from error
        plays = [play for play, _ in made]
        drawn = [number for _, numbers in made for number in numbers]
        weights = torch.cat([play.outcome.weights for play in plays])
        seen = frozenset({SEED} if len(set(drawn)) < len(drawn) else ())
        return replace(plays[0], outcome=Outcome(weights, seen=seen))


def _warm_up() -> None:
    SGD([torch.zeros(1)])


def _play_on_rank(loop: Loop, precision: Precision, case: Case) -> tuple[Play, set[float]]:
    """On a rank: what the loop leaves there, and the random numbers that its model drew."""
    drawn: list[float] = []

    def seeded(model: nn.Module, epochs: Any, settings: spec.Settings) -> Any:
        seed_generators(case.seed + 1 + dist.get_rank())
        return loop(model, epochs, settings)

    play = Player(seeded, precision, math.inf).play(case, lambda model: watch_draws(model, drawn))
    if play.outcome.refused:
        raise Trouble(play.said)
    return play, set(drawn)


def watch_draws(model: nn.Module, drawn: list[float]) -> None:
    """Let the model draw a random number in each forward pass in train mode, as dropout does, and note it."""

    def draw(module: nn.Module, _: object) -> None:
        if module.training:
            drawn.append(torch.rand((), dtype=torch.float64).item())

    model.get_submodule("mode").register_forward_pre_hook(draw)
