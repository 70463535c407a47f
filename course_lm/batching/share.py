"""Which batches of a window one of several ranks computes."""

from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Share:
    """Rank `rank` of `world` computes batches `rank`, `rank + world`, … of each window of `window` batches.

    A window is one optimizer step. Where a window has no batch for a rank, the rank reads its first one: it takes part
    in the step with an empty batch of the same form.
    """

    rank: int = 0
    world: int = 1
    window: int = 1

    def needs(self, index: int, length: int) -> bool:
        """Whether this rank reads batch `index` of an epoch of `length` batches."""
        place = index % self.window
        size = min(self.window, length - (index - place))  # the last window of an epoch may be shorter
        return place % self.world == self.rank or (place == 0 and self.rank >= size)

    def of_epoch(self, batches: list[_T], start: int = 0) -> list[_T | None]:
        """The batches from `start` on, with None in place of each that this rank does not read."""
        length = len(batches)
        return [batches[index] if self.needs(index, length) else None for index in range(start, length)]


EVERYTHING = Share()
