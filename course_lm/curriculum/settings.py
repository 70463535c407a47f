"""What can be set: the strategies' settings, and the `curriculum` section of a run's configuration."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from course_lm.validation import require, require_choice

BASES = ("length", "frequency", "morphological", "combined", "random")
Settings = TypeVar("Settings")


@dataclass(frozen=True)
class LengthSettings:
    """Words at which the score is 0 and 1; None takes the shortest and the longest of the examples."""

    min_length: int | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        low, high = self.min_length, self.max_length
        require(low is None or low >= 0, "min_length", "at least 0, or null", low)
        require(high is None or high > (low or 0), "max_length", f"above min_length ({low or 0}), or null", high)


@dataclass(frozen=True)
class FrequencySettings:
    """Where words are counted: a list of texts, the name or path of a corpus, or None for the examples themselves."""

    reference: Sequence[str] | str | None = None


@dataclass(frozen=True)
class MorphologicalSettings:
    """What weighs how much; only the proportions count."""

    case_weight: float = 0.4
    length_weight: float = 0.2
    verb_weight: float = 0.2
    compound_weight: float = 0.2

    def __post_init__(self) -> None:
        _require_weights(self)


@dataclass(frozen=True)
class CombinedSettings:
    """What weighs how much (only the proportions count), and the settings of the three under their names."""

    morphological_weight: float = 0.5
    length_weight: float = 0.25
    frequency_weight: float = 0.25
    morphological: Mapping[str, Any] = field(default_factory=dict)
    length: Mapping[str, Any] = field(default_factory=dict)
    frequency: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_weights(self)
        for name in ("morphological", "length", "frequency"):
            read_settings(SETTINGS[name], getattr(self, name), name)


@dataclass(frozen=True)
class DynamicSettings:
    """How a threshold follows the validation loss, and the strategy that scores, with its settings under its name."""

    base_strategy: str = "combined"
    adaptation_rate: float = 0.1
    min_threshold: float = 0.2
    max_threshold: float = 1.0
    performance_window: int = 3
    length: Mapping[str, Any] = field(default_factory=dict)
    frequency: Mapping[str, Any] = field(default_factory=dict)
    morphological: Mapping[str, Any] = field(default_factory=dict)
    combined: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.base_strategy in BASES, "base_strategy", f"one of {', '.join(BASES)}", self.base_strategy)
        require(0 < self.adaptation_rate <= 1, "adaptation_rate", "in (0, 1]", self.adaptation_rate)
        low, high = self.min_threshold, self.max_threshold
        require(0 <= low <= 1, "min_threshold", "in [0, 1]", low)
        require(low <= high <= 1, "max_threshold", f"in [min_threshold ({low}), 1]", high)
        require(self.performance_window >= 1, "performance_window", "at least 1", self.performance_window)
        for name in BASES:
            read_settings(SETTINGS[name], getattr(self, name), name)


@dataclass(frozen=True)
class RandomSettings:
    """Another seed gives other scores."""

    seed: int = 0


SETTINGS: dict[str, type] = {
    "length": LengthSettings,
    "frequency": FrequencySettings,
    "morphological": MorphologicalSettings,
    "combined": CombinedSettings,
    "dynamic": DynamicSettings,
    "random": RandomSettings,
}


@dataclass(frozen=True)
class CurriculumConfig:
    """Which examples a run trains on at first, and how the others join them.

    Thresholds hold at the start of an epoch and until its end. Time counts in epochs, or in optimizer steps where
    `num_steps` is given.

    Args:
        enabled: false trains on everything, shuffled, from the first epoch on.
        strategy: how difficulty is measured; "random" is the control.
        settings: of the strategy, such as {min_length: 3} for "length".
        schedule: how the threshold rises; "none" admits everything.
        start_threshold: admitted at first, in [0, 1].
        end_threshold: admitted at last, in [start_threshold, 1].
        num_epochs: epochs until `end_threshold` is reached: the first epoch with all examples has this number.
        warmup_epochs: epochs at `start_threshold`, among those of `num_epochs`.
        num_steps: optimizer steps until `end_threshold`, in place of `num_epochs`; or null.
        warmup_steps: optimizer steps at `start_threshold`, where `num_steps` is given.
        step_epochs: for "step": when the threshold jumps, in epochs or steps; null means thirds of the time.
        step_thresholds: for "step": to what it jumps; null means even jumps to `end_threshold`.
        adaptation_rate: for schedule "performance" and strategy "dynamic": what a validation moves the threshold by.
        performance_window: for these two: over how many validations the loss that it is compared with is averaged.
        threshold_on: "score" admits examples whose difficulty is at most the threshold; "quantile" admits that share
            of the examples, the easiest ones.
    """

    enabled: bool = False
    strategy: Literal["length", "frequency", "morphological", "combined", "dynamic", "random"] = "combined"
    settings: dict[str, Any] = field(default_factory=dict)
    schedule: Literal["linear", "root", "exponential", "geom", "step", "performance", "none"] = "linear"
    start_threshold: float = 0.2
    end_threshold: float = 1.0
    num_epochs: int = 10
    warmup_epochs: int = 2
    num_steps: int | None = None
    warmup_steps: int = 0
    step_epochs: list[float] | None = None
    step_thresholds: list[float] | None = None
    adaptation_rate: float = 0.1
    performance_window: int = 3
    threshold_on: Literal["score", "quantile"] = "score"

    def __post_init__(self) -> None:
        for key in ("strategy", "schedule", "threshold_on"):
            require_choice(self, key)
        start, end = self.start_threshold, self.end_threshold
        require(0 <= start <= 1, "start_threshold", "in [0, 1]", start)
        require(start <= end <= 1, "end_threshold", f"in [start_threshold ({start}), 1]", end)
        exponential = self.schedule in ("exponential", "geom")
        require(start > 0 or not exponential, "start_threshold", f"above 0 for schedule {self.schedule}", start)
        require(self.num_epochs >= 1, "num_epochs", "at least 1", self.num_epochs)
        require(self.num_steps is None or self.num_steps >= 1, "num_steps", "at least 1, or null", self.num_steps)
        unit = "epochs" if self.num_steps is None else "steps"
        require(0 <= self.warmup < self.total, f"warmup_{unit}", f"in [0, num_{unit} ({self.total}))", self.warmup)
        require(0 < self.adaptation_rate <= 1, "adaptation_rate", "in (0, 1]", self.adaptation_rate)
        require(self.performance_window >= 1, "performance_window", "at least 1", self.performance_window)
        self._check_jumps()
        read_settings(SETTINGS[self.strategy], self.settings, self.strategy)

    @property
    def warmup(self) -> int:
        """Epochs, or steps, at `start_threshold`."""
        return self.warmup_epochs if self.num_steps is None else self.warmup_steps

    @property
    def total(self) -> int:
        """Epochs, or steps, until `end_threshold`."""
        return self.num_epochs if self.num_steps is None else self.num_steps

    @property
    def jumps(self) -> tuple[list[float], list[float]]:
        """Times and thresholds of the step schedule."""
        number = len(self.step_epochs or self.step_thresholds or [0] * 3)
        shares = [(i + 1) / number for i in range(number)]
        times = [self.warmup + share * (self.total - self.warmup) for share in shares]
        start, end = self.start_threshold, self.end_threshold
        thresholds = [max(start, min(end, (1 - share) * start + share * end)) for share in shares]
        return self.step_epochs or times, self.step_thresholds or thresholds

    def _check_jumps(self) -> None:
        times, thresholds = self.jumps
        rising = sorted(set(times)) == list(times) and min(times) >= 0
        require(rising, "step_epochs", "rising numbers of at least 0", self.step_epochs)
        levels = [self.start_threshold, *thresholds, self.end_threshold]
        accepted = f"numbers in [start_threshold ({self.start_threshold}), end_threshold], none below the one before"
        require(levels == sorted(levels), "step_thresholds", accepted, self.step_thresholds)
        accepted = f"{len(times)} numbers, as many as step_epochs has"
        require(len(times) == len(thresholds), "step_thresholds", accepted, self.step_thresholds)


def read_settings(kind: type[Settings], config: Mapping[str, Any] | None, where: str) -> Settings:
    """A settings dataclass from a plain dict; ValueError names the key, the value and what is accepted."""
    config = {} if config is None else config
    require(isinstance(config, Mapping), f"the settings of {where}", "keys and values", config)
    accepted = {part.name: part.type for part in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key, value in config.items():
        if key not in accepted:
            close = difflib.get_close_matches(str(key), accepted, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"{where}: unknown key {key}; {hint}accepted: {', '.join(accepted)}")
        require(_fits(value, accepted[key]), f"{where}: {key}", _readable(accepted[key]), value)
    try:
        return kind(**config)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _fits(value: object, hint: Any) -> bool:
    kinds = [get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
    kinds += [int] if float in kinds else []
    return isinstance(value, tuple(kinds)) and not isinstance(value, bool)


def _readable(hint: Any) -> str:
    return "of type " + (hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", ""))


def _require_weights(settings: Any) -> None:
    weights = {part.name: getattr(settings, part.name) for part in dataclasses.fields(settings)}
    weights = {name: value for name, value in weights.items() if name.endswith("_weight")}
    for name, value in weights.items():
        require(value >= 0 and math.isfinite(value), name, "a number of at least 0", value)
    require(sum(weights.values()) > 0, "the sum of the weights", "above 0", 0)
