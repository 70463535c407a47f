"""The curve atlas: how this course's model learns the stories when all is well, and under six common illnesses.

Its curves are those of `data/curve_atlas.json`, several seeds each, of one model, text, vocabulary and schedule;
`plots.compare_with_atlas` draws a run over them. What they mean for a run of another kind is for the reader to judge.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from course_lm.corpus.shipped import data_file

Run = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Atlas:
    """Reference runs by name, a list of seeds each.

    Attributes:
        floor: of the validation text, nats per token.
        log_every, eval_every: optimizer steps between two values of a curve.
        runs: "loss" (the mean since the last log point) and "val_loss" in nats per token, "grad_norm" before clipping,
            and "update_ratio", the median over the weight matrices.
    """

    floor: float
    log_every: int
    eval_every: int
    runs: Mapping[str, Sequence[Run]]

    def steps(self, curve: str, run: Run) -> list[int]:
        """The completed optimizer steps at which the values of a curve of `run` were measured."""
        every = self.eval_every if curve == "val_loss" else self.log_every
        return [every * number for number in range(1, len(run[curve]) + 1)]

    def band(self, name: str, curve: str) -> tuple[list[int], list[float], list[float]]:
        """Steps, and the lowest and the highest value of a curve over the runs of that name."""
        runs = self.runs[name]
        columns = list(zip(*(run[curve] for run in runs)))
        return self.steps(curve, runs[0]), [min(column) for column in columns], [max(column) for column in columns]


@lru_cache(maxsize=1)
def load_atlas() -> Atlas:
    """The atlas that ships with the course."""
    return Atlas(**json.loads(data_file("curve_atlas.json").read_text(encoding="utf-8")))
