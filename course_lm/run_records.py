"""The records of a run, wherever they come from: a run in memory, or the files in its folder. Loads no torch."""

import math
from typing import Any

Record = dict[str, Any]


class RunRecords:
    """What is asked of the records of a run; a subclass has them as `records`, in order."""

    records: list[Record]

    @property
    def train(self) -> list[Record]:
        """The records of training steps."""
        return [record for record in self.records if record["event"] == "train"]

    @property
    def validation(self) -> list[Record]:
        """The records of validations."""
        return [record for record in self.records if record["event"] == "validation"]

    @property
    def best(self) -> Record | None:
        """The first validation record with the lowest val_loss (never a NaN), or None."""
        measured = (record for record in self.validation if not math.isnan(record["val_loss"]))
        return min(measured, key=lambda record: record["val_loss"], default=None)
