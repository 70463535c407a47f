"""Hugging Face's Trainer with a causal language model, as the package's own adapter drives it.

`TrainingArguments` has its defaults but for what a run decides: optimizer, rate, decay, accumulation, clipping and an
evaluation after each epoch. The loss is that of the library's causal models, which counts the targets of a step. In the
first line the model's `loss_type` is "ForCausalLM", as that of Llama is, in the second it is None, as that of GPT-2. In
the third the data are an `IterableDataset`, which has no length. A count of too many labels changes a step of one row,
and so the first run.

A run that stops is given a callback that saves a checkpoint and stops at that step; `resume_from_checkpoint` goes on.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from benchmarks.conformance.resume import InEpoch
from course_lm.audit import huggingface
from course_lm.audit.adapters.hugging_face import CausalLM, _arguments
from course_lm.audit.adapters.parts import UNSCALED, Batch, build_optimizer, build_rates, silence
from course_lm.audit.spec import Batches, Settings

PACKAGE = "transformers"
NOT_OFFERED: dict[str, str] = {}
NOT_TRIED = {"C12": "the best weights are a checkpoint's, which this adapter does not write"}


class Unlisted(transformers.Trainer):
    """The Trainer of a model with the class attributes of GPT-2."""

    def __init__(self, model: nn.Module, *arguments: Any, **named: Any) -> None:
        model.loss_type = None  # pyrefly: ignore[bad-argument-type]
        super().__init__(model, *arguments, **named)  # pyrefly: ignore[bad-argument-type]


class Stop(transformers.TrainerCallback):
    """Save a checkpoint and stop after so many steps."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        control.should_save = control.should_training_stop = state.global_step == self.step


class InOrder(transformers.Trainer):
    """The Trainer with a sampler that knows its epoch."""

    def _get_train_sampler(self, *_: Any) -> Any:  # pyrefly: ignore[bad-override]
        return InEpoch(self.train_dataset.epochs)  # pyrefly: ignore[missing-attribute]


class Items(list[Batch]):
    """The batches of all epochs."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        super().__init__(batch for batches in epochs for batch in batches)
        self.epochs = epochs


def resumed(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, folder: Path, stop_after: int | None
) -> Mapping[str, Any]:
    """Train from the checkpoint in the folder; stop after so many steps."""
    chosen = _arguments(settings, str(folder), len(epochs), -1) | {"eval_strategy": "no"}
    with silence("transformers", "accelerate"):
        wrapped = CausalLM(model)
        trainer = InOrder(
            model=wrapped,  # pyrefly: ignore[bad-argument-type]
            args=transformers.TrainingArguments(**chosen),
            data_collator=itemgetter(0),
            train_dataset=Items(epochs),  # pyrefly: ignore[bad-argument-type]
            callbacks=[Stop(stop_after)],
            optimizers=(build_optimizer(wrapped, settings) if settings.optimizer == "adam" else None, None),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.lr_scheduler = build_rates(trainer.create_optimizer(), settings)
        trainer.train(resume_from_checkpoint=any(folder.iterdir()))
    return {"ignores": {*UNSCALED, "validation"}}


GPT2 = "GPT-2's `loss_type`"
MEANT = {GPT2: {"C1": "C3"}}
LLAMA = "a model with the `loss_type` of Llama"
LOOPS = {
    LLAMA: huggingface(),
    GPT2: huggingface(Unlisted),
    "a model with the `loss_type` of Llama, an `IterableDataset`": huggingface(streaming=True),
}
RESUMES = {LLAMA: resumed}
