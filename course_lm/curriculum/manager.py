"""A curriculum over a whole run: which examples each epoch admits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from course_lm.batching import epoch_generator
from course_lm.curriculum.difficulty import DynamicCurriculum, Example, create_curriculum_strategy, texts_of
from course_lm.curriculum.pacing import FeedbackThreshold, build_pacing
from course_lm.curriculum.settings import CurriculumConfig, gather_settings
from course_lm.validation import require, updated


class CurriculumTrainingManager:
    """Joins a strategy, which scores examples, with a schedule, which says up to which score they are admitted.

    Args:
        strategy_type, schedule_type: see `CurriculumConfig`.
        config: its other keys. Settings of the strategy stand under "settings", or beside the others.
        seed: of the order in which `prepare_epoch` shuffles.

    Raises:
        ValueError: an unknown name or key, or a value out of range.
    """

    def __init__(
        self,
        strategy_type: str = "combined",
        schedule_type: str = "linear",
        config: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        config = {} if config is None else config
        require(isinstance(config, Mapping), "config", "keys and values", config)
        section = {**config, "strategy": strategy_type, "schedule": schedule_type}
        default = CurriculumConfig()
        self.config = updated(default, gather_settings(section, default))
        self.config.require_read()
        self.seed = seed
        self.strategy = create_curriculum_strategy(self.config.strategy, self.config.strategy_settings)
        # For "performance" only an upper bound: the listener below holds the threshold.
        self._pacing = build_pacing(self.config)
        self._listeners: dict[str, FeedbackThreshold] = {}
        if self.config.schedule == "performance":
            self._listeners["schedule"] = FeedbackThreshold(
                low=self.config.start_threshold,
                high=self.config.end_threshold,
                rate=self.config.adaptation_rate,
                window=self.config.performance_window,
            )
        if isinstance(self.strategy, DynamicCurriculum):
            self._listeners["strategy"] = self.strategy.feedback  # the strategy's own, so that its threshold moves too
        self._scored: tuple[list[str], Tensor] = ([], torch.empty(0, dtype=torch.float64))  # texts and difficulties

    @property
    def listens(self) -> bool:
        """Whether the threshold depends on the validation loss, so that nobody knows it beforehand."""
        return bool(self._listeners)

    @property
    def hears_nothing(self) -> bool:
        """Whether the threshold waits for a validation loss, and none was reported yet."""
        return self.listens and not any(listener.losses for listener in self._listeners.values())

    def report_performance(self, val_loss: float) -> None:
        """Take the loss of one validation, nats per token; it counts from the next epoch on."""
        for listener in self._listeners.values():
            listener.report(val_loss)

    def threshold(self, time: float) -> float:
        """What is admitted after `time` epochs, or steps: the least of the schedule's and the listeners'."""
        return min(self._pacing(time), *(listener.threshold for listener in self._listeners.values()), 1.0)

    def start_of_epoch(self, epoch: int, steps_at: Callable[[float], int], starts: list[int]) -> int:
        """The time at which an epoch begins: its number, or the optimizer steps of all epochs before it.

        `steps_at(threshold)` is the number of optimizer steps of an epoch with that threshold. `starts` are those of
        the first epochs, [0] at first; what is found is added, so that each is counted once.
        """
        if self.config.num_steps is None:
            return epoch
        while len(starts) <= epoch:
            # An epoch's length follows from its threshold, and that from the lengths of all epochs before it.
            starts.append(starts[-1] + steps_at(self.threshold(starts[-1])))
        return starts[epoch]

    def difficulty(self, examples: Sequence[Example]) -> Tensor:
        """The difficulties (N,) that thresholds are compared with: scores, or for `threshold_on: quantile` their ranks.

        The rank of a score is the share of the examples whose score is not higher. The same examples are scored once.
        """
        texts = texts_of(examples)
        if texts != self._scored[0]:
            scores = torch.tensor(self.strategy.compute_difficulty(texts), dtype=torch.float64)
            if self.config.threshold_on == "quantile":
                scores = torch.searchsorted(scores.sort().values, scores, right=True) / len(scores)  # float32
            self._scored = texts, scores
        return self._scored[1]

    def prepare_epoch(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        epoch: int,
        examples: Sequence[Example],
        shuffle: bool = True,
    ) -> DataLoader[Any]:
        """A DataLoader over the items that an epoch admits, for datasets of any kind; at least one batch, always.

        `dataset[i]` is what the model gets of `examples[i]`. The order is a pure function of (seed, epoch).
        Raises ValueError where the two do not hold equally many. For text, `CurriculumLoader` does more.
        """
        if len(dataset) != len(examples):  # type: ignore[arg-type]
            raise ValueError(
                f"dataset and examples must be equally many, got {len(dataset)} and {len(examples)}"  # type: ignore[arg-type]
            )
        difficulty = self.difficulty(examples)
        easiest = difficulty.argsort(stable=True)  # equally hard examples join in their own order

        def admitted(threshold: float) -> int:
            # A batch at least, whatever the threshold: an epoch without a step would train nothing.
            return min(len(easiest), max(batch_size, int((difficulty <= threshold).sum())))

        time = self.start_of_epoch(epoch, lambda threshold: -(-admitted(threshold) // batch_size), [0])
        # In the dataset's order again: to shuffle or not is the DataLoader's business.
        chosen = easiest[: admitted(self.threshold(time))].sort().values
        generator = epoch_generator(self.seed, epoch)
        return DataLoader(Subset(dataset, chosen.tolist()), batch_size, shuffle=shuffle, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        """The thresholds that follow the validation loss, and the losses that they are compared with."""
        return {name: listener.state_dict() for name, listener in self._listeners.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        for name, listener in self._listeners.items():
            listener.load_state_dict(state[name])
