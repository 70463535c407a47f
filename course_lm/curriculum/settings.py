"""What can be set: the strategies' settings, and the `curriculum` section of a run's configuration."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from course_lm.validation import Count, NotNegative, Section, Within, check_keys, require, require_kind, shown, updated

BaseStrategy = Literal["length", "frequency", "morphological", "combined", "random"]
BOTH = ("adaptation_rate", "performance_window")  # keys of the section and of the strategy "dynamic"
EPOCHS_WITHOUT_A_RUN = 10  # in place of null, until `for_run` knows the run
Share = Annotated[float, Within(0, 1)]
Rate = Annotated[float, Within(0, 1, "(]")]
Time = Annotated[int, Within(0)]  # in epochs or steps


@dataclass(frozen=True)
class LengthSettings(Section):
    """The numbers of words that score 0 and 1.

    Args:
        min_length: words of an example that scores 0; null takes those of the shortest example.
        max_length: words of an example that scores 1; null takes those of the longest example.
    """

    min_length: Annotated[int, Within(0)] | None = None
    max_length: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.min_length, self.max_length
        require(high is None or high > (low or 0), "max_length", f"above min_length ({low or 0}), or null", high)


@dataclass(frozen=True)
class FrequencySettings(Section):
    """Where words are counted.

    Args:
        reference: a list of texts, the name or path of a corpus, or null for the examples themselves.
    """

    reference: list[str] | str | None = None


class Weighted(Section):
    """Settings with weights among them, of which the proportions matter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Finite weights may add up to inf.
        total = sum(value for key, value in vars(self).items() if key.endswith("_weight"))
        require(0 < total < math.inf, "the sum of the weights", "above 0 and finite", total)


@dataclass(frozen=True)
class MorphologicalSettings(Weighted):
    """The weights of the counts; only their proportions matter.

    Args:
        case_weight: weight of the case markers.
        length_weight: weight of the number of words.
        verb_weight: weight of the verbs and of their inflections.
        compound_weight: weight of the compound verbs.
    """

    case_weight: NotNegative = 0.4
    length_weight: NotNegative = 0.2
    verb_weight: NotNegative = 0.2
    compound_weight: NotNegative = 0.2


@dataclass(frozen=True)
class CombinedSettings(Weighted):
    """The weights of three scores, whose proportions alone matter, and the settings of each strategy under its name.

    Args:
        morphological_weight: weight of the score of "morphological".
        length_weight: weight of the score of "length".
        frequency_weight: weight of the score of "frequency".
        morphological: settings of "morphological".
        length: settings of "length".
        frequency: settings of "frequency".
    """

    morphological_weight: NotNegative = 0.5
    length_weight: NotNegative = 0.25
    frequency_weight: NotNegative = 0.25
    morphological: MorphologicalSettings = field(default_factory=MorphologicalSettings)
    length: LengthSettings = field(default_factory=LengthSettings)
    frequency: FrequencySettings = field(default_factory=FrequencySettings)


@dataclass(frozen=True)
class RandomSettings(Section):
    """The control.

    Args:
        seed: fixes the scores.
    """

    seed: int = 0


@dataclass(frozen=True)
class DynamicSettings(Section):
    """How a threshold follows the validation loss, and the strategy that scores, with its settings under its name.

    Args:
        base_strategy: the strategy that scores.
        adaptation_rate: what a validation moves the threshold by.
        min_threshold: the lowest threshold, which holds at first.
        max_threshold: the highest threshold.
        performance_window: over how many validations the loss that a new one is compared with is averaged.
        length: settings of "length".
        frequency: settings of "frequency".
        morphological: settings of "morphological".
        combined: settings of "combined".
        random: settings of "random".
    """

    base_strategy: BaseStrategy = "combined"
    adaptation_rate: Rate = 0.1
    min_threshold: Share = 0.2
    max_threshold: Share = 1.0
    performance_window: Count = 3
    length: LengthSettings = field(default_factory=LengthSettings)
    frequency: FrequencySettings = field(default_factory=FrequencySettings)
    morphological: MorphologicalSettings = field(default_factory=MorphologicalSettings)
    combined: CombinedSettings = field(default_factory=CombinedSettings)
    random: RandomSettings = field(default_factory=RandomSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.min_threshold, self.max_threshold
        require(low <= high, "max_threshold", f"in [min_threshold ({low}), 1]", high)

    def unread(self) -> dict[str, str]:
        """The settings of the strategies that do not score."""
        base = self.base_strategy
        return {name: f"base_strategy {base}" for name in get_args(BaseStrategy) if name != base}


# Every strategy that a configuration may name, and its settings; `difficulty.STRATEGIES` says how each scores.
SETTINGS: dict[str, type[Section]] = {
    "length": LengthSettings,
    "frequency": FrequencySettings,
    "morphological": MorphologicalSettings,
    "combined": CombinedSettings,
    "random": RandomSettings,
    "dynamic": DynamicSettings,
}

if TYPE_CHECKING:
    StrategyName = str  # a type checker cannot read a dict's keys
else:
    StrategyName = Literal[tuple(SETTINGS)]


def keys_of(section: type[Section]) -> list[str]:
    """The keys that a dataclass of settings has."""
    return [part.name for part in dataclasses.fields(section)]


KEYS = {strategy: keys_of(kind) for strategy, kind in SETTINGS.items()}
# Which strategies have a key: for the refusal of a key under a strategy that does not have it.
OWNERS = {key: [strategy for strategy in KEYS if key in KEYS[strategy]] for keys in KEYS.values() for key in keys}


@dataclass(frozen=True)
class CurriculumConfig(Section):
    """Which examples a run trains on at first, and how the others join them.

    Thresholds hold at the start of an epoch and until its end. Time counts in epochs, or in optimizer steps where
    `num_steps` is given. By its defaults a curriculum takes half of the run, however long that is, so that every run of
    two epochs or more trains on all examples: see `for_run`. In YAML the settings of the strategy may stand beside the
    other keys: {strategy: length, max_length: 40} is {strategy: length, settings: {max_length: 40}}.

    Args:
        enabled: false trains on all examples, shuffled, from the first epoch on; if it is left out, any other key of
            this section switches the curriculum on.
        strategy: how difficulty is measured; "random" is the control.
        settings: what the strategy takes, such as {min_length: 3} for "length".
        schedule: how the threshold rises; "none" admits everything.
        start_threshold: the threshold at first, in [0, 1].
        end_threshold: the threshold at last, in [start_threshold, 1].
        num_epochs: epochs until `end_threshold` is reached: the first epoch with all examples has this number. Null
            takes half of the run's epochs, rounded up; in a run of `max_steps` it takes half of these as `num_steps`.
        warmup_epochs: epochs at `start_threshold`, among those of `num_epochs`; null takes a fifth of them.
        num_steps: optimizer steps until `end_threshold`, in place of `num_epochs`; or null.
        warmup_steps: optimizer steps at `start_threshold`, where steps are counted.
        step_epochs: for "step": when the threshold jumps, in epochs or steps; null means thirds of the time.
        step_thresholds: for "step": to what it jumps; null means even jumps to `end_threshold`.
        adaptation_rate: for schedule "performance" and strategy "dynamic": how far a validation moves the threshold.
        performance_window: for these two: a loss is compared with the mean of so many validations.
        threshold_on: "score" admits examples whose difficulty is at most the threshold; "quantile" admits that share
            of the examples, the easiest ones.
    """

    enabled: bool | None = None
    strategy: StrategyName = "combined"
    settings: dict[str, Any] = field(default_factory=dict)
    schedule: Literal["linear", "root", "exponential", "geom", "step", "performance", "none"] = "linear"
    start_threshold: Share = 0.2
    end_threshold: Share = 1.0
    num_epochs: Count | None = None
    warmup_epochs: Time | None = None
    num_steps: Count | None = None
    warmup_steps: Time = 0
    step_epochs: list[NotNegative] | None = None
    step_thresholds: list[Share] | None = None
    adaptation_rate: Rate = 0.1
    performance_window: Count = 3
    threshold_on: Literal["score", "quantile"] = "score"

    def __post_init__(self) -> None:
        super().__post_init__()
        start, end = self.start_threshold, self.end_threshold
        require(start <= end, "end_threshold", f"in [start_threshold ({start}), 1]", end)
        exponential = self.schedule in ("exponential", "geom")
        require(start > 0 or not exponential, "start_threshold", f"above 0 for schedule {self.schedule}", start)
        self._check_warmup()
        self._check_jumps()
        # Read, so that a bad setting is refused with the rest of the configuration and not when the strategy is built.
        read_settings(self.strategy, self.settings)
        self._check_given_once()

    def unread(self) -> dict[str, str]:
        """The keys that this schedule and strategy do not look at; "none" looks at none, as its name says."""
        schedule, times = f"schedule {self.schedule}", ("num_epochs", "warmup_epochs", "warmup_steps")
        jumps, listens = self.schedule == "step", self.schedule == "performance"
        rules = [
            (listens, (*times, "num_steps"), schedule),
            (not jumps, ("step_epochs", "step_thresholds"), schedule),
            (jumps and self.step_epochs is not None, times, "step_epochs"),
            (self.num_steps is not None, times[:2], "num_steps"),
            (not listens and self.strategy != "dynamic", BOTH, f"{schedule} and strategy {self.strategy}"),
        ]
        return {key: why for holds, keys, why in rules if holds for key in keys}

    @property
    def strategy_settings(self) -> dict[str, Any]:
        """The settings that the strategy is built from: `settings`, and the keys that it shares with this section."""
        return {key: getattr(self, key) for key in BOTH if key in KEYS[self.strategy]} | self.settings

    @property
    def warmup(self) -> int:
        """Epochs, or steps, at `start_threshold`."""
        if self.num_steps is not None:
            return self.warmup_steps
        return self.total // 5 if self.warmup_epochs is None else self.warmup_epochs

    @property
    def total(self) -> int:
        """Epochs, or steps, until `end_threshold`.

        Where both are null (`for_run` replaces them), it is ten epochs, or one more than the warm-up if that is more.
        """
        waiting = max(EPOCHS_WITHOUT_A_RUN, (self.warmup_epochs or 0) + 1)
        return self.num_steps or self.num_epochs or waiting

    def for_run(self, num_epochs: int, max_steps: int | None) -> "CurriculumConfig":
        """This configuration with numbers for null, for a run of so many epochs or, where given, optimizer steps.

        Raises ValueError where the warm-up leaves no time in half of the run, or counts epochs in a run of steps.
        """
        if self.num_epochs is not None or "num_epochs" in self.unread():
            return self
        if max_steps is None:
            half, warmup = -(-num_epochs // 2), self.warmup_epochs or 0
            accepted = f"below half of the run's {num_epochs} epochs, or given with num_epochs"
            require(warmup < half, "warmup_epochs", accepted, warmup)
            return dataclasses.replace(self, num_epochs=half)
        accepted = "given with num_epochs in a run of max_steps (or give warmup_steps)"
        require(self.warmup_epochs is None, "warmup_epochs", accepted, self.warmup_epochs)
        half = max(1, max_steps // 2)
        accepted = f"below half of the run's {max_steps} steps, or given with num_steps"
        require(self.warmup_steps < half, "warmup_steps", accepted, self.warmup_steps)
        return dataclasses.replace(self, num_steps=half)

    @property
    def jumps(self) -> tuple[list[float], list[float]]:
        """Times and thresholds of the step schedule."""
        number = len(self.step_epochs or self.step_thresholds or [0] * 3)
        shares = [(i + 1) / number for i in range(number)]
        times = [self.warmup + share * (self.total - self.warmup) for share in shares]
        start, end = self.start_threshold, self.end_threshold
        # Rounding must not carry a jump past its bounds.
        thresholds = [max(start, min(end, (1 - share) * start + share * end)) for share in shares]
        return self.step_epochs or times, self.step_thresholds or thresholds

    def _check_warmup(self) -> None:
        """Check the warm-up against the time that is known; where that is null, `for_run` checks it against the run."""
        unit = "epochs" if self.num_steps is None else "steps"
        require(self.warmup < self.total, f"warmup_{unit}", f"in [0, num_{unit} ({self.total}))", self.warmup)
        unread = self.warmup_steps > 0 and self.num_epochs is not None and self.num_steps is None
        require(not unread, "warmup_steps", "given with num_steps, not with num_epochs", self.warmup_steps)

    def _check_jumps(self) -> None:
        for key, values in (("step_epochs", self.step_epochs), ("step_thresholds", self.step_thresholds)):
            require(values is None or len(values) > 0, key, "null, or one number or more", values)
        times, thresholds = self.jumps
        # A set, so that two jumps at one time are refused.
        require(sorted(set(times)) == list(times), "step_epochs", "rising numbers", self.step_epochs)
        # start_threshold holds before the first jump, and no jump goes above end_threshold.
        levels = [self.start_threshold, *thresholds, self.end_threshold]
        accepted = f"numbers in [start_threshold ({self.start_threshold}), end_threshold], none below the one before"
        require(levels == sorted(levels), "step_thresholds", accepted, self.step_thresholds)
        accepted = f"{len(times)} numbers, as many as step_epochs has"
        require(len(times) == len(thresholds), "step_thresholds", accepted, self.step_thresholds)

    def _check_given_once(self) -> None:
        """A key of the section that the strategy has too may stand in `settings` instead, not with another value."""
        for name in BOTH:
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            other = self.settings.get(name, value)
            # The default cannot be told from a key that was not given, so it contradicts nothing.
            require(value in (default, other), f"settings.{name}", f"{value}, as {name} beside it", other)


def gather_settings(section: Mapping[Any, Any], base: CurriculumConfig, where: str = "") -> Mapping[Any, Any]:
    """The section with its strategy's settings, which may stand beside the other keys, moved under "settings".

    What the section leaves out is taken from `base`: the strategy, and the settings, to which those that stand beside
    the other keys are added. `where` precedes the keys in messages.

    Raises:
        ValueError: a strategy or key that does not exist, a setting of another strategy, or one that is given twice
            with different values.
    """
    strategy = section.get("strategy", base.strategy)
    strategy = strategy.lower() if isinstance(strategy, str) else strategy
    # the settings of another strategy than before are others
    settings = section.get("settings", base.settings if strategy == base.strategy else {})
    require_kind(strategy, StrategyName, f"{where}strategy")
    require(isinstance(settings, Mapping), f"{where}settings", "keys and values", settings)
    own = keys_of(CurriculumConfig)
    check_keys(section, list(dict.fromkeys([*own, *KEYS[strategy]])), where, OWNERS)
    beside = {key: value for key, value in section.items() if key not in own}
    for key in beside.keys() & section.get("settings", {}).keys():
        require(settings[key] == beside[key], f"{where}{key}", f"{shown(settings[key])}, as in settings", beside[key])
    return {key: section[key] for key in section if key in own} | {"settings": {**settings, **beside}}


def read_settings(strategy: str, config: Mapping[str, Any] | None) -> Any:
    """The settings of a strategy from a plain dict; ValueError names the key, the value and what is accepted."""
    try:
        settings = updated(SETTINGS[strategy](), {} if config is None else config, owners=OWNERS)
        settings.require_read()
        return settings
    except ValueError as error:
        raise ValueError(f"{strategy}: {error}") from None
