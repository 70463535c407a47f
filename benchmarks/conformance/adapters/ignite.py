"""Ignite's `create_supervised_trainer` with `gradient_accumulation_steps`, and its evaluator with the metric `Loss`.

The loss is the mean over a batch's targets, the optimizer torch's own. The rate moves at the iterations that step, with
`Events.ITERATION_COMPLETED(every=gradient_accumulation_steps)`. In the first line the metric has its default, which
weighs a batch by its rows; in the second its argument `batch_size` counts targets. The trainer has no clipping. One
`run` makes all epochs; each reads its own batches. A run that is to be refused has `TerminateOnNan`.

A run that stops saves trainer, model, optimizer and rates by `Checkpoint`; `Checkpoint.load_objects` goes on. In the
second line the trainer is then made with `deterministic=True`, and each call sets one seed, as that engine asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ignite.engine import (  # pyrefly: ignore[missing-import]
    Events,
    create_supervised_evaluator,
    create_supervised_trainer,
)
from ignite.handlers import Checkpoint, DiskSaver, TerminateOnNan  # pyrefly: ignore[missing-import]
from ignite.metrics import Loss  # pyrefly: ignore[missing-import]
from torch import Tensor, nn

from benchmarks.conformance.resume import Resumed, loader_of
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


def resumes(*, deterministic: bool) -> Resumed:
    """A loop that goes on from the checkpoint in its folder."""

    def resumed(
        model: nn.Module, epochs: Sequence[Batches], settings: Settings, folder: Path, stop_after: int | None
    ) -> Mapping[str, Any]:
        if deterministic:
            torch.manual_seed(0)
        optimizer, size = build_optimizer(model, settings), settings.accumulation_steps
        rates, loader = build_rates(optimizer, settings), loader_of(epochs)
        sampler = loader.sampler
        trainer = create_supervised_trainer(
            model, optimizer, shifted_loss, prepare_batch=inputs_and_labels, model_fn=logits_for,
            gradient_accumulation_steps=size, deterministic=deterministic,
        )  # fmt: skip
        kept = {"trainer": trainer, "model": model, "optimizer": optimizer, "rates": rates}
        saved = next(folder.glob("*.pt"), None)
        if saved:
            Checkpoint.load_objects(to_load=kept, checkpoint=torch.load(saved, weights_only=False))

        @trainer.on(Events.EPOCH_STARTED)
        def set_epoch() -> None:
            sampler.set_epoch(trainer.state.epoch - 1)

        @trainer.on(Events.ITERATION_COMPLETED(every=size))
        def move_the_rate() -> None:
            rates.step()

        if stop_after is not None:
            stop = Events.ITERATION_COMPLETED(once=stop_after * size)
            trainer.add_event_handler(stop, Checkpoint(kept, DiskSaver(str(folder), require_empty=False)))
            trainer.add_event_handler(stop, trainer.terminate)
        if trainer.state.iteration < len(epochs) * len(loader):
            trainer.run(loader, max_epochs=len(epochs))
        return {"ignores": {*IGNORES, "validation"}}

    return resumed


COUNTS = "`Loss(batch_size=…)` counts targets, `deterministic=True`"
LOOPS = {"": driven(len), COUNTS: driven(lambda labels: count_targets({"labels": labels}))}
RESUMES = {"": resumes(deterministic=False), COUNTS: resumes(deterministic=True)}
