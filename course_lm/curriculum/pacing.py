"""How much of the text a curriculum admits: the threshold on difficulty, as training goes on.

All schedules but one are pure functions of the progress p in [0, 1], so nothing can be lost when a run is resumed. The
threshold never falls: it rises from `start` at p = 0 to `end` at p = 1.

    linear        start + p (end - start)
    root          sqrt(start² + p (end² - start²))     Platanios et al. 2019
    exponential   start (end / start)^p                Penha & Hauff 2020, "geom"
    step          jumps at given times
    none          1 from the start

The exception, `FeedbackThreshold`, listens to the validation loss; its state belongs in checkpoints.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from course_lm.curriculum.settings import CurriculumConfig
from course_lm.validation import require

Schedule = Callable[[float], float]


def linear(progress: float, *, start: float, end: float) -> float:
    """The same number of hundredths for each stretch of progress."""
    return _between((1 - progress) * start + progress * end, start, end)  # exact at both ends


def root(progress: float, *, start: float, end: float) -> float:
    """Fast at first. On the quantile and over steps, each new example has the same time before the next ones join.

    Over epochs, which read all that is admitted once, `linear` does that.

    Source: Platanios et al. 2019, "Competence-based curriculum learning", there with 1 as the end.
    """
    return _between(math.sqrt((1 - progress) * start**2 + progress * end**2), start, end)


def exponential(progress: float, *, start: float, end: float) -> float:
    """Slow at first: the same factor for each stretch of progress. ValueError where `start` is 0: it would never rise.

    Source: Penha & Hauff 2020, "Curriculum learning strategies for IR", where it is called geom.
    """
    require(start > 0, "start", "above 0 for an exponential schedule", start)
    return _between(start ** (1 - progress) * end**progress, start, end)


def step(time: float, *, start: float, times: Sequence[float], thresholds: Sequence[float]) -> float:
    """`start` before `times[0]`, then `thresholds[i]` from `times[i]` on."""
    # The index is the number of jumps made so far.
    return [start, *thresholds][sum(time >= jump for jump in times)]


SHAPES = {"linear": linear, "root": root, "exponential": exponential, "geom": exponential}


def build_pacing(config: CurriculumConfig) -> Schedule:
    """The threshold as a function of time, in epochs, or in optimizer steps where `config.num_steps` is given.

    For "performance", which is no function of time, it is the end threshold: an upper bound.
    """
    start, end = config.start_threshold, config.end_threshold
    if config.schedule in SHAPES:
        shape, warmup, total = SHAPES[config.schedule], config.warmup, config.total
        return lambda time: shape(progress_at(time, warmup=warmup, total=total), start=start, end=end)
    if config.schedule == "step":
        times, thresholds = config.jumps
        return lambda time: step(time, start=start, times=times, thresholds=thresholds)
    return lambda time: 1.0 if config.schedule == "none" else end


def progress_at(time: float, *, warmup: float, total: float) -> float:
    """Progress after `time` epochs, or optimizer steps: 0 up to `warmup`, 1 from `total` on, linear in between."""
    return min(1.0, max(0.0, (time - warmup) / (total - warmup)))


class FeedbackThreshold:
    """A threshold that follows the validation loss: better, and it rises by `rate`; worse, and it falls by `rate`.

    "Better" is below the mean of the last `window` finite losses reported before. The first report only sets that mean;
    a loss that is NaN or infinite counts as worse. The threshold stays within [low, high] and starts at `low`.
    """

    def __init__(self, *, low: float, high: float, rate: float, window: int) -> None:
        self.low, self.high, self.rate = low, high, rate
        self.threshold = low
        self.losses: deque[float] = deque(maxlen=window)

    def report(self, val_loss: float) -> None:
        """Take the loss of one validation, nats per token."""
        if self.losses:
            better = val_loss < sum(self.losses) / len(self.losses)  # False for NaN
            moved = self.threshold + (self.rate if better else -self.rate)
            self.threshold = _between(moved, self.low, self.high)
        # One NaN would make the mean NaN, and no loss is better than that.
        if math.isfinite(val_loss):
            self.losses.append(val_loss)

    def state_dict(self) -> dict[str, Any]:
        """The threshold and the losses it is compared with."""
        return {"threshold": self.threshold, "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.threshold = state["threshold"]
        self.losses = deque(state["losses"], maxlen=self.losses.maxlen)  # the window is a setting, not state


def _between(value: float, low: float, high: float) -> float:
    return min(high, max(low, value))
