"""The `distributed` section of a run's configuration."""

from dataclasses import dataclass
from typing import Annotated, Literal

from course_lm.validation import Section, Within, require

STRATEGIES = ("ddp", "fsdp", "hybrid")


@dataclass(frozen=True)
class DistributedConfig(Section):
    """How the ranks of a run share its work; one process alone reads none of it.

    Args:
        strategy: "ddp" keeps the whole model on each rank, "fsdp" a part of it, "hybrid" a part within each group of
            `shard_size` ranks; "auto" is "ddp".
        shard_size: for "hybrid": ranks that hold one model together; it divides the number of ranks.
        checkpoint: "full" writes one file that any number of ranks reads, "sharded" one part for each rank beside it.
        timeout_seconds: how long a rank waits for another before it ends the run.
    """

    strategy: Literal["auto", "ddp", "fsdp", "hybrid"] = "auto"
    shard_size: Annotated[int, Within(2)] | None = None
    checkpoint: Literal["full", "sharded"] = "full"
    timeout_seconds: Annotated[float, Within(0, 10**9, "(]")] = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        hybrid = self.strategy == "hybrid"
        accepted = 'given for strategy "hybrid"' if hybrid else f'null for strategy "{self.strategy}"'
        require(hybrid is (self.shard_size is not None), "shard_size", accepted, self.shard_size)

    def strategy_for(self, ranks: int) -> str | None:
        """The strategy for this number of ranks, None for one; ValueError where `shard_size` does not divide it."""
        if ranks == 1:
            return None
        size = self.shard_size
        if size is not None and ranks % size:
            raise ValueError(f"distributed.shard_size must divide the number of ranks, {ranks}, got {size}")
        if size == ranks:
            return "fsdp"
        return "ddp" if self.strategy == "auto" else self.strategy
