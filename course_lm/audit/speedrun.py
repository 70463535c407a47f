"""How near a training loop comes to the floor of the stories, within a budget of counted FLOPs.

The stories were drawn from a known distribution: what that itself pays for the held-out ones is the floor of the loss,
and a loop is measured by the nats that its model pays above it. FLOPs are torch's count of matrix products, forward,
backward and the optimizer's. They do not depend on how fast the machine is; seconds are measured beside them. The rules
are in docs/speedrun.md.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lm.audit.examine import require_callable
from course_lm.audit.play import Loop, kept_running, told
from course_lm.batching import AnyBatch, make_loader
from course_lm.corpus import load_corpus
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.profiling.work import flop_counter
from course_lm.reproducibility import seed_everything
from course_lm.tokenizer import encode_documents, train_tokenizer
from course_lm.validation import ensure, require_whole

BUDGET = 10**12
VOCAB_SIZE, MODEL = 1024, ModelConfig(n_layer=2, n_head=4, d_model=96, dropout=0.0)  # those of lesson 00
OUTSIDE = 0.01  # share of the FLOPs that may be computed outside of the audited loop
AHEAD = 20_000  # batches that an entry may read without a FLOP: the budget ends by training alone


@dataclass(frozen=True)
class Budget:
    """The FLOPs of an entry, counted as it spends them."""

    flops: int
    counter: FlopCounterMode = field(default_factory=flop_counter)

    @property
    def spent(self) -> int:
        """FLOPs so far."""
        return self.counter.get_total_flops()

    @property
    def progress(self) -> float:
        """The share that is spent, from 0 to 1: what a schedule can follow, whatever a step costs."""
        return min(1.0, self.spent / self.flops)


class Task:
    """What all entries share: the stories, their tokens, and the floor.

    Attributes:
        floor: nats per target token that the true distribution pays for the held-out stories.
    """

    def __init__(self) -> None:
        train, held_out = load_corpus("stories").split(val_fraction=0.1)
        self.documents, self.tokenizer = train.documents, train_tokenizer(train.documents, VOCAB_SIZE)
        rows, held_out_rows = (encode_documents(self.tokenizer, part.documents) for part in (train, held_out))
        self.max_length = max(map(len, rows + held_out_rows))
        assert held_out.neg_log_p is not None
        self.floor = sum(held_out.neg_log_p) / sum(len(row) - 1 for row in held_out_rows)
        self._held_out = make_loader(
            held_out.documents, self.tokenizer, mode="bucketed", batch_size=32, max_length=self.max_length
        )

    def new_model(self) -> GPT:
        """A model whose weights are drawn with the global random numbers, as the run's seed has set them."""
        return GPT(MODEL, VOCAB_SIZE, self.max_length)

    def batches(self, batch_size: int, mode: str, seed: int, budget: Budget) -> Iterator[AnyBatch]:
        """Batches of training stories, epoch after epoch, until the budget is spent."""
        loader = make_loader(
            self.documents, self.tokenizer, mode=mode, batch_size=batch_size, max_length=self.max_length, seed=seed
        )
        for epoch in count():
            loader.set_epoch(epoch)
            for batch in loader:
                if budget.progress == 1.0:
                    return
                yield batch

    def above_floor(self, model: nn.Module) -> float:
        """Nats per held-out token that the model pays more than the true distribution."""
        return evaluate(model, self._held_out)["val_loss"] - self.floor


@dataclass(frozen=True)
class Result:
    """What an entry has reached.

    Attributes:
        flops: all that it has spent. outside: those of them that the audited loop did not.
        above_floor: nats per held-out token, less the floor.
    """

    flops: int
    outside: int
    seconds: float
    above_floor: float


Entry = Callable[[Callable[[], nn.Module], Callable[..., Iterator[AnyBatch]], Budget], object]


def run_entry(entry: Entry, *, seed: int = 0, flops: int = BUDGET) -> Result:
    """Train by `entry` within a budget, and measure its model on stories that it never gets.

    Args:
        entry: called as `entry(new_model, batches, budget)`; it trains the model of `new_model()` on
            `batches(batch_size, mode)` by its module's `loop(model, epochs, settings)`, which is what is audited, and
            returns it.

    Raises:
        ValueError: the entry takes other arguments, its module has no such `loop`, it raises or leaves the process,
            reads more than `AHEAD` batches without a FLOP, returns no model, spends no FLOPs or more than the budget
            and one step, computes more than `OUTSIDE` of them outside of the loop, or has a loss that is not finite.
    """
    require_whole("seed", seed, least=0)
    require_whole("flops", flops, least=1)
    loop, task, budget = loop_of(entry), Task(), Budget(flops)
    inside = largest = ahead = 0

    def counted(*arguments: Any, **named: Any) -> object:
        nonlocal inside
        before = budget.spent
        try:
            return loop(*arguments, **named)
        finally:
            inside += budget.spent - before

    def batches(batch_size: int, mode: str = "bucketed") -> Iterator[AnyBatch]:
        nonlocal largest, ahead
        for batch in task.batches(batch_size, mode, seed, budget):
            ensure(ahead < AHEAD, f"{AHEAD:,} batches were read and no FLOP spent: they end with the budget alone")
            before, ahead = budget.spent, ahead + 1
            try:
                yield batch
            finally:
                if budget.spent > before:
                    largest, ahead = max(largest, budget.spent - before), 0

    seed_everything(seed)
    names, began = entry.__globals__, time.perf_counter()  # type: ignore[attr-defined]  # a function, says `loop_of`
    names["loop"] = counted
    try:
        with budget.counter:
            model = _called("the entry", entry, task.new_model, batches, budget)
    finally:
        names["loop"] = loop
    seconds, spent = time.perf_counter() - began, budget.spent
    if not isinstance(model, nn.Module):
        raise ValueError(f"an entry must return the trained model, got {type(model).__name__}")
    most = flops + largest  # a step is not broken off
    ensure(spent <= most, f"the entry spent {spent:,} FLOPs, more than the budget of {flops:,} and a step")
    outside = spent - inside
    ensure(outside <= OUTSIDE * spent, f"the entry spent {outside:,} of {spent:,} FLOPs outside of its audited loop")
    ensure(spent > 0, "the entry spent no FLOPs in its loop; torch counts none of another thread")
    above_floor = _called("the entry's model", task.above_floor, model)
    ensure(math.isfinite(above_floor), f"the model's loss on the held-out stories must be finite, got {above_floor}")
    return Result(spent, outside, seconds, above_floor)


def _called(who: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns; ValueError, with file and line, for whatever it raises, an exit among them."""
    try:
        with kept_running():
            return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"{who} raised {told(error)}") from error


def loop_of(entry: Entry) -> Loop:
    """The `loop` of the module that an entry is in; ValueError where there is none, or for another kind of entry."""
    loop: Any = getattr(entry, "__globals__", {}).get("loop")
    ensure(callable(loop), "an entry needs loop(model, epochs, settings) beside it in its file, which is audited")
    require_callable(entry, "new_model, batches, budget")
    return loop
