"""Ignite's `create_supervised_trainer` with `gradient_accumulation_steps`, and its evaluator with the metric `Loss`.

The loss is the mean over a batch's targets, the optimizer torch's own. The rate moves at the iterations that step, with
`Events.ITERATION_COMPLETED(every=gradient_accumulation_steps)`. In the first line the metric has its default, which
weighs a batch by its rows; in the second its argument `batch_size` counts targets. The trainer has no clipping. One
`run` makes all epochs; each reads its own batches. A run that is to be refused has `TerminateOnNan`.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch.nn.functional as F
from ignite.engine import (  # pyrefly: ignore[missing-import]
    Events,
    create_supervised_evaluator,
    create_supervised_trainer,
)
from ignite.handlers import TerminateOnNan  # pyrefly: ignore[missing-import]
from ignite.metrics import Loss  # pyrefly: ignore[missing-import]
from torch import Tensor, nn

from course_lm.audit.adapters.parts import Batch, Loop, build_optimizer, build_rates, logits_for
from course_lm.audit.runs import count_targets
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
PACKAGE = "pytorch-ignite"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C6": "the trainer does not clip", "C8": USERS, "C9": USERS}
IGNORES = {"max_grad_norm", "loss_scale", "overflow_steps"}


def driven(targets_of: Callable[[Tensor], int]) -> Loop:
    """A loop whose validation losses weigh by `targets_of` a batch's labels (B, T)."""

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        optimizer = build_optimizer(model, settings)
        rates = build_rates(optimizer, settings)
        size = settings.accumulation_steps
        trainer = create_supervised_trainer(
            model, optimizer, shifted_loss, prepare_batch=inputs_and_labels, model_fn=logits_for,
            gradient_accumulation_steps=size,
        )  # fmt: skip
        evaluator = create_supervised_evaluator(model, prepare_batch=inputs_and_labels, model_fn=logits_for)
        Loss(shifted_loss, batch_size=targets_of).attach(evaluator, "loss")
        losses: list[float] = []
        best: dict[str, Tensor] | None = None
        validation = [batch for batch in settings.validation if count_targets(batch)]

        @trainer.on(Events.ITERATION_COMPLETED(every=size))
        def move_the_rate() -> None:
            rates.step()

        @trainer.on(Events.EPOCH_STARTED)
        def give_batches() -> None:
            batches = list(epochs[trainer.state.epoch - 1])
            trainer.state.epoch_length = len(batches)
            trainer.set_data(batches)

        @trainer.on(Events.EPOCH_COMPLETED)
        def validate() -> None:
            nonlocal best
            trainer.state.epoch_length = None  # the next epoch's may be another one
            if validation:
                losses.append(evaluator.run(validation).metrics["loss"])
                best = deepcopy(model.state_dict()) if losses[-1] == min(losses) else best

        if settings.on_nonfinite == "raise":
            trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
        trainer.run(list(epochs[0]), max_epochs=len(epochs))
        return {"validation_losses": losses or None, "best_weights": best, "ignores": IGNORES}

    return loop


def inputs_and_labels(batch: Batch, device: Any = None, non_blocking: bool = False) -> tuple[Batch, Tensor]:
    """The pair that ignite calls x and y: the whole batch, and its labels (B, T)."""
    return batch, batch["labels"]


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the targets, in nats, of logits (B, T, V) and labels (B, T)."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


LOOPS = {
    "": driven(len),
    "`Loss(batch_size=…)` counts targets": driven(lambda labels: count_targets({"labels": labels})),
}
