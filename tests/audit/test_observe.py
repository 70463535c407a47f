"""Claims about `observe`: what weights do not show is seen, without changing the loop."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lm.audit import observe, spec

LOGITS = slice(0, -1)


class Plain:
    """A right loop of SGD, as a class whose steps can be replaced."""

    def __call__(self, model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=settings.schedule(0))
        losses = []
        for epoch in self.order(epochs):
            for start in range(0, len(epoch), settings.accumulation_steps):
                self.step(model, epoch[start : start + settings.accumulation_steps])
            losses.append(self.validate(model, settings.validation))
        return {"validation_losses": losses}

    def order(self, epochs: Any) -> Any:
        return epochs

    def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])[:, :-1]
        return nn.functional.cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], reduction="sum")

    def step(self, model: nn.Module, window: Any) -> None:
        for batch in window:
            self.loss(model, batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def validate(self, model: nn.Module, batches: Any) -> float:
        model.eval()
        loss = sum(self.loss(model, batch).item() for batch in batches)
        model.train()
        return loss


def test_a_right_loop_does_nothing_odd():
    report = observe(Plain())
    assert report.findings == [] and report.train_modes == {"train": 12} and report.validation_modes == {"eval": 6}
    assert report.forwards_per_step == (2, 2) and report.autocast == ()
    assert str(report).startswith("nothing that a right loop would not do")


def test_rows_never_seen_and_seen_twice_are_counted():
    class Repeats(Plain):
        def order(self, epochs: Any) -> Any:
            return [[epoch[0], *epoch[:-1]] for epoch in epochs]

    report = observe(Repeats())
    assert report.never_seen == report.seen_twice == 6


def test_an_order_that_never_changes_is_seen():
    class Same(Plain):
        def order(self, epochs: Any) -> Any:
            return [epochs[0] for _ in epochs]

    assert observe(Same()).same_order and not observe(Plain()).same_order


def test_training_on_validation_rows_is_seen():
    class Leaks(Plain):
        def validate(self, model: nn.Module, batches: Any) -> float:
            self.step(model, batches)
            return 0.0

    assert observe(Leaks()).validation_trained_on == 12


def test_modes_and_gradients_of_validation_are_seen():
    class Careless(Plain):
        def validate(self, model: nn.Module, batches: Any) -> float:
            model.eval()
            return sum(self.loss(model, batch).item() for batch in batches)

        validate = torch.enable_grad()(validate)

    report = observe(Careless())
    assert report.train_modes == {"train": 4, "eval": 8} and report.validation_with_gradients == 6


def test_the_type_of_autocast_is_seen():
    class Autocast(Plain):
        def loss(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().loss(model, batch)

    assert observe(Autocast(), precision="bf16").autocast == ("bfloat16",)


def test_a_loop_that_raises_is_reported_with_what_was_seen():
    class Fails(Plain):
        def validate(self, model: nn.Module, batches: Any) -> float:
            raise KeyError("validation")

    report = observe(Fails())
    assert report.trouble is not None and "KeyError" in report.findings[0] and report.train_modes == {"train": 4}


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision must be one of"):
        observe(Plain(), precision="fp8")
