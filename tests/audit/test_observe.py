"""Claims about `observe`: what weights do not show is seen, without changing the loop."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from course_lm.audit import observe
from course_lm.audit.spec import Batches

from .loops.plain import Plain


def test_a_right_loop_does_nothing_odd():
    report = observe(Plain.loop)
    assert report.findings == [] and report.train_modes == {"train": 12} and report.validation_modes == {"eval": 6}
    assert report.forwards_per_step == (2, 2) and report.autocast == ()
    assert str(report).startswith("nothing that a right loop would not do")


def test_rows_never_seen_and_seen_twice_are_counted():
    class Repeats(Plain):
        def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
            return super().train([[epoch[0], *epoch[:-1]] for epoch in epochs])

    report = observe(Repeats.loop)
    assert report.never_seen == report.seen_twice == 6


def test_an_order_that_never_changes_is_seen():
    class Same(Plain):
        def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
            return super().train([epochs[0] for _ in epochs])

    assert observe(Same.loop).same_order and not observe(Plain.loop).same_order


def test_training_on_validation_rows_is_seen():
    class Leaks(Plain):
        def validate(self) -> None:
            self.run_window(self.settings.validation)

    assert observe(Leaks.loop).validation_trained_on == 12


def test_modes_and_gradients_of_validation_are_seen():
    class Careless(Plain):
        def validate(self) -> None:
            self.model.eval()
            self.losses.append(sum(self.loss_sum(batch).item() for batch in self.settings.validation))

    report = observe(Careless.loop)
    assert report.train_modes == {"train": 4, "eval": 8} and report.validation_with_gradients == 6


def test_the_type_of_autocast_is_seen():
    class Autocast(Plain):
        def logits(self, batch: Mapping[str, Any]) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().logits(batch)

    assert observe(Autocast.loop, precision="bf16").autocast == ("bfloat16",)


def test_a_loop_that_raises_is_reported_with_what_was_seen():
    class Fails(Plain):
        def validate(self) -> None:
            raise KeyError("validation")

    report = observe(Fails.loop)
    assert report.trouble is not None and "KeyError" in report.findings[0] and report.train_modes == {"train": 4}


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be one of"):
        observe(Plain.loop, precision="fp8")
