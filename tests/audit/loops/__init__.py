"""Training loops that share nothing with the specification: what the audit is tried on.

`textbook`, `trainer`, `functional`: one loop in three styles, each with the specification's faults as switches.
`outside`: loops with one mistake that is not among those faults. `right`: right loops in other guises.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from torch import nn

from course_lm.audit.spec import Batches, Settings

from . import functional, textbook, trainer


class Style(Protocol):
    def __call__(
        self, model: nn.Module, epochs: Sequence[Batches], settings: Settings, faults: Collection[str] = frozenset()
    ) -> dict[str, Any]: ...


STYLES: dict[str, Style] = {"textbook": textbook.train, "trainer": trainer.train, "functional": functional.train}
