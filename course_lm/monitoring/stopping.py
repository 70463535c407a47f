"""When to stop early."""

import math
from collections.abc import Iterable

from course_lm.validation import is_number, require, require_whole


def is_out_of_patience(losses: Iterable[float], patience: int | None, threshold: float) -> bool:
    """Whether a run with these validation losses, in order, is to stop; never without a `patience`."""
    if patience is None:
        return False
    stopper = EarlyStopping(patience, threshold)
    for loss in losses:
        stopper.update(loss)
    return stopper.should_stop


class EarlyStopping:
    """Stop after `patience` values in a row that do not improve on the best by more than `min_delta`.

    patience: a number of validations, at least 1. min_delta: in the units of the value, at least 0. Lower is
    better. NaN is no improvement. Raises ValueError for numbers outside these ranges.
    """

    def __init__(self, patience: int, min_delta: float = 0.0) -> None:
        require_whole("patience", patience, least=1)
        require(is_number(min_delta) and 0.0 <= min_delta < math.inf, "min_delta", "in [0, inf)", min_delta)
        self.patience, self.min_delta = patience, min_delta
        self.best = math.inf
        self.bad_values = 0

    def update(self, value: float) -> bool:
        """Take the next value and return whether it is an improvement."""
        improved = value < self.best - self.min_delta
        if improved:
            self.best, self.bad_values = value, 0
        else:
            self.bad_values += 1
        return improved

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out."""
        return self.bad_values >= self.patience
