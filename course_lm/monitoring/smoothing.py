"""A curve that the eye can follow through the noise of single batches."""

import math
from collections.abc import Sequence

from course_lm.validation import is_number


def smooth(values: Sequence[float], smoothing: float) -> list[float]:
    """Exponential moving average of `values`, in which the past weighs `smoothing` in [0, 1).

    The average starts at 0, and each point is divided by the weight gathered so far (Kingma & Ba 2015, section 3), so
    that the curve starts at the first value. It looks back only, so a trend shows up smoothing / (1 - smoothing) points
    late.

    A value that is not finite shows as nan at its own point, and leaves the average as it was.

    Raises ValueError for a `smoothing` outside [0, 1).
    """
    if not (is_number(smoothing) and 0 <= smoothing < 1):
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}")
    mean = weight = 0.0
    curve = []
    for value in values:
        if not math.isfinite(value):
            curve.append(math.nan)
            continue
        mean = smoothing * mean + (1 - smoothing) * value
        weight = smoothing * weight + (1 - smoothing)  # 1 - smoothing^n after n values
        curve.append(mean / weight)
    return curve
